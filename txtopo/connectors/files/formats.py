"""Forms of a file with rows: lines, JSON lines, CSV and Parquet, perhaps compressed.

A writer takes rows, or for Parquet RecordBatches, and writes them to a file, which stays open when
the writer has finished. Text needs the standard library, Parquet and zstd need pyarrow.
"""

from __future__ import annotations

import datetime
import decimal
import gzip
import importlib
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import IO, Any

from txtopo import plain_json

FORMATS = {"lines": ".txt", "json": ".jsonl", "csv": ".csv", "parquet": ".parquet"}
"""The suffix of a file's name, by format."""
COMPRESSIONS = {"gzip": ".gz", "zstd": ".zst"}
ROWS_AT_ONCE = 1 << 17
"""How many rows a row group in a Parquet file has, at most."""
GROUP_BYTES = 1 << 26
"""How many bytes of columns make a row group, even if they are fewer rows."""
BYTES_AT_ONCE = 1 << 16
"""How many bytes of text are compressed or written at once."""
_NEEDS_QUOTES = re.compile('[",\r\n]|^$|^\\s|\\s$')


class RefusedError(Exception):
    """A row has no place in the file. The text says why."""


def suffix(format: str, compression: str | None) -> str:
    """How a file's name ends."""
    return FORMATS[format] + (
        "" if format == "parquet" else COMPRESSIONS.get(compression or "", "")
    )


def line_of(values: Sequence[Any]) -> bytes:
    """A line from a single value, a text or bytes."""
    (value,) = values
    if isinstance(value, str):
        value = _utf8(value)
    if not isinstance(value, bytes):
        raise RefusedError(f"a line is a str or bytes, not {type(value).__name__}")
    if b"\n" in value or b"\r" in value:
        raise RefusedError("the text has a line break, and would be two lines")
    return value + b"\n"


def json_encoder(names: Sequence[str]) -> Callable[[Sequence[Any]], bytes]:
    """The function that makes a JSON object in a line from values for ``names``."""
    keys = (json.encoder.encode_basestring(name).replace("%", "%%") for name in names)
    template = "{" + ",".join(f"{key}:%s" for key in keys) + "}\n"

    def encode(values: Sequence[Any]) -> bytes:
        try:
            return (template % tuple([_TEXTS[type(value)](value) for value in values])).encode()
        except (KeyError, ValueError):
            return _any_json(dict(zip(names, values, strict=True)))

    return encode


def _any_json(row: dict[str, Any]) -> bytes:
    """The general way to a JSON object in a line, which takes five times as long."""
    try:
        return plain_json.encode(row) + b"\n"
    except plain_json.NotJsonError as error:
        raise RefusedError(str(error)) from error


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError
    return float.__repr__(value)


_TEXTS: dict[type, Callable[[Any], str]] = {
    str: json.encoder.encode_basestring,
    int: int.__repr__,
    float: _float,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
}


def csv_line(values: Sequence[Any]) -> bytes:
    """A line of CSV. ``None`` is nothing, and an empty text is ``""``."""
    return _utf8(",".join(map(_csv_text, values))) + b"\n"


def _csv_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"' if _NEEDS_QUOTES.search(value) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, int) and abs(value) < 1 << 1000:
        return repr(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return float.__repr__(value)
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return decimal.Decimal.__str__(value)
    raise RefusedError(
        f"CSV has no text for {value!r}; it takes None, bool, int, finite float, Decimal, str, date and datetime"
    )


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"the text has no form in UTF-8: {error}") from error


class TextWriter:
    """Lines, each made by ``encode``, behind ``header``."""

    def __init__(
        self,
        file: IO[bytes],
        encode: Callable[[Sequence[Any]], bytes],
        header: bytes,
        compression: str | None,
    ) -> None:
        self._encode, self._written = encode, 0
        self._lines: list[bytes] = [header] if header else []
        self._waiting = len(header)
        self._ends = compression is not None
        self._out: Any = file
        if compression == "gzip":
            # Without name and time: equal rows make equal files.
            self._out = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
        elif compression == "zstd":
            arrow = importlib.import_module("pyarrow")
            self._out = arrow.CompressedOutputStream(
                arrow.PythonFile(_StaysOpen(file), "w"), "zstd"
            )
        self._file = file

    def add(self, row: Sequence[Any]) -> None:
        line = self._encode(row)
        self._lines.append(line)
        self._waiting += len(line)
        if self._waiting >= BYTES_AT_ONCE:
            self._write()

    def _write(self) -> None:
        self._out.write(b"".join(self._lines))
        self._lines, self._written, self._waiting = [], self._written + self._waiting, 0

    def size(self) -> int:
        return self._file.tell() if self._ends else self._written + self._waiting

    def finish(self) -> None:
        self._write()
        if self._ends:
            self._out.close()


class _StaysOpen:
    """A file that a compressor writes to, and does not close."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        """The writer's user closes the file."""


class ParquetWriter:
    """Row groups of RecordBatches."""

    def __init__(self, file: IO[bytes], schema: Any, compression: str | None) -> None:
        parquet = importlib.import_module("pyarrow.parquet")
        self._arrow = importlib.import_module("pyarrow")
        self._file = file
        self._writer = parquet.ParquetWriter(file, schema, compression=compression or "snappy")
        self._schema = schema
        self._batches: list[Any] = []
        self._rows = self._bytes = 0

    def add(self, batch: Any) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += int(batch.nbytes)
        if self._rows >= ROWS_AT_ONCE or self._bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._rows:
            table = self._arrow.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=ROWS_AT_ONCE)
        self._batches, self._rows, self._bytes = [], 0, 0

    def size(self) -> int:
        return self._file.tell() + self._bytes

    def finish(self) -> None:
        self._write()
        self._writer.close()
