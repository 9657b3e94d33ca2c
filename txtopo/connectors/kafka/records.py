"""Makes tuples from Kafka records: which parts become fields, and in which form."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Literal, Protocol

import txtopo.errors
from txtopo.connectors import json_lines

Format = Literal["bytes", "text", "json"]
DecodingErrors = Literal["strict", "replace"]
FORMATS = ("bytes", "text", "json")
PARTS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


class Convert(Protocol):
    """Makes a tuple from each message: the values ``before``, and then the fields."""

    def __call__(self, messages: list[Any], *before: Any) -> Iterable[tuple[Any, ...]]: ...


def converter(owner: str, fields: Sequence[str], format: Any, decoding_errors: str) -> Convert:
    """A function that makes tuples from messages.

    :raises txtopo.errors.ConfigError: fields and format contradict each other.
    """
    if decoding_errors not in ("strict", "replace"):
        raise txtopo.errors.ConfigError(
            f"{owner}: errors is {decoding_errors!r}\n  Give 'strict' or 'replace'."
        )
    if callable(format):
        return lambda messages, *before: (
            (*before, *row)
            for message in messages
            if (row := _row_of(owner, format, message, len(fields))) is not None
        )
    if format not in FORMATS:
        raise txtopo.errors.ConfigError(
            f"{owner}: format is {format!r}\n  Give one of {', '.join(map(repr, FORMATS))}, or a callable."
        )
    if format == "json":
        if not fields:
            raise txtopo.errors.ConfigError(
                f"{owner}: fields is empty\n  With format='json', name the fields in the JSON object."
            )
        decoder = json_lines.Decoder(fields)
        return lambda messages, *before: (
            (*before, *row)
            for row in _objects(owner, messages, decoder, len(fields), decoding_errors)
        )
    cure = (
        f"Give some of {', '.join(PARTS)}. With format='json', name the fields in the JSON object."
    )
    if not fields:
        raise txtopo.errors.ConfigError(f"{owner}: fields is empty\n  {cure}")
    for name in fields:
        if name not in PARTS:
            raise txtopo.errors.ConfigError(f"{owner}: a record has no field {name!r}\n  {cure}")
    text = (
        (lambda message, data: _text(owner, message, data, decoding_errors))
        if format == "text"
        else None
    )
    takes = [part(name, text) for name in fields]
    return lambda messages, *before: zip(
        *map(repeat, before), *(map(take, messages) for take in takes), strict=False
    )


def where(message: Any) -> str:
    """A record's place, for messages."""
    return f"topic {message.topic()}, partition {message.partition()}, offset {message.offset()}"


def part(
    name: str, text: Callable[[Any, bytes | None], str | None] | None = None
) -> Callable[[Any], Any]:
    """A function that takes the part ``name`` from a message. ``text`` makes keys and values
    texts."""
    if name == "timestamp":
        # Kind and milliseconds. A record without a timestamp has kind 0.
        return lambda message: message.timestamp()[1] if message.timestamp()[0] else None
    if name == "headers":
        return lambda message: message.headers() or []
    take = operator.methodcaller(name)
    if text is None or name not in ("key", "value"):
        return take
    return lambda message: text(message, take(message))


def _text(owner: str, message: Any, data: bytes | None, decoding_errors: str) -> str | None:
    if data is None:
        return None
    try:
        return data.decode(errors=decoding_errors)
    except UnicodeDecodeError as error:
        raise txtopo.errors.InputError(
            f"{owner}: {where(message)} is not UTF-8: {error}\n  Use format='bytes', or errors='replace', which puts U+FFFD instead."
        ) from error


def _objects(
    owner: str, messages: list[Any], decoder: json_lines.Decoder, width: int, decoding_errors: str
) -> Iterator[tuple[Any, ...]]:
    """The fields from values that are JSON objects, by the rules for JSON lines in files."""
    is_strict = decoding_errors == "strict"
    texts = [_text(owner, message, message.value(), decoding_errors) for message in messages]
    are_sure = json_lines.is_sure("\n".join(text for text in texts if text is not None))
    for message, text in zip(messages, texts, strict=True):
        if text is None and not is_strict:
            yield (None,) * width
            continue
        try:
            if text is None:
                raise json_lines.LineError("is no JSON object: its value is null")
            yield tuple(decoder.values(text, is_strict, are_sure or json_lines.is_sure(text)))
        except json_lines.LineError as error:
            cure = "Use a callable as format, which may pass over the record."
            if text is None or isinstance(error, json_lines.MissingFieldError):
                cure = "Mend fields, or take missing fields as None with errors='replace'."
            raise txtopo.errors.InputError(f"{owner}: {where(message)} {error}\n  {cure}") from None


def _row_of(
    owner: str, format: Callable[[Any], Any], message: Any, width: int
) -> tuple[Any, ...] | None:
    try:
        row = format(message)
    except Exception as error:
        error.add_note(f"format was given {where(message)}")
        raise
    if row is None:
        return None
    if not isinstance(row, tuple | list) or len(row) != width:
        raise txtopo.errors.InputError(
            f"{owner}: format made {row!r} from {where(message)}\n  Return {width} values, or None to pass over the record."
        )
    return tuple(row)
