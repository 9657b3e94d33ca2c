"""The tables of a store in an SQLite file, and how they are made.

Layout, version 4. NULL means "there is none", a stored JSON null is the text ``null``::

    txtopo_schema(store, version, form)                               one row per value table in this file; form: codec, plain or not
    txtopo_fence(store, topology, component, generation, txid, attempt, listed,
                 counted)                                             listed: whether <table>_written has what that attempt wrote;
                                                                      counted: store transactions of a component's only task (R34)
    txtopo_count(store, topology, component, task, generation, txid, attempt, transactions)
                                                                      how many store transactions a task committed in that attempt (R34)
    <table>(key, curr, prev,                                          JSON texts; curr NULL: deleted, prev NULL: was not there
            topology, generation, component, task, txid, attempt,     the stamp: who wrote curr
            prev_txid, steps)                                         who made prev; JSON list of texts if one transaction updated the key repeatedly
    <table>_deleted                                                   index of the tombstones
    <table>_written(topology, component, keys)                        keys, one to a line, that a task wrote in the transaction of the fence; opaque
                                                                      stores only (R31)

Standard library only.
"""

from __future__ import annotations

import sqlite3

from txtopo import errors
from txtopo.stores import place as places
from txtopo.stores import rows
from txtopo.stores.sqlite import errors as faults


def prepare(connection: sqlite3.Connection, store: places.Place) -> None:
    """Make the layout's missing parts, inside the open transaction."""
    path, table = store.url, store.name
    with faults.translating(path):
        form = form_of(connection, path, table)
        if form is None:
            select = "SELECT name FROM sqlite_master WHERE name COLLATE NOCASE IN (?, ?)"
            for (name,) in connection.execute(select, [table, f"{table}_written"]):
                raise errors.SetupError(
                    f"{path} has a table {name!r} that is not a store of txtopo\n  Choose a different table name, or another file."
                )
            rows.check_neighbours(path, _versions(connection))
            for statement in _LAYOUT:
                connection.execute(statement.format(table=table))
            connection.execute(
                "INSERT INTO txtopo_schema(store, version, form) VALUES (?, ?, ?)",
                [table, rows.LAYOUT_VERSION, store.form],
            )
        elif form != store.form:
            if connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone():
                rows.check_form(store.address, form, store.form)
            connection.execute(
                "UPDATE txtopo_schema SET form = ? WHERE store = ?", [store.form, table]
            )


_LAYOUT = (
    "CREATE TABLE IF NOT EXISTS txtopo_count(store TEXT NOT NULL, topology TEXT NOT NULL, component TEXT NOT NULL, task INTEGER NOT NULL,"
    " generation TEXT NOT NULL, txid INTEGER NOT NULL, attempt INTEGER NOT NULL, transactions INTEGER NOT NULL,"
    " PRIMARY KEY (store, topology, component, task)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS txtopo_schema(store TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, form TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS txtopo_fence(store TEXT NOT NULL, topology TEXT NOT NULL, component TEXT NOT NULL, generation TEXT NOT NULL,"
    " txid INTEGER NOT NULL, attempt INTEGER NOT NULL, listed INTEGER NOT NULL, counted INTEGER NOT NULL,"
    " PRIMARY KEY (store, topology, component)) WITHOUT ROWID",
    'CREATE TABLE "{table}"(key TEXT NOT NULL PRIMARY KEY, curr TEXT, prev TEXT, topology TEXT NOT NULL, generation TEXT NOT NULL,'
    " component TEXT NOT NULL, task INTEGER NOT NULL, txid INTEGER NOT NULL, attempt INTEGER NOT NULL, prev_txid INTEGER NOT NULL, steps TEXT)"
    " WITHOUT ROWID",
    'CREATE INDEX "{table}_deleted" ON "{table}"(topology) WHERE curr IS NULL',
    'CREATE TABLE "{table}_written"(topology TEXT NOT NULL, component TEXT NOT NULL, keys TEXT NOT NULL)',
)


def form_of(connection: sqlite3.Connection, path: str, table: str) -> str | None:
    """The form of ``table``, None if there is no such store in this file. Raises if the store has a
    different version. Neighbours may have any version."""
    versions = _versions(connection)
    if table not in versions:
        return None
    rows.check_version(path, table, versions[table])
    return str(
        connection.execute("SELECT form FROM txtopo_schema WHERE store = ?", [table]).fetchone()[0]
    )


def _versions(connection: sqlite3.Connection) -> dict[str, int]:
    if not connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = 'txtopo_schema'"
    ).fetchone():
        return {}
    return dict(connection.execute("SELECT store, version FROM txtopo_schema"))
