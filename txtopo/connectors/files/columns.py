"""Transactional spouts that read CSV files and JSON lines, and emit columns.

Batches are byte ranges between lines, planned as for the spout over lines. Executors parse a range
block by block into columns, and never make a tuple. The user declares the columns and their types:
guesses from a block would change from block to block.
"""

from __future__ import annotations

import abc
import codecs
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

import txtopo.errors
from txtopo.connectors import decimals, json_columns, json_lines
from txtopo.connectors.files import blocks, directories, ranges
from txtopo.connectors.files import lines as file_lines
from txtopo.connectors.files import records as file_records
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt

ERROR_PAGE = "sources.html"

_ENDS = b"\r\n"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_BARE_RETURN = re.compile(rb"\r(?!\n|\Z)")
_CURE = "Mend the file, or the schema that the spout was given."
_CURE_OF_JSON = "Mend the line."
_WITHIN_QUOTES = "ends within a quoted value"
_CURE_OF_QUOTES = (
    "A record is one line, and a quote within quotes is doubled: Spark writes so with option('escape', '\"').\n"
    "  Take line breaks out of values, or set quote_char=False if quotes are letters."
)
_CURE_OF_RETURNS = "A line ends with \\n or \\r\\n. Convert a file that ends lines with \\r alone: tr '\\r' '\\n' < FILE > NEW."


class _ColumnFiles(ranges.ByteRanges):
    emits_columns = True

    def __init__(
        self,
        paths_or_glob: ranges.Paths,
        schema: pa.Schema,
        bytes_per_batch: int,
        partitions: int,
        errors: str,
        client: Mapping[str, Any] | None,
        growing: bool,
    ) -> None:
        super().__init__(paths_or_glob, partitions, bytes_per_batch, client, growing)
        if not isinstance(schema, pa.Schema) or not schema.names:
            raise txtopo.errors.ConfigError(
                f"file spout: schema is {schema!r}; it names the columns and their types: pa.schema([('word', pa.string()), ('n', pa.int64())])"
            )
        self.schema = schema.remove_metadata()
        self.errors = file_lines.one_of("errors", errors, ("strict", "replace"))

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(with_attempt(self.schema.names), schema=self.schema)


class CsvTransactionalSpout(_ColumnFiles):
    """Emits the records of CSV files, each once and in order within its file, as RecordBatches.

    - ``paths_or_glob``, ``partitions``, ``bytes_per_batch``, ``client``, ``growing``: as for
      :class:`~txtopo.connectors.files.FileTransactionalSpout`, whose text also says when files and
      sizes are frozen.
    - ``schema``: the columns to emit, in this order, and their types. The stream's fields are
      ``tx`` and these columns. If the file lacks a column that a directory in the path names, as
      ``dt=2026-01-01/`` does, the column has the directory's value.
    - ``header``: whether the first line in every file names the file's columns. The spout takes
      those in ``schema``. Without a header, the files' columns are those in ``schema``.
    - ``delimiter``.
    - ``quote_char``, or ``False`` if there are no quoted values.
    - ``null_values``: the texts for null, except in text columns. Text is never null.
    - ``errors``: ``"replace"`` puts U+FFFD for bytes that are not UTF-8.

    Text is UTF-8. A byte order mark at the beginning of a file is dropped. A record is a line,
    which ends with ``\\n`` or ``\\r\\n``: a quoted value may contain the delimiter, but neither of
    these characters. Blank lines are passed over. The records are the same for any
    ``bytes_per_batch``.

    Raises the errors of ``FileTransactionalSpout``. Executors also raise
    :class:`~txtopo.errors.InputError`, with the file and the line's byte, for a record that does
    not fit ``schema``, a carriage return within a line, a value whose quotes do not close, and a
    column that the header names twice.
    """

    def __init__(
        self,
        paths_or_glob: ranges.Paths,
        schema: pa.Schema,
        bytes_per_batch: int = 1 << 26,
        partitions: int = 1,
        header: bool = True,
        delimiter: str = ",",
        quote_char: str | bool = '"',
        null_values: Sequence[str] = ("",),
        errors: str = "strict",
        client: Mapping[str, Any] | None = None,
        growing: bool = False,
    ) -> None:
        super().__init__(
            paths_or_glob, schema, bytes_per_batch, partitions, errors, client, growing
        )
        self.header = header
        self.delimiter, self.quote_char = delimiter, quote_char
        try:
            pa.csv.ParseOptions(delimiter=delimiter, quote_char=quote_char).validate()
            if not (isinstance(quote_char, str) or quote_char is False) or quote_char == delimiter:
                raise ValueError(
                    f"{quote_char!r} cannot be both"
                    if quote_char == delimiter
                    else f"quote_char is {quote_char!r}"
                )
        except (ValueError, TypeError) as error:
            raise txtopo.errors.ConfigError(
                f"CSV spout: {error}; delimiter and quote_char are one character each, or quote_char=False"
            ) from None
        if isinstance(null_values, str) or not all(isinstance(text, str) for text in null_values):
            raise txtopo.errors.ConfigError(
                f"CSV spout: null_values is {null_values!r}; it is a list of texts, for example ['', 'NA']"
            )
        self.null_values = tuple(null_values)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.PartitionedSpoutEmitter:
        return _CsvEmitter(self)


