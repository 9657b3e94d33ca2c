"""Exports a queue in a thread of the driver, beside a run.

Runs on: driver.

Invariants: the run's end waits for all threads together, which begin no call of ``export`` after
:data:`END_S`, for twice as long, and a killed run for :data:`KILLED_S`. What is overdue then is the
export's error, and never the run's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from txtopo import errors
from txtopo.engine import observer
from txtopo.exports.exporting import Exporting
from txtopo.runtime.visibility import Visibility
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
    call that is under way then has another 30 seconds. What is left waits for the next exporter.
    """

    def __init__(self, exporting: Exporting, visibility: SharedVisibility, queue_id: str) -> None:
        if id(exporting.exporter) in _at_work:
            raise errors.UsageError(
                f"{exporting.exporter!r} exports another queue, or this queue in another thread\n  Give each run.export an exporter of its own."
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
        deadline = time.monotonic() + timeout_s
        while True:
            if self._error is not None:
                raise self._error
            is_alive = self._thread.is_alive()
            try:
                if self._exporting.is_empty():
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
                    f"export queue {self._queue_id!r} is not empty after {timeout_s:g} s\n  Look with `txtopo export show`."
                )
            time.sleep(EMPTY_POLL_S)

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the export, after the call of ``export`` that is under way. Another exporter may go
        on."""
        self.request_stop()
        self._join(timeout_s)

    def request_stop(self) -> None:
        """See :meth:`stop`. Returns at once."""
        self._stop.set()
        self._wake.set()

    def finish(self, timeout_s: float) -> None:
        """Wait for the end, because the run has ended."""
        try:
            self._join(timeout_s)
        except TimeoutError as error:
            self._error = error
            observer.LOGGER.error("%s. Its entries are told again.", error)

    def _join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(
                f"the exporter of queue {self._queue_id!r} did not return within {timeout_s:g} s"
            )

    def _run(self) -> None:
        try:
            self._exporting.run(self._stop.is_set, self._wake, self._ends, END_S)
        except BaseException as error:
            self._error = error
            observer.LOGGER.error("the export of queue %r has ended: %s", self._queue_id, error)
        finally:
            _at_work.discard(id(self._exporting.exporter))
            self._visibility.close()


def finish_all(exports: Sequence[Export], at_once: bool) -> None:
    """Wait for the end of all ``exports`` of a run that has ended, for twice :data:`END_S` together.
    ``at_once``: leave the entries that wait, because the run was killed."""
    deadline = time.monotonic() + (KILLED_S if at_once else 2 * END_S)
    for export in exports:
        if at_once:
            export.request_stop()
    for export in exports:
        export.finish(max(deadline - time.monotonic(), 0.0))
