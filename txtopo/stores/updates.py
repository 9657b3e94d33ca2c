"""Values between user code and a store transaction: an update's result, and many updates in
portions.

Standard library only.
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
    """An update's result. A replay gets the first application's ``prev`` and ``curr`` (R28)."""

    prev: Any
    """The value before. None if there was none."""
    curr: Any
    """The value after, as JSON gives it back. None if deleted."""
    applied: bool
    """False if an earlier run of this transaction applied the update."""


def portions(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """``items`` in portions with at most ``most`` items."""
    iterator = iter(items)
    while portion := list(itertools.islice(iterator, most)):
        yield portion


def portions_of(deltas: Mapping[K, D], most: int) -> Iterator[Mapping[K, D]]:
    """``deltas`` in portions with at most ``most`` keys. A single portion is ``deltas`` itself. No
    portion for no deltas."""
    if 0 < len(deltas) <= most:
        yield deltas
    else:
        yield from map(dict, portions(deltas.items(), most))


def are_small(deltas: Collection[Any]) -> bool:
    """Whether all deltas are integers that a database may combine."""
    return (
        set(map(type, deltas)) == {int}
        and min(deltas) > -keys.DIGITS_FAST
        and max(deltas) < keys.DIGITS_FAST
    )
