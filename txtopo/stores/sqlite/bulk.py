"""Reads, replaces or combines all ordinary rows of a task in one SQLite statement.

A row is *ordinary* if an earlier, settled transaction by the same component wrote the row. Only its
value need be read, because SQLite itself can make the stored value the value before this
transaction. Needs SQLite's JSON functions: without them, no row is ordinary. Standard library only.

Invariants: all integers in a statement are combined, or none is changed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence

from txtopo import errors
from txtopo.stores import rows as layout
from txtopo.stores import stamps
from txtopo.topology import merge

IS_POSSIBLE = sqlite3.sqlite_version_info >= (3, 38)
"""Whether this SQLite version always has JSON functions."""

PORTION_CHARACTERS = 16_000_000
"""How many characters of keys and values go into a statement. As JSON they take up to six times as
much. SQLite's bound is a thousand million."""

LONG = 300
"""A new row with so many characters costs less by itself than as a part of such a statement."""

_MADE = {"add": "old + new", "min": "min(old, new)", "max": "max(old, new)"}
_OLD, _NEW = "CAST(curr AS INTEGER)", "CAST(excluded.curr AS INTEGER)"
_IS_ORDINARY = "topology = :topology AND generation = :generation AND component = :component AND txid <= :settled"
# SQLite converts a JSON integer to a number and back unchanged, but not a float, a text or a very
# large integer. NULL is no value.
_IS_INTEGER = "length(curr) < 16 AND CAST(CAST(curr AS INTEGER) AS TEXT) = curr"


def ordinary_values(
    connection: sqlite3.Connection,
    table: str,
    texts: Sequence[str],
    stamp: stamps.Stamp,
    settled_txid: int,
) -> tuple[dict[str, str | None], list[str]]:
    """Of the rows with keys ``texts``: the ordinary rows' values, None for a tombstone, and the
    keys of all other rows."""
    select = (
        f"SELECT kept.key, kept.curr, {_IS_ORDINARY}"
        # CROSS JOIN: begin at the given keys, even if SQLite's statistics advise otherwise.
        f' FROM json_each(:given) AS given CROSS JOIN "{table}" AS kept ON kept.key = given.value'
    )
    rows = connection.execute(
        select, layout.owner_of(stamp) | {"settled": settled_txid, "given": json.dumps(texts)}
    ).fetchall()
    return {key: curr for key, curr, is_ordinary in rows if is_ordinary}, [
        key for key, _, is_ordinary in rows if not is_ordinary
    ]


def replace(
    connection: sqlite3.Connection, table: str, rows: Sequence[stamps.Row], settled_txid: int
) -> None:
    """Write ``rows``, whose predecessors are ordinary or absent. This transaction has looked at all
    predecessors, and has the file to itself."""
    for portion in _portions(rows):
        values = json.dumps({row.key: row.curr for row in portion})
        parameters = layout.owner_of(portion[0].stamp) | {"settled": settled_txid, "given": values}
        if connection.execute(
            _upsert(table, "excluded.curr", _IS_ORDINARY), parameters
        ).rowcount != len(portion):
            raise _changed(table)
    composed = ((layout.steps_of(row), row.key) for row in rows if len(row.steps) > 1)
    connection.executemany(f'UPDATE "{table}" SET steps = ? WHERE key = ?', composed)


def insert(connection: sqlite3.Connection, table: str, rows: Sequence[stamps.Row]) -> None:
    """Write ``rows``, which this transaction has found absent, one by one."""
    marks = ", ".join("?" * len(layout.COLUMNS))
    statement = f'INSERT INTO "{table}"({", ".join(layout.COLUMNS)}) VALUES ({marks})'
    try:
        connection.executemany(statement, map(layout.columns_of, rows))
    except sqlite3.IntegrityError as error:
        raise _changed(table) from error


def _changed(table: str) -> errors.FailedException:
    return errors.FailedException(
        f"rows of {table} were changed while a transaction had the file to itself"
    )


def _portions(rows: Sequence[stamps.Row]) -> Iterator[Sequence[stamps.Row]]:
    """``rows`` in portions whose values fit into one statement."""
    begin, held = 0, 0
    for end, row in enumerate(rows):
        size = len(row.key) + len(row.curr or "")
        if held and held + size > PORTION_CHARACTERS:
            yield rows[begin:end]
            begin, held = end, 0
        held += size
    yield rows[begin:]


def merged(
    connection: sqlite3.Connection,
    table: str,
    deltas: Mapping[str, int],
    how: merge.Merge,
    stamp: stamps.Stamp,
    settled_txid: int,
) -> Collection[str]:
    """Do the work of :meth:`txtopo.stores.sessions.Session.merge_rows` in the open transaction on
    ``connection``."""
    if not IS_POSSIBLE:
        return deltas
    value = _MADE[how.operator].replace("old", _OLD).replace("new", _NEW)
    parameters = layout.owner_of(stamp) | {"settled": settled_txid, "given": json.dumps(deltas)}
    connection.execute("SAVEPOINT merge")
    done = connection.execute(
        _upsert(table, value, f"{_IS_ORDINARY} AND {_IS_INTEGER}"), parameters
    ).rowcount == len(deltas)
    if not done:
        connection.execute("ROLLBACK TO merge")
    connection.execute("RELEASE merge")
    return () if done else deltas


def _upsert(table: str, value: str, condition: str) -> str:
    return (
        f'INSERT INTO "{table}"(key, curr, prev, topology, generation, component, task, txid, attempt, prev_txid, steps)'
        " SELECT given.key, given.value, NULL, :topology, :generation, :component, :task, :txid, :attempt, 0, NULL FROM json_each(:given) AS given"
        # otherwise the parser takes ON for a join's
        " WHERE true"
        f" ON CONFLICT(key) DO UPDATE SET prev = curr, prev_txid = txid, curr = {value}, task = :task, txid = :txid, attempt = :attempt, steps = NULL"
        f" WHERE {condition}"
    )
