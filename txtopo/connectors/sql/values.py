"""Checks a row's values: the types that a sink takes, and the columns that keep them.

Every value is judged before a driver sees the row, so that a topology gets the same answer from
every database. A driver writes an unknown type as a text, as NULL or as a literal that only this
driver writes, and an enum by its name or by its value. So a subclass is a type of its own.

Each database's module describes its columns. Standard library only.

Invariants: a column keeps the value or its text. Only single precision rounds.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.connectors.sql import target as sql_target

PORTION_ROWS = 10_000
"""How many rows are judged at once, column by column."""
_TEXT = ".*char.*|.*text"
_NUMBER = f"double.*|real|float|numeric|decimal|json.*|{_TEXT}"
_KEPT_BY: dict[type, str] = {
    bool: "bool.*|.*int|integer|bit|json.*|decimal|double|float",
    int: "(?!date|time|interval|enum|set|bytea|.*blob|.*binary).*",
    float: _NUMBER,
    str: ".*",
    bytes: "bytea|.*blob|.*binary",
    bytearray: "bytea|.*blob|.*binary",
    datetime.date: f"date(time)?|timestamp( without.*)?|{_TEXT}",
    datetime.datetime: f"datetime|timestamp( without.*)?|{_TEXT}",
    decimal.Decimal: f".*int|integer|{_NUMBER}",
    datetime.time: f"time( without.*)?|{_TEXT}",
}
"""The types that a sink takes, each with the column types that keep its values."""
_EVERYWHERE = re.compile(r"[^\0\ud800-\udfff]*+")
_PLAIN: dict[type, Callable[[Any], object]] = {
    float: math.isfinite,
    decimal.Decimal: decimal.Decimal.is_finite,
    str: _EVERYWHERE.fullmatch,
}
_DOUBLE, _TIMES = re.compile("double|real|float"), (datetime.datetime, datetime.time)
_READ = re.compile(
    "bool.*|.*int|integer|numeric|decimal|double.*|real|float|money|bit.*|date.*|time.*|year|uuid|number"
)
"""Column types that read several texts as one value. SQLite reads only numerals so."""
_INTEGERS = re.compile(".*int|integer")
_CUT = {"name": 63, '"char"': 1}
"""PostgreSQL's own texts, with the bytes that they keep."""
_NUMERAL = r"(?ai)\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*"
_IS_NUMERAL = re.compile(_NUMERAL).fullmatch
_NO_NUMERAL = _NUMERAL.replace("(?ai)", "(?ais)(?!") + "$).*"
_SPELT_ONCE = {
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "number": _NO_NUMERAL,
    "double": _NO_NUMERAL,
}


class Column(NamedTuple):
    """A column in the user's table, as the database describes it. An empty ``type`` keeps values
    with any type. ``scale`` counts a number's digits behind the point, ``fraction`` a second's. If
    a key ``is_spelt``, each spelling may come to another task. A row's number has no ``name``."""

    name: str
    type: str = ""
    scale: int | None = None
    fraction: int | None = None
    characters: int | None = None
    is_key: bool = False
    is_spelt: bool = False


def check_table(sink: str, target: sql_target.Target, columns: Mapping[str, Column]) -> None:
    """Refuse a missing table, and a table that lacks a column in ``target``."""
    if not columns:
        cure = "Make the table. PostgreSQL takes its name letter by letter, and with its schema where that is not in the search_path."
        raise errors.SetupError(f"the sink {sink} finds no table {target.name!r}\n  {cure}")
    for name in (*target.columns, *filter(None, [target.mark])):
        if name not in columns and name.lower() not in columns:
            known = f"It has {', '.join(column.name for column in columns.values() if column.name)}. Name the columns by columns=."
            raise errors.SetupError(
                f"the table {target.name!r} of the sink {sink} has no column {name!r}\n  {known}"
            )


def check(work: sql_target.Work) -> None:
    """Refuse the first row with a value that the column would not keep. A user's statement has
    unknown columns."""
    target, columns, rows, before = work.target, work.columns, iter(work.rows), 0
    spelt = target.key if work.minds_spelling else ()
    by_name = {
        name: columns.get(name) or columns.get(name.lower()) or Column(name)
        for name in target.columns
    }
    known = [
        column._replace(name=name, is_key=name in target.key, is_spelt=name in spelt)
        for name, column in by_name.items()
    ]
    while portion := list(itertools.islice(rows, PORTION_ROWS)):
        # Not by zip(*portion), which would make an iterator of each row: work for Python's collector
        # of garbage.
        doubtful = [
            at
            for at, column in enumerate(known)
            if not _are_kept([row[at] for row in portion], column, target.dialect)
        ]
        for (number, row), at in itertools.product(
            enumerate(portion, before + 1) if doubtful else (), doubtful
        ):
            if why := objection(row[at], known[at], target.dialect):
                raise work.refusal(
                    number,
                    row,
                    f"its key {why}"
                    if row[at] is None
                    else f"its value of {known[at].name!r} {why}",
                )
        before += len(portion)


