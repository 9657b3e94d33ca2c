"""Admission: which processing jobs Spark gets, and when.

Runs on: driver. Spark gets as many processing jobs as have cores, and one ahead. No job goes ahead
of a commit, which would wait behind it.

Invariants: touched by the loop's thread only; jobs of older transactions go first.
"""

from __future__ import annotations

from txtopo.engine.pace import Pace
from txtopo.engine.surroundings import Action, Threads
from txtopo.topology.transaction import TransactionAttempt


class Admission:
    """``threads`` do the jobs on ``cores``; ``widest`` is the number of slots of the plan's widest
    level."""

    def __init__(self, threads: Threads, pace: Pace, cores: int, widest: int) -> None:
        self._threads, self._pace, self._cores, self._widest = threads, pace, cores, widest
        self._waiting: dict[TransactionAttempt, Action] = {}
        self._processing = 0
        self._committing = 0

    def add(self, attempt: TransactionAttempt, job: Action) -> None:
        """Start the processing job of ``attempt`` now or, as soon as there is room, later."""
        self._waiting[attempt] = job
        self.admit()

    def admit(self) -> None:
        """Start the jobs for which there is room."""
        side_by_side = max(1, self._cores // (1 if self._pace.is_small else self._widest))
        while self._waiting and self._processing < side_by_side + (0 if self._committing else 1):
            self._processing += 1
            self._threads.submit(self._waiting.pop(min(self._waiting)))

    def processing_ended(self) -> None:
        """A processing job has ended; :meth:`admit` follows."""
        self._processing -= 1

    def commit_begins(self) -> None:
        """A commit job goes to Spark."""
        self._committing += 1

    def commit_ended(self) -> None:
        """A commit job has ended; :meth:`admit` follows."""
        self._committing -= 1
