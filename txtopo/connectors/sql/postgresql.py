"""Writes a sink's rows to PostgreSQL by COPY, in the ledger's open transaction.

Inserted rows are copied into the table itself. Upserted rows are copied into a temporary table, and
from there into the table by one statement, ordered by key, so that two writers with common keys
meet at the first common key. Needs psycopg.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg

from txtopo import errors
from txtopo.connectors.sql import target as sql_target
from txtopo.connectors.sql import values
from txtopo.connectors.sql.target import Target, Work, listed, quoted
from txtopo.stores import conflicts
from txtopo.stores.postgresql import errors as faults

COPY_ROWS = 100_000
"""How many rows one COPY takes. Each COPY is a statement, and has a time limit."""

BEGINNING = "SUBSTR({}, 1, {}) = %s"
"""For a column and a length."""

_TYPED = (
    "SELECT attname, format_type(base, NULL), (information_schema._pg_numeric_scale(base, modifier) # 1024) - 1024,"
    " information_schema._pg_datetime_precision(base, modifier), information_schema._pg_char_max_length(base, modifier)"
    " FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid CROSS JOIN LATERAL"
    " (SELECT information_schema._pg_truetypid(a, t) AS base, information_schema._pg_truetypmod(a, t) AS modifier) AS truly"
    " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
"""Columns, with a domain's base type. A scale has 11 bits, including the sign."""
_STORED = (
    "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
    " AND attgenerated = '' ORDER BY attnum"
)
_FOLLOWING = (
    "SELECT conrelid::regclass::text FROM pg_catalog.pg_constraint WHERE confrelid = to_regclass(%s) AND contype = 'f'"
    " AND confdeltype IN ('c', 'n', 'd') LIMIT 1"
)
"""Foreign keys whose rows change when the referenced row goes."""
_LOOSE = (
    "SELECT a.attname FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid"
    " LEFT JOIN pg_catalog.pg_collation AS c ON c.oid = a.attcollation WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY(%s)"
    " AND (t.typname = 'citext' OR NOT c.collisdeterministic)"
)
"""Columns in which different texts may be equal."""
_NOT_UNIQUE = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)
_CURES = {
    "42P10": "Make the key unique: CREATE UNIQUE INDEX ON table (key).",
    "428C9": "The database fills in the column: leave it out of columns=.",
    "42809": "A sink writes to a table.",
}
_LINE = re.compile(
    r"^COPY [^\n]*?, line (\d+)", re.MULTILINE
)  # If the server writes in another language, the row is searched for.
_NO_GRANT = "42501"
_OF_NO_ROW = (
    *("08", "25", "26", "28", "34", "3B", "3D", "3F", "40", "53", "55006", "55P", "57", "58"),
    *("F0", "HV", "XX001", "XX002"),
)
"""Error classes that a new try, or a changed setup, may avoid."""
_DOUBTED = ("0A", "42", "55", "XX")
"""Other classes that may be an error of statement or server. All others are the row's: its data, or
a constraint, function or trigger that refuses the row."""


def write(session: Any, work: Work) -> None:
    """Insert or upsert ``work.rows``."""
    with session.translating(), session.connection.cursor() as cursor:
        sql_target.write_or_blame(
            functools.partial(_run, cursor),
            work,
            functools.partial(_write, cursor, session),
            _otherwise,
        )


def columns(connection: psycopg.Connection[Any], target: Target) -> Mapping[str, values.Column]:
    """The table's columns, by name. Empty if there is no table."""
    with connection.cursor() as cursor:
        _run(cursor, _TYPED, [target.quoted])
        return {row[0]: values.Column(*row) for row in cursor.fetchall()}


def _write(cursor: psycopg.Cursor[Any], session: Any, work: Work) -> None:
    target = work.target
    with _blaming(work):
        if target.statement is not None:
            rows = (dict(zip(target.columns, row, strict=True)) for row in work.rows)
            cursor.executemany(target.pyformat.encode(), rows)
        elif target.key:
            _upsert(cursor, session, work)
        else:
            mark = None if target.mark is None else sql_target.mark_of(work.stamp)
            _copy(
                cursor,
                target.quoted,
                (*target.columns, *([target.mark] if target.mark else [])),
                work,
                mark,
            )
        # A deferred constraint would otherwise fail the commit, and the refused row would stay
        # unknown.
        _run(cursor, "SET CONSTRAINTS ALL IMMEDIATE")


