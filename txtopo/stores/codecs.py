"""Codecs turn values into the texts that a store keeps, and back: JSON, or the user's own codec.

A codec is pickled with its store, and the codec's *name* is kept beside the results. A process
whose codec has a different name is refused before any value is misread or mixed. Runs on executors:
standard library only.

Invariants: a stored text is a ``str`` that UTF-8 can hold, without NUL. A value is never stored as
"there is none".
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from txtopo import errors
from txtopo.stores import keys


class Codec(Protocol):
    """Turns values into texts. Give the codec to a store as ``codec=``. The codec is pickled with
    the store, so define its class in a module.

    :ivar name: kept beside the results: up to 50 of ``A-Za-z0-9._-``. Change the name when stored
        texts could no longer be read.
    """

    name: str

    def dumps(self, value: Any) -> str:
        """The text for ``value``, any object of the user's. Raises any exception if there is no
        text.

        The same value must have the same text in every process and in every attempt.
        """

    def loads(self, text: str) -> Any:
        """The value for ``text``. A new object each time."""


class JsonCodec:
    """The default: only values that JSON gives back unchanged (see ``keys``)."""

    name = "json"

    def dumps(self, value: Any) -> str:
        """``value`` as compact JSON.

        :raises errors.UsageError: JSON would not give ``value`` back, apart from tuples. The error
            names the place.
        """
        return keys.encode_value(value)

    def loads(self, text: str) -> Any:
        return keys.decode_value(text)

    def __reduce__(self) -> str:
        return "JSON"  # there is one


class TextCodec:
    """Shows stored texts, for readers without the store's codec."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the codec that wrote the texts."""

    def dumps(self, value: Any) -> str:
        """Refuses: the store's codec could not read values written here."""
        raise errors.UsageError(
            f"the codec {self.name!r} is not at hand: values can be read as text, but not written\n  {_CURE}"
        )

    def loads(self, text: str) -> str:
        return text


JSON = JsonCodec()
"""The only ``JsonCodec``, also after pickling."""


def checked(codec: Any) -> Codec:
    """``codec`` if it is valid, JSON for None.

    :raises errors.UsageError: the codec has no name that can be kept, or no ``dumps`` and
        ``loads``.
    """
    if codec is None:
        return JSON
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,50}", name):
        raise errors.UsageError(
            f"a store's codec has no name that can be kept: {name!r}\n  Give its class `name = '…'`, up to 50 of A-Za-z0-9._-."
        )
    if name == JSON.name and type(codec) is not JsonCodec:
        raise errors.UsageError(
            "a store's codec calls itself 'json', which is the name of txtopo's own codec\n  Give the codec a different name."
        )
    if not callable(getattr(codec, "dumps", None)) or not callable(getattr(codec, "loads", None)):
        raise errors.UsageError(
            f"the codec {name!r} has no dumps(value) and loads(text)\n  Give its class both."
        )
    checked_codec: Codec = codec
    return checked_codec


def encode(codec: Codec, value: Any) -> str:
    """The text for ``value``.

    :raises errors.UsageError: the codec's result is no text that every database can keep.
    """
    text = codec.dumps(value)
    if codec is JSON:
        return text
    if not isinstance(text, str):
        raise errors.UsageError(
            f"the codec {codec.name!r} made a {type(text).__name__} of a value, not a str\n  Have dumps return text."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise errors.UsageError(
            f"the codec {codec.name!r} made a text that UTF-8 cannot hold: {error}\n  Have dumps return text that UTF-8 can hold."
        ) from None
    if "\0" in text:
        raise errors.UsageError(
            f"the codec {codec.name!r} made a text with a NUL character, which not every database keeps\n  Have dumps escape it."
        )
    return text


def decode(codec: Codec, text: str | None) -> Any:
    """The value for ``text``. None for no value."""
    return None if text is None else codec.loads(text)


_CURE = "Open the store in a program that gives it as codec=."