class JsonLinesTransactionalSpout(_ColumnFiles):
    """Emits JSON objects, one per line, each once and in order within its file, as RecordBatches.

    - ``paths_or_glob``, ``partitions``, ``bytes_per_batch``, ``client``, ``growing``: as for
      :class:`~txtopo.connectors.files.FileTransactionalSpout`, whose text also says when files and
      sizes are frozen.
    - ``schema``: the fields to take from each object, in this order, and their types. The stream's
      fields are ``tx`` and these fields. A field that an object lacks, or sets to null, has the
      value that a directory in the path names, as ``dt=2026-01-01/`` does, or else null. Dates and
      timestamps are texts in the files, as in ISO 8601. Decimals are numbers or texts.
    - ``errors``: ``"replace"`` puts U+FFFD for bytes that are not UTF-8.

    Lines are as for :class:`~txtopo.connectors.files.FileTransactionalSpout` with
    ``format="json"``. Blank lines are passed over. The rows are the same for any
    ``bytes_per_batch``.

    Raises the errors of ``FileTransactionalSpout``. Executors also raise
    :class:`~txtopo.errors.InputError`, with the file and the line's byte, for a line that is not
    one JSON object, does not fit ``schema``, or has a number that the column would change.
    """

    def __init__(
        self,
        paths_or_glob: ranges.Paths,
        schema: pa.Schema,
        bytes_per_batch: int = 1 << 26,
        partitions: int = 1,
        errors: str = "strict",
        client: Mapping[str, Any] | None = None,
        growing: bool = False,
    ) -> None:
        super().__init__(
            paths_or_glob, schema, bytes_per_batch, partitions, errors, client, growing
        )
        json_columns.check_schema("JSON spout", self.schema)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.PartitionedSpoutEmitter:
        return _JsonEmitter(self)


class _RefusedError(json_lines.LineError):
    """A mistake in CSV lines, with its cure."""

    def __init__(self, mistake: str, cure: str) -> None:
        super().__init__(mistake)
        self.cure = cure


class _ColumnEmitter(ranges.ByteRangeEmitter):
    """Parses blocks by Arrow, and checks that Arrow takes each line by itself: a batch may be cut
    between any two lines (R38)."""

    def __init__(self, column_spout: _ColumnFiles) -> None:
        super().__init__(column_spout)
        self._above, self._errors = column_spout.above, column_spout.errors
        self.schema = column_spout.schema
        """The current file's columns."""
        self._whole = self.schema
        self._texts: dict[str, str | None] = {}
        """Values from the directories in the current file's path."""

    def emit_block(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        path: str,
        offset: int,
        block: bytes,
    ) -> None:
        skipped = self.bytes_before_lines(offset, block)
        block = block[skipped:]
        # Replaced bytes never include a line's end.
        text = block if self._errors == "strict" else block.decode(errors=self._errors).encode()
        try:
            batches = self.records(path, text)
        except json_columns.CANNOT_BE_READ as error:
            number, first = json_columns.first_refused(
                text.split(b"\n"), lambda some: self.records(path, b"\n".join(some) + b"\n"), error
            )
            raise _bad_line(path, offset + skipped, block, number, first) from None
        for batch in batches:
            collector.emit_batch(directories.completed(batch, self._whole, path, self._texts))

    def bytes_before_lines(self, offset: int, block: bytes) -> int:
        """How many bytes of ``block``, which begins at byte ``offset`` of its file, come before the
        first record."""
        return file_records.signature_bytes(offset, block)

    @abc.abstractmethod
    def records(self, path: str, lines: bytes) -> list[pa.RecordBatch]:
        """Parse whole lines, with the same result as each line alone. Raises one of
        :data:`json_columns.CANNOT_BE_READ` if a line cannot be parsed so."""


