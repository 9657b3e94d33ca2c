"""The one rule for the values of a row: the types that a sink takes, and the columns that keep it.

Every value is judged before a driver sees its row, so that a topology has the same answer over
every database. A driver writes a type that it does not know as a text, as NULL or as a literal of
its own, and an enum by its name or by its value: so a subclass is another type, too.

Apart from the modules of databases, which describe their columns. Standard library only.

Invariants: a column keeps the value that it is given, or its text; single precision alone rounds.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.connectors.sinks.sql import target as sql_target

PORTION_ROWS = 10_000
"""How many rows are judged at once, column by column."""
_TEXT = ".*char.*|.*text"
_NUMBER = f"double.*|real|float|numeric|decimal|json.*|{_TEXT}"
_KEPT_BY: dict[type, str] = {
    bool: "bool.*|.*int|integer|bit|json.*", int: "(?!date|time|year|enum|set|bytea|.*blob|.*binary).*", float: _NUMBER, decimal.Decimal: _NUMBER,
    str: ".*", bytes: "bytea|.*blob|.*binary", bytearray: "bytea|.*blob|.*binary", datetime.date: f"date(time)?|timestamp( without.*)?|{_TEXT}",
    datetime.datetime: f"datetime|timestamp( without.*)?|{_TEXT}", datetime.time: f"time( without.*)?|{_TEXT}",
}  # fmt: skip
"""The types that a sink takes, each with the types of columns that keep it."""
_NOT_EVERYWHERE = re.compile(r"[\0\ud800-\udfff]")
"""Characters that not every database keeps."""


class Column(NamedTuple):
    """A column of the user's table, as its database describes it: an empty ``type`` keeps values of
    every type; ``scale`` and ``fraction`` are digits of a number and of a second."""

    name: str
    type: str = ""
    scale: int | None = None
    fraction: int | None = None
    characters: int | None = None
    is_key: bool = False


def check_table(sink: str, target: sql_target.Target, columns: Mapping[str, Column]) -> None:
    """Refuse a table that is not there, or lacks a column of ``target``."""
    if not columns:
        cure = "Make the table. PostgreSQL takes its name letter by letter, and with its schema where that is not in the search_path."
        raise errors.SetupError(f"the sink {sink} finds no table {target.name!r}\n  {cure}")
    for name in (*target.columns, *filter(None, [target.mark])):
        if name not in columns and name.lower() not in columns:
            known = f"It has {', '.join(column.name for column in columns.values())}. Name the columns by columns=."
            raise errors.SetupError(f"the table {target.name!r} of the sink {sink} has no column {name!r}\n  {known}")


def check(work: sql_target.Work) -> None:
    """Refuse the first row with a value that its column would not keep. The columns of a user's
    statement are not known."""
    target, columns, numbered = work.target, work.columns, enumerate(work.rows, start=1)
    known = [
        (columns.get(name) or columns.get(name.lower()) or Column(name))._replace(name=name, is_key=name in target.key) for name in target.columns
    ]
    while portion := list(itertools.islice(numbered, PORTION_ROWS)):
        by_column = zip(known, zip(*(row for _, row in portion), strict=True), strict=True)
        doubtful = [at for at, (column, values) in enumerate(by_column) if not _are_kept(values, column, target.dialect)]
        for (number, row), at in itertools.product(portion if doubtful else (), doubtful):
            if why := objection(row[at], known[at], target.dialect):
                raise work.refusal(number, row, f"its key {why}" if row[at] is None else f"its value of {known[at].name!r} {why}")


def _are_kept(values: Sequence[Any], column: Column, dialect: str) -> bool:
    """Whether one look at all values shows it, which takes a tenth of a look at each."""
    values = values if column.is_key else [value for value in values if value is not None] or [None]
    kinds = set(map(type, values))
    if objection(values[0], column, dialect):
        return False
    if kinds == {str}:
        text = "\n".join([*values, ""])
        return not _NOT_EVERYWHERE.search(text) and " \n" not in text
    if kinds == {int}:
        return bool(min(values) > -(2**53) and max(values) < 2**53)  # Numbers of double precision.
    return kinds == {float} and column.scale is None and all(map(math.isfinite, values))


def objection(value: Any, column: Column, dialect: str) -> str:
    """Why ``column`` of a database of ``dialect`` does not keep ``value``; empty if it does."""
    if value is None:
        return "is None" if column.is_key else ""
    kind, zone = type(value), getattr(value, "tzinfo", None)
    if kind not in _KEPT_BY or (dialect == "sqlite" and kind in (decimal.Decimal, datetime.time)):
        known = ", ".join(kind.__name__ for kind in _KEPT_BY)
        return f"is of type {kind.__qualname__}\n  Make it one of {known} in a bolt: enum.value, float(…), str(…), json.dumps(…)."
    if kind in (float, decimal.Decimal) and "n" in str(value).lower():
        return "is NaN or infinite, which not every database keeps\n  Make it None or a text in a bolt."
    if kind is str and _NOT_EVERYWHERE.search(value):
        return "has a NUL or half of a surrogate pair, which not every database keeps"
    if kind is int and not -(most := 2**63 if dialect == "sqlite" else 10**1000) <= value < most:
        return "is too large for any column"
    wanted = _KEPT_BY[kind] if zone is None else f"time{'stamp' * (kind is datetime.datetime)} with .*|{_TEXT}"
    if (zone is not None and dialect == "mysql") or (column.type and not re.fullmatch(wanted, column.type)):
        kept = f"and {f'a column of type {column.type}' if column.type else 'a column of MySQL or MariaDB'} does not keep"
        if zone is not None:
            return f"is a {kind.__name__} with a time zone, {kept} the zone\n  Make it UTC without a zone, or take PostgreSQL's timestamptz."
        return f"is a {kind.__name__}, {kept} it as it is\n  Convert it in a bolt, or change the column."
    is_cut = (
        (column.scale is not None and kind in (float, decimal.Decimal) and round(exact := fractions.Fraction(str(value)), column.scale) != exact)
        or (kind in (int, decimal.Decimal) and re.match("double|real|float", column.type) is not None and float(str(value)) != value)
        or (column.fraction is not None and getattr(value, "microsecond", 0) % 10 ** (6 - column.fraction) != 0)
        or (kind is str and value[-1:] == " " and (column.type in ("char", "character") or len(value) > (column.characters or len(value))))
    )
    return f"would be rounded or cut by a column of type {column.type}\n  Round it in a bolt, or change the column." if is_cut else ""
