"""Writes a sink's rows to SQLite, many at a time, in the ledger's open transaction.

Only one task at a time writes to a SQLite file, so nothing here waits. Standard library only.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from txtopo import errors
from txtopo.connectors.sql import target as sql_target
from txtopo.connectors.sql import values
from txtopo.connectors.sql.target import Target, Work, listed, quoted
from txtopo.sinks import tuple_rows
from txtopo.stores import conflicts

BEGINNING = "SUBSTR({}, 1, {}) = ?"
"""For a column and a length."""

_READ_AS = {
    "": "(?is)(?!.*INT)(.*(CHAR|CLOB|TEXT|BLOB).*)?",
    "double": "(?is)(?!.*INT).*(REAL|FLOA|DOUB).*",
    "number": "(?s).*",
}
"""Column types, by affinity."""
_ROWIDS = dict.fromkeys(("rowid", "oid", "_rowid_"), values.Column("", "number"))


def write(session: Any, work: Work) -> None:
    """Insert or upsert ``work.rows``."""
    connection, target = session.connection, work.target
    if target.has_undo_log:
        with session.translating():
            _log(connection, work)
    with session.translating(), _blaming(work) as rows:
        if target.statement is not None:
            connection.executemany(
                target.statement, (dict(zip(target.columns, row, strict=True)) for row in rows)
            )
            return
        mark = () if target.mark is None else (sql_target.mark_of(work.stamp),)
        names = (*target.columns, *(() if target.mark is None else (target.mark,)))
        insert = f"INSERT INTO {target.quoted}({listed(names)}) VALUES ({', '.join('?' * len(names))}){target.on_conflict()}"
        connection.executemany(insert, ((*row, *mark) for row in rows) if mark else rows)
    if work.minds_spelling:
        with session.translating():
            _check_spelling(connection, work)


def take_back(session: Any, target: Target, mark: str) -> None:
    """Undo the transaction ``mark``."""
    connection = session.connection
    with session.translating():
        if target.mark is not None:
            connection.execute(
                f"DELETE FROM {target.quoted} WHERE {quoted(target.mark)} = ?", [mark]
            )
        elif logged := columns(connection, target, undo=True):
            target.check_undo_log(logged)
            matches = target.matches(target.quoted, "undo", _collations(connection, target))
            undone = f"FROM {target.undo} AS undo WHERE undo.sink_mark = :mark AND {matches}"
            connection.execute(
                f"DELETE FROM {target.quoted} WHERE EXISTS (SELECT 1 {undone} AND NOT undo.sink_existed)",
                {"mark": mark},
            )
            if target.others:
                _restore(connection, target, mark, undone)
            connection.execute(f"DELETE FROM {target.undo} WHERE sink_mark = :mark", {"mark": mark})


def forget(session: Any, target: Target, writer: str) -> None:
    """Forget the values that the component ``writer`` has replaced: its own rows are settled."""
    with session.translating():
        if logged := columns(session.connection, target, undo=True):
            target.check_undo_log(logged)
            session.connection.execute(f"DELETE FROM {target.undo} WHERE sink_writer = ?", [writer])


def _restore(connection: sqlite3.Connection, target: Target, mark: str, undone: str) -> None:
    """Put replaced values back into rows that still exist. ``undone`` finds the values in the undo
    log."""
    try:
        restored = ", ".join(
            f"{quoted(column)} = undo.{quoted(column)}" for column in target.others
        )
        # ABORT, also where the table says REPLACE or IGNORE.
        connection.execute(
            f"UPDATE OR ABORT {target.quoted} SET {restored} {undone}", {"mark": mark}
        )
    except sqlite3.IntegrityError:
        try:
            _restore_together(connection, target, mark, undone)
        except sqlite3.IntegrityError as error:
            raise sql_target.not_restored(target, mark, str(error)) from error


def _restore_together(
    connection: sqlite3.Connection, target: Target, mark: str, undone: str
) -> None:
    """Restore all rows together, since a unique value has moved between rows: row by row, the
    restored value would collide with the row that still has the value."""
    others = {column.lower() for column in target.others}
    stored = columns(connection, target, condition="hidden = 0")
    taken = ", ".join(
        f"{'undo' if name in others else target.quoted}.{quoted(name)} AS {quoted(name)}"
        for name in stored
    )
    joined = undone.replace("FROM ", f"FROM {target.quoted}, ", 1)
    connection.execute(
        f"CREATE TEMPORARY TABLE sink_restored AS SELECT {taken} {joined}", {"mark": mark}
    )
    connection.execute(
        f"DELETE FROM {target.quoted} WHERE EXISTS (SELECT 1 {undone})", {"mark": mark}
    )
    connection.execute(
        f"INSERT OR ABORT INTO {target.quoted}({listed(stored)}) SELECT {listed(stored)} FROM temp.sink_restored"
    )
    connection.execute("DROP TABLE temp.sink_restored")


def _log(connection: sqlite3.Connection, work: Work) -> None:
    """Keep the values about to be replaced, and forget values that an earlier transaction
    replaced."""
    target, collations = work.target, _collations(connection, work.target)
    logged = columns(connection, target, undo=True)
    if logged:
        target.check_undo_log(logged)
    else:
        own = "CAST('' AS TEXT) AS sink_writer, CAST('' AS TEXT) AS sink_mark, CAST(0 AS INTEGER) AS sink_task, CAST(0 AS INTEGER) AS sink_existed"
        connection.execute(
            f"CREATE TABLE {target.undo} AS SELECT {own}, {listed(target.columns)} FROM {target.quoted} WHERE 0"
        )
        *schema, table = target.name.split(".", 1)
        index = ".".join(map(quoted, [*schema, f"{table}_undo_key"]))
        keys = ", ".join(f"{quoted(column)}{collations.get(column, '')}" for column in target.key)
        connection.execute(
            f"CREATE UNIQUE INDEX {index} ON {quoted(f'{table}_undo')}(sink_mark, {keys})"
        )
    writer = sql_target.writer_of(work.stamp)
    mark = sql_target.mark_of(work.stamp)
    task = work.stamp.task
    gone = "sink_task = :task OR (:task = 0 AND sink_task >= :tasks)"
    parameters = {"writer": writer, "mark": mark, "task": task, "tasks": work.num_tasks}
    connection.execute(
        f"DELETE FROM {target.undo} WHERE sink_writer = :writer AND sink_mark <> :mark AND ({gone})",
        parameters,
    )
    places = [target.columns.index(column) for column in target.key]
    kept = ", ".join(
        f"given.{quoted(column)}" if column in target.key else f"old.{quoted(column)}"
        for column in target.columns
    )
    selected = ", ".join(
        f":k{number} AS {quoted(column)}" for number, column in enumerate(target.key)
    )
    log = (
        f"INSERT INTO {target.undo}({listed((*sql_target.UNDO_COLUMNS, *target.columns))})"
        f" SELECT :writer, :mark, :task, old.{quoted(target.key[0])} IS NOT NULL, {kept}"
        f" FROM (SELECT {selected}) AS given LEFT JOIN {target.quoted} AS old ON {target.matches('old', 'given', collations)}"
        f" WHERE NOT EXISTS (SELECT 1 FROM {target.undo} AS undo WHERE undo.sink_mark = :mark AND undo.sink_task = :task"
        f" AND {target.matches('undo', 'given', collations)})"
    )
    with _blaming(work, is_log=True) as rows:
        connection.executemany(
            log,
            (
                {**parameters, **{f"k{number}": row[place] for number, place in enumerate(places)}}
                for row in rows
            ),
        )
    other = connection.execute(
        work.find_other_topology("?", collations), [work.topology, mark, task]
    ).fetchone()
    if other is not None:
        raise work.shared(other)


def _check_spelling(connection: sqlite3.Connection, work: Work) -> None:
    """Refuse rows that have replaced a row whose key is spelt differently: SQLite keeps the old
    spelling."""
    target, collations = work.target, _collations(connection, work.target)
    loose = [
        column
        for column in target.key
        if collations.get(column, "").upper() not in ("", ' COLLATE "BINARY"')
    ]
    if not loose:
        return
    same = " AND ".join(
        f"{quoted(column)} = :{number}{collations[column]}"
        for number, column in enumerate(target.key)
    )
    other = " OR ".join(
        f"{quoted(column)} <> :{target.key.index(column)} COLLATE BINARY" for column in loose
    )
    select = f"SELECT {listed(target.key)} FROM {target.quoted} WHERE {same} AND ({other})"
    places = [target.columns.index(column) for column in target.key]
    for number, row in enumerate(work.rows, start=1):
        stored = connection.execute(
            select, {str(at): row[place] for at, place in enumerate(places)}
        ).fetchone()
        if stored is not None:
            raise work.misspelt(number, row, stored)


def _collations(connection: sqlite3.Connection, target: Target) -> Mapping[str, str]:
    """By key column, the collation in the key's unique index. The index's collation, not the
    column's, decides which row a new row replaces."""
    *schema, table = target.name.split(".", 1)
    indexes = connection.execute(
        f'SELECT name FROM pragma_index_list({", ".join("?" * (1 + len(schema)))}) WHERE "unique" AND NOT partial',
        [table, *schema],
    )
    for (index,) in indexes.fetchall():
        select = f"SELECT name, coll FROM pragma_index_xinfo({', '.join('?' * (1 + len(schema)))}) WHERE key"
        by_column = {
            str(name).lower(): f" COLLATE {quoted(collation)}"
            for name, collation in connection.execute(select, [index, *schema])
        }
        if set(by_column) == {column.lower() for column in target.key}:
            return {column: by_column[column.lower()] for column in target.key}
    return {}