def take_back(session: Any, target: Target, mark: str) -> None:
    """Undo the transaction ``mark``."""
    with session.translating(), session.connection.cursor() as cursor:
        if target.mark is not None:
            _run(cursor, f"DELETE FROM {target.quoted} WHERE {quoted(target.mark)} = %s", [mark])
        elif _has_undo_log(cursor, target):
            undone = f"undo.sink_mark = %s AND {target.matches('undo', 'kept')}"
            _run(
                cursor,
                f"DELETE FROM {target.quoted} AS kept USING {target.undo} AS undo WHERE {undone} AND NOT undo.sink_existed",
                [mark],
            )
            if target.others:
                _restore(cursor, target, mark, undone)
            _run(cursor, f"DELETE FROM {target.undo} WHERE sink_mark = %s", [mark])


def forget(session: Any, target: Target, writer: str) -> None:
    """Forget the values that the component ``writer`` has replaced: its own rows are settled."""
    with session.translating(), session.connection.cursor() as cursor:
        if _has_undo_log(cursor, target):
            _run(cursor, f"DELETE FROM {target.undo} WHERE sink_writer = %s", [writer])


def _restore(cursor: psycopg.Cursor[Any], target: Target, mark: str, undone: str) -> None:
    """Put replaced values back into rows that still exist. ``undone`` finds the values in the undo
    log."""
    try:
        with cursor.connection.transaction():
            restored = ", ".join(
                f"{quoted(column)} = undo.{quoted(column)}" for column in target.others
            )
            _run(
                cursor,
                f"UPDATE {target.quoted} AS kept SET {restored} FROM {target.undo} AS undo WHERE {undone}",
                [mark],
            )
    except _NOT_UNIQUE:
        try:
            _restore_together(cursor, target, mark, undone)
        except (
            *_NOT_UNIQUE,
            psycopg.errors.ForeignKeyViolation,
            psycopg.errors.RestrictViolation,
        ) as error:
            raise sql_target.not_restored(target, mark, faults.message(error)) from error


def _restore_together(cursor: psycopg.Cursor[Any], target: Target, mark: str, undone: str) -> None:
    """Restore all rows together, since a unique value has moved between rows: row by row, the
    restored value would collide with the row that still has the value."""
    _run(cursor, _FOLLOWING, [target.quoted])
    if (follows := cursor.fetchone()) is not None:
        raise errors.StateMismatchError(
            f"the rows that {mark} wrote to the table {target.name!r} cannot be taken back: unique values moved between rows,"
            f" and moving them back would change the table {follows[0]} (ON DELETE)\n"
            f"  Nothing was changed. Make the unique index on {target.name!r} a constraint, UNIQUE (…) DEFERRABLE, which PostgreSQL checks at\n"
            f"  a statement's end. Or remove ON DELETE from the foreign key in {follows[0]}. Then run again."
        )
    _run(cursor, _STORED, [target.quoted])
    stored = [name for (name,) in cursor.fetchall()]
    values = ", ".join(
        f"{'undo' if name in target.others else 'kept'}.{quoted(name)}" for name in stored
    )
    # The sort needs all rows before the first row is put back.
    gone = f"DELETE FROM {target.quoted} AS kept USING {target.undo} AS undo WHERE {undone} RETURNING {values}"
    put = f"INSERT INTO {target.quoted}({listed(stored)}) OVERRIDING SYSTEM VALUE SELECT * FROM gone ORDER BY {listed(target.key)}"
    _run(cursor, f"WITH gone AS ({gone}) {put}", [mark])


def _run(cursor: psycopg.Cursor[Any], statement: str, values: Sequence[Any] = ()) -> None:
    """Run a statement with ``values`` for ``%s``. Any other ``%`` is part of a name."""
    cursor.execute(statement.replace("%", "%%").replace("%%s", "%s").encode(), values)


