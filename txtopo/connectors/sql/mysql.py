"""Writes a sink's rows to MySQL or MariaDB, many rows per statement, in the ledger's open
transaction.

There is no undo log here: making a table would commit the open transaction. So opaque rows need a
mark, and an opaque upsert is refused when the sink is made. Three mistakes that this database would
accept in silence are refused: a table without transactions, a key that is not unique, and an upsert
into a table with another unique index, by which a row would replace a row with another key.

Needs PyMySQL.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pymysql

from txtopo import errors
from txtopo.connectors.sql import target as sql_target
from txtopo.connectors.sql import values
from txtopo.connectors.sql.target import Target, Work
from txtopo.stores.mysql import errors as faults

PORTION_ROWS = 10_000
"""How many rows the driver gets at once. The driver makes statements up to a megabyte from them."""

LOOKED_UP_ROWS = 1_000
"""Keys in one SELECT."""

BEGINNING = "BINARY SUBSTR({}, 1, {}) = %s"
"""For a column and a length. By default the database ignores case."""

_CURES = {
    1906: "The database fills in the column: leave it out of columns=.",
    3105: "The database fills in the column: leave it out of columns=.",
}

_NO_COLUMN = 1054
_ENGINE = "SELECT engine FROM information_schema.tables WHERE table_schema = {} AND table_name = %s"
_TYPED = (
    "SELECT column_name, data_type, numeric_scale, datetime_precision, character_maximum_length FROM information_schema.columns"
    " WHERE table_schema = {} AND table_name = %s ORDER BY ordinal_position"
)
_UNIQUE = (
    "SELECT index_name, LOWER(column_name), sub_part FROM information_schema.statistics"
    " WHERE table_schema = {} AND table_name = %s AND non_unique = 0"
)
_LOOSE = (
    "SELECT LOWER(column_name) FROM information_schema.columns WHERE table_schema = {} AND table_name = %s"
    " AND collation_name IS NOT NULL AND RIGHT(collation_name, 9) NOT IN ('nopad_bin', '_0900_bin')"
)
"""Columns in which different texts may be equal. Binary collations other than these two ignore
spaces at the end."""


def write(session: Any, work: Work) -> None:
    """Insert or upsert ``work.rows``."""
    with session.translating(), session.connection.cursor() as cursor:
        sql_target.write_or_blame(
            cursor.execute, work, functools.partial(_write, cursor), _otherwise
        )


def columns(connection: Any, target: Target) -> Mapping[str, values.Column]:
    """The table's columns, by lower-case name. Empty if there is no table."""
    *schema, table = target.name.split(".", 1)
    with connection.cursor() as cursor:
        cursor.execute(_TYPED.format("%s" if schema else "DATABASE()"), [*schema, table])
        return {row[0].lower(): values.Column(*row) for row in cursor.fetchall()}


def _write(cursor: Any, work: Work) -> None:
    target = work.target
    with _blaming(work):
        if target.statement is not None:
            _run(
                cursor,
                target.pyformat,
                (dict(zip(target.columns, row, strict=True)) for row in work.rows),
            )
            return
        _check(cursor, work)
        mark = () if target.mark is None else (sql_target.mark_of(work.stamp),)
        columns = (*target.columns, *([target.mark] if target.mark else []))
        insert = f"INSERT INTO {_table(target)}({_names(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"
        if target.key:
            changes = (
                f"{quoted(column)} = VALUES({quoted(column)})"
                for column in target.others or target.key
            )
            insert = f"{insert} ON DUPLICATE KEY UPDATE {', '.join(changes)}"
        _run(cursor, insert, ((*row, *mark) for row in work.rows) if mark else work.rows)
        if work.minds_spelling and target.others:
            _check_spelling(cursor, work)


def take_back(session: Any, target: Target, mark: str) -> None:
    """Delete the rows that have ``mark``."""
    with session.translating(), session.connection.cursor() as cursor:
        column = quoted(target.mark or "")
        # Compare once by the index, and once letter by letter: by default the database ignores
        # case.
        cursor.execute(
            f"DELETE FROM {_table(target)} WHERE {column} = %s AND BINARY {column} = %s",
            [mark, mark],
        )


def _run(cursor: Any, statement: str, rows: Iterable[Any]) -> None:
    left = iter(rows)
    while portion := list(itertools.islice(left, PORTION_ROWS)):
        cursor.executemany(statement, portion)


