"""Records of Kafka as tuples: which parts of a record, in which form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import txtopo.errors

Format = Literal["bytes", "text", "json"]
DecodingErrors = Literal["strict", "replace"]
FORMATS = ("bytes", "text", "json")
PARTS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")

Convert = Callable[[list[Any]], Iterable[tuple[Any, ...]]]
"""From messages to the values of their tuples, without the attempt."""


def converter(owner: str, fields: Sequence[str], format: Any, decoding_errors: str) -> Convert:
    """How messages become tuples.

    :raises txtopo.errors.ConfigError: fields and format that do not go together.
    """
    if decoding_errors not in ("strict", "replace"):
        raise txtopo.errors.ConfigError(f"{owner}: errors is {decoding_errors!r}; it is 'strict' or 'replace'")
    if callable(format):
        return lambda messages: (row for message in messages if (row := _row_of(owner, format, message, len(fields))) is not None)
    if format not in FORMATS:
        raise txtopo.errors.ConfigError(f"{owner}: format is {format!r}; it is one of {', '.join(map(repr, FORMATS))}, or a callable")
    if format == "json":
        return lambda messages: (_fields_of(owner, message, fields, decoding_errors) for message in messages)
    unknown = [name for name in fields if name not in PARTS]
    if unknown or not fields:
        what = f"no field {unknown[0]!r}" if unknown else "more than none of its parts"
        raise txtopo.errors.ConfigError(f"{owner}: a record has {what}; fields are some of {', '.join(PARTS)}; with format='json' those of the object")
    text = (lambda message, data: _text(owner, message, data, decoding_errors)) if format == "text" else None
    parts = [_part(name, text) for name in fields]
    if len(parts) == 1:
        only = parts[0]
        return lambda messages: ((only(message),) for message in messages)
    return lambda messages: (tuple(part(message) for part in parts) for message in messages)


def where(message: Any) -> str:
    """The place of a record, for messages."""
    return f"topic {message.topic()}, partition {message.partition()}, offset {message.offset()}"


def _part(name: str, text: Callable[[Any, bytes | None], str | None] | None) -> Callable[[Any], Any]:
    match name:
        case "key":
            return (lambda message: message.key()) if text is None else (lambda message: text(message, message.key()))
        case "value":
            return (lambda message: message.value()) if text is None else (lambda message: text(message, message.value()))
        case "timestamp":
            # Kind and milliseconds; a record without a timestamp has kind 0.
            return lambda message: message.timestamp()[1] if message.timestamp()[0] else None
        case "headers":
            return lambda message: message.headers() or []
        case _:
            return lambda message: getattr(message, name)()


def _text(owner: str, message: Any, data: bytes | None, decoding_errors: str) -> str | None:
    if data is None:
        return None
    try:
        return data.decode(errors=decoding_errors)
    except UnicodeDecodeError as error:
        raise txtopo.errors.InputError(
            f"{owner}: {where(message)} is not UTF-8: {error}\n  Use format='bytes'; or errors='replace', which puts U+FFFD instead."
        ) from error


def _fields_of(owner: str, message: Any, fields: Sequence[str], decoding_errors: str) -> tuple[Any, ...]:
    data = message.value()
    try:
        value = json.loads(data) if data is not None else None
    except ValueError as error:
        raise txtopo.errors.InputError(f"{owner}: {where(message)} is no JSON: {error}\n  Use format='bytes', 'text' or a callable.") from error
    if not isinstance(value, dict):
        if decoding_errors == "replace" and value is None:
            return (None,) * len(fields)
        raise txtopo.errors.InputError(f"{owner}: {where(message)} is no JSON object, but {str(value)[:60]}\n  Use a callable as format.")
    try:
        return tuple(value[name] for name in fields) if decoding_errors == "strict" else tuple(value.get(name) for name in fields)
    except KeyError as error:
        raise txtopo.errors.InputError(
            f"{owner}: {where(message)} has no field {error.args[0]!r}; it has {', '.join(map(repr, sorted(value))[:10])}\n"
            "  Mend fields; or use errors='replace', which puts None instead."
        ) from error


def _row_of(owner: str, format: Callable[[Any], Any], message: Any, width: int) -> tuple[Any, ...] | None:
    row = format(message)
    if row is None:
        return None
    if not isinstance(row, tuple | list) or len(row) != width:
        raise txtopo.errors.InputError(f"{owner}: format made {row!r} of {where(message)}; it makes {width} values, or None to pass over the record")
    return tuple(row)
