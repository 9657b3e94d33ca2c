"""Sums, minima and maxima that a database can make of integers by itself, without handing the value
before to Python and back.

Given to ``StoreTransaction.merge_many``; each is also a function of the value before and the delta,
and does the same for every value that no database is asked to combine. Apart from ``aggregator``
because a bolt that keeps its own results uses them as well. Standard library only.
"""

from __future__ import annotations

from typing import Any, Literal

Operator = Literal["add", "min", "max"]


class Merge:
    """``merge(old, delta)``: the value after; ``old`` is None where there is no value, and then it
    is ``delta``. There are three, see below."""

    def __init__(self, operator: Operator) -> None:
        self.operator: Operator = operator
        """What a database does."""

    def __call__(self, old: Any, delta: Any) -> Any:
        """The value after."""
        if old is None:
            return delta
        if self.operator == "add":
            return old + delta
        return min(old, delta) if self.operator == "min" else max(old, delta)

    def __reduce__(self) -> str:
        return self.operator.upper()  # there is one of each

    def __repr__(self) -> str:
        return f"txtopo.stores.{self.operator.upper()}"


ADD = Merge("add")
"""The sum."""
MIN = Merge("min")
"""The least; of equal ones, the first."""
MAX = Merge("max")
"""The greatest; of equal ones, the first."""
