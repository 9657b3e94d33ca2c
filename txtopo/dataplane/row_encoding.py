"""Rows as bytes, column by column.

Pickle takes rows one by one, and each value of each row. Most columns are of one kind: the attempt
is the same in all rows, and texts can be joined and cut again by one call for all of them, which
takes less than half the time. Apart from ``wire`` because it knows values only: no frame, no lane,
no stream. Restored rows have the same values of the same types; mutable values that rows share are
shared again.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

Row = tuple[Any, ...]
Runs = list[tuple[str, list[Row]]]
"""``(stream, rows)`` in order of emission."""
Column = tuple[Literal["same", "text", "values"], Any]
"""The one object that is in every row · all texts as one, in UTF-8 · the values themselves."""

_SEPARATOR = "\0"
_SURROGATES = "surrogatepass"
"""A text may have lone surrogates, which UTF-8 proper refuses."""


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """``rows``, at least one and all of one length, as columns that are quickly pickled."""
    return [_column(values) for values in zip(*rows, strict=True)]


def rows_of(count: int, columns: Iterable[Column]) -> Iterator[Row]:
    """The inverse of :func:`columns_of`: ``count`` rows, each made when it is asked for."""
    return zip(*(_values(count, column) for column in columns), strict=True)


def _column(values: Row) -> Column:
    first = values[0]
    if all(map(operator.is_, values, itertools.repeat(first))):
        return "same", first
    if type(first) is str and set(map(type, values)) == {str}:
        text = _SEPARATOR.join(values)
        if text.count(_SEPARATOR) == len(values) - 1:
            return "text", text.encode("utf-8", _SURROGATES)
    return "values", values


def _values(count: int, column: Column) -> Iterable[Any]:
    kind, data = column
    if kind == "same":
        return itertools.repeat(data, count)
    values: list[Any] = (
        str(data, "utf-8", _SURROGATES).split(_SEPARATOR) if kind == "text" else data
    )
    return values