def _check(cursor: Any, work: Work) -> None:
    target = work.target
    *schema, table = target.name.split(".", 1)
    of = "%s" if schema else "DATABASE()"
    cursor.execute(_ENGINE.format(of), [*schema, table])
    engine = cursor.fetchone()
    if engine is not None and engine[0] is not None and engine[0].lower() != "innodb":
        raise errors.SetupError(
            f"the table {target.name!r} of the sink {work.sink} uses the engine {engine[0]}, which has no transactions\n"
            f"  Type: ALTER TABLE {_table(target)} ENGINE=InnoDB"
        )
    if engine is None or not target.key:
        return
    cursor.execute(_UNIQUE.format(of), [*schema, table])
    indexes: dict[str, set[str]] = {}
    shortened: set[str] = set()
    for name, column, characters in cursor.fetchall():
        indexes.setdefault(name, set()).add(column)
        # An index on the first characters takes different keys for equal keys.
        shortened.update([] if characters is None else [name])
    whole = {name: columns for name, columns in indexes.items() if name not in shortened}
    key = {column.lower() for column in target.key}
    written = {column.lower() for column in target.columns}
    if key not in whole.values():
        raise errors.SetupError(
            f"the key of the sink {work.sink} is not unique in its table\n  Type: CREATE UNIQUE INDEX name ON {_table(target)}({_names(target.key)})"
        )
    # Two rows that are equal in an index with all key columns have equal keys. The database computes
    # the columns that the sink does not write.
    if others := [
        columns
        for name, columns in indexes.items()
        if columns & written and not (name in whole and key <= columns)
    ]:
        raise errors.SetupError(
            f"the table {target.name!r} of the sink {work.sink} has another unique index, on {', '.join(sorted(others[0]))}: a row would replace"
            " a row with another key that is equal in this index\n"
            "  MySQL and MariaDB cannot upsert by only one unique index. Drop the other index, or write the upsert yourself in statement=."
        )


def _check_spelling(cursor: Any, work: Work) -> None:
    """Refuse rows that have replaced a row whose key is spelt differently: the database keeps the
    old spelling."""
    target = work.target
    *schema, table = target.name.split(".", 1)
    cursor.execute(_LOOSE.format("%s" if schema else "DATABASE()"), [*schema, table])
    loose = {column for (column,) in cursor.fetchall()}
    texts = [at for at, column in enumerate(target.key) if column.lower() in loose]
    if not texts:
        return
    places = [target.columns.index(column) for column in target.key]
    one = f"({', '.join(['%s'] * len(places))})"
    numbered = enumerate(work.rows, start=1)
    while portion := list(itertools.islice(numbered, LOOKED_UP_ROWS)):
        select = f"SELECT {_names(target.key)} FROM {_table(target)} WHERE ({_names(target.key)}) IN ({', '.join([one] * len(portion))})"
        cursor.execute(select, [row[place] for _, row in portion for place in places])
        keys = cursor.fetchall()
        stored = {tuple(key[at] for at in texts) for key in keys}
        for number, row in portion:
            spelt = tuple(row[places[at]] for at in texts)
            if all(isinstance(text, str) for text in spelt) and spelt not in stored:
                folded = [text.casefold().rstrip() for text in spelt]
                like = (
                    key
                    for key in keys
                    if [str(key[at]).casefold().rstrip() for at in texts] == folded
                )
                raise work.misspelt(number, row, next(like, ("another text",)))


def quoted(name: str) -> str:
    """A name, as SQL with parameters."""
    return f"`{name.replace('`', '``')}`".replace("%", "%%")


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _table(target: Target) -> str:
    return ".".join(map(quoted, target.name.split(".", 1)))


@contextlib.contextmanager
def _blaming(work: Work) -> Iterator[None]:
    """Turn the driver's error into an error for a refused row."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        # The row is at fault if the driver names an error in data or a constraint, or if neither
        # another try nor another setup may avoid the error: a trigger refuses the row.
        is_of_data = isinstance(error, pymysql.err.DataError | pymysql.err.IntegrityError)
        if not is_of_data and faults.may_pass(error) and _otherwise(work, error) is None:
            raise
        raise work.refusal(0, None, faults.message(error)) from error


def _otherwise(work: Work, error: object) -> errors.SetupError | None:
    """What ``error`` means if no row but the statement or the table is wrong, where it may be."""
    if not isinstance(error, pymysql.err.MySQLError):
        return None
    number = error.args[0] if error.args else 0
    is_mistake = number in (*_CURES, _NO_COLUMN) or isinstance(error, pymysql.err.ProgrammingError)
    return work.mistake(faults.message(error), number, _CURES) if is_mistake else None
