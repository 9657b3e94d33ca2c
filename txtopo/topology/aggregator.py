"""Arithmetic for aggregates over a key's tuples: a count, a sum, a minimum, or a user's own
(Trident: ``CombinerAggregator``).

No batch, store or task is known here: the bolts are in ``aggregate``.
"""

from __future__ import annotations

import abc
import collections
import math
import numbers
from collections.abc import Mapping
from typing import Any

from txtopo.topology.stream import Tuple


class CombinerAggregator(abc.ABC):
    """Combines one value per tuple, two at a time, in any order of pairs, so that each source task
    combines its own tuples first.

    Called: on executors, on a copy. Keep nothing in the object. The store keeps the values, as JSON
    unless the store has another codec.
    """

    fields: tuple[str, ...] = ()
    """The tuple fields that ``init`` reads. ``build_topology`` checks that the source has these
    fields."""

    @abc.abstractmethod
    def init(self, tup: Tuple) -> Any:
        """A tuple's value, finite and not None. None stands for a key without a value."""

    @abc.abstractmethod
    def combine(self, left: Any, right: Any) -> Any:
        """Make one value from two. Must be associative. Within one task, ``left`` comes before
        ``right``, where order matters.

        On replay: not again for updates that a store has applied. The classic mistake: changing a
        value in place. Make a new value.
        """


class ReducerAggregator(abc.ABC):
    """Takes one tuple after the other, where values cannot be combined. All tuples with the same
    key travel to one task.

    Order: batches by txid, and within a batch by source component, source task and emission (R17).
    """

    fields: tuple[str, ...] = ()
    """The tuple fields that ``reduce`` reads. ``build_topology`` checks that the source has these
    fields."""

    @abc.abstractmethod
    def init(self) -> Any:
        """A key's value before its first tuple."""

    @abc.abstractmethod
    def reduce(self, value: Any, tup: Tuple) -> Any:
        """The value after ``tup``, finite and not None. Runs on: executor, in the commit phase. On
        replay: not again for applied updates."""


Aggregator = CombinerAggregator | ReducerAggregator


class ValueRefusedError(Exception):
    """An aggregate got None, NaN, an infinity, or a value that contains itself. Becomes
    :class:`txtopo.errors.UserCodeError`."""


def checked(of: Aggregator, value: Any, tup: Tuple | None = None) -> Any:
    """``value``, which ``of`` made from ``tup`` or from other values. Raises
    :class:`ValueRefusedError` for None, for a value that contains itself, and for NaN and
    infinities at any depth: the result would depend on the cut into batches and on the order."""
    if value is not None and _is_finite(value):
        return value
    origin = (
        "from other values"
        if tup is None
        else f"from the tuple {tup.values[1:]!r:.300} of {tup.source_component!r}"
    )
    raise ValueRefusedError(
        f"{type(of).__name__}({', '.join(map(repr, of.fields))}): {value!r:.300} comes {origin}\n"
        "  An aggregate takes neither None nor NaN nor an infinity, nor a value that contains itself or is nested too deeply.\n"
        "  Drop such tuples, or give them a value, in a bolt before the aggregate, or in the init of your own CombinerAggregator."
    )


def _is_finite(value: Any) -> bool:
    try:
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            return all(map(_is_finite, value))
        if isinstance(value, Mapping):
            return all(map(_is_finite, value.values()))
        number: Any = value if isinstance(value, numbers.Number) else 0
        return bool(value == value) and abs(number) != math.inf
    except ValueError:  # a NumPy array, for a codec
        return True
    except (ArithmeticError, TypeError, RecursionError):  # a signalling NaN, pandas' missing value
        return False


class Count(CombinerAggregator):
    """Counts tuples."""

    def init(self, tup: Tuple) -> int:
        return 1

    def combine(self, left: Any, right: Any) -> Any:
        return left + right


class _OfField(CombinerAggregator):
    """Reads one field.

    :param field: the field's name.
    """

    def __init__(self, field: str) -> None:
        self.fields = (field,)

    def init(self, tup: Tuple) -> Any:
        return tup[self.fields[0]]


class Sum(_OfField):
    """Sums a field of numbers. With floats, the last digits depend on the task count, as in every
    sum."""

    def combine(self, left: Any, right: Any) -> Any:
        return left + right


class Min(_OfField):
    """The least value in a field. Among equal values, the first."""

    def combine(self, left: Any, right: Any) -> Any:
        return right if right < left else left


class Max(_OfField):
    """The greatest value in a field. Among equal values, the first."""

    def combine(self, left: Any, right: Any) -> Any:
        return right if right > left else left
