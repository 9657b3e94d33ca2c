"""Threads that talk to Spark. Each keeps one connection to the JVM, with its own local properties,
and gives it back when it ends.

Runs on: driver.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from pyspark import InheritableThread


def start(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread of that name that does ``work`` and ends; it does not keep the process alive."""
    thread: threading.Thread = InheritableThread(target=work, name=name, daemon=True)
    thread.start()
    return thread


class WorkThreads:
    """``count`` threads that run functions in order of arrival. A function must not raise."""

    def __init__(self, name: str, count: int) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [start(self._run, f"txtopo-{name}-{i}") for i in range(count)]

    def submit(self, work: Callable[[], None]) -> None:
        """Do ``work`` as soon as a thread is free."""
        self._work.put(work)

    def close(self, timeout_s: float) -> bool:
        """Let the threads end after the functions they have; whether they ended within
        ``timeout_s``."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
