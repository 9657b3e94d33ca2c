"""The target of a sink: the table, its columns, and the facts about rows by which they can be taken
back.

Apart from the databases because a user describes a table in the same way for all of them. Pickles;
standard library only.

A row of a user's table has no place for a stamp. The rows of a failed attempt of an opaque batch
can be found again in one of two ways: by a *mark*, a column of the table that the sink fills (rows
are then only inserted, and taking back is deleting); or by an *undo log*, a table beside it with
the values that upserts have replaced.

Invariants:
    - ``key`` is part of ``columns``; there is a statement, or there are columns, never both.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.sql import parameters
from txtopo.sinks import tuple_rows
from txtopo.stores import stamps

UNDO_COLUMNS = ("sink_writer", "sink_mark", "sink_task", "sink_existed")
"""Of an undo log, before those of the sink."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A table of the user's, and how rows get there."""

    name: str
    """As the user says it: ``sales`` or ``shop.sales``; or the beginning of his statement, for
    messages."""
    columns: tuple[str, ...]
    """In the order of a row's values; empty if the tuples have them."""
    key: tuple[str, ...] = ()
    """Columns by which a row replaces an earlier row; empty if rows are inserted."""
    statement: str | None = None
    """The user's own SQL, run once per row, with ``:name`` for its values."""
    mark: str | None = None
    """The column with the writer of a row."""
    opaque: bool = False
    """Whether rows of a failed attempt are taken back."""
    dialect: parameters.Dialect = "sqlite"
    """Of the database."""

    @property
    def has_undo_log(self) -> bool:
        """Whether replaced values are kept."""
        return self.opaque and self.mark is None

    @property
    def quoted(self) -> str:
        """The table, as SQL."""
        return ".".join(map(quoted, self.name.split(".", 1)))

    @property
    def undo(self) -> str:
        """The undo log, as SQL."""
        *schema, table = self.name.split(".", 1)
        return ".".join(map(quoted, [*schema, f"{table}_undo"]))

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that an upsert replaces."""
        return tuple(column for column in self.columns if column not in self.key)

    def check_undo_log(self, logged_columns: Iterable[str]) -> None:
        """Refuse an undo log, with the columns ``logged_columns``, of a sink that writes other
        columns: the undo log has no earlier values of the new columns."""
        logged = {
            column.lower(): column
            for column in logged_columns
            if column.lower() not in UNDO_COLUMNS
        }
        if set(logged) != {column.lower() for column in self.columns}:
            raise errors.SetupError(
                f"the undo log {self.undo} was made for a sink with the columns {', '.join(logged.values())}, and this one writes"
                f" {', '.join(self.columns)}: it could not be taken back (R31)\n"
                "  Opaque sinks that upsert one table write the same columns. If they were changed: run with those of before until all is\n"
                f"  committed, stop the topology, and type: DROP TABLE {self.undo}"
            )

    def on_conflict(self) -> str:
        """How an ``INSERT`` becomes an upsert, in SQLite as in PostgreSQL; empty if it is none."""
        if not self.key:
            return ""
        changes = ", ".join(
            f"{quoted(column)} = excluded.{quoted(column)}" for column in self.others
        )
        return f" ON CONFLICT ({listed(self.key)}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"

    def matches(self, one: str, other: str, collations: Mapping[str, str] | None = None) -> str:
        """The condition that two relations, as SQL, have the same key; ``collations`` are the
        collations to write after a column."""
        said = collations or {}
        return " AND ".join(
            f"{one}.{quoted(column)} = {other}.{quoted(column)}{said.get(column, '')}"
            for column in self.key
        )

    def given_to(self, sort: Callable[[str], str]) -> str:
        """The statement, with each ``:name`` as ``sort(name)``."""
        return parameters.replaced(self.statement or "", self.dialect, sort)


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """The rows of a task in a transaction."""

    sink: str
    """The sink's address, for messages."""
    target: Target
    stamp: stamps.Stamp
    """Who writes."""
    num_tasks: int
    """How many tasks the component has."""
    rows: Iterable[Sequence[Any]]
    """Values in the order of the target's columns; may be gone through repeatedly."""
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of the table, as its database describes them."""

    @property
    def topology(self) -> str:
        """The beginning of every ``sink_writer`` of this topology."""
        return f"{self.stamp.topology_id}/"

    def find_other_topology(self, value: str, collations: Mapping[str, str] | None = None) -> str:
        """A query for a row of this task that another topology may take back: its writer, its mark
        and its key. Three times ``value`` stands for the beginning of this topology's writers, the
        mark of this work, and its task.

        One of the two would undo rows of the other. The undo log keeps the newest transaction of
        each writer: while a row is there, nothing in the database tells whether that transaction
        has committed. A component of the same topology is no other: two at a time are refused when
        the topology is built, and a removed component takes nothing back."""
        keys = ", ".join(f"other.{quoted(column)}" for column in self.target.key)
        # Not a join: a database that does not know yet how many rows there are would compare each
        # with each.
        own_mark = f"SELECT mine.sink_task FROM {self.target.undo} AS mine WHERE {self.target.matches('mine', 'other', collations)}"
        return (
            f"SELECT other.sink_writer, other.sink_mark, {keys} FROM {self.target.undo} AS other"
            f" WHERE SUBSTR(other.sink_writer, 1, {len(self.topology)}) <> {value} AND ({own_mark} AND mine.sink_mark = {value}) = {value} LIMIT 1"
        )

    def shared(self, row: Sequence[Any]) -> errors.StateMismatchError:
        """The error for ``row``, which :meth:`find_other_topology` has found."""
        writer, mark, *key = row
        literal = "'" + str(writer).replace("'", "''") + "'"
        return errors.StateMismatchError(
            f"the row {tuple_rows.described(self.target.key, key)} of the table {self.target.name!r} was written by {writer} ({mark}), which may take"
            f" it back, and {writer_of(self.stamp)} has a row for it, too\n"
            "  Taking back the one would undo the other. Nothing was written. Give the opaque sinks of two topologies a table each, or keys of\n"
            f"  their own. If {writer} writes no more and its last transaction has committed, stop it for good, and type in the database\n"
            f"    DELETE FROM {self.target.undo} WHERE sink_writer = {literal}"
        )

    @property
    def minds_spelling(self) -> bool:
        """Whether rows whose keys are one in the table and two elsewhere would come to different
        tasks, and nothing else would notice."""
        return bool(self.target.key) and self.num_tasks > 1 and not self.target.has_undo_log

    def misspelt(self, number: int, row: object, stored: Sequence[Any]) -> errors.RowRefusedError:
        """The key of ``row`` is, for the table, that of the row with the key ``stored``, whose
        texts are others (R32)."""
        return self.refusal(
            number,
            row,
            f"the table has its key as {', '.join(map(repr, stored))}, because it compares texts without case, accents or spaces. Rows of the two\n"
            "  spellings come to different tasks, and each would replace the other's. Give every row the same spelling in a bolt before the\n"
            '  fields grouping; or have the key compared letter by letter (COLLATE BINARY, "C", in MariaDB\n'
            "  utf8mb4_nopad_bin, in MySQL utf8mb4_0900_bin); or give the sink one task",
        )

    def refusal(self, number: int, row: object, why: str) -> errors.RowRefusedError:
        """The database does not take row ``number`` (1 …; 0 if unknown) of this task."""
        if row is None and number:
            row = next(itertools.islice(self.rows, number - 1, None), None)
        shown = "" if row is None else tuple_rows.described(self.target.columns, row)
        stamp = self.stamp
        return errors.RowRefusedError(
            self.sink, stamp.component, stamp.task, stamp.position, number, shown, why
        )


def write_or_blame(run: Callable[[str], object], work: Work, write: Callable[[Work], None]) -> None:
    """``write(work)``. Where the database refuses it and does not say which row, find the fewest
    first rows that are refused; ``run`` runs a statement in the transaction, which then ends. The
    search takes two seconds, or the time of the whole; and where fewer rows are refused for another
    reason, they lack others.

    :raises errors.RowRefusedError: with the number of the row, if it is found.
    """
    began = time.monotonic()
    run("SAVEPOINT sink_rows")
    try:
        return write(work)
    except errors.RowRefusedError as error:
        if error.number:
            raise
        refused = error
    taken, count = 0, sum(1 for _ in work.rows)
    ends = (now := time.monotonic()) + max(2.0, now - began)
    while count - taken > 1:
        if time.monotonic() > ends:
            raise work.refusal(
                0, None, f"{refused.why} (one of the rows {taken + 1} to {count} of the task)"
            ) from refused
        some = (taken + count) // 2
        run("ROLLBACK TO SAVEPOINT sink_rows")
        try:
            write(dataclasses.replace(work, rows=itertools.islice(work.rows, some)))
            taken = some
        except errors.RowRefusedError as error:
            if _reason(error) != _reason(refused):
                raise refused from error
            count = some
    raise work.refusal(count, None, refused.why) from refused


def _reason(error: errors.RowRefusedError) -> object:
    """The reason of a refusal without the values of the row, where it is of the row alone: a
    sequence or a clock may give other values now, and PostgreSQL shows them."""
    shown = getattr(error.__cause__, "diag", None)
    if shown is None or shown.sqlstate not in ("23502", "23514"):
        return error.why
    return shown.sqlstate, shown.constraint_name, shown.column_name


def mark_of(stamp: stamps.Stamp | stamps.Fence) -> str:
    """The text of a mark, and of the undo log beside the replaced values: the transaction, of which
    one attempt is live at any time (R31)."""
    return f"{writer_of(stamp)}/{stamp.generation}/{stamp.txid}"


def not_restored(target: Target, mark: str, said: str) -> errors.StateMismatchError:
    """The values that the transaction ``mark`` replaced cannot be put back."""
    return errors.StateMismatchError(
        f"what {mark} wrote to the table {target.name!r} cannot be taken back: {said}\n"
        "  Somebody else has changed the table since, and a value would be there twice that must be unique. Nothing was changed now.\n"
        f"  {target.undo} has the rows as they were: remove what stands in their way, and run again."
    )


def writer_of(stamp: stamps.Stamp | stamps.Fence) -> str:
    """The component, as a mark has it."""
    return f"{stamp.topology_id}/{stamp.component}"


def quoted(name: str) -> str:
    """A name, as SQL."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Names, as SQL."""
    return ", ".join(map(quoted, names))


