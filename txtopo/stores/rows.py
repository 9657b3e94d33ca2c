"""The layout of a row in a relational table: the columns of every backend that has tables, and the
row that the columns hold.

Apart from the backends because two of them must write the same columns, so that a table can be
carried from one to the other. Standard library only.

The *form* of a store describes its values: the name of the codec that wrote their texts, after
``plain`` where values keep no ``prev``. The form is kept with the version: a process with another
form would misread the values, or take them back to wrong values.

Invariants:
    - ``steps`` is NULL unless a transaction updated the key repeatedly; ``curr`` alone then says
      what ``steps`` would.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from txtopo import errors
from txtopo.stores import stamps

LAYOUT_VERSION = 4
"""Of the tables. Stores of any other version are refused."""

BEING_MADE = 0
"""Instead of the version, until all tables of a store are there: where a database makes them one by
one, a process may die between two."""

COLUMNS = (
    "key",
    "curr",
    "prev",
    "topology",
    "generation",
    "component",
    "task",
    "txid",
    "attempt",
    "prev_txid",
    "steps",
)
"""Of a table of values, in the order of :func:`row_of` and :func:`columns_of`."""

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
    """The row made of these columns."""
    stamp = _stamp(topology, generation, component, task, txid, attempt)
    return stamps.Row(key, stamp, prev, prev_txid, [curr] if steps is None else json.loads(steps))


@functools.lru_cache(maxsize=1024)
def _stamp(*parts: Any) -> stamps.Stamp:
    """Rows with equal stamps share the object."""
    return stamps.Stamp(*parts)


def columns_of(row: stamps.Row) -> tuple[Column, ...]:
    """The columns that hold ``row``."""
    stamp = row.stamp
    steps = steps_of(row)
    who = (
        stamp.topology_id,
        stamp.generation,
        stamp.component,
        stamp.task,
        stamp.txid,
        stamp.attempt,
    )
    return (row.key, row.curr, row.prev, *who, row.prev_txid, steps)


def steps_of(row: stamps.Row) -> str | None:
    """The column ``steps`` of ``row``."""
    return json.dumps(row.steps, ensure_ascii=False) if len(row.steps) > 1 else None


def count_of(counted: int, total: int | None) -> int:
    """The count of a fence, of its own column and the sum over the tasks of its attempt (R34).

    The column counts a component's only task, so that this task's row, if there is one, has a
    number that is no smaller.
    """
    return max(int(counted), int(total or 0))


def check_version(place: str, store: str, version: int) -> None:
    """Refuse a store of another version of txtopo; ``place`` is what holds it."""
    if version != LAYOUT_VERSION:
        raise errors.StateMismatchError(
            f"{place} holds store {store!r} in layout {version}; this txtopo knows layout {LAYOUT_VERSION}\n"
            "  Nothing was changed. Use the txtopo that wrote it, or another place."
        )


def check_neighbours(place: str, versions: Mapping[str, int]) -> None:
    """Refuse to make a store in ``place`` if all that it holds, by store, are of another version:
    the shared tables are of that version too."""
    if versions and not {LAYOUT_VERSION, BEING_MADE} & set(versions.values()):
        store, version = min(versions.items())
        check_version(place, store, version)


def check_form(address: str, stored: str, expected: str) -> None:
    """Refuse values of another form; ``stored`` is the stored form, ``expected`` the form of the
    store object at ``address``."""
    if stored == expected:
        return
    raise errors.StateMismatchError(
        f"the store {address} holds {described(stored)}; it was opened for {described(expected)}\n"
        f"  Nothing was changed. Open it with {_arguments(stored)}, or use another store; an empty one takes the form of who writes to it next."
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
