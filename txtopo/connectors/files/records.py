"""Makes text and JSON fields from blocks of whole lines.

This module never reads files: path and offset are only for error messages. It works on whole
blocks, since decoding and splitting line by line costs several times as much.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors import json_lines

ERROR_PAGE = "sources.html"

_SIGNATURE_CODEC = "utf-8-sig"


_NOT_BY_LINES = frozenset({"hz", "idna", "raw-unicode-escape", "undefined", "utf-7"})
"""Codecs that may take other bytes for a line end. ISO 2022 codecs, refused as well, keep a mode
from line to line."""


def checked_encoding(encoding: str) -> str:
    """The codec's own name. Raises :class:`~txtopo.errors.ConfigError` unless encoded text can be
    cut at bytes ``\\n``."""
    try:
        name = codecs.lookup(encoding).name
        is_by_lines = name not in _NOT_BY_LINES and not name.startswith("iso2022")
        cuttable = is_by_lines and "\n".encode(_within_file(name)) == b"\n"
    except LookupError:
        raise errors.ConfigError(
            f"file spout: Python has no text encoding {encoding!r}\n  The documentation of `codecs` lists them."
        ) from None
    if not cuttable:
        raise errors.ConfigError(
            f"file spout: text in {encoding} cannot be cut at byte 10\n  Convert the files with `iconv -f {encoding} -t utf-8`."
        )
    return name


def _within_file(codec: str) -> str:
    return "utf-8" if codec == _SIGNATURE_CODEC else codec


def text(path: str, offset: int, block: bytes, codec: str, errors_mode: str) -> str:
    """Decode ``block``, which begins at byte ``offset`` in ``path``.

    A UTF-8 signature (byte order mark) at the file's beginning is dropped. Elsewhere a signature is
    text. Bytes that are not text raise :class:`~txtopo.errors.InputError` under ``"strict"``.
    """
    codec = _within_file(codec)
    skipped = signature_bytes(offset, block) if codec == "utf-8" else 0
    try:
        return block[skipped:].decode(codec, errors_mode)
    except UnicodeDecodeError as error:
        raise errors.InputError(
            f"{path}: byte {offset + skipped + error.start} is not {codec} ({error.reason})\n"
            "  Name the file's encoding (encoding='latin-1', say), mend the file, or read it with errors='replace'."
        ) from None


def signature_bytes(offset: int, block: bytes) -> int:
    """How many bytes a signature takes at the beginning of ``block``, which begins at byte
    ``offset`` in its file."""
    return len(codecs.BOM_UTF8) * (offset == 0 and block.startswith(codecs.BOM_UTF8))


def check_uncompressed(path: str, beginning: bytes) -> None:
    """Raise :class:`~txtopo.errors.InputError` if a file with this ``beginning`` is compressed:
    some encodings would read the bytes as lines."""
    match = _COMPRESSED.match(beginning)
    if match is not None and match.lastgroup is not None:
        command = f"{_DECOMPRESS[match.lastgroup]} {shlex.quote(path)}"
        raise errors.InputError(
            f"{path} is compressed ({match.lastgroup}): its bytes are no lines\n  Decompress it first, for example with: {command}"
        )


_COMPRESSED = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<xz>\xfd7zXZ\0)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<lz4>\x04\x22\x4d\x18)|(?P<zip>PK\x03\x04)"
)
_DECOMPRESS = {
    "gzip": "gunzip -k",
    "bzip2": "bunzip2 -k",
    "xz": "unxz -k",
    "zstd": "unzstd",
    "lz4": "unlz4",
    "zip": "unzip",
}


def lines(path: str, offset: int, block: bytes, codec: str, errors_mode: str) -> list[str]:
    """Split ``block``, which begins at byte ``offset`` in ``path``, into lines without their ends,
    ``\\n`` or ``\\r\\n``.

    A last line without ``\\n`` is a line. Raises what :func:`text` raises.
    """
    if errors_mode == "replace" and _within_file(codec) != "utf-8":
        # Bytes that are not text may take the next bytes with them: so decode each line alone.
        return [
            line.removesuffix(b"\r").decode(codec, errors_mode)
            for line in block.removesuffix(b"\n").split(b"\n")
        ]
    decoded = text(path, offset, block, codec, errors_mode)
    if not decoded:
        return []
    if "\r" in decoded:
        decoded = decoded.replace("\r\n", "\n")
    texts = decoded.split("\n")
    if block.endswith(b"\n"):
        texts.pop()
    else:
        texts[-1] = texts[-1].removesuffix("\r")
    return texts


def objects(
    path: str,
    offset: int,
    block: bytes,
    codec: str,
    errors_mode: str,
    fields: tuple[str, ...],
    defaults: Mapping[str, Any],
) -> Iterator[Sequence[Any]]:
    """Yield the values of ``fields`` for each line that is not blank, a JSON object. Missing or
    null fields have the values in ``defaults``.

    A line that is no JSON object always raises :class:`~txtopo.errors.InputError`. So does a
    missing field under ``"strict"``. Otherwise a missing field is ``None``.
    """
    is_strict = errors_mode == "strict"
    values, blank = json_lines.Decoder(fields, defaults).values, json_lines.BLANK.decode()
    texts = lines(path, offset, block, codec, errors_mode)
    are_sure = json_lines.is_sure("\n".join(texts))
    for number, line in enumerate(texts):
        if not line.strip(blank):
            continue
        try:
            yield values(line, is_strict, are_sure or json_lines.is_sure(line))
        except json_lines.LineError as error:
            cure = "Mend the line."
            if isinstance(error, json_lines.MissingFieldError):
                cure = "Mend the line or the spout's fields, or take missing fields as None with errors='replace'."
            raise bad_line(path, offset, block, number, str(error), cure) from None


def bad_line(
    path: str, offset: int, block: bytes, number: int, mistake: str, cure: str
) -> errors.InputError:
    """The error for line ``number``, from 0, in ``block``, which begins at byte ``offset`` in
    ``path``."""
    begins = offset + sum(len(line) + 1 for line in block.split(b"\n", number)[:number])
    return errors.InputError(f"{path}: the line at byte {begins} {mistake}\n  {cure}")
