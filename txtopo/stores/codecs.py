"""The codec that turns a value into the text that a store keeps, and back: JSON, or a codec of the
user's.

Apart from ``keys``, which says what JSON may hold, because a user may give another codec. A codec
is pickled with its store, and its *name* is kept beside the results: a process with a codec of
another name is refused, before anything is misread or mixed. Runs on executors: standard library
only.

Invariants: a text that is stored is a ``str`` which UTF-8 can hold, without NUL; no value is ever
stored as "there is none".
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from txtopo import errors
from txtopo.stores import keys


class Codec(Protocol):
    """Turns values into texts. Give it to a store as ``codec=``; it is pickled with the store, so
    define its class in a module.

    :ivar name: the name is kept beside the results: up to 50 of ``A-Za-z0-9._-``. Change it when
        texts that are stored could no longer be read.
    """

    name: str

    def dumps(self, value: Any) -> str:
        """The text of ``value``, any object of the user's; raises any exception if there is none.

        The same value must have the same text in every process, and on every attempt.
        """

    def loads(self, text: str) -> Any:
        """The value whose text is ``text``; a new object each time."""


class JsonCodec:
    """The default: only values that JSON gives back unchanged (see ``keys``)."""

    name = "json"

    def dumps(self, value: Any) -> str:
        """``value`` as compact JSON; :class:`UsageError` naming the place if JSON would not give it
        back."""
        return keys.encode_value(value)

    def loads(self, text: str) -> Any:
        """The value whose JSON is ``text``."""
        return keys.decode_value(text)

    def __reduce__(self) -> str:
        return "JSON"  # there is one


class TextCodec:
    """Reads the texts themselves: for readers of a store whose codec is not at hand."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the codec of the texts."""

    def dumps(self, value: Any) -> str:
        """Refused: that codec could not read values written here."""
        raise errors.UsageError(
            f"the codec {self.name!r} is not at hand: its values can be looked at as text, and not be written\n  {_CURE}"
        )

    def loads(self, text: str) -> str:
        """``text`` itself."""
        return text


JSON = JsonCodec()
"""A single object, also after pickling."""


def checked(codec: Any) -> Codec:
    """``codec``, if it is one; JSON for None.

    :raises errors.UsageError: it has no name that can be kept, or no ``dumps`` and ``loads``.
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
            "a store's codec calls itself 'json', which is the name of txtopo's own\n  Give it another name."
        )
    if not callable(getattr(codec, "dumps", None)) or not callable(getattr(codec, "loads", None)):
        raise errors.UsageError(
            f"the codec {name!r} has no dumps(value) and loads(text)\n  Give its class both."
        )
    checked_codec: Codec = codec
    return checked_codec


def encode(codec: Codec, value: Any) -> str:
    """The text of ``value``.

    :raises errors.UsageError: the result of the codec is no text that every database can keep.
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
            f"the codec {codec.name!r} made a text that UTF-8 cannot hold: {error}\n  Have dumps return other text."
        ) from None
    if "\0" in text:
        raise errors.UsageError(
            f"the codec {codec.name!r} made a text with a NUL character, which not every database keeps\n  Have dumps escape it."
        )
    return text


def decode(codec: Codec, text: str | None) -> Any:
    """The value whose text is ``text``; None for no value."""
    return None if text is None else codec.loads(text)


_CURE = "Open the store in a program that gives it as codec=."
