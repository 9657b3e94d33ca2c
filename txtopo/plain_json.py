"""Plain JSON: the one rule for values that are written as JSON and must come back as they were.

Plain are ``None``, ``bool``, ``int``, finite ``float``, ``str``, lists, and dicts with ``str``
keys. A tuple comes back as a list, and a value from a subclass (an ``IntEnum``, a NumPy number) as
its plain equal. Any other value is refused with its place, where the value is made and not where
the value is written. Standard library only.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

NESTING_MAX = 100
"""Levels of lists and dicts in a value that :func:`plain` accepts: far from Python's bound on
recursion, so that the value can be part of a larger value."""

SCALARS = frozenset({type(None), bool, int, float, str})
"""Types whose values JSON gives back exactly, or refuses. Their values cannot be changed in
place."""

KINDS = "None, bool, int, finite float, str, lists, and dicts with str keys"
"""The plain values, for messages."""

_NESTED = (list, tuple, dict)

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class NotJsonError(ValueError):
    """JSON would not give back a value as it was. ``path`` is the place in the value, as
    ``$.offsets[3]``."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"at {self.path}: {self.why}; plain values are {KINDS}"


def dumps(value: Any) -> str:
    """``value`` as compact JSON, in Unicode.

    :raises NotJsonError: ``value`` would come back different.
    """
    text, why, is_plain = "", "", False
    try:
        text = _encode(value)
        # If the encoder raised no error and the text has a form in UTF-8, only a key can come back
        # different. The search for the place costs far more than these questions.
        is_plain = has_utf8(text) and _has_text_keys(value)
    except (TypeError, ValueError) as error:
        why = str(error)
    except RecursionError:
        raise _too_deep() from None
    if not is_plain:
        require(value)
    if why:
        raise NotJsonError("$", why)
    return text


def encode(value: Any) -> bytes:
    """``value`` as compact JSON, in UTF-8.

    :raises NotJsonError: ``value`` would come back different.
    """
    text = dumps(value)
    # A lone surrogate, as in a file's name that is not UTF-8, has no UTF-8 form but an escape.
    return text.encode() if has_utf8(text) else json.dumps(value, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """``value`` as it will come back: a copy with plain types only.

    :raises NotJsonError: ``value`` would come back different, or is nested more deeply than
        ``NESTING_MAX``.
    """
    require(value, NESTING_MAX)
    return json.loads(dumps(value))


def require(value: Any, nesting_max: int = sys.maxsize) -> None:
    """:class:`NotJsonError` unless ``value`` comes back as it was."""
    try:
        _require(value, "$", nesting_max, frozenset())
    except RecursionError:
        raise _too_deep() from None


def _require(value: Any, path: str, levels: int, outer: frozenset[int]) -> None:
    """``outer``: the ids of the lists and dicts around ``value``."""
    match value:
        case None | bool():
            pass
        case str():
            _require_text(value, path)
        case int():
            try:
                int.__repr__(value)
            except ValueError:
                raise NotJsonError(path, "an int of more digits than Python reads back") from None
        case float():
            if not math.isfinite(value):
                raise NotJsonError(path, f"{float.__repr__(value)} has no form in JSON")
        case list() | tuple() | dict() if id(value) in outer:
            raise NotJsonError(path, "the value contains itself")
        case list() | tuple() | dict() if levels == 0:
            raise _too_deep()
        case list() | tuple():
            outer |= {id(value)}
            for index, item in enumerate(value):
                _require(item, f"{path}[{index}]", levels - 1, outer)
        case dict():
            outer |= {id(value)}
            for key, item in value.items():
                _require_key(key, path)
                _require(item, f"{path}.{key}", levels - 1, outer)
        case _:
            raise NotJsonError(
                path, f"a value of type {type(value).__name__} would not come back as it was"
            )


def _require_key(key: Any, path: str) -> None:
    if not isinstance(key, str):
        raise NotJsonError(
            path, f"the key {key!r} is a {type(key).__name__} and would come back as a string"
        )
    _require_text(key, path)


def _has_text_keys(value: Any) -> bool:
    """Whether every dict in ``value`` has ``str`` keys only."""
    waiting: list[Any] = [value]
    while waiting:
        items = waiting.pop()
        if not isinstance(items, _NESTED):
            continue
        if isinstance(items, dict):
            for key in items:
                if not isinstance(key, str):
                    return False
            items = items.values()
        waiting.extend([item for item in items if type(item) not in SCALARS])
    return True


def _require_text(text: str, path: str) -> None:
    if not has_utf8(text) and json.loads(json.dumps(text)) != str.__str__(text):
        raise NotJsonError(
            path, "text with two surrogates in a row, which would come back as one character"
        )


def has_utf8(text: str) -> bool:
    """Whether ``text`` has no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_deep() -> NotJsonError:
    return NotJsonError("$", "nested too deeply")
