"""From blocks of whole lines to text and to the fields of JSON objects.

Apart from reading because it knows characters and no files: it is given bytes and where they came from, for the error message.
It works on whole blocks, since decoding and splitting line by line costs several times as much.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

from txtopo import errors

_SIGNATURE_CODEC = "utf-8-sig"


def checked_encoding(encoding: str) -> str:
    """The codec's own name, if text in it can be cut at bytes ``\\n``; :class:`~txtopo.errors.ConfigError` otherwise."""
    try:
        name = codecs.lookup(encoding).name
        cuttable = "\n".encode(_within_file(name)) == b"\n"
    except LookupError:
        raise errors.ConfigError(f"file spout: Python has no text encoding {encoding!r}\n  The documentation of `codecs` lists them.") from None
    if not cuttable:
        raise errors.ConfigError(f"file spout: text in {encoding} cannot be cut at byte 10\n  Convert the files with `iconv -f {encoding} -t utf-8`.")
    return name


def _within_file(codec: str) -> str:
    return "utf-8" if codec == _SIGNATURE_CODEC else codec


def lines(path: str, offset: int, block: bytes, codec: str, errors_mode: str) -> list[str]:
    """The lines of ``block``, which begins at byte ``offset`` of ``path``, without their ends: ``\\n`` or ``\\r\\n``.

    A last line without ``\\n`` is a line. Bytes that are no text raise :class:`~txtopo.errors.InputError` under ``"strict"``.
    """
    try:
        # The signature (byte order mark) is one at the beginning of a file only; elsewhere it is text.
        text = block.decode(codec if offset == 0 else _within_file(codec), errors_mode)
    except UnicodeDecodeError as error:
        raise errors.InputError(
            f"{path}: byte {offset + error.start} is not {codec} ({error.reason})\n"
            "  Name the file's encoding (encoding='latin-1', say), mend the file, or read it with errors='replace'."
        ) from None
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    found = text.split("\n")
    if block.endswith(b"\n"):
        found.pop()
    else:
        found[-1] = found[-1].removesuffix("\r")
    return found


def objects(path: str, offset: int, block: bytes, codec: str, errors_mode: str, fields: tuple[str, ...]) -> Iterator[list[Any]]:
    """For each line that is not blank, a JSON object, the values of its ``fields``.

    A line that is no JSON object always raises :class:`~txtopo.errors.InputError`; a missing field does so
    under ``"strict"`` and is ``None`` otherwise.
    """
    strict = errors_mode == "strict"
    decode = json.JSONDecoder().decode
    for number, line in enumerate(lines(path, offset, block, codec, errors_mode)):
        if not line or line.isspace():
            continue
        try:
            value = decode(line)
        except (ValueError, RecursionError) as error:
            raise _bad_line(path, offset, block, number, f"is not JSON: {error}") from None
        if type(value) is not dict:
            raise _bad_line(path, offset, block, number, f"is not a JSON object but a {type(value).__name__}")
        if strict:
            for field in fields:
                if field not in value:
                    there_are = ", ".join(map(repr, value)) or "none"
                    raise _bad_line(path, offset, block, number, f"has no field {field!r}; it has {there_are}", missing=True)
        yield [value.get(field) for field in fields]


def _bad_line(path: str, offset: int, block: bytes, number: int, what: str, missing: bool = False) -> errors.InputError:
    begins = offset + sum(len(line) + 1 for line in block.split(b"\n", number)[:number])
    cure = "Mend the line or the spout's fields, or take missing fields as None with errors='replace'." if missing else "Mend the line."
    return errors.InputError(f"{path}: the line at byte {begins} {what}\n  {cure}")
