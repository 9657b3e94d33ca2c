"""Parses JSON objects, one per line, into columns by Arrow. A line's result never depends on the
lines around it.

Spouts over files and spouts over Kafka topics share this parser: from the same objects both make
the same columns, or refuse the same line (R38). Importing this module imports pyarrow.
"""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

import txtopo.errors
from txtopo.connectors import decimals, json_lines
from txtopo.topology import exact_columns

Piece = TypeVar("Piece")


CANNOT_BE_READ = (
    pa.ArrowException,
    UnicodeDecodeError,
    decimals.ChangedNumberError,
    json_lines.LineError,
)
"""Exceptions for lines that cannot be made into columns."""


def mistake(error: Exception) -> str:
    """Word ``error``, one of :data:`CANNOT_BE_READ`, as a sentence whose subject is the line."""
    is_sentence = isinstance(error, decimals.ChangedNumberError | json_lines.LineError)
    return (
        str(error) if is_sentence else f"cannot be read: {exact_columns.first_line(error).strip()}"
    )


def first_refused(
    lines: list[Piece], parse: Callable[[list[Piece]], Any], error: Exception
) -> tuple[int, Exception]:
    """Find the first line that ``parse`` refuses: its number and the reason. The reason is
    ``error`` if every line alone passes."""

    def refusal(begin: int, end: int) -> Exception | None:
        try:
            parse(lines[begin:end])
        except CANNOT_BE_READ as refused:
            return refused
        return None

    begin, end = 0, len(lines)
    while end - begin > 1:
        middle = (begin + end) // 2
        begin, end = (begin, middle) if refusal(begin, middle) else (middle, end)
    return begin, refusal(begin, end) or error


def conforming(table: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Select and cast the columns that ``schema`` declares."""
    selected = table.select(schema.names)
    if selected.schema.types != schema.types:
        selected = selected.cast(pa.schema([pa.field(field.name, field.type) for field in schema]))
    return [
        pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in selected.to_batches()
    ]


class Parser:
    """Parses lines into the columns that ``schema`` declares."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        # Arrow's cast refuses a time zone that only the text or only the column has, and numbers
        # for dates. Arrow's JSON reader takes them.
        parsed = pa.schema([field.with_type(_times_as_text(field.type)) for field in schema])
        self._parse_options = pa.json.ParseOptions(
            explicit_schema=parsed, unexpected_field_behavior="ignore"
        )
        self._digits_sure = decimals.digits_sure(schema)

    def records(self, lines: bytes) -> list[pa.RecordBatch]:
        """Parse whole lines, with the same result as each line alone. Raises one of
        :data:`CANNOT_BE_READ` if a line is not an object with the schema's fields."""
        if not lines.isascii():
            lines.decode()
        count = json_lines.objects_in(lines, self.schema.names)
        if not count:
            return []
        if self._digits_sure is not None and decimals.is_doubtful(lines, self._digits_sure):
            self._check(lines, decimals.is_kept, parse_float=decimal.Decimal)
        read_options = pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        table: Any = pa.json.read_json(pa.BufferReader(lines), read_options, self._parse_options)
        if table.num_rows != count:
            raise json_lines.LineError("is not one JSON object")
        batches = conforming(table, self.schema)
        if any(_is_large(column) for batch in batches for column in batch.columns):
            self._check(lines, _is_kept)
        return batches

    def _check(
        self, lines: bytes, is_kept: Callable[[Any, pa.DataType], bool], **parse: Any
    ) -> None:
        """Refuse numbers that the column would change. A line that is not JSON is left to Arrow."""
        columns = list(zip(self.schema.names, self.schema.types, strict=True))
        for line in lines.split(b"\n"):
            try:
                value = json.loads(line, **parse)
            except (ValueError, RecursionError):
                continue
            for name, column_type in columns:
                for item, type in _items_in(value.get(name), column_type):
                    if not is_kept(item, type):
                        raise decimals.changed_number(item, "field", name, type)


def check_schema(owner: str, schema: pa.Schema) -> None:
    """Raise :class:`~txtopo.errors.ConfigError`, beginning with ``owner``, for a column that JSON
    has no values for."""
    for field in schema:
        try:
            Parser(pa.schema([field])).records(b"{}\n")
        except pa.ArrowException as error:
            raise txtopo.errors.ConfigError(
                f"{owner}: column {field.name!r} cannot be read as {field.type}: {exact_columns.first_line(error)}\n"
                "  Declare types that JSON has: numbers, texts, truth values, dates and timestamps as texts, lists and structs of these.\n"
                "  A time of day is a pa.string(), a duration a pa.int64()."
            ) from None


def _times_as_text(type: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(type):
        return pa.string()
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_times_as_text(type.value_type)))
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_times_as_text(field.type)) for field in type])
    return type


def _is_large(column: pa.Array) -> bool:
    """Whether ``column`` has a number large enough to have been rounded."""
    if pa.types.is_list(column.type):
        return _is_large(column.flatten())
    if pa.types.is_struct(column.type):
        return any(map(_is_large, column.flatten()))
    bound = decimals.EXACT_BELOW.get(column.type)
    return bound is not None and bool(
        pc.any(pc.greater_equal(pc.abs(column), bound), min_count=0).as_py()
    )


def _items_in(value: Any, type: pa.DataType) -> Iterator[tuple[Any, pa.DataType]]:
    """Yield the values in ``value``, but for nulls, lists and structs, each with its type."""
    if pa.types.is_list(type) and isinstance(value, list):
        for item in value:
            yield from _items_in(item, type.value_type)
    elif pa.types.is_struct(type) and isinstance(value, dict):
        for field in type:
            yield from _items_in(value.get(field.name), field.type)
    elif value is not None:
        yield value, type


def _is_kept(value: Any, type: pa.DataType) -> bool:
    """Whether a column of floating point numbers holds ``value``: an integer with few digits, or a
    number in the type's range. Other columns change nothing."""
    if not pa.types.is_floating(type):
        return True
    came = pa.array([float(value)], type).to_pylist()[0]
    return not math.isinf(came) and (came == value or not isinstance(value, int))
