"""Rows of a sink: the values of a tuple that become a row, and a row as text.

Shared by the sinks, which do not know each other. Standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txtopo import errors

SHOWN_MAX = 300
"""Characters of a row that an error shows."""


def described(columns: Sequence[str], row: object) -> str:
    """A row for a message: bounded, and never itself the failure."""
    try:
        pairs = (
            zip(columns, row, strict=False)
            if isinstance(row, Sequence) and not isinstance(row, str)
            else None
        )
        text = (
            repr(row)
            if pairs is None
            else ", ".join(f"{column}={value!r}" for column, value in pairs)
        )
    except Exception:
        text = f"of type {type(row).__name__}"
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def taker(
    fields: Iterable[str], wanted: Sequence[str], component: str, is_statement: bool = False
) -> Callable[[Any], tuple[Any, ...]]:
    """A function that makes the values of ``wanted`` of a tuple with ``fields``, the first of which
    is the attempt; survives pickling.

    :raises errors.UsageError: a field is not there.
    """
    names = list(fields)
    missing = [name for name in wanted if name not in names]
    if missing:
        cure = (
            "Name the columns like the fields, or say which is which: columns={'column': 'field'}."
        )
        cure = "Name a field in the statement, as :name." if is_statement else cure
        raise errors.UsageError(
            f"the sink of {component!r} gets no field {missing[0]!r}; there are {', '.join(names[1:])}\n  {cure}"
        )
    if not wanted:
        raise errors.UsageError(
            f"the sink of {component!r} gets tuples without a value\n  A row needs one at least, beside the attempt."
        )
    places = [names.index(name) for name in wanted]
    # Of one place, itemgetter gives the bare value; of a slice, always a tuple.
    if places == list(range(places[0], places[0] + len(places))):
        return operator.itemgetter(slice(places[0], places[0] + len(places)))
    return operator.itemgetter(*places)