def columns(
    connection: sqlite3.Connection, target: Target, undo: bool = False, condition: str = "TRUE"
) -> Mapping[str, values.Column]:
    """The columns in the table or its undo log, by lower-case name. Empty if there is no table.
    Columns that SQLite computes are ``hidden``. A type says how the column reads numerals
    (affinity)."""
    *schema, table = target.name.split(".", 1)
    places = ", ".join("?" * (1 + len(schema)))
    # SQLite describes a table as an index only if the table is WITHOUT ROWID.
    select = f"SELECT 1 FROM pragma_index_info({places})"
    has_rowid = connection.execute(select, [table, *schema]).fetchone() is None
    select = f"SELECT name, type FROM pragma_table_xinfo({places}) WHERE {condition}"
    rows = connection.execute(select, [f"{table}_undo" if undo else table, *schema])
    by_name = {
        name.lower(): values.Column(
            name, next(read for read, form in _READ_AS.items() if re.fullmatch(form, type))
        )
        for name, type in rows
    }
    rowids = _ROWIDS if has_rowid and condition == "TRUE" and not undo else {}
    return by_name and {**by_name, **rowids, **by_name}


@contextlib.contextmanager
def _blaming(work: Work, is_log: bool = False) -> Iterator[Iterator[Any]]:
    """Yield the rows to write, and turn SQLite's error into an error for the refused row."""
    number, row = 0, None

    def count_rows() -> Iterator[Any]:
        nonlocal number, row
        for row in work.rows:
            number += 1
            yield row

    try:
        yield count_rows()
    except (
        sqlite3.IntegrityError,
        sqlite3.InterfaceError,
        sqlite3.ProgrammingError,
        sqlite3.DataError,
        OverflowError,
        UnicodeError,
    ) as error:
        if is_log and isinstance(error, sqlite3.IntegrityError):
            key = tuple_rows.described(work.target.columns, row)
            raise conflicts.StoreConflict(
                work.sink, key, "another task", work.stamp.writer, work.stamp.txid
            ) from None
        raise work.refusal(number, row, str(error)) from error
    except sqlite3.OperationalError as error:
        said = str(error)
        if "ON CONFLICT clause does not match" in said:
            *schema, table = work.target.name.split(".", 1)
            index = ".".join(map(quoted, [*schema, f"{table}_key"]))
            cure = f"Make it unique: CREATE UNIQUE INDEX {index} ON {quoted(table)}({listed(work.target.key)})"
            raise errors.SetupError(
                f"the key of the sink {work.sink} is not unique in its table: {said}\n  {cure}"
            ) from error
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            if number:  # The statement was understood: JSON is malformed, a sum is too large.
                raise work.refusal(number, row, said) from error
            raise errors.SetupError(
                f"the sink {work.sink} cannot write: {said}\n  Mend the table, or the statement."
            ) from error
        raise
