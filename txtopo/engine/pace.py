"""Small transactions: decides how many tasks and jobs the next transaction gets, from the
transactions before.

A Spark job and a Python task have a fixed cost. While transactions are small, one task for the
whole transaction is faster than several side by side, and processing in the commit job is faster
than a separate processing job. Neither changes a result: no result depends on where a task runs
(R17), and a transaction that has failed once gets a separate processing job.

Where every component has one task, a commit is one task in any case. A long commit then counts as
small, if processing is short: one process keeps open what several processes, which commit by turns,
would each have to open again, such as a Kafka sink's producer.

Invariants: one large transaction ends the savings. They come back after several small transactions
in a row.
"""

from __future__ import annotations

from collections.abc import Mapping

_SMALL_IN_A_ROW = 3
_STILL_SMALL = 2.0
"""One slow transaction among small transactions, up to so many times the bound, counts as an
accident."""
_LONG_COMMIT = 8.0
"""How many times the bound a transaction may take whose commit alone is long."""


class Pace:
    """``small_s``: a small transaction's tasks work so many seconds at most, all together. With 0,
    no transaction is small."""

    def __init__(self, small_s: float, overlaps: bool, is_narrow: bool = False) -> None:
        """``overlaps``: several transactions may be in flight, so that processing can be hidden
        behind the commit before. ``is_narrow``: every component has one task."""
        self._small_s, self._overlaps, self._is_narrow = small_s, overlaps, is_narrow
        self._small_in_a_row = 0
        self._processing_s, self._short_s = 0.0, small_s / 2
        self._had_accident = False

    def committed(self, busy_s: Mapping[str, float]) -> None:
        """Note a transaction's seconds of work, by phase."""
        total, processing_s = sum(busy_s.values()), busy_s.get("processing", 0.0)
        long = self._small_s * (_LONG_COMMIT if self._is_narrow else 1.0)
        bound = long if processing_s <= self._short_s else self._small_s
        if self.is_small and bound < total <= long and not self._had_accident:
            # A new process opens what the last one kept.
            self._had_accident = True
            return
        self._had_accident, self._processing_s = False, processing_s
        if total <= bound:
            self._small_in_a_row += 1
        elif total > bound * _STILL_SMALL or not self.is_small:
            self._small_in_a_row = 0

    def late(self) -> None:
        """A transaction takes longer than one that is small could."""
        self._small_in_a_row = 0

    @property
    def is_small(self) -> bool:
        """Whether the next transaction counts as small, and gets one task at a time."""
        return self._small_s > 0 and self._small_in_a_row >= _SMALL_IN_A_ROW

    @property
    def defers(self) -> bool:
        """Whether processing waits for the commit job: if it cannot overlap with the commit before,
        or is too short for the overlap to pay."""
        return self.is_small and (not self._overlaps or self._processing_s <= self._short_s)
