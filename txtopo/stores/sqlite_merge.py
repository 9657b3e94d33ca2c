"""Integers that SQLite combines by itself: one statement for all keys of a task, and none of them read in Python.

Apart from ``sqlite``, which holds the connection and the rest of the layout; it needs SQLite's JSON functions, and without them refuses every
key, which the rules then see to one by one. Standard library only.

Invariants: all of the keys are combined, or none is changed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping

from txtopo.stores import stamps
from txtopo.topology import merge

VERSION_MIN = (3, 38)
"""Of SQLite: the first that always has JSON functions."""

_MADE = {"add": "old + new", "min": "min(old, new)", "max": "max(old, new)"}
_OLD, _NEW = "CAST(curr AS INTEGER)", "CAST(excluded.curr AS INTEGER)"
# An integer as JSON has it is what SQLite makes of it and back; a float, a text or a very large integer is not, and NULL is no value.
_IS_ORDINARY = (
    "topology = :topology AND generation = :generation AND component = :component AND txid <= :settled"
    " AND length(curr) < 16 AND CAST(CAST(curr AS INTEGER) AS TEXT) = curr"
)


def merged(
    connection: sqlite3.Connection, table: str, deltas: Mapping[str, int], how: merge.Merge, mine: stamps.Stamp, settled_txid: int
) -> Collection[str]:
    """What :meth:`txtopo.stores.sessions.Session.merge_rows` promises, in the open transaction of ``connection``."""
    if sqlite3.sqlite_version_info < VERSION_MIN:
        return deltas
    made = _MADE[how.operator].replace("old", _OLD).replace("new", _NEW)
    statement = (
        f'INSERT INTO "{table}"(key, curr, prev, topology, generation, component, task, txid, attempt, prev_txid, steps)'
        " SELECT given.key, given.value, NULL, :topology, :generation, :component, :task, :txid, :attempt, 0, NULL FROM json_each(:deltas) AS given"
        # without which the parser takes ON for a join's
        " WHERE true"
        f" ON CONFLICT(key) DO UPDATE SET prev = curr, prev_txid = txid, curr = {made}, task = :task, txid = :txid, attempt = :attempt, steps = NULL"
        f" WHERE {_IS_ORDINARY}"
    )
    values = {
        "topology": mine.topology_id, "generation": mine.generation, "component": mine.component, "task": mine.task,
        "txid": mine.txid, "attempt": mine.attempt, "settled": settled_txid, "deltas": json.dumps(deltas),
    }  # fmt: skip
    connection.execute("SAVEPOINT merge")
    done = connection.execute(statement, values).rowcount == len(deltas)
    if not done:
        connection.execute("ROLLBACK TO merge")
    connection.execute("RELEASE merge")
    return () if done else deltas
