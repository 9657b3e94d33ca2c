"""Compare two values, and tell in words how two collections differ.

Values in tuples need be neither hashable nor ordered. They may be NaN, or objects that pickling has
copied.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from txtopo import errors

_PLAIN = frozenset({type(None), bool, int, str, bytes, datetime.date})
"""Types whose values ``==`` compares exactly. Most values in tuples have one of these types."""
_LEVELS_MAX = 100
"""How deeply a value may be nested: far from Python's bound on recursion, also for comparing keys."""
_SHOWN = 3
_TEXT_MAX = 120


def identity(value: Any) -> Any:
    """A hashable key. Two values have equal keys exactly if types and contents are equal all the
    way down.

    :raises errors.UsageError: the value contains itself, or is nested too deeply.
    """
    return _identity(value, _LEVELS_MAX)


def _identity(value: Any, levels: int) -> Any:
    """:func:`identity` for a value with at most ``levels`` of containers."""
    if type(value) in _PLAIN:
        return type(value), value
    if type(value) is tuple and _PLAIN.issuperset(types := tuple(map(type, value))):
        return types, value
    if isinstance(value, float) and value != value:
        return "nan"
    name, inner = type(value).__qualname__, levels - 1
    if levels < 0:
        raise errors.UsageError(
            f"a value contains itself, or is nested more than {_LEVELS_MAX} levels deep ({name}), and cannot be compared\n"
            "  Emit and store flatter values."
        )
    if isinstance(value, list | tuple):
        return name, tuple([_identity(item, inner) for item in value])
    if isinstance(value, Mapping):
        return name, frozenset(
            [(_identity(key, inner), _identity(item, inner)) for key, item in value.items()]
        )
    if isinstance(value, set | frozenset):
        return name, frozenset([_identity(item, inner) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return name, tuple(
            [
                (field.name, _identity(getattr(value, field.name), inner))
                for field in dataclasses.fields(value)
            ]
        )
    if getattr(type(value), "__eq__", None) is object.__eq__ and hasattr(value, "__dict__"):
        return name, _identity(vars(value), inner)
    try:
        return name, frozenset([value])
    except TypeError:
        return name, pickle.dumps(value)


def counted(values: Iterable[Any]) -> collections.Counter[Any]:
    """How often each value occurs, by :func:`identity`."""
    return collections.Counter(map(identity, values))


def multiset_difference(actual: Iterable[Any], expected: Iterable[Any]) -> str | None:
    """The items that ``actual`` lacks or has too often, in words. ``None`` if the collections agree
    in any order."""
    actual, expected = list(actual), list(expected)
    ours, theirs = counted(actual), counted(expected)
    missing = _few("missing", theirs - ours, expected)
    too_many = _few("too many", ours - theirs, actual)
    return "; ".join(filter(None, (missing, too_many))) or None


def _few(label: str, differing: collections.Counter[Any], values: list[Any]) -> str:
    """How many values differ, and the first few."""
    if not differing:
        return ""
    first: dict[Any, Any] = {}
    for value in values:
        key = identity(value)
        if key in differing and len(first) < _SHOWN:
            first.setdefault(key, value)
    shown = ", ".join(
        short(value) + (f" ×{differing[key]}" if differing[key] > 1 else "")
        for key, value in first.items()
    )
    return (
        f"{differing.total()} {label}, {'first' if len(differing) > _SHOWN else 'namely'} {shown}"
    )


def mapping_difference(actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str | None:
    """The first keys whose values differ, in words. ``None`` if all values agree."""
    parts = []
    for key in [*expected, *(key for key in actual if key not in expected)]:
        if key not in actual:
            parts.append(f"{short(key)} is missing, it should be {short(expected[key])}")
        elif key not in expected:
            parts.append(f"{short(key)} is {short(actual[key])}, it should not be there")
        elif identity(actual[key]) != identity(expected[key]):
            ours, theirs = actual[key], expected[key]
            inner = (
                mapping_difference(ours, theirs)
                if isinstance(ours, Mapping) and isinstance(theirs, Mapping)
                else None
            )
            parts.append(
                f"{short(key)} is {short(ours)}, it should be {short(theirs)}"
                if inner is None
                else f"{short(key)}: {inner}"
            )
    more = f", and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return "; ".join(parts[:_SHOWN]) + more if parts else None


def short(value: Any) -> str:
    """``repr``, cut to a bounded length."""
    shown = repr(value)
    return shown if len(shown) <= _TEXT_MAX else shown[: _TEXT_MAX - 1] + "…"
