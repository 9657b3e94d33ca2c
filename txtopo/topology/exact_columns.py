"""Turns a column of Python values into an Arrow array, unchanged or not at all.

Arrow makes an array from nearly any value, and changes a value that does not fit: drops a zone,
turns ``True`` into ``1``. So this module looks at a column's Python types before Arrow sees them,
all at once, in nested values level by level (R38). The data plane and the stores name rows
differently, so errors here have only the row's index. Importing this imports pyarrow.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import decimal
import functools
import itertools
import math
import reprlib
import sys
import uuid
import zoneinfo
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_CANNOT = (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError)
"""Exceptions for a value that Arrow cannot take."""

_KINDS: dict[type, str] = {
    bool: "bool",
    int: "integer",
    float: "number",
    str: "text",
    bytes: "bytes",
    decimal.Decimal: "decimal",
    datetime.date: "date",
    datetime.datetime: "datetime",
    datetime.time: "time",
    datetime.timedelta: "duration",
    uuid.UUID: "uuid",
    list: "list",
    tuple: "list",
    dict: "struct",
}
"""Python types that columns hold. A subclass is another type: an enum is no number."""

_TAKEN = {
    "number": {"number", "integer"},
    "decimal": {"decimal", "integer"},
    "timestamp": {"datetime"},
    "instant": {"datetime"},
    "extension<arrow.uuid>": {"uuid"},
}
"""The kinds of values that a declared column takes, by the column's kind. A kind that is not listed
takes its own values only."""

LISTS = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)
"""Arrow's list types without a fixed length: the test for each, and its constructor."""

_NONE = type(None)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_ZONES = frozenset({datetime.timezone, zoneinfo.ZoneInfo})


class ChangedValueError(ValueError):
    """A column would change a value.

    ``row``: the first such value, from 0. ``shown``: the value, shortened. ``why``: the mistake.
    """

    def __init__(self, row: int, shown: str, why: str) -> None:
        super().__init__(why)
        self.row, self.shown, self.why = row, shown, why


def array(column: Sequence[Any], wanted: pa.DataType | None, is_declared: bool) -> pa.Array:
    """``column`` as an array of type ``wanted``. Without ``wanted``, Arrow finds the type. Unless
    the user declared ``wanted``, all values must have one Python type. Raises
    :class:`ChangedValueError` for the first row whose value would change."""
    if len(column) == 0:
        return pa.nulls(0, wanted)
    is_declared = is_declared and wanted is not None
    types = set(map(type, column))
    if not types <= _KNOWN:
        column = _without_numpy(column)
        types = set(map(type, column))
    with contextlib.suppress(*_CANNOT):
        if _misfit(column, types, wanted, is_declared) is None:
            return _arrow_array(column, types, wanted)
    raise _in_a_row(column, wanted, is_declared)


def _arrow_array(column: Sequence[Any], types: set[type], wanted: pa.DataType | None) -> pa.Array:
    if wanted is not None and types <= {int, _NONE} and _kind(wanted) == "integer":
        return pa.array(column, wanted)
    if wanted is not None and _has_decimals(wanted):
        column = [_with_exact_decimals(value, wanted) for value in column]
    if wanted is not None and pa.types.is_run_end_encoded(wanted):
        return pc.run_end_encode(
            _arrow_array(column, types, wanted.value_type), wanted.run_end_type
        )
    array = pa.array(column)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return array if wanted is None or array.type == wanted else array.cast(wanted)


def exact_decimal(value: int | str | decimal.Decimal, type: pa.DataType) -> decimal.Decimal:
    """``value`` with as many digits behind the point as ``type`` has. Raises :class:`ValueError` if
    ``type`` has no such number.

    Arrow itself lets digits overflow, takes small numbers for zero, and crashes on very small ones
    (seen with pyarrow 26.0.1).
    """
    try:
        number = _arithmetic(type.precision).quantize(
            decimal.Decimal(value), decimal.Decimal((0, (1,), -type.scale))
        )
        if number.is_finite():
            return number
    except decimal.DecimalException:
        pass
    raise ValueError(f"{value} is no number of the type {type}")


