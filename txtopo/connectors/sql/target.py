"""A sink's target: the table, its columns, and how its rows can be taken back.

A user describes a table in the same way for all databases. Targets pickle. Standard library only.

A row in a user's table has no place for a stamp. A failed opaque attempt's rows can be found again
in two ways. A *mark* is a column that the sink fills: then rows are only inserted, and taking back
means deleting. An *undo log* is a table beside the user's table, with the values that upserts have
replaced.

Invariants:
    - ``key`` is part of ``columns``. A target with a statement has neither a key nor a mark.
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
"""An undo log's own columns, before the sink's columns."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A user's table, and how rows get there."""

    name: str
    """As the user writes it: ``sales`` or ``shop.sales``. For a statement, its beginning, for
    messages."""
    columns: tuple[str, ...]
    """In the order of a row's values. Empty if the tuples name the columns."""
    key: tuple[str, ...] = ()
    """Columns by which a row replaces an earlier row. Empty if rows are inserted."""
    statement: str | None = None
    """The user's own SQL, run once per row, with ``:name`` for its values."""
    mark: str | None = None
    """The column with the row's writer."""
    opaque: bool = False
    """Whether a failed attempt's rows are taken back."""
    dialect: parameters.Dialect = "sqlite"
    """The database's dialect."""

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
        """Refuse an undo log whose ``logged_columns`` differ from the sink's columns: the undo log
        has no earlier values for new columns."""
        logged = {
            column.lower(): column
            for column in logged_columns
            if column.lower() not in UNDO_COLUMNS
        }
        if set(logged) != {column.lower() for column in self.columns}:
            raise errors.SetupError(
                f"the undo log {self.undo} was made for a sink with the columns {', '.join(logged.values())}, and this sink writes"
                f" {', '.join(self.columns)}: its rows could not be taken back (R31)\n"
                "  Opaque sinks that upsert into a table must write the same columns. If you changed the columns: run with the old columns until\n"
                f"  all is committed, stop the topology, and type: DROP TABLE {self.undo}"
            )

    def on_conflict(self) -> str:
        """SQL that makes an ``INSERT`` an upsert, in SQLite and PostgreSQL. Empty without a key."""
        if not self.key:
            return ""
        changes = ", ".join(
            f"{quoted(column)} = excluded.{quoted(column)}" for column in self.others
        )
        return f" ON CONFLICT ({listed(self.key)}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"

    def matches(self, one: str, other: str, collations: Mapping[str, str] | None = None) -> str:
        """SQL for the condition that two relations have the same key. ``collations``: by column,
        the collation to write after the column."""
        said = collations or {}
        return " AND ".join(
            f"{one}.{quoted(column)} = {other}.{quoted(column)}{said.get(column, '')}"
            for column in self.key
        )

    @property
    def pyformat(self) -> str:
        """The statement with ``%(name)s`` for each ``:name``, and any other ``%`` doubled."""
        doubled = (self.statement or "").replace("%", "%%")
        return parameters.replaced(doubled, self.dialect, lambda name: f"%({name})s")


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A task's rows in a transaction."""

    sink: str
    """The sink's address, for messages."""
    target: Target
    stamp: stamps.Stamp
    """The writer."""
    num_tasks: int
    """How many tasks the component has."""
    rows: Iterable[Sequence[Any]]
    """Values in the order of the target's columns. Can be iterated over repeatedly."""
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The table's columns, as the database describes them."""

    @property
    def topology(self) -> str:
        """How every ``sink_writer`` in this topology begins."""
        return f"{self.stamp.topology_id}/"

    def find_other_topology(self, value: str, collations: Mapping[str, str] | None = None) -> str:
        """A query for a row of this task that another topology may take back: writer, mark and key.
        ``value`` stands in the query three times: for :attr:`topology`, this work's mark, and its
        task.

        Otherwise a topology would undo the other topology's rows. The undo log keeps each writer's
        newest transaction: while a row is in the log, the database cannot tell whether the
        transaction has committed. Components in the same topology do not count: two at a time are
        refused when the topology is built, and a removed component takes nothing back."""
        keys = ", ".join(f"other.{quoted(column)}" for column in self.target.key)
        # Not a join: a database that does not know the row counts yet would compare every row with
        # every row.
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
            f" the row back, and {writer_of(self.stamp)} writes the same row\n"
            "  Taking back either write would undo the other. Nothing was written. Give opaque sinks in two topologies separate tables or separate\n"
            f"  keys. If {writer} writes no more and its last transaction has committed, stop that topology for good, and type in the database\n"
            f"    DELETE FROM {self.target.undo} WHERE sink_writer = {literal}"
        )

    @property
    def minds_spelling(self) -> bool:
        """Whether two spellings of a key, equal in the table, could come to different tasks, and
        no other check would notice."""
        return bool(self.target.key) and self.num_tasks > 1 and not self.target.has_undo_log

    def misspelt(self, number: int, row: object, stored: Sequence[Any]) -> errors.RowRefusedError:
        """The error for a ``row`` whose key equals the key ``stored`` in the table, but is spelt
        differently (R32)."""
        return self.refusal(
            number,
            row,
            f"the table has its key as {', '.join(map(repr, stored))}, because it compares texts without case, accents or spaces. The two\n"
            "  spellings come to different tasks, whose rows would replace each other. Give every row the same spelling in a bolt before the\n"
            '  fields grouping. Or have the key compared letter by letter (COLLATE BINARY, "C", in MariaDB\n'
            "  utf8mb4_nopad_bin, in MySQL utf8mb4_0900_bin), or give the sink one task",
        )

    def refusal(self, number: int, row: object, why: str) -> errors.RowRefusedError:
        """The error for the task's row ``number`` (from 1, 0 if unknown), refused by the
        database."""
        if row is None and number:
            row = next(itertools.islice(self.rows, number - 1, None), None)
        shown = "" if row is None else tuple_rows.described(self.target.columns, row)
        stamp = self.stamp
        return errors.RowRefusedError(
            self.sink, stamp.component, stamp.task, stamp.position, number, shown, why
        )

    def mistake(self, why: str, code: Any, cures: Mapping[Any, str]) -> errors.SetupError:
        """The error for a table or a statement that the database refuses with ``code``."""
        cure = self.target.statement is None and cures.get(code)
        return errors.SetupError(
            f"the sink {self.sink} cannot write: {why} ({code})\n  {cure or 'Mend the statement, or the table.'}"
        )


