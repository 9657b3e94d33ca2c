"""Small transactions: how much of Spark the next transaction gets, judged by the transactions
before.

A Spark job and a Python task cost the same however little they do. While transactions are small,
one task for all of a transaction is faster than several side by side, and processing in the job of
the commit is faster than a job for processing alone. Neither changes a result: where a task runs
decides nothing (R17), and a transaction that has failed once is processed by itself.

Apart from the engine because only here elapsed time decides the next step.

Invariants: a single transaction that is not small ends the savings; they come back after several
small transactions in a row.
"""

from __future__ import annotations

from collections.abc import Mapping

_SMALL_IN_A_ROW = 3
_STILL_SMALL = 2.0
"""Up to so many times the bound, one slow transaction among small ones is taken for an accident."""


class Pace:
    """``small_s`` is how long the tasks of a small transaction are at work, in seconds, all
    together; with 0 none is small."""

    def __init__(self, small_s: float, overlaps: bool) -> None:
        """``overlaps``: several transactions may be in flight, so that processing can be hidden
        behind the commit before."""
        self._small_s, self._overlaps = small_s, overlaps
        self._small_in_a_row = 0
        self._processing_s = 0.0

    def committed(self, busy_s: Mapping[str, float]) -> None:
        """Take note of a transaction: seconds of work by phase."""
        total = sum(busy_s.values())
        if total <= self._small_s:
            self._small_in_a_row += 1
        elif total > self._small_s * _STILL_SMALL or not self.is_small:
            self._small_in_a_row = 0
        self._processing_s = busy_s.get("processing", 0.0)

    def late(self) -> None:
        """A transaction takes longer than one that is small could."""
        self._small_in_a_row = 0

    @property
    def is_small(self) -> bool:
        """Whether the next transaction counts as small: a small transaction gets one task at a
        time.
        """
        return self._small_s > 0 and self._small_in_a_row >= _SMALL_IN_A_ROW

    @property
    def defers(self) -> bool:
        """Whether processing is left until the commit: where it cannot be hidden, or is too short
        for that to pay."""
        return self.is_small and (not self._overlaps or self._processing_s <= self._small_s / 2)
