"""Turns one column from Python values into an Arrow array, unchanged or not at all, and back.

This module adds fields, rows and declared schemas to ``exact_columns``, for errors. It imports
pyarrow.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txtopo.dataplane.column_runs import ColumnMistakeError
from txtopo.topology import exact_columns


def array(
    column: Sequence[Any], name: str, wanted: pa.DataType | None, is_declared: bool, where: str
) -> pa.Array:
    """Turn ``column`` into an array with type ``wanted`` or, without ``wanted``, with the type that
    Arrow infers.

    :class:`ColumnMistakeError`, beginning with ``where``, names the field ``name``, the first row
    with a value that would change, and the cure. Unless the user declared ``wanted``, all values
    must have one Python type.
    """
    try:
        return exact_columns.array(column, wanted, is_declared)
    except exact_columns.ChangedValueError as error:
        fact = (
            "cannot become a column"
            if wanted is None
            else f"cannot become a column of type {wanted}"
        )
        raise ColumnMistakeError(
            f"{where}: values of field {name!r} {fact}: row {error.row + 1} of {len(column)} is {error.shown}: {error.why}\n"
            "  Emit values of one type that fits, or declare the types of the columns together with the stream:"
            f" declarer.declare(Fields(...), schema=pa.schema([({name!r}, pa.float64()), ...]))."
        ) from None


def python_type(type: pa.DataType) -> pa.DataType:
    """The type to which a column is cast before it becomes Python objects: nanoseconds become
    microseconds, as in Python's datetime.

    Without the cast, Arrow would give pandas objects wherever pandas happens to be installed, and
    the same tuple would differ between machines.
    """
    # A user's own type has no hash.
    return type if isinstance(type, pa.ExtensionType) else _python_type(type)


@functools.lru_cache(maxsize=1024)
def _python_type(type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type) and type.unit == "ns":
        return pa.timestamp("us", type.tz)
    if pa.types.is_duration(type) and type.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(type) and type.unit == "ns":
        return pa.time64("us")
    if pa.types.is_date64(type):
        return pa.date32()
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        plain = python_type(type.value_type)
        return type if plain == type.value_type else plain
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(python_type(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(
            type.key_field.with_type(python_type(type.key_type)),
            type.item_field.with_type(python_type(type.item_type)),
        )
    for is_kind, make in exact_columns.LISTS:
        if is_kind(type):
            return make(type.value_field.with_type(python_type(type.value_type)))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(type.value_field.with_type(python_type(type.value_type)), type.list_size)
    return type


def values(column: pa.Array, name: str) -> list[Any]:
    """Turn ``column`` into Python objects. :class:`ColumnMistakeError` names the column if Python
    has no object for a value."""
    wanted = python_type(column.type)
    try:
        exact_columns.check_times(column)
        if wanted != column.type and pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        if wanted != column.type and (
            pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type)
        ):
            # Arrow cannot cast one list view to another, and a cast to a list loses elements (seen
            # with pyarrow 26.0.1).
            elements = iter(values(column.flatten(), name))
            lengths = pc.list_value_length(column).to_pylist()
            return [
                None if length is None else list(itertools.islice(elements, length))
                for length in lengths
            ]
        objects: list[Any] = (column if wanted == column.type else column.cast(wanted)).to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ColumnMistakeError(
            f"column {name!r} of type {column.type} holds a value that Python has no object for: {exact_columns.first_line(error)}\n"
            "  Cast the column before it is emitted to a type that keeps all of the value: a time to pa.int64(), a text to pa.binary()."
        ) from None
    return objects
