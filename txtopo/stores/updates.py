"""The values between user code and a store transaction: the result of an update, and many updates
in portions.

Apart from ``transaction``, which applies updates. Standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from txtopo.stores import keys

T = TypeVar("T")
K = TypeVar("K", bound=keys.Key)
D = TypeVar("D")


class Update(NamedTuple):
    """The result of an update, on a replay the result of the first application (R28): a replay gets
    the same ``prev`` and ``curr``."""

    prev: Any
    """The value before; None if there was none."""
    curr: Any
    """The value after, as JSON gives it back; None if deleted."""
    applied: bool
    """False if an earlier run of this transaction had already applied it."""


def portions(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """``items``, so many at a time at ``most``."""
    iterator = iter(items)
    while portion := list(itertools.islice(iterator, most)):
        yield portion


def portions_of(deltas: Mapping[K, D], most: int) -> Iterator[Mapping[K, D]]:
    """``deltas``, so many at a time at ``most``; unchanged, if one portion is enough; no portion
    for no deltas."""
    if 0 < len(deltas) <= most:
        yield deltas
    else:
        yield from map(dict, portions(deltas.items(), most))


def are_small(deltas: Collection[Any]) -> bool:
    """Whether all are integers that a database may combine."""
    return (
        set(map(type, deltas)) == {int}
        and min(deltas) > -keys.DIGITS_FAST
        and max(deltas) < keys.DIGITS_FAST
    )