class _CsvEmitter(_ColumnEmitter):
    def __init__(self, csv_spout: CsvTransactionalSpout) -> None:
        super().__init__(csv_spout)
        self._header = csv_spout.header
        self._quote = b"" if csv_spout.quote_char is False else str(csv_spout.quote_char).encode()
        q, delimiter = re.escape(str(csv_spout.quote_char)), re.escape(csv_spout.delimiter)
        quoted = f"{q}[^{q}]*+(?:{q}{q}[^{q}]*+)*+{q}"
        self._quoted = re.compile(quoted.encode())
        self._well_quoted = re.compile(
            f"[^{q}]*+(?:(?<=[{delimiter}\n]){quoted}(?=[{delimiter}\r\n]|\\Z)[^{q}]*+|(?<![{delimiter}\n]){q}[^{q}]*+)*+".encode()
        )
        self._parse_options = pa.csv.ParseOptions(
            delimiter=csv_spout.delimiter, quote_char=csv_spout.quote_char
        )
        self._null_values = list(csv_spout.null_values)
        self._names: dict[str, list[str]] = {}

    def begin_file(self, path: str, open_file: BinaryIO) -> None:
        if not self._header:
            self._leave_out(path, self._whole.names)
            self._names[path] = list(self.schema.names)
            return
        whole = blocks.first_line(open_file, path)
        try:
            self._names[path] = self._names_in(
                path, whole[file_records.signature_bytes(0, whole) :]
            )
        except json_columns.CANNOT_BE_READ as error:
            raise _bad_line(path, 0, whole, 0, error) from None

    def _leave_out(self, path: str, columns: Collection[str]) -> None:
        """Read the ``columns`` that directories in ``path`` name from there, not from the file."""
        self._texts = directories.texts_in(path, columns, self._above)
        self.schema = directories.left_to_file(self._whole, path, self._texts)

    def _names_in(self, path: str, line: bytes) -> list[str]:
        self._check_line_ends(line)
        self._check_quotes(line)
        names: list[str] = pa.csv.read_csv(
            _buffer(line.rstrip(b"\r\n") + b"\n"), parse_options=self._parse_options
        ).column_names
        self._leave_out(path, {*self._whole.names} - {*names})
        for name in self.schema.names:
            if names.count(name) != 1:
                there_are = (
                    f"names {names.count(name)} columns" if name in names else "has no column"
                )
                raise _RefusedError(
                    f"is the header, and {there_are} {name!r}; it has {', '.join(map(repr, names))}",
                    _CURE,
                )
        return names

    def bytes_before_lines(self, offset: int, block: bytes) -> int:
        if offset == 0 and self._header:
            return block.find(b"\n") + 1 or len(block)
        return super().bytes_before_lines(offset, block)

    def records(self, path: str, lines: bytes) -> list[pa.RecordBatch]:
        self._check_line_ends(lines)
        if not lines.strip(_ENDS):
            return []
        self._check_quotes(lines)
        table = self._read(path, lines, decimals.as_texts(self.schema))
        # A line makes at most one record. So with as many records as lines, each line is a record.
        ends = lines.count(b"\n") + (not lines.endswith(b"\n"))
        if table.num_rows != ends and table.num_rows != sum(
            bool(line.strip(_ENDS)) for line in lines.split(b"\n")
        ):
            raise _RefusedError(_WITHIN_QUOTES, _CURE_OF_QUOTES)
        self._check_numbers(path, lines, table)
        return json_columns.conforming(
            decimals.from_texts(table, self.schema, self._null_values), self.schema
        )

    def _read(self, path: str, lines: bytes, schema: pa.Schema) -> pa.Table:
        read_options = pa.csv.ReadOptions(
            use_threads=False, block_size=len(lines) + 2, column_names=self._names[path]
        )
        convert_options = pa.csv.ConvertOptions(
            column_types=schema,
            include_columns=schema.names,
            null_values=self._null_values,
            strings_can_be_null=False,
        )
        return pa.csv.read_csv(_buffer(lines), read_options, self._parse_options, convert_options)

    def _check_line_ends(self, lines: bytes) -> None:
        """Refuse ``\\r`` without ``\\n`` within a line: Arrow would end a record there."""
        if b"\r" in lines and _BARE_RETURN.search(lines) is not None:
            raise _RefusedError("has a carriage return (byte 13) within it", _CURE_OF_RETURNS)

    def _check_quotes(self, lines: bytes) -> None:
        """Refuse a quoted value that does not close, or goes on behind the closing quote: Arrow
        takes the rest as letters."""
        if self._quote and self._quote in lines:
            rest = self._well_quoted.sub(b"", b"\n" + lines, 1)
            if rest:
                raise _RefusedError(
                    "has text behind a closing quote"
                    if self._quoted.match(rest)
                    else _WITHIN_QUOTES,
                    _CURE_OF_QUOTES,
                )

    def _check_numbers(self, path: str, lines: bytes, table: pa.Table) -> None:
        """Refuse numbers that the column would change: numbers that become infinite, integers that
        are rounded, hexadecimal digits that are read as bits."""
        may_have_bits = b"0x" in lines or b"0X" in lines
        for name, type in ((field.name, decimals.value_type(field.type)) for field in self.schema):
            if type in decimals.EXACT_BELOW:
                numbers = table.column(name).cast(type)
                is_doubtful = pc.greater_equal(pc.abs(numbers), decimals.EXACT_BELOW[type])
            elif may_have_bits and (pa.types.is_integer(type) or pa.types.is_duration(type)):
                numbers = (
                    table.column(name).cast(pa.int64())
                    if pa.types.is_duration(type)
                    else table.column(name)
                )
                is_doubtful = pc.is_valid(numbers)
            else:
                continue
            if pc.any(is_doubtful, min_count=0).as_py():
                texts = self._read(path, lines, pa.schema([(name, pa.string())])).column(name)
                for text, number in zip(
                    texts.filter(is_doubtful).to_pylist(),
                    numbers.filter(is_doubtful).to_pylist(),
                    strict=True,
                ):
                    why = _changed_from(text.strip(), number)
                    if why is not None:
                        raise _RefusedError(
                            f"has {text} in column {name!r}, which is {why} the type {type}", _CURE
                        )