def _copy(
    cursor: psycopg.Cursor[Any],
    table: str,
    columns: Iterable[str],
    work: Work,
    mark: str | None = None,
) -> None:
    """Copy all rows into ``table``, with ``mark`` as each row's last value."""
    statement = f"COPY {table}({listed(columns)}) FROM STDIN".encode()
    left, skipped = iter(work.rows), itertools.count(0, COPY_ROWS)
    while portion := list(itertools.islice(left, COPY_ROWS)):
        with _blaming(work, next(skipped)), cursor.copy(statement) as copy:
            # As little as possible for each row: Python takes most of the time here. The server
            # names the refused row.
            write_row = copy.write_row
            if mark is None:
                for row in portion:
                    write_row(row)
            else:
                for row in portion:
                    write_row((*row, mark))


def _upsert(cursor: psycopg.Cursor[Any], session: Any, work: Work) -> None:
    target = work.target
    # Each shape of rows has a temporary table, and a new one if a column gets another type. The
    # table lasts as long as the session, and every transaction finds it empty.
    digest = hashlib.blake2b(
        f"{target.quoted}({listed(target.columns)}){work.columns}".encode(), digest_size=8
    ).hexdigest()
    staged = f"pg_temp.sink_staged_{digest}"
    _run(cursor, "SELECT to_regclass(%s) IS NOT NULL", [staged])
    if cursor.fetchone() != (True,):
        _check_may_stage(cursor, work)
        select = f"SELECT {listed(target.columns)} FROM {target.quoted} WITH NO DATA"
        _run(
            cursor, f"CREATE TEMPORARY TABLE sink_staged_{digest} ON COMMIT DELETE ROWS AS {select}"
        )
        _run(
            cursor,
            f"ALTER TABLE {staged} ADD sink_number bigint GENERATED ALWAYS AS IDENTITY (CACHE 1000)",
        )
    _copy(cursor, staged, target.columns, work)
    last = f"SELECT DISTINCT ON ({listed(target.key)}) {listed(target.columns)} FROM {staged} ORDER BY {listed(target.key)}, sink_number DESC"
    if target.has_undo_log:
        _log(cursor, session, work, last)
    _run(
        cursor,
        f"INSERT INTO {target.quoted}({listed(target.columns)}) {last}{target.on_conflict()}",
    )
    if target.has_undo_log:
        # Only now: another topology that wrote a row meanwhile has committed, and its undo log can
        # be seen.
        _run(
            cursor,
            work.find_other_topology("%s"),
            [work.topology, sql_target.mark_of(work.stamp), work.stamp.task],
        )
        if (other := cursor.fetchone()) is not None:
            raise work.shared(other)
    if work.minds_spelling:
        _check_spelling(cursor, work, staged)


def _check_spelling(cursor: psycopg.Cursor[Any], work: Work, staged: str) -> None:
    """Refuse rows that have replaced a row whose key is spelt differently: the database keeps the
    old spelling."""
    target = work.target
    _run(cursor, _LOOSE, [target.quoted, list(target.key)])
    loose = [name for (name,) in cursor.fetchall()]
    if not loose:
        return
    other = " OR ".join(
        f'kept.{quoted(name)}::text COLLATE "C" <> given.{quoted(name)}::text COLLATE "C"'
        for name in loose
    )
    kept = ", ".join(f"kept.{quoted(column)}" for column in target.key)
    columns = ", ".join(f"given.{quoted(column)}" for column in target.columns)
    joined = f"{staged} AS given JOIN {target.quoted} AS kept ON {target.matches('given', 'kept')}"
    _run(
        cursor,
        f"SELECT {kept}, {columns} FROM {joined} WHERE {other} ORDER BY given.sink_number LIMIT 1",
    )
    if (misspelt := cursor.fetchone()) is not None:
        raise work.misspelt(0, misspelt[len(target.key) :], misspelt[: len(target.key)])


