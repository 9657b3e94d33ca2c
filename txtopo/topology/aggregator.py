"""The arithmetic of an aggregate over the tuples of a key: a count, a sum, a minimum, or anything
of the user's (Trident: ``CombinerAggregator``).

Apart from ``aggregate``, which has the bolts: here is only the arithmetic, without a batch, a store
or a task.
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
    """Combines one value per tuple, two at a time, in any order of pairs: so each task of the
    source combines its own tuples first.

    Called: on executors, on a copy; keep nothing in it. Values are kept in the store, as JSON
    unless the store has another codec.
    """

    fields: tuple[str, ...] = ()
    """The fields of the tuples that ``init`` reads; that the source has them is checked when the
    topology is built."""

    @abc.abstractmethod
    def init(self, tup: Tuple) -> Any:
        """The value of one tuple; not None, which stands for a key without a value, and finite."""

    @abc.abstractmethod
    def combine(self, left: Any, right: Any) -> Any:
        """Two values made one. It must be associative; ``left`` comes before ``right`` where order
        matters within one task.

        On replay: not again for updates that a store has applied. The classic mistake: changing a
        value in place; make a new value.
        """


class ReducerAggregator(abc.ABC):
    """Takes one tuple after the other, where values cannot be combined; all tuples of a key travel
    to the task that has the key.

    Order: by source component, source task and emission within a batch (R17), and batches by txid.
    """

    fields: tuple[str, ...] = ()
    """The fields of the tuples that ``reduce`` reads; that the source has them is checked when the
    topology is built."""

    @abc.abstractmethod
    def init(self) -> Any:
        """The value of a key before its first tuple."""

    @abc.abstractmethod
    def reduce(self, value: Any, tup: Tuple) -> Any:
        """The value after ``tup``; not None, and finite. Runs on: executor, in the commit phase. On
        replay: not again for applied updates."""


Aggregator = CombinerAggregator | ReducerAggregator


class ValueRefusedError(Exception):
    """None, NaN or an infinity for an aggregate; becomes :class:`txtopo.errors.UserCodeError`."""


def checked(of: Aggregator, value: Any, tup: Tuple | None = None) -> Any:
    """``value``, which ``of`` made of ``tup``, or of values; :class:`ValueRefusedError` for None,
    and for NaN and infinities, also within it: the result would depend on the cut into batches and
    on the order."""
    if value is not None and _is_finite(value):
        return value
    origin = (
        "of other values"
        if tup is None
        else f"of the tuple {tup.values[1:]!r:.300} of {tup.source_component!r}"
    )
    raise ValueRefusedError(
        f"{type(of).__name__}({', '.join(map(repr, of.fields))}): {value!r:.300} comes {origin}\n"
        "  An aggregate takes neither None nor NaN nor an infinity. Drop such tuples, or give them a value, in a bolt before the aggregate; or\n"
        "  in the init of a CombinerAggregator of yours."
    )


def _is_finite(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return all(map(_is_finite, value))
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    number: Any = value if isinstance(value, numbers.Number) else 0
    try:
        return bool(value == value) and abs(number) != math.inf
    except ValueError:  # an array of NumPy, for a codec
        return True
    except (ArithmeticError, TypeError):  # a NaN that signals, or one of pandas
        return False


class Count(CombinerAggregator):
    """How many tuples."""

    def init(self, tup: Tuple) -> int:
        return 1

    def combine(self, left: Any, right: Any) -> Any:
        return left + right


class _OfField(CombinerAggregator):
    """Of one field.

    :param field: its name.
    """

    def __init__(self, field: str) -> None:
        self.fields = (field,)

    def init(self, tup: Tuple) -> Any:
        return tup[self.fields[0]]


class Sum(_OfField):
    """The sum of a field of numbers. Of floats it depends, in its last digits, on the number of
    tasks, as every sum of parts does."""

    def combine(self, left: Any, right: Any) -> Any:
        return left + right


class Min(_OfField):
    """The least value of a field; of equal ones, the first."""

    def combine(self, left: Any, right: Any) -> Any:
        return right if right < left else left


class Max(_OfField):
    """The greatest value of a field; of equal ones, the first."""

    def combine(self, left: Any, right: Any) -> Any:
        return right if right > left else left