def write_or_blame(
    run: Callable[[str], object],
    work: Work,
    write: Callable[[Work], None],
    otherwise: Callable[[Work, object], Exception | None],
) -> None:
    """Run ``write(work)``. If the database refuses without naming the row, search for the fewest
    first rows that are refused. ``run`` runs a statement in the transaction, which ends with the
    error.

    The search takes at most two seconds, or as long as a longer write took. If fewer rows are
    refused for another reason, they lack later rows, and the search ends.

    :param otherwise: what a database's error means if it is no row's. None if it surely is a row's.
        If not, a row is only blamed that is refused alone, while the first or the last row passes.
    :raises errors.RowRefusedError: with the row's number, if it is found.
    """
    began = time.monotonic()
    run("SAVEPOINT sink_rows")
    try:
        return write(work)
    except errors.RowRefusedError as error:
        if error.number:
            raise
        refused = error
    doubt = otherwise(work, refused.__cause__)

    def refusal(first: int, end: int) -> errors.RowRefusedError | None:
        run("ROLLBACK TO SAVEPOINT sink_rows")
        try:
            write(dataclasses.replace(work, rows=itertools.islice(work.rows, first, end)))
        except errors.RowRefusedError as error:
            if _reason(error) != _reason(refused):
                raise doubt or refused from error
            return error
        return None

    taken, count = 0, (total := sum(1 for _ in work.rows))
    ends = (now := time.monotonic()) + max(2.0, now - began)
    if doubt is not None and (total == 1 or (refusal(0, 1) and refusal(total - 1, total))):
        raise doubt from refused.__cause__
    while count - taken > 1:
        if time.monotonic() > ends:
            raise doubt or work.refusal(
                0, None, f"{refused.why} (one of the rows {taken + 1} to {count} of the task)"
            ) from refused
        some = (taken + count) // 2
        if refusal(0, some):
            count = some
        else:
            taken = some
    if doubt is not None:
        alone = refusal(taken, count)
        if alone is None:
            raise doubt from refused.__cause__
        refused = alone
    raise work.refusal(count, None, refused.why) from refused