def _are_kept(values: Sequence[Any], column: Column, dialect: str) -> bool:
    """Whether a look at the whole column shows that all values are kept. Checking each value would
    take ten times as long."""
    kinds: set[Any] = set(map(type, values))
    for kind in kinds:
        some = values if len(kinds) == 1 else [value for value in values if type(value) is kind]
        # Check samples: the extremes, a value with a zone and a value without, or any value.
        asked = (
            (min(some), max(some))
            if kind is int
            else {value.tzinfo is None: value for value in some}.values()
            if kind in _TIMES
            else some[:1]
        )
        if any(objection(value, column, dialect) for value in asked) or not all(
            map(_PLAIN[kind], some) if kind in _PLAIN else ()
        ):
            return False
        if any(map(changed, some) if (changed := changes(kind, column)) else ()):
            return False
    return True


@functools.lru_cache(maxsize=1024)
def changes(kind: type, column: Column) -> Callable[[Any], object] | None:
    """Make a test whether ``column`` changes a value with type ``kind``. None if all are kept."""
    exact = decimal.Decimal
    type = column.type
    scale = column.scale or 0
    step = 10 ** (6 - (6 if column.fraction is None else column.fraction))
    most = 0 if type in ("char", "character") else column.characters
    lost = _lost_in(column) if kind is str else None
    tests: list[tuple[Any, Any]] = [
        (kind is exact and _INTEGERS.fullmatch(type), lambda one: one.as_tuple()[2] != 0),
        (
            kind is exact and column.scale is not None,
            lambda one: _is_cut(one, scale),
        ),
        (
            (kind is float and column.scale is not None) or (kind is int and scale < 0),
            lambda one: round(one, scale) != one,
        ),
        (kind in (int, exact) and _DOUBLE.match(type), lambda one: float(str(one)) != one),
        (kind is int and type == "year", lambda one: not 1901 <= one <= 2155),
        (kind in _TIMES and step > 1, lambda one: one.microsecond % step),
        (
            kind in (str, bytes, bytearray) and type == "binary",
            lambda one: len(one.encode() if kind is str else one) != most,
        ),
        (
            kind is str and column.is_spelt and _READ.fullmatch(type),
            lambda one: not re.fullmatch(_SPELT_ONCE.get(type, "(?!)"), one),
        ),
        (
            kind is str and type in ("number", "double", "double precision"),
            # A double keeps 15 digits.
            lambda one: (
                (len(one) > 15 or "e" in one or "E" in one)
                and _IS_NUMERAL(one)
                and _is_rounded(one, type)
            ),
        ),
        (kind is str and type in _CUT, lambda one: len(one.encode()) > _CUT[type]),
        (lost, lost),
        (kind is str and most is not None, lambda one: one[-1:] == " " and len(one) > (most or 0)),
    ]
    asked = [test for is_asked, test in tests if is_asked]
    return (
        (lambda one: any(test(one) for test in asked))
        if len(asked) > 1
        else next(iter(asked), None)
    )


def _lost_in(column: Column) -> Callable[[str], object] | None:
    """Make a test whether ``column`` reads less from a text than it says: a number's digits, a
    fraction, a zone, a date or a time of day. None for columns with other types."""
    type, scale = column.type, 0 if _INTEGERS.fullmatch(column.type) else column.scale
    if timed := re.fullmatch("(date|time)(time|stamp)?( with(out)? time zone)?", type):
        fraction = 6 if column.fraction is None else column.fraction
        if type == "date":
            return re.compile(
                r".*-\d\d?[Tt ]\s*(?!00:00(:00([.,]0*)?)?(?![\d:.,]))\d\d?:\d\d"
            ).match
        lost = rf"[^:]*+:([^.,]*+[.,]\d{{{fraction}}}\d*[1-9]"
        if timed[3] != " with time zone":
            lost += r"|[^-+A-Za-z]*+([-+]\d\d(?!\d*-)|(?i:z|utc|gmt)\b|[A-Za-z]+/)"
        return re.compile(lost + ")" + r"|\s*\d+-\d+-\d+[Tt ]" * (timed[2] is None)).match
    if scale is None:
        return None
    doubtful = re.compile(rf"e|E|\.\d{{{scale}}}\d*[1-9]" if scale >= 0 else "")
    return lambda text: doubtful.search(text) and _has_digits_behind(scale, text)


