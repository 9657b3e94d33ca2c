"""The surroundings of an engine: time, threads, and the queue of its loop. The simulator brings its
own.

Runs on: driver. Apart from ``engine`` so that all the engine decides is decided by the same code in
a simulation, where time is virtual, nothing runs by itself, and the process may die at every named
fault point.

Invariants: actions are given out one at a time, those that are due first, then those posted, in the
order they were posted.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Protocol

from txtopo.faults import FaultPoint

Action = Callable[[], None]


class Threads(Protocol):
    """A group of threads that run the calls given to them, in order of arrival. A call that raises
    ends no thread."""

    def submit(self, work: Action) -> None:
        """Do ``work`` as soon as a thread is free."""

    def close(self, timeout_s: float) -> bool:
        """Let the threads end after their queued calls; whether they did within ``timeout_s``."""


class Clock(Protocol):
    """Time that passes."""

    def now(self) -> float:
        """The time, in seconds from some point."""

    def sleep(self, duration_s: float) -> None:
        """Wait, in a thread that was got from :meth:`Surroundings.threads`."""


class Surroundings(Clock, Protocol):
    """Everything that the engine needs from outside."""

    def time_of_opening(self, txid: int) -> datetime.datetime:
        """The present time, aware, in UTC: read when ``txid`` is opened, and kept with the txid
        (R36).
        """

    def post(self, action: Action) -> None:
        """From any thread: have the loop do ``action``."""

    def after(self, delay_s: float, action: Action) -> None:
        """From the loop: have it do ``action`` when ``delay_s`` have passed."""

    def next(self) -> Action:
        """For the loop: what to do next; waits for it."""

    def threads(self, name: str, count: int, failed: Callable[[BaseException], None]) -> Threads:
        """New threads, ``count`` of them. ``failed`` gets each error of their calls, on the thread."""

    def collect_garbage(self) -> None:
        """From the loop, after a commit, every few seconds: free what is in cycles."""

    def reach(self, point: FaultPoint, txid: int) -> None:
        """Say that ``point`` is reached for ``txid``; may not return."""