def target_of(
    table: Any,
    columns: Sequence[str] | Mapping[str, str] | None,
    key: Sequence[str],
    statement: str | None,
    mark: str | None,
    opaque: bool,
    dialect: parameters.Dialect = "sqlite",
) -> Target:
    """The target of a sink's arguments; ``table`` is a name or a SQLAlchemy ``Table``.

    :raises errors.UsageError: they contradict each other, or opaque rows could not be taken back.
    """
    if (table is None) == (statement is None):
        raise errors.UsageError(
            "an SqlSink needs a table or a statement, and not both\n  Give table='sales', or statement='INSERT INTO …'."
        )
    keys = (key,) if isinstance(key, str) else tuple(key)
    if statement is not None:
        return _of_statement(statement, columns, keys, mark, opaque, dialect)
    name, known = _named(table)
    names = tuple(columns or ())
    if (
        isinstance(columns, str)
        or len(set(names)) != len(names)
        or not all(isinstance(column, str) and column for column in names)
    ):
        raise errors.UsageError(
            f"the columns of an SqlSink are different names, not {columns!r}\n  Give columns=['word', 'count']."
        )
    unknown = [
        column
        for column in (*names, *keys, *([mark] if mark else []))
        if known is not None and column not in known
    ]
    if unknown:
        raise errors.UsageError(
            f"the table {name} has no column {unknown[0]!r}\n  It has {', '.join(known or ())}."
        )
    if keys and not set(keys) <= set(names):
        raise errors.UsageError(
            f"the key of an SqlSink ({', '.join(keys)}) is not among its columns ({', '.join(names) or 'none are given'})\n"
            "  Give columns= with every column the sink writes, and in key= those by which a row replaces another."
        )
    if mark is not None and (keys or mark in names):
        reason = (
            "is one of its columns"
            if mark in names
            else "is of no use with a key, since a row may replace another"
        )
        raise errors.UsageError(
            f"the mark {mark!r} of an SqlSink {reason}\n  Give a column of its own; or, with a key, no mark."
        )
    if opaque and not keys and mark is None:
        raise errors.UsageError(
            f"an opaque SqlSink cannot take back rows that it inserts into {name}: nothing tells them from others (R31)\n"
            "  Give mark='column', a text column of the table that the sink fills (and an index on it); or key=[…], if rows have a key; or use a\n"
            "  transactional spout, and no opaque=True."
        )
    return Target(name, names, keys, None, mark, opaque, dialect)


