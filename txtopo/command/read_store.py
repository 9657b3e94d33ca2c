"""Reads a store line by line, for a person or a program at the command line.

Each line is JSON with ``key`` and ``value``, or with ``text`` if the codec that wrote the value is
not at hand.

Runs on: any machine that reaches the store and, with ``--as-of``, also the topology's ZooKeeper or
data directory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from txtopo import errors
from txtopo.runtime.visibility import Visibility
from txtopo.stores import Key, Store, codecs, keys

T = TypeVar("T")

_ABSENT = object()


def key_of(text: str) -> Key:
    """The key for a typed ``text``: a number or JSON if it looks so (``7``, ``["dog",7]``,
    ``"7"``), else the text itself (``dog``, and ``007``, because numbers have no leading zero)."""
    if re.fullmatch(r"0|-?[1-9][0-9]*", text):
        # Python reads no number with too many digits, and no store has such a number.
        with contextlib.suppress(ValueError):
            return int(text)
    if not text.startswith(("[", '"')):
        return text
    try:
        return keys.decode_key(text)
    except ValueError as error:
        cure = "Give a text as it is, a number, or JSON: 7, '[\"dog\",7]', '\"7\"' for the text 7, '\"[dog\"' for a text that begins like a list."
        raise errors.UsageError(f"{text} looks like JSON and is not: {error}\n  {cure}") from None


def prefix_of(text: str | None) -> str | tuple[Key | None, ...] | None:
    """The beginning that keys must have: a text, or as a JSON list a tuple's first elements. None
    stands for all keys."""
    if text is None:
        return None
    key = key_of(text)
    return text if isinstance(key, int) else key


def value_line(store: Store, key: Key, visibility: Visibility | None) -> str | None:
    """One key's line, or None if the key has no value."""
    value = _read(visibility, functools.partial(store.get, key, _ABSENT))
    return None if value is _ABSENT else _line(store, key, value)


def lines(
    store: Store,
    prefix: str | tuple[Key | None, ...] | None,
    visibility: Visibility | None,
    limit: int | None = None,
) -> Iterator[str]:
    """A line for each key that begins with ``prefix``, in order, but at most ``limit`` lines."""
    scan = store.items if prefix is None else functools.partial(store.scan, prefix)
    pairs = _read(visibility, scan)
    return (_line(store, key, value) for key, value in itertools.islice(pairs, limit))


def count(
    store: Store, prefix: str | tuple[Key | None, ...] | None, visibility: Visibility | None
) -> int:
    """How many keys begin with ``prefix``."""
    return _read(visibility, functools.partial(store.count, prefix))


def _read(visibility: Visibility | None, reading: Callable[..., T]) -> T:
    """Call ``reading``, with ``as_of=`` if only ``visibility``'s transactions count."""
    if visibility is None:
        return reading()
    return visibility.read(lambda visible: reading(as_of=visible))


def _line(store: Store, key: Key, value: Any) -> str:
    name = "text" if isinstance(store.codec, codecs.TextCodec) else "value"
    return json.dumps({"key": key, name: value}, ensure_ascii=False)