def _buffer(lines: bytes) -> pa.BufferReader:
    """Make Arrow's reader take ``lines`` unchanged. Arrow drops a signature from any block's
    beginning, and passes over the blank line put before it."""
    return pa.BufferReader(b"\n" + lines if lines.startswith(codecs.BOM_UTF8) else lines)


def _changed_from(text: str, number: float) -> str | None:
    """Why ``text`` is not ``number``, or ``None`` if it is."""
    if isinstance(number, int):
        return None if _INTEGER.fullmatch(text) else "no decimal number of"
    if math.isinf(number):
        return None if text.lstrip("+-").lower() in ("inf", "infinity") else "beyond"
    return "no number of" if _INTEGER.fullmatch(text) and int(text) != number else None


class _JsonEmitter(_ColumnEmitter):
    def __init__(self, json_spout: JsonLinesTransactionalSpout) -> None:
        super().__init__(json_spout)
        self._parser = json_columns.Parser(self.schema)

    def begin_file(self, path: str, open_file: BinaryIO) -> None:
        self._texts = directories.texts_in(path, self.schema.names, self._above)

    def records(self, path: str, lines: bytes) -> list[pa.RecordBatch]:
        return self._parser.records(lines)


def _bad_line(
    path: str, offset: int, block: bytes, number: int, error: Exception
) -> txtopo.errors.InputError:
    cure = (
        error.cure
        if isinstance(error, _RefusedError)
        else _CURE_OF_JSON
        if isinstance(error, json_lines.LineError)
        else _CURE
    )
    return file_records.bad_line(path, offset, block, number, json_columns.mistake(error), cure)