def _of_statement(
    statement: str,
    columns: Sequence[str] | Mapping[str, str] | None,
    key: tuple[str, ...],
    mark: str | None,
    opaque: bool,
    dialect: parameters.Dialect,
) -> Target:
    names = tuple(dict.fromkeys(parameters.names(statement, dialect)))
    if key or mark or (columns and set(columns) != set(names)):
        raise errors.UsageError(
            "an SqlSink with a statement takes neither a key nor a mark, and its columns are the statement's :names\n"
            "  Say in the statement what is to be done: INSERT … ON CONFLICT … DO UPDATE …"
        )
    if not names:
        raise errors.UsageError(
            "the statement of an SqlSink has no values\n  Name them like the fields of the tuples: INSERT INTO sales VALUES (:id, :cents)"
        )
    if opaque:
        raise errors.UsageError(
            "an opaque SqlSink cannot take back what a statement of yours did (R31)\n"
            "  Give table= with mark= or key=; or use a transactional spout, and no opaque=True."
        )
    first = " ".join(statement.split())
    return Target(
        first if len(first) <= 40 else first[:37] + "...",
        names,
        statement=statement,
        dialect=dialect,
    )


def _named(table: Any) -> tuple[str, tuple[str, ...] | None]:
    """The table's name, and its columns where they are known."""
    if isinstance(table, str):
        if not table or "\0" in table:
            raise errors.UsageError(
                f"an SqlSink cannot write to a table {table!r}\n  Give its name, or schema.name."
            )
        return table, None
    # By its attributes and not by its class, which would need SQLAlchemy here.
    name, columns = getattr(table, "name", None), getattr(table, "columns", None)
    if not isinstance(name, str) or columns is None:
        raise errors.UsageError(
            f"an SqlSink cannot write to {table!r}\n  Give the name of a table, or a sqlalchemy.Table."
        )
    schema = getattr(table, "schema", None)
    return f"{schema}.{name}" if schema else name, tuple(column.name for column in columns)
