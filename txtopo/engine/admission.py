"""Admits processing jobs to Spark.

Runs on: driver. Spark gets as many processing jobs as the cores can run side by side, and one more
ahead. While a commit job is in Spark, no job goes ahead, because the commit would wait behind it.

Invariants: only the loop's thread calls. Older transactions' jobs go first.
"""

from __future__ import annotations

from txtopo.engine.pace import Pace
from txtopo.engine.surroundings import Action, Threads
from txtopo.topology.transaction import TransactionAttempt


class Admission:
    """``threads`` run the jobs on ``cores``. ``widest`` is the slot count on the plan's widest
    level."""

    def __init__(self, threads: Threads, pace: Pace, cores: int, widest: int) -> None:
        self._threads, self._pace, self._cores, self._widest = threads, pace, cores, widest
        self._waiting: dict[TransactionAttempt, Action] = {}
        self._processing = 0
        self._committing = 0

    def add(self, attempt: TransactionAttempt, job: Action) -> None:
        """Start the processing job of ``attempt`` now or, if there is no room, later."""
        self._waiting[attempt] = job
        self.admit()

    def admit(self) -> None:
        """Start the jobs for which there is room."""
        side_by_side = max(1, self._cores // (1 if self._pace.is_small else self._widest))
        while self._waiting and self._processing < side_by_side + (0 if self._committing else 1):
            self._processing += 1
            self._threads.submit(self._waiting.pop(min(self._waiting)))

    def processing_ended(self) -> None:
        """Note that a processing job has ended. :meth:`admit` follows."""
        self._processing -= 1

    def commit_begins(self) -> None:
        """Note that a commit job goes to Spark."""
        self._committing += 1

    def commit_ended(self) -> None:
        """Note that a commit job has ended. :meth:`admit` follows."""
        self._committing -= 1
