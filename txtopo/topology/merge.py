"""Merges: sums, minima and maxima of integers that a database can make alone, without handing the
value before to Python and back.

``StoreTransaction.merge_many`` takes them. Each merge is also a function of the value before and
the delta, for values that no database is asked to combine. A bolt that keeps its own results uses
merges as well. Standard library only.
"""

from __future__ import annotations

from typing import Any, Literal

Operator = Literal["add", "min", "max"]


class Merge:
    """``merge(old, delta)`` is the value after. If ``old`` is None, there is no value yet, and the
    result is ``delta``. There are three merges, see below."""

    def __init__(self, operator: Operator) -> None:
        self.operator: Operator = operator
        """The database's operation."""

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
"""The least. Among equal values, the first."""
MAX = Merge("max")
"""The greatest. Among equal values, the first."""