def _has_digits_behind(scale: int, numeral: str) -> bool:
    try:
        number = decimal.Decimal(numeral)
        return number.is_finite() and _is_cut(number, scale)
    except decimal.InvalidOperation:  # only the database can read it
        return False


def _is_cut(number: decimal.Decimal, scale: int) -> bool:
    """Whether ``number`` has more digits than ``scale`` behind the point. Digit by digit:
    arithmetic would write 1E+999999999 out."""
    _, digits, exponent = number.as_tuple()
    return int(exponent) < -scale and any(digits[int(exponent) + scale :])


def _is_rounded(numeral: str, type: str) -> bool:
    """Whether a column of doubles, or SQLite's number column, changes the number in a text."""
    near = float(numeral)
    if repr(near) == numeral:
        return False
    try:
        number = decimal.Decimal(numeral)
        if (
            type == "number"
            and re.fullmatch("[+-]?[0-9]+", numeral.strip())
            and -(2**63) <= number < 2**63
        ):
            return False
        return number not in (decimal.Decimal(near), decimal.Decimal(repr(near)))
    except decimal.InvalidOperation:  # an exponent of more digits than decimals have
        return True


def objection(value: Any, column: Column, dialect: str) -> str:
    """Why ``column`` in the ``dialect`` does not keep ``value``. Empty if the column does."""
    if value is None:
        return "is None" if column.is_key else ""
    kind: type = type(value)
    zone, type_ = getattr(value, "tzinfo", None), column.type
    if kind not in (
        taken := [
            kind
            for kind in _KEPT_BY
            if dialect != "sqlite" or kind not in (decimal.Decimal, datetime.time)
        ]
    ):
        known = ", ".join(kind.__name__ for kind in taken)
        return f"is of type {kind.__qualname__}\n  Make it one of {known} in a bolt: enum.value, float(…), str(…), json.dumps(…)."
    if kind in _PLAIN and not _PLAIN[kind](value):
        why = "has a NUL or half a surrogate pair" if kind is str else "is NaN or infinite"
        return f"{why}, which not every database keeps\n  Make it None or another text in a bolt."
    if kind is int and not -(most := 2**63 if dialect == "sqlite" else 10**1000) <= value < most:
        return "is too large for any column"
    wanted = (
        _KEPT_BY[kind]
        if zone is None
        else f"time{'stamp' * (kind is datetime.datetime)} with .*|{_TEXT}"
    )
    if (zone is not None and dialect == "mysql") or (
        type_ and dialect != "sqlite" and not re.fullmatch(wanted, type_)
    ):
        kept = f"and {f'a column of type {type_}' if type_ else 'a column of MySQL or MariaDB'} does not keep"
        if zone is not None:
            return f"is a {kind.__name__} with a time zone, {kept} the zone\n  Make it UTC without a zone, or take PostgreSQL's timestamptz."
        cure = ', in a query by date_format(…, "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")' * (
            kind is datetime.datetime
        )
        return f"is a {kind.__name__}, {kept} the value unchanged\n  Convert it in a bolt{cure}, or change the column."
    if not ((changed := changes(kind, column)) and changed(value)):
        return ""
    if kind is str and column.is_spelt and _READ.fullmatch(type_):
        cure = "Give the value in the column's type, a uuid as str(uuid.UUID(…))."
        return (
            f"is a text, and a column of type {type_} reads other texts as the same key\n  {cure}"
        )
    if kind is decimal.Decimal and _INTEGERS.fullmatch(type_):
        return f"has a point or an exponent, which a column of type {type_} does not keep\n  Make it int(…) in a bolt, or change the column."
    if kind is str and re.match("date|time", type_):
        cure = "Leave out what the column lacks: a zone, a date, a time of day, or digits of a second. Or change the column."
        return f"says more than a column of type {type_} keeps\n  {cure}"
    cure = "Make it float(…)" if _DOUBLE.match(type_) and kind is not float else "Round it"
    if kind is str and re.fullmatch(f"{_TEXT}|name|binary", type_):
        cure = "Make it as long as the column"
    return f"would be rounded or cut by a column of type {type_}\n  {cure} in a bolt, or change the column."
