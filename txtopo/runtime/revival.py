"""Restarts an embedded ZooKeeper that has ended, until a restart succeeds.

A server that cannot be started now, on a full disk for example, is no reason to end the run. The
run waits for the server as for any ZooKeeper that is away (``zookeeper_wait_s``). Meanwhile the
status gives the reason why the restart failed, as does the error that ends the run.

Runs on: driver.
"""

from __future__ import annotations

from collections.abc import Callable

from txtopo import errors
from txtopo.engine.logged import LogLines
from txtopo.engine.status import StatusBoard
from txtopo.state import retry


class Revival:
    """Calls ``revive``. While ``revive`` fails, ``board`` has the reason, and ``log_lines`` have
    said so."""

    def __init__(self, revive: Callable[[], None], board: StatusBoard, log_lines: LogLines) -> None:
        self._revive, self._board, self._log_lines = revive, board, log_lines
        self._why: errors.ZooKeeperUnavailableError | None = None

    def __call__(self) -> None:
        """Revive a ZooKeeper that has ended. If it cannot be started now, that is no error: it is
        away."""
        try:
            self._revive()
        except errors.ZooKeeperUnavailableError as error:
            if str(error) != str(self._why):
                self._board.failed(str(error), None)
                self._log_lines.away(error)
            self._why = error
            return
        if self._why is not None and self._board.snapshot().last_error == str(self._why):
            self._board.update(is_error_over=True)
        self._why = None

    def explained(self, error: BaseException) -> BaseException:
        """``error``, or the reason why our ZooKeeper was away, if ``error`` ends the run because
        ZooKeeper was away for too long."""
        if (
            self._why is None
            or not isinstance(error, errors.ZooKeeperUnavailableError)
            or isinstance(error, retry.AbandonedError)
        ):
            return error
        self._why.__cause__ = error
        return self._why
