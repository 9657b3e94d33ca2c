"""Worker processes of a store's own, as far as the store can tell, in threads of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.patience import PATIENCE_S
from txtopo.testing.contracts.worker_process import WorkerProcess


class Worker:
    """A worker process of its own, as far as a store can tell: with its own connection. ``start``
    runs in a thread."""

    def __init__(self) -> None:
        self.process = WorkerProcess()
        self.outcome: Any = None
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.outcome = work()
            except Exception as error:
                self.outcome = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ended(self) -> Any:
        """The result or exception of the work."""
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it still waits"
        return self.outcome
