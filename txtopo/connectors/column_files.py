"""Transactional spouts over CSV files and files of JSON lines that emit columns.

Batches are ranges of bytes between lines, planned as those of the spout over lines are; executors parse the range block by block, in columns, and
never make a tuple. Which columns there are, and of which types, is declared: guessed from a block, they would change from block to block.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

import txtopo.errors
from txtopo.connectors import file_groups, file_lines, files
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer
from txtopo.topology.transaction import TransactionAttempt

_SIGNATURE = b"\xef\xbb\xbf"
_CANNOT_BE_READ = (pa.ArrowException, UnicodeDecodeError)


class _ColumnFiles(files.ByteRanges):
    emits_columns = True

    def __init__(self, paths_or_glob: files.Paths, schema: pa.Schema, bytes_per_batch: int, partitions: int) -> None:
        super().__init__(paths_or_glob, partitions, bytes_per_batch)
        if not isinstance(schema, pa.Schema) or not schema.names:
            raise txtopo.errors.ConfigError(
                f"file spout: schema is {schema!r}; it names the columns and their types: pa.schema([('word', pa.string()), ('n', pa.int64())])"
            )
        self.schema = schema.remove_metadata()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", self.schema.names), schema=self.schema)


class CsvTransactionalSpout(_ColumnFiles):
    """Emits the records of CSV files, each once and in order within its file, as RecordBatches.

    - ``paths_or_glob``, ``partitions``, and ``bytes_per_batch``: as for :class:`~txtopo.connectors.files.FileTransactionalSpout`, which also
      says what is frozen when.
    - ``schema``: the columns to emit, in this order, and their types. They are the fields of the stream; field ``tx`` comes before them.
    - ``header``: whether the first line of every file names its columns, of which those of ``schema`` are taken. Without one the columns of
      the files are those of ``schema``.
    - ``delimiter``; ``quote_char``, or ``False`` if there are no quoted values.
    - ``null_values``: what stands for null in columns that are not text. Text is never null.

    Text is UTF-8. A record is a line: a quoted value may contain the delimiter, but no line break. Blank lines are passed over.

    Raises what that spout does; also :class:`~txtopo.errors.InputError`, from executors, for a record that does not fit ``schema``.
    """

    def __init__(
        self,
        paths_or_glob: files.Paths,
        schema: pa.Schema,
        bytes_per_batch: int = 1 << 26,
        partitions: int = 1,
        header: bool = True,
        delimiter: str = ",",
        quote_char: str | bool = '"',
        null_values: Sequence[str] = ("",),
    ) -> None:
        super().__init__(paths_or_glob, schema, bytes_per_batch, partitions)
        self.header = header
        self.delimiter, self.quote_char = delimiter, quote_char
        self.null_values = tuple(null_values)
        try:
            pa.csv.ParseOptions(delimiter=delimiter, quote_char=quote_char)
        except (ValueError, TypeError) as error:
            raise txtopo.errors.ConfigError(f"CSV spout: {error}; delimiter and quote_char are one character each, or quote_char=False") from None

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> spout.PartitionedSpoutEmitter:
        return _CsvEmitter(self.groups(), self)


class JsonLinesTransactionalSpout(_ColumnFiles):
    """Emits JSON objects, one per line, each once and in order within its file, as RecordBatches.

    - ``paths_or_glob``, ``partitions``, ``bytes_per_batch``: as for :class:`~txtopo.connectors.files.FileTransactionalSpout`, which also says
      what is frozen when.
    - ``schema``: the fields to take from each object, in this order, and their types. They are the fields of the stream; field ``tx`` comes
      before them. An object without one of them has null there.

    Raises what that spout does; also :class:`~txtopo.errors.InputError`, from executors, for a line that is no JSON object, or does not
    fit ``schema``.
    """

    def __init__(self, paths_or_glob: files.Paths, schema: pa.Schema, bytes_per_batch: int = 1 << 26, partitions: int = 1) -> None:
        super().__init__(paths_or_glob, schema, bytes_per_batch, partitions)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> spout.PartitionedSpoutEmitter:
        return _JsonEmitter(self.groups(), self.schema)


class _ColumnEmitter(files.ByteRangeEmitter):
    def __init__(self, groups: tuple[file_groups.FileGroup, ...], schema: pa.Schema) -> None:
        super().__init__(groups)
        self._schema = schema

    def emit_block(self, attempt: TransactionAttempt, collector: BatchOutputCollector, path: str, offset: int, block: bytes) -> None:
        try:
            batches = list(self.parsed(path, offset, block))
        except _CANNOT_BE_READ as error:
            raise self.unreadable(path, offset, block, str(error)) from None
        for batch in batches:
            collector.emit_batch(batch)

    @abc.abstractmethod
    def parsed(self, path: str, offset: int, block: bytes) -> Iterator[pa.RecordBatch]:
        """The records of a block of whole lines, which begins at byte ``offset`` of ``path``."""

    def conforming(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """``table`` in the declared schema, whose types it has."""
        for batch in table.select(self._schema.names).to_batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def unreadable(self, path: str, offset: int, block: bytes, why: str) -> txtopo.errors.InputError:
        """The error that a block is not what it should be."""
        where = f"{path}, in the lines from byte {offset} to {offset + len(block)}"
        return txtopo.errors.InputError(f"{where}: {why}\n  Mend the file, or the schema that the spout was given.")


class _CsvEmitter(_ColumnEmitter):
    def __init__(self, groups: tuple[file_groups.FileGroup, ...], given: CsvTransactionalSpout) -> None:
        super().__init__(groups, given.schema)
        self._header = given.header
        self._quote = b"" if given.quote_char is False else str(given.quote_char).encode()
        self._parse_options = pa.csv.ParseOptions(delimiter=given.delimiter, quote_char=given.quote_char)
        self._convert_options = pa.csv.ConvertOptions(
            column_types=given.schema, include_columns=given.schema.names, null_values=list(given.null_values), strings_can_be_null=False
        )
        self._names: dict[str, list[str]] = {}

    def parsed(self, path: str, offset: int, block: bytes) -> Iterator[pa.RecordBatch]:
        names = self._names_in(path)
        skipped = 0
        if offset == 0:
            skipped = block.find(b"\n") + 1 or len(block) if self._header else len(_SIGNATURE) * block.startswith(_SIGNATURE)
        if self._quote and block.count(self._quote) % 2:
            # Where a value with a line break is cut in two, Arrow takes both halves for records of their own.
            raise self.unreadable(
                path, offset, block, "an odd number of quotes: a quoted value has a line break in it, or a quote stands within an unquoted one"
            )
        if skipped < len(block):
            # A slice of the buffer, not of the bytes, which would be copied.
            data = pa.py_buffer(block)[skipped:]
            read_options = pa.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names)
            table = pa.csv.read_csv(pa.BufferReader(data), read_options, self._parse_options, self._convert_options)
            yield from self.conforming(table)

    def _names_in(self, path: str) -> list[str]:
        if not self._header:
            return list(self._schema.names)
        if path not in self._names:
            line = file_lines.bytes_at(path, 0, file_lines.next_line_end(path, 0, file_lines.size_of(path))).removeprefix(_SIGNATURE)
            table = pa.csv.read_csv(pa.BufferReader(line.rstrip(b"\r\n") + b"\n"), parse_options=self._parse_options)
            self._names[path] = table.column_names
        return self._names[path]


class _JsonEmitter(_ColumnEmitter):
    def parsed(self, path: str, offset: int, block: bytes) -> Iterator[pa.RecordBatch]:
        skipped = len(_SIGNATURE) * (offset == 0 and block.startswith(_SIGNATURE))
        read_options = pa.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        parse_options = pa.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore")
        table: Any = pa.json.read_json(pa.BufferReader(pa.py_buffer(block)[skipped:]), read_options, parse_options)
        yield from self.conforming(table)


__all__ = ["CsvTransactionalSpout", "JsonLinesTransactionalSpout"]
