"""Exports a queue in a thread of the driver, beside a run.

Runs on: driver.

Invariants: the run's end waits for all threads together, which begin no call of ``export`` after
:data:`END_S`, for twice as long, and a killed run for :data:`KILLED_S`. A thread that is overdue then
is the export's error, and never the run's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from txtopo import errors
from txtopo.engine import observer
from txtopo.exports.exporting import Exporting
from txtopo.runtime.visibility import Visibility
from txtopo.stores import direct
from txtopo.stores.visible import VisibleTxid

EMPTY_POLL_S = 0.02
"""Pause between two looks whether a queue is empty."""

END_S = 30.0
"""How long entries that are left when the run ends are still exported, in seconds."""

KILLED_S = 10.0
"""How long a killed run waits for calls under way. Its own end is waited for three times as long."""


_at_work: set[int] = set()
"""The identities of the exporters that threads of this process call. A connection serves one."""


class SharedVisibility:
    """The visible transaction, for several threads."""

    def __init__(self, visibility: Visibility) -> None:
        self._visibility, self._turn = visibility, threading.Lock()

    def txid(self) -> VisibleTxid:
        """See :meth:`Visibility.txid`. A topology that has not begun is waited for."""
        with self._turn:
            try:
                return self._visibility.txid()
            except errors.UsageError as error:
                raise errors.FailedException(str(error)) from error

    def close(self) -> None:
        with self._turn:
            self._visibility.close()


class Export(observer.Observer):
    """A queue's export beside a run. Made by ``run.export``.

    When the run ends, entries that are recorded then are still exported, for 30 seconds at most. A
    call that is under way then has another 30 seconds. Entries that are left wait for the next
    exporter.
    """

    def __init__(self, exporting: Exporting, visibility: SharedVisibility, queue_id: str) -> None:
        if id(exporting.exporter) in _at_work:
            raise errors.UsageError(
                f"{exporting.exporter!r} exports another queue, or for another run\n  Give each run.export an exporter of its own."
            )
        _at_work.add(id(exporting.exporter))
        self._exporting, self._visibility, self._queue_id = exporting, visibility, queue_id
        self._stop, self._wake, self._ends = (threading.Event() for _ in range(3))
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"txtopo-export-{queue_id}", daemon=True
        )
        self._thread.start()

    @property
    def error(self) -> BaseException | None:
        """The error that ended the export. The run goes on without it."""
        return self._error

    def committed(self, ended: observer.EndedAttempt) -> None:
        self._wake.set()

    def ended(self, error: BaseException | None) -> None:
        self._ends.set()
        self._wake.set()

    def wait_until_empty(self, timeout_s: float = 60.0) -> None:
        """Wait until all entries of transactions that are recorded have been exported, apart from
        buckets that have stopped until a person acts.

        :raises TimeoutError: entries are left after ``timeout_s`` seconds.
        """
        with self._exporting.open_rows() as rows:
            self._wait_until_empty(rows, timeout_s)

    def _wait_until_empty(self, rows: direct.Direct, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            if self._error is not None:
                raise self._error
            is_alive = self._thread.is_alive()
            try:
                if self._exporting.is_empty(rows):
                    return
            except (errors.FailedException, errors.ZooKeeperUnavailableError):
                pass  # asked again
            finally:
                if not is_alive:
                    self._visibility.close()
            if not is_alive:
                raise errors.TxtopoError(f"the export of queue {self._queue_id!r} has ended")
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"export queue {self._queue_id!r} is not empty after {timeout_s:g} s\n  Look with `txtopo export show MODULE:queue`."
                )
            time.sleep(EMPTY_POLL_S)

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the export, after the call of ``export`` that is under way. Another exporter may go
        on."""
        self.request_stop()
        if not self.wait(timeout_s):
            raise TimeoutError(
                f"the exporter of queue {self._queue_id!r} did not return within {timeout_s:g} s"
            )

    def request_stop(self) -> None:
        """See :meth:`stop`. Returns at once."""
        self._stop.set()
        self._wake.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Wait no longer, because the run has ended long ago."""
        self._error = TimeoutError(f"the exporter of queue {self._queue_id!r} does not return")
        observer.LOGGER.error("%s. Its entries are told again.", self._error)

    def _run(self) -> None:
        try:
            self._exporting.run(self._stop.is_set, self._wake, self._ends, END_S)
        except BaseException as error:
            self._error = error
            observer.LOGGER.error("the export of queue %r has ended: %s", self._queue_id, error)
        finally:
            _at_work.discard(id(self._exporting.exporter))
            self._visibility.close()


def finish_all(exports: Sequence[Export], is_killed: Callable[[], bool]) -> None:
    """Wait for the end of all ``exports`` of a run that has ended, for twice :data:`END_S` together.
    Once the run ``is_killed``, also meanwhile, entries that wait are left."""
    left, deadline, at_once = list(exports), time.monotonic() + 2 * END_S, False
    while left and time.monotonic() < deadline:
        if is_killed() and not at_once:
            at_once, deadline = True, min(deadline, time.monotonic() + KILLED_S)
            for export in exports:
                export.request_stop()
        left = [export for export in left if not export.wait(EMPTY_POLL_S)]
    for export in left:
        if not export.wait(0.0):
            export.give_up()
