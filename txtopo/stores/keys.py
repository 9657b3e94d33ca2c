"""Writes a store's keys and values as text: one text per key, and only values that JSON gives back
unchanged.

All backends write the same text, so any backend, and a person, can read a store.

A key is a ``str``, an ``int``, or a tuple of keys and ``None``. ``bool`` is refused: in Python
``True == 1``, so a store would have two rows for keys that a ``dict`` holds to be equal. A value is
made from ``None``, ``bool``, ``int`` in any size, finite ``float``, ``str``, lists, and dicts with
``str`` keys. Tuples come back as lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

from txtopo import errors, plain_json

Key: TypeAlias = "str | int | tuple[Key | None, ...]"
"""A value's key in a store."""

_encode_text = json.encoder.encode_basestring
"""Encodes a str like ``_encode``, without checking the type."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

RESERVED = "~"
"""The first reserved text. Rows with reserved texts are txtopo's own, such as an export queue's, and
no results. No key has such a text, because a key's text is JSON.

A reserved text has no character below the space, and does not end with a space.
"""

DIGITS_FAST = 10**15
"""Integers closer to 0 are written and read without JSON's help. The texts are the same."""


def encode_key(key: Key) -> str:
    """The single text for ``key``, compact JSON: ``"dog"``, ``7``, ``["dog",7]``.

    :raises errors.UsageError: ``key`` has a wrong type, or holds half of a surrogate pair.
    """
    if type(key) is str and key.isascii():
        return _encode_text(key)
    try:
        _check_key(key, key)
        return _as_utf8(_encode(key))
    except (ValueError, RecursionError) as error:
        raise errors.UsageError(
            f"the store key {_short(key)} cannot be stored: {error}\n  Use a shorter or a cleaned key."
        ) from None


def encode_keys(keys: Iterable[Key]) -> list[str]:
    """The texts for several keys, in order. See :func:`encode_key`."""
    keys = list(keys)
    if set(map(type, keys)) == {str}:
        texts = cast("list[str]", keys)
        if "".join(texts).isascii():
            return list(map(_encode_text, texts))
    return list(map(encode_key, keys))


def decode_key(text: str) -> Key:
    """The key for ``text``."""
    key: Key = with_tuples(json.loads(text))
    return key


def prefix_texts(prefix: str | tuple[Key | None, ...]) -> tuple[str | None, str]:
    """How texts look for the keys under ``prefix``: ``(the prefix's own text or None, the beginning
    of all other texts)``.

    A ``str`` finds the ``str`` keys that begin with the prefix. A tuple finds the tuples that begin
    with the prefix's elements, and never takes ``("a", 10)`` for a continuation of ``("a", 1)``.
    """
    if isinstance(prefix, str):
        return None, encode_key(prefix)[:-1]
    if isinstance(prefix, tuple):
        text = encode_key(prefix)
        return text, text[:-1] + "," if prefix else "["
    raise errors.UsageError(
        f"a store is scanned by a str or by a tuple, not by {_short(prefix)}\n  Use get(key) for one key, items() for all."
    )


def encode_value(value: Any) -> str:
    """``value`` as compact JSON. Tuples become lists.

    :raises errors.UsageError: JSON would not give ``value`` back, apart from tuples. The error names
        the place.
    """
    if type(value) is int and -DIGITS_FAST < value < DIGITS_FAST:
        return repr(value)
    try:
        return _as_utf8(plain_json.dumps(value))
    except plain_json.NotJsonError as error:
        why = f"at {error.path}: {error.why}"
    except ValueError as error:
        why = str(error)
    raise errors.UsageError(
        f"the value {_short(value)} cannot be kept in a store: {why}\n  {_VALUE_CURE}"
    )


def decode_value(text: str | None) -> Any:
    """The value for ``text``. ``None`` for no value. Always a new object, so that changing the
    object is safe."""
    if text is None:
        return None
    # Most values are counts, and a general JSON reader takes several times as long for a number.
    is_number = len(text) < 16 and text.isdecimal() and text.isascii() and text[0] != "0"
    return int(text) if is_number else json.loads(text)


_VALUE_CURE = "Store None, bool, int, finite float, str, and lists and dicts (with str keys) of these. Convert every other object first."


def _check_key(part: Any, whole: Any) -> None:
    if isinstance(part, tuple):
        for item in part:
            if item is not None:
                _check_key(item, whole)
    elif not isinstance(part, str | int) or isinstance(part, bool):
        raise errors.UsageError(
            f"a store key cannot hold {_short(part)} of type {type(part).__name__} (the key is {_short(whole)})\n"
            f"  A key is a str, an int, or a tuple of these and of None. Use {'(None,)' if part is None else 'str(...) or int(...)'}."
        )


def _as_utf8(text: str) -> str:
    # A database's text cannot hold half of a surrogate pair. UnicodeEncodeError is a ValueError.
    text.encode("utf-8")
    return text


def with_tuples(value: Any) -> Any:
    """A key as JSON gives it back, with tuples in place of lists."""
    return tuple(with_tuples(item) for item in value) if isinstance(value, list) else value


def _short(value: Any) -> str:
    """``repr`` for a message. The text is bounded, and making it never fails (an integer may be too
    long to print)."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):
        return f"of type {type(value).__name__}"
    return shown if len(shown) <= 80 else shown[:77] + "..."
