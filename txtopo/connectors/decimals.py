"""Decimals in CSV files and JSON lines: each number as it is written, or an error.

Arrow's own parser cannot be trusted with decimals (seen with pyarrow 26.0.1): digits overflow, a
small number becomes zero, and a very small exponent ends the process. So Arrow parses only numbers
that it surely keeps, and Python parses the rest.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txtopo.topology import exact_columns

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIGITS_OF_BITS = {32: 9, 64: 18, 128: 38, 256: 76}
"""The most digits of a decimal, by its size in bits."""


class ChangedNumberError(ValueError):
    """A line has a number that the column would change. The text is a sentence without its
    subject."""


EXACT_BELOW = {pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""The type holds all integers below this bound, even integers below twice the bound, multiples of
four below four times the bound, and so on."""


def value_type(type: pa.DataType) -> pa.DataType:
    """The value type if ``type`` is dictionary-encoded, otherwise ``type`` itself."""
    return type.value_type if pa.types.is_dictionary(type) else type


# -- CSV -----------------------------------------------------------------------------------------


def as_texts(schema: pa.Schema) -> pa.Schema:
    """``schema`` with text columns instead of decimal columns."""
    return pa.schema(
        [
            field.with_type(pa.string()) if pa.types.is_decimal(value_type(field.type)) else field
            for field in schema
        ]
    )


def from_texts(table: pa.Table, schema: pa.Schema, null_values: Sequence[str]) -> pa.Table:
    """Parse the texts that :func:`as_texts` put in the place of decimals."""
    for i, field in enumerate(schema):
        if pa.types.is_decimal(value_type(field.type)):
            texts = table.column(i)
            texts = pc.if_else(pc.is_in(texts, pa.array(null_values, pa.string())), None, texts)
            numbers = _numbers(field.name, pc.ascii_trim(texts, " \t"), value_type(field.type))
            table = table.set_column(
                i,
                field.name,
                numbers.dictionary_encode() if pa.types.is_dictionary(field.type) else numbers,
            )
    return table


def _numbers(name: str, texts: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    """Parse ``texts``. If all have few digits and no exponent, Arrow is right, and quicker than
    Python."""
    whole = type.precision - type.scale
    if whole > 0 <= type.scale:
        is_short = pc.match_substring_regex(
            texts, rf"^[+-]?[0-9]{{1,{whole}}}(\.[0-9]{{0,{type.scale}}})?$"
        )
        if pc.all(is_short, min_count=0).as_py():
            return texts.cast(type)
    numbers: list[Any] = []
    for text in texts.to_pylist():
        if text is not None and (_DECIMAL.fullmatch(text) is None or not _is_number(text, type)):
            raise changed_number(text, "column", name, type)
        numbers.append(None if text is None else exact_columns.exact_decimal(text, type))
    return pa.chunked_array([pa.array(numbers, type)])


# -- JSON ----------------------------------------------------------------------------------------


def digits_sure(schema: pa.Schema) -> int | None:
    """How many digits in a row surely fit every decimal column of ``schema``. ``None`` without
    decimal columns."""
    digits = [
        min(_digits_max(type) // 2, _digits_max(type) - abs(type.scale))
        for type in _decimal_types(schema.types)
    ]
    return max(0, min(digits)) if digits else None


def is_doubtful(lines: bytes, digits: int) -> bool:
    """Whether Arrow may change a decimal in ``lines``, since the decimal has more than ``digits``
    digits in a row, or an exponent."""
    alike = lines.translate(_ALIKE, b"+")
    if b"0" * (digits + 1) in alike:
        return True
    return (b"0e0" in alike or b"0e-0" in alike) and _EXPONENT.search(alike) is not None


_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
"""Maps the characters that :func:`is_doubtful` treats alike to a single character."""
_EXPONENT = re.compile(rb"0e-?0+[\s,}\]\"]")


def _decimal_types(types: Iterable[pa.DataType]) -> Iterator[pa.DataType]:
    for type in types:
        if pa.types.is_decimal(type):
            yield type
        yield from _decimal_types(type.field(i).type for i in range(type.num_fields))


def is_kept(value: Any, type: pa.DataType) -> bool:
    """Whether a column of decimals holds ``value``: a number of ``type``, written without many
    useless digits. Arrow also makes mistakes in useless digits. Arrow refuses all values that are
    no numbers, and other columns change no decimals."""
    if not (pa.types.is_decimal(type) and isinstance(value, int | decimal.Decimal | str)):
        return True
    if not _is_number(value, type):
        return False
    written = decimal.Decimal(value).as_tuple()
    return max(len(written.digits), abs(int(written.exponent))) <= _digits_max(type)


# -- both ----------------------------------------------------------------------------------------


def _digits_max(type: pa.DataType) -> int:
    return _DIGITS_OF_BITS[type.bit_width]


def _is_number(value: int | decimal.Decimal | str, type: pa.DataType) -> bool:
    try:
        exact_columns.exact_decimal(value, type)
    except ValueError:
        return False
    return True


def changed_number(value: Any, noun: str, name: str, type: pa.DataType) -> ChangedNumberError:
    """The error for ``value``, in the ``noun`` with this name."""
    return ChangedNumberError(
        f"has {value} in {noun} {name!r}, which is no number of the type {type}"
    )
