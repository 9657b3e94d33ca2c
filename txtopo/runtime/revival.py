"""Starts the embedded ZooKeeper of a run again when it has ended, as often as that takes.

Apart from ``run`` because a server that cannot be started now, on a full disk for example, is no
reason to end the run: the run waits for it as for any ZooKeeper that is away
(``zookeeper_wait_s``). Meanwhile the status says why the server does not start; so does the error
that ends the run.

Runs on: driver.
"""

from __future__ import annotations

from collections.abc import Callable

from txtopo import errors
from txtopo.engine.status import StatusBoard
from txtopo.state import retry


class Revival:
    """Calls ``revive`` when it is called itself; ``board`` says why that did not succeed, while it
    does not."""

    def __init__(self, revive: Callable[[], None], board: StatusBoard) -> None:
        self._revive, self._board = revive, board
        self._why: errors.ZooKeeperUnavailableError | None = None

    def __call__(self) -> None:
        """Revive what has ended. A ZooKeeper that cannot be started now is no error: it is away."""
        try:
            self._revive()
        except errors.ZooKeeperUnavailableError as error:
            if str(error) != str(self._why):
                self._board.failed(str(error), None)
            self._why = error
            return
        if self._why is not None and self._board.snapshot().last_error == str(self._why):
            self._board.update(is_error_over=True)
        self._why = None

    def explained(self, error: BaseException) -> BaseException:
        """``error``, or why our ZooKeeper was away, if it ends the run that ZooKeeper was away for
        too long."""
        if self._why is None or not isinstance(error, errors.ZooKeeperUnavailableError) or isinstance(error, retry.AbandonedError):
            return error
        self._why.__cause__ = error
        return self._why


__all__ = ["Revival"]