@functools.cache
def _arithmetic(digits: int) -> decimal.Context:
    """Arithmetic with so many digits. Rounding is an error."""
    return decimal.Context(
        digits,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
        traps=[decimal.Inexact, decimal.InvalidOperation],
    )


def _has_decimals(type: pa.DataType) -> bool:
    return "decimal" in str(type)


def _with_exact_decimals(value: Any, wanted: pa.DataType) -> Any:
    """``value`` with :func:`exact_decimal` applied to each decimal, at any depth."""
    if value is None or not _has_decimals(wanted):
        return value
    if pa.types.is_decimal(wanted):
        return exact_decimal(value, wanted)
    if pa.types.is_struct(wanted):
        return {
            name: _with_exact_decimals(inner, wanted.field(name).type)
            for name, inner in value.items()
        }
    if pa.types.is_dictionary(wanted):
        return _with_exact_decimals(value, wanted.value_type)
    return [_with_exact_decimals(inner, wanted.value_type) for inner in value]


def _without_numpy(column: Sequence[Any]) -> Sequence[Any]:
    """``column`` with Python's own numbers, text and bytes in place of NumPy's scalars."""
    numpy: Any = sys.modules.get("numpy")
    return (
        column
        if numpy is None
        else [
            _python_value(value, numpy) if isinstance(value, numpy.generic) else value
            for value in column
        ]
    )


def _python_value(scalar: Any, numpy: Any) -> Any:
    """``scalar`` as a Python value. A time that Python has no object for stays as it is: NumPy
    would give a number, another value."""
    value = scalar.item()
    return (
        scalar
        if type(value) is int and isinstance(scalar, numpy.datetime64 | numpy.timedelta64)
        else value
    )


def _misfit(
    column: Sequence[Any], types: set[type], wanted: pa.DataType | None, is_declared: bool
) -> str | None:
    """Why a column of type ``wanted`` would hold other values than ``column``, whose Python types
    are ``types``. ``None`` if it would not."""
    types = types - {_NONE}
    for unknown in types - _KNOWN:
        return f"a {unknown.__name__} is no value of a column"
    kinds = {_KINDS[type] for type in types}
    if wanted is not None and (
        pa.types.is_dictionary(wanted) or pa.types.is_run_end_encoded(wanted)
    ):
        wanted = wanted.value_type
    kind = None if wanted is None else _kind(wanted)
    if len(kinds) > 1 and not is_declared:
        return f"values are of several types: {_type_names(types)}"
    if kind is not None and not kinds <= (
        _TAKEN.get(kind, {kind}) if is_declared else {_GUESSED.get(kind, kind)}
    ):
        return f"values are of type {_type_names(types)}"
    if "datetime" in kinds:
        return _zone_misfit({type(value.tzinfo) for value in column if value is not None}, kind)
    if "time" in kinds and any(value is not None and value.tzinfo is not None for value in column):
        return "a time in a column has no zone"
    if "list" in kinds:
        # Each list once: a list that contains itself twice would double with each level.
        lists = {id(value): value for value in column if value is not None}
        inner = list(itertools.chain.from_iterable(lists.values()))
        return _misfit(
            inner, set(map(type, inner)), None if wanted is None else wanted.value_type, is_declared
        )
    if "struct" in kinds:
        return _struct_misfit([value for value in column if value is not None], wanted, is_declared)
    if kind == "number" and (int in types or wanted != pa.float64()):
        return _number_misfit(column, wanted)
    return None


def _zone_misfit(zones: set[type], kind: str | None) -> str | None:
    if zones <= {_NONE}:
        return "they have no zone" if kind == "instant" else None
    if zones <= _ZONES:
        return "they have a zone" if kind == "timestamp" else None
    return (
        "some have a zone and some have none"
        if _NONE in zones
        else f"zones are of type {_type_names(zones)}"
    )


