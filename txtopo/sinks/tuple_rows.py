"""Makes rows from tuples, and texts from rows for messages.

Shared by the sinks, which do not know each other. Standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txtopo import errors

SHOWN_MAX = 300
"""The longest text for a row in an error, in characters."""


def described(columns: Sequence[str], row: object) -> str:
    """Return a row's text for a message. The text is bounded, and no row raises an error."""
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
    """Return a function that picks the fields ``wanted`` from a tuple's values. Pickles.

    :param fields: the tuple's fields. The first is the attempt.
    :raises errors.UsageError: a field is missing, or the row would have no column.
    """
    names = list(fields)
    missing = [name for name in wanted if name not in names]
    if missing:
        cure = "Name the columns like the fields, or give both names: columns={'column': 'field'}."
        cure = "Name a field in the statement, as :name." if is_statement else cure
        raise errors.UsageError(
            f"the sink of {component!r} gets no field {missing[0]!r}; there are {', '.join(names[1:])}\n  {cure}"
        )
    if not wanted:
        raise errors.UsageError(
            f"the sink of {component!r} gets tuples without a value\n  A row needs at least one value beside the attempt."
        )
    places = [names.index(name) for name in wanted]
    # With one index, itemgetter returns the bare value. With a slice, it returns a tuple.
    if places == list(range(places[0], places[0] + len(places))):
        return operator.itemgetter(slice(places[0], places[0] + len(places)))
    return operator.itemgetter(*places)
