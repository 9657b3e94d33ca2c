"""A row's columns in a relational table, the same in every backend with tables.

So a table can move from one database to another. Standard library only.

A store's *form* describes its values: the name of the codec that wrote the texts, after ``plain``
if values keep no ``prev``. The form is kept with the version: a process with a different form would
misread the values, or take them back to wrong values.

Invariants:
    - ``steps`` is NULL unless a transaction updated the key repeatedly. If NULL, ``curr`` is the
      only step.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from txtopo import errors
from txtopo.stores import stamps

LAYOUT_VERSION = 4
"""The tables' version. Stores with a different version are refused."""

BEING_MADE = 0
"""Stands for the version until all tables of a store are there. Where a database makes tables one
by one, a process may die in between."""

STAMP = ("topology", "generation", "component", "task", "txid", "attempt")
"""The columns that hold a row's stamp, in the order of :func:`stamps.parts_of`."""

COLUMNS = ("key", "curr", "prev", *STAMP, "prev_txid", "steps")
"""The columns of a value table, in the order of :func:`row_of` and :func:`columns_of`."""

Column = str | int | None


def row_of(
    key: str,
    curr: str | None,
    prev: str | None,
    topology: str,
    generation: str,
    component: str,
    task: int,
    txid: int,
    attempt: int,
    prev_txid: int,
    steps: str | None,
) -> stamps.Row:
    """The row in these columns."""
    stamp = _stamp(topology, generation, component, task, txid, attempt)
    return stamps.Row(key, stamp, prev, prev_txid, [curr] if steps is None else json.loads(steps))


@functools.lru_cache(maxsize=1024)
def _stamp(*parts: Any) -> stamps.Stamp:
    """Rows with equal stamps share one object."""
    return stamps.Stamp(*parts)


def columns_of(row: stamps.Row) -> tuple[Column, ...]:
    """The columns that hold ``row``."""
    parts = stamps.parts_of(row.stamp)
    return (row.key, row.curr, row.prev, *parts, row.prev_txid, steps_of(row))


def owner_of(stamp: stamps.Stamp) -> dict[str, Column]:
    """The columns that hold ``stamp``, by name."""
    return dict(zip(STAMP, stamps.parts_of(stamp), strict=True))


def steps_of(row: stamps.Row) -> str | None:
    """The column ``steps`` for ``row``."""
    return json.dumps(row.steps, ensure_ascii=False) if len(row.steps) > 1 else None


def fence_of(
    topology: str,
    component: str,
    generation: str,
    txid: int,
    attempt: int,
    counted: int,
    total: int | None,
) -> stamps.Fence:
    """The fence in these columns. ``total`` is the sum over the attempt's tasks (R34).

    ``counted`` counts a component's only task. If this task also has a row, the row's number is not
    smaller.
    """
    count = max(int(counted), int(total or 0))
    return stamps.Fence(topology, component, generation, txid, attempt, count)


def check_version(place: str, store: str, version: int) -> None:
    """Refuse a store with a different version. ``place`` is the database or the file."""
    if version != LAYOUT_VERSION:
        raise errors.StateMismatchError(
            f"{place} holds store {store!r} in layout {version}; this txtopo knows layout {LAYOUT_VERSION}\n"
            "  Nothing was changed. Use the txtopo that wrote the store, or another place."
        )


def check_neighbours(place: str, versions: Mapping[str, int]) -> None:
    """Refuse to make a store in ``place`` if all stores there have a different version: the shared
    tables then have this version too."""
    if versions and not {LAYOUT_VERSION, BEING_MADE} & set(versions.values()):
        store, version = min(versions.items())
        check_version(place, store, version)


def check_form(address: str, stored: str, expected: str) -> None:
    """Refuse values with a different form. ``stored`` is the stored form, ``expected`` the form of
    the store object at ``address``."""
    if stored == expected:
        return
    raise errors.StateMismatchError(
        f"the store {address} holds {described(stored)}, but was opened for {described(expected)}\n"
        f"  Nothing was changed. Open the store with {_arguments(stored)}, or use another store. An empty store takes its next writer's form."
    )


def described(form: str) -> str:
    """A form, for people."""
    plain, _, codec = form.rpartition(" ")
    return f"{'plain' if plain else 'stamped'} values, by the codec {codec!r}"


def _arguments(form: str) -> str:
    plain, _, codec = form.rpartition(" ")
    arguments = [
        *(["plain=True"] if plain else []),
        *([f"codec= the one called {codec!r}"] if codec != "json" else []),
    ]
    return " and ".join(arguments) or "neither plain=True nor a codec="