def _check_may_stage(cursor: psycopg.Cursor[Any], work: Work) -> None:
    """Refuse a role that may not make temporary tables. The server's own error would end the
    transaction, in the server's language only."""
    _run(
        cursor,
        "SELECT has_database_privilege(current_database(), 'TEMPORARY'), current_database(), current_user",
    )
    may, database, role = cursor.fetchone() or (True, "", "")
    if not may:
        raise errors.SetupError(
            f"the sink {work.sink} makes a temporary table to upsert from, which the role {role!r} may not do in the database {database!r}\n"
            f"  Type: GRANT TEMPORARY ON DATABASE {quoted(database)} TO {quoted(role)}\n"
            "  Or give no key=: inserting needs no temporary table."
        )


def _log(cursor: psycopg.Cursor[Any], session: Any, work: Work, last: str) -> None:
    """Keep the values about to be replaced, and forget values that an earlier transaction
    replaced."""
    target = work.target
    if not _has_undo_log(cursor, target):
        # In the first transaction, several tasks may find no undo log at the same moment.
        session.lock_raisers(f"undo log of {target.quoted}")
        if not _has_undo_log(cursor, target):
            _make_undo_log(cursor, target)
    writer = sql_target.writer_of(work.stamp)
    mark = sql_target.mark_of(work.stamp)
    task = work.stamp.task
    gone = f"DELETE FROM {target.undo} WHERE sink_writer = %s AND sink_mark <> %s AND (sink_task = %s OR (%s = 0 AND sink_task >= %s))"
    _run(cursor, gone, [writer, mark, task, task, work.num_tasks])
    columns = ", ".join(
        f"given.{quoted(column)}" if column in target.key else f"old.{quoted(column)}"
        for column in target.columns
    )
    statement = (
        f"INSERT INTO {target.undo}({listed((*sql_target.UNDO_COLUMNS, *target.columns))})"
        f" SELECT %s, %s, %s, old.{quoted(target.key[0])} IS NOT NULL, {columns}"
        f" FROM ({last}) AS given LEFT JOIN {target.quoted} AS old ON {target.matches('given', 'old')}"
    )
    try:
        _run(cursor, statement, [writer, mark, task])
    except psycopg.errors.UniqueViolation as error:
        key = error.diag.message_detail or ""
        raise conflicts.StoreConflict(
            work.sink, key, "another task", work.stamp.writer, work.stamp.txid
        ) from None


def _make_undo_log(cursor: psycopg.Cursor[Any], target: Target) -> None:
    own = "''::text AS sink_writer, ''::text AS sink_mark, 0 AS sink_task, false AS sink_existed"
    _run(
        cursor,
        f"CREATE TABLE {target.undo} AS SELECT {own}, {listed(target.columns)} FROM {target.quoted} WITH NO DATA",
    )
    _run(cursor, f"CREATE UNIQUE INDEX ON {target.undo}(sink_mark, {listed(target.key)})")


def _has_undo_log(cursor: psycopg.Cursor[Any], target: Target) -> bool:
    """Whether there is an undo log. Raises if it has another sink's columns."""
    logged = columns(cursor.connection, dataclasses.replace(target, name=f"{target.name}_undo"))
    if logged:
        target.check_undo_log(logged)
    return bool(logged)


@contextlib.contextmanager
def _blaming(work: Work, skipped: int = 0) -> Iterator[None]:
    """Turn the server's error into an error for a refused row. Row numbers count from
    ``skipped``."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        # Without a state the driver itself refused, or the connection is lost.
        if state.startswith(_OF_NO_ROW) or (
            not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        ):
            raise
        line = None if state.startswith(_DOUBTED) else _LINE.search(error.diag.context or "")
        number = skipped + int(line[1]) if line else 0
        raise work.refusal(
            number, None, " ".join(filter(None, [faults.message(error), error.diag.message_detail]))
        ) from error


def _otherwise(work: Work, error: object) -> Exception | None:
    """What ``error`` means if no row but statement, table or server is wrong, where it may be."""
    state = getattr(error, "sqlstate", None) or ""
    if not isinstance(error, psycopg.Error) or not state.startswith(_DOUBTED):
        return None
    if state.startswith("42") and state != _NO_GRANT:
        return work.mistake(faults.message(error), state, _CURES)
    return faults.meaning(work.sink, error, connecting=False, lost=False)