def _struct_misfit(
    column: list[dict[Any, Any]], wanted: pa.DataType | None, is_declared: bool
) -> str | None:
    names = column[0].keys() if wanted is None else {field.name for field in wanted}
    if not all(type(name) is str for name in names):
        return "a field of a dict is a text"
    for value in column:
        if value.keys() != names:
            return f"a dict has the fields {_name_list(value.keys())}; expected {_name_list(names)}"
    for name in names:
        inner = [value[name] for value in column]
        why = _misfit(
            inner,
            set(map(type, inner)),
            None if wanted is None else wanted.field(name).type,
            is_declared,
        )
        if why is not None:
            return f"field {name!r}: {why}"
    return None


def _number_misfit(column: Sequence[Any], wanted: pa.DataType) -> str | None:
    """Why numbers would change. An integer must fit ``wanted`` exactly. A float is rounded where
    the type has fewer digits, but a finite float must stay finite."""
    numbers = [value for value in column if value is not None]
    try:
        rounded = pa.array(list(map(float, numbers)), wanted).to_pylist()
    except OverflowError as error:
        return str(error)
    for value, came in zip(numbers, rounded, strict=True):
        if type(value) is int and came != value:
            return f"{value} is no number of {wanted}"
        if math.isinf(came) and not math.isinf(value):
            return f"{value!r} is beyond {wanted}"
    return None


def _in_a_row(
    column: Sequence[Any], wanted: pa.DataType | None, is_declared: bool
) -> ChangedValueError:
    """The error for the first row to blame: by its value alone, or together with those before."""

    def why(some: Sequence[Any]) -> str | None:
        types = set(map(type, some))
        try:
            if (misfit := _misfit(some, types, wanted, is_declared)) is None:
                _arrow_array(some, types, wanted)
            return misfit
        except _CANNOT as error:
            return first_line(error)

    for row, value in enumerate(column):
        if (alone := why([value])) is not None:
            return ChangedValueError(row, _SHORT.repr(value), alone)
    rows = range(len(column))
    row = bisect.bisect_left(rows, True, key=lambda row: why(column[: row + 1]) is not None)
    return ChangedValueError(row, _SHORT.repr(column[row]), why(column[: row + 1]) or "")


def _type_names(types: set[type]) -> str:
    return ", ".join(sorted(type.__name__ for type in types))


def _name_list(names: Any) -> str:
    return ", ".join(sorted(map(repr, names))) or "none"


# -- types ---------------------------------------------------------------------------------------


_GUESSED = {"timestamp": "datetime", "instant": "datetime", "extension<arrow.uuid>": "uuid"}
"""The values for which Arrow itself chooses a type of this kind."""

_KNOWN = frozenset({*_KINDS, _NONE})


def _kind(type: pa.DataType) -> str:
    """The kind of ``type``. Types of one kind differ in their range, not in their meaning."""
    # A user's own type has no Python values, and no hash.
    return str(type) if isinstance(type, pa.ExtensionType) else _kind_of(type)


@functools.lru_cache(maxsize=1024)
def _kind_of(type: pa.DataType) -> str:
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return _kind(type.value_type)
    if pa.types.is_timestamp(type):
        return "timestamp" if type.tz is None else "instant"
    kinds = {
        "integer": (pa.types.is_integer,),
        "number": (pa.types.is_floating,),
        "decimal": (pa.types.is_decimal,),
        "date": (pa.types.is_date,),
        "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        "time": (pa.types.is_time,),
        "bytes": (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        ),
        "list": (*(is_kind for is_kind, _ in LISTS), pa.types.is_fixed_size_list),
        "duration": (pa.types.is_duration,),
        "struct": (pa.types.is_struct,),
        "null": (pa.types.is_null,),
        "bool": (pa.types.is_boolean,),
    }
    return next(
        (kind for kind, tests in kinds.items() if any(is_kind(type) for is_kind in tests)),
        str(type),
    )


def check_times(column: pa.Array | pa.ChunkedArray) -> None:
    """Raise :class:`pyarrow.ArrowInvalid` if ``column`` has times beyond a day. Arrow takes such
    times from user code."""
    if "time32" in str(column.type) or "time64" in str(column.type):
        column.validate(full=True)


def first_line(error: BaseException) -> str:
    """Why Arrow cannot take a value, in one line."""
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply"
    return next(iter(str(error).splitlines()), type(error).__name__)
