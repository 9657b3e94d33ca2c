"""Threads that talk to Spark. Each thread keeps one connection to the JVM, with its own local
properties, and gives the connection back when the thread ends.

Runs on: driver.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from pyspark import InheritableThread


def start(work: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that does ``work`` and ends. The thread does not keep the process alive.

    :raises OSError: the thread has no connection to the JVM, because no descriptor is left.
        Otherwise the thread would end without a word, and its caller would wait without end.
    """
    thread = _Connected(work, name)
    thread.start()
    thread.began.wait()
    if thread.failure is not None:
        thread.join()
        raise OSError(
            f"the thread {name} has no connection to Spark: {thread.failure}"
        ) from thread.failure
    return thread


class _Connected(InheritableThread):  # type: ignore[misc]
    """A thread that says, before its work, whether it has begun or failed."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self.began = threading.Event()
        self.failure: BaseException | None = None

        def begin() -> None:
            self.began.set()
            work()

        super().__init__(target=begin, name=name, daemon=True)

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            if self.began.is_set():
                raise
            self.failure = error
            self.began.set()


class WorkThreads:
    """``count`` threads that run functions, first come, first served. ``failed`` gets a function's
    error, on the function's thread."""

    def __init__(self, name: str, count: int, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        try:
            for number in range(count):
                self._threads.append(start(self._run, f"txtopo-{name}-{number}"))
        except BaseException:
            self.close(0.0)
            raise

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def close(self, timeout_s: float) -> bool:
        """Let the threads finish their functions and end. Returns whether they ended within
        ``timeout_s``."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:
                self._failed(error)
