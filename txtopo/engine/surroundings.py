"""An engine's surroundings: time, threads, and the loop's queue. The simulator has its own.

Runs on: driver. A simulation runs the same engine, but with virtual time and without real threads,
and the process may die at every named fault point.

Invariants: the loop gets one action at a time. Due actions come first, then posted actions, in the
order of posting.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Protocol

from txtopo.faults import FaultPoint

Action = Callable[[], None]


class Threads(Protocol):
    """Threads that run submitted calls, in order of arrival. An error in a call ends no thread."""

    def submit(self, work: Action) -> None:
        """Do ``work`` as soon as a thread is free."""

    def close(self, timeout_s: float) -> bool:
        """Let the threads end after their queued calls. Returns whether they ended within
        ``timeout_s``."""


class Clock(Protocol):
    """Time that passes."""

    def now(self) -> float:
        """The time in seconds, from a fixed point."""

    def sleep(self, duration_s: float) -> None:
        """Wait, in a thread from :meth:`Surroundings.threads`."""


class Surroundings(Clock, Protocol):
    """Time, threads and queue, as the engine needs them."""

    def time_of_opening(self, txid: int) -> datetime.datetime:
        """The present time, aware, in UTC. Read when ``txid`` is opened, and kept with the txid
        (R36)."""

    def post(self, action: Action) -> None:
        """From any thread: let the loop do ``action``."""

    def after(self, delay_s: float, action: Action) -> None:
        """From the loop: let the loop do ``action`` after ``delay_s``."""

    def next(self) -> Action:
        """For the loop: wait for the next action."""

    def threads(self, name: str, count: int, failed: Callable[[BaseException], None]) -> Threads:
        """Make ``count`` threads. ``failed`` gets each error from their calls, on the same
        thread."""

    def collect_garbage(self) -> None:
        """From the loop, after a commit, every few seconds: collect garbage in cycles."""

    def reach(self, point: FaultPoint, txid: int) -> None:
        """Note that ``txid`` has reached ``point``. May not return."""