def _reason(error: errors.RowRefusedError) -> object:
    """The reason for a refusal. For ``NOT NULL`` and ``CHECK`` without the row's values, which
    PostgreSQL shows: a sequence or a clock may give new values in the next try."""
    shown = getattr(error.__cause__, "diag", None)
    if shown is None or shown.sqlstate not in ("23502", "23514"):
        return error.why
    return shown.sqlstate, shown.constraint_name, shown.column_name


def mark_of(stamp: stamps.Stamp | stamps.Fence) -> str:
    """The text that marks a row, or replaced values in the undo log: the transaction. Only one
    attempt is live at any time (R31)."""
    return f"{writer_of(stamp)}/{stamp.generation}/{stamp.txid}"


def not_restored(target: Target, mark: str, said: str) -> errors.StateMismatchError:
    """The error if the values that the transaction ``mark`` replaced cannot be put back."""
    return errors.StateMismatchError(
        f"the rows that {mark} wrote to the table {target.name!r} cannot be taken back: {said}\n"
        "  The table was changed from outside since, and a unique value would be there twice. Nothing was changed now.\n"
        f"  {target.undo} has the old rows: remove the rows that conflict with them, and run again."
    )


def writer_of(stamp: stamps.Stamp | stamps.Fence) -> str:
    """The component, as in a mark."""
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
    """Make a target from a sink's arguments. ``table`` is a name or a SQLAlchemy ``Table``.

    :raises errors.UsageError: the arguments contradict each other, or opaque rows could not be
        taken back.
    """
    if (table is None) == (statement is None):
        raise errors.UsageError(
            "an SqlSink needs a table or a statement, and not both\n  Give table='sales', or statement='INSERT INTO …'."
        )
    keys = (key,) if isinstance(key, str) else tuple(key)
    if statement is not None:
        return _of_statement(statement, columns, keys, mark, opaque, dialect)
    name, known = _name_and_columns(table)
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
            "  Give columns= with every column the sink writes, and key= with the columns by which a row replaces an earlier row."
        )
    if mark is not None and (keys or mark in names):
        reason = (
            "is one of its columns"
            if mark in names
            else "is useless with a key, since a row may replace an earlier row"
        )
        raise errors.UsageError(
            f"the mark {mark!r} of an SqlSink {reason}\n  Give the mark a column of its own. With a key, give no mark."
        )
    if opaque and not keys and mark is None:
        raise errors.UsageError(
            f"an opaque SqlSink cannot take back rows that it inserts into {name}: without a mark, no query can find them (R31)\n"
            "  Give mark='column', a text column that the sink fills, with an index. Or give key=[…], if rows have a key. Or use a transactional\n"
            "  spout without opaque=True."
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
            "  Write the upsert into the statement: INSERT … ON CONFLICT … DO UPDATE …"
        )
    if not names:
        raise errors.UsageError(
            "the statement of an SqlSink has no values\n  Name them like the fields of the tuples: INSERT INTO sales VALUES (:id, :cents)"
        )
    if opaque:
        raise errors.UsageError(
            "an opaque SqlSink cannot take back the changes that your statement made (R31)\n"
            "  Give table= with mark= or key=, or use a transactional spout without opaque=True."
        )
    first = " ".join(statement.split())
    return Target(
        first if len(first) <= 40 else first[:37] + "...",
        names,
        statement=statement,
        dialect=dialect,
    )


def _name_and_columns(table: Any) -> tuple[str, tuple[str, ...] | None]:
    """The table's name, and its columns where they are known."""
    if isinstance(table, str):
        if not table or "\0" in table:
            raise errors.UsageError(
                f"an SqlSink cannot write to a table {table!r}\n  Give its name, or schema.name."
            )
        return table, None
    # Recognised by its attributes: its class would need SQLAlchemy here.
    name, columns = getattr(table, "name", None), getattr(table, "columns", None)
    if not isinstance(name, str) or columns is None:
        raise errors.UsageError(
            f"an SqlSink cannot write to {table!r}\n  Give a table's name, or a sqlalchemy.Table."
        )
    schema = getattr(table, "schema", None)
    return f"{schema}.{name}" if schema else name, tuple(column.name for column in columns)
