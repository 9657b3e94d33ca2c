"""A transactional spout over Parquet files that emits columns.

The driver plans every batch as a range of whole row groups, and reads only the files' footers.
Executors read the row groups one at a time. A footer says where everything in its file is, but not
which values. So the footer and the time of the last write together identify the file, in the
metadata and whenever the file is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import txtopo.errors
from txtopo.connectors.files import blocks, directories, planning, ranges, remote
from txtopo.connectors.files import groups as file_groups
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt

ERROR_PAGE = "sources.html"

ROWS_AT_ONCE = 1 << 16
"""The most rows in an emitted RecordBatch."""
_STAY_DICTIONARIES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_TAIL_BYTES = 8
"""A Parquet file ends with the length of its footer (4 bytes, little-endian) and ``PAR1``."""


class ParquetTransactionalSpout(ranges.ListedFiles):
    """Emits the rows of Parquet files, each once and in order within its file, as RecordBatches.

    - ``paths_or_glob``, ``partitions``: as for
      :class:`~txtopo.connectors.files.FileTransactionalSpout`.
    - ``columns``: the columns to read, in the order to emit. All by default. The stream's fields
      are ``tx``, the attempt, and these columns. If the file lacks a column that a directory in the
      path names, as ``dt=2026-01-01/`` does, the column has the directory's value: text by default.
    - ``rows_per_batch``: per partition and transaction, as many whole row groups as have at most
      this many rows together, and at least one row group.
    - ``schema``: the columns' types, for files that do not exist yet. By default the first file's
      types. A file with other types is an error.
    - ``client``, ``growing``: as for :class:`~txtopo.connectors.files.FileTransactionalSpout`.
    - ``dictionaries``: text or bytes columns that stay dictionary-encoded, as they usually are in
      the file: grouping by them is faster.

    *Frozen.* The list of files when the topology is built, a file's contents when a batch is
    planned from it. The next run reads files that sort behind all others. A file must not change
    after a batch was planned from it: the spout checks the footer and the time of the last write.
    Files may be moved, or copied together with their times (``cp -p``, ``rsync -t``).

    Raises :class:`~txtopo.errors.ConfigError` for an impossible argument. Raises
    :class:`~txtopo.errors.InputError` if there is no file to take the types from, when the run
    begins if nothing matches or the files are not the files read before, and later if a file has
    changed.
    """

    emits_columns = True
    position_keys = frozenset({"end_row_group"})

    def __init__(
        self,
        paths_or_glob: ranges.Paths,
        columns: Sequence[str] | None = None,
        rows_per_batch: int = 1_000_000,
        partitions: int = 1,
        schema: pa.Schema | None = None,
        dictionaries: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
        growing: bool = False,
    ) -> None:
        super().__init__(paths_or_glob, partitions, client, growing)
        for argument, names in (("columns", columns), ("dictionaries", dictionaries)):
            if isinstance(names, str):
                raise txtopo.errors.ConfigError(
                    f"Parquet spout: {argument} is {names!r}; it is a list of names: [{names!r}]"
                )
        self.rows_per_batch = ranges.at_least_one("rows_per_batch", rows_per_batch)
        self.dictionaries = tuple(dictionaries)
        self.schema = self._of_columns(
            self._schema_of_first_file(columns) if schema is None else schema, columns
        )

    def _schema_of_first_file(self, columns: Sequence[str] | None) -> pa.Schema:
        paths = file_groups.listed(self.patterns)
        if not paths:
            raise file_groups.none_matched(self.patterns)
        schema = Footer(paths[0]).schema(self.dictionaries)
        named = [
            name
            for name in columns or ()
            if name not in schema.names and directories.texts_in(paths[0], [name], self.above)
        ]
        return pa.schema([*schema, *(pa.field(name, pa.string()) for name in named)])

    def _of_columns(self, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
        names = list(schema.names if columns is None else columns)
        unknown = [name for name in [*names, *self.dictionaries] if name not in schema.names]
        if unknown or not names:
            raise txtopo.errors.ConfigError(
                f"Parquet spout: there is no column {unknown[0]!r}; there are {', '.join(schema.names)}"
                if unknown
                else "Parquet spout: no columns"
            )
        for name in names:
            if schema.names.count(name) > 1:
                raise txtopo.errors.ConfigError(
                    f"Parquet spout: there are {schema.names.count(name)} columns {name!r}; list the columns to read, without {name!r}"
                )
            type = schema.field(name).type
            values = type.value_type if pa.types.is_dictionary(type) else type
            if name in self.dictionaries and values not in _STAY_DICTIONARIES:
                raise txtopo.errors.ConfigError(
                    f"Parquet spout: column {name!r} is {values}; only text and bytes stay dictionary-encoded"
                )
        return pa.schema([pa.field(name, schema.field(name).type) for name in names])

    def planner(self, partition: int, files: file_groups.SizedGroup, last: Any) -> planning.Planner:
        return _ParquetPlanner(self, partition, files, last)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.PartitionedSpoutEmitter:
        return _ParquetEmitter(self)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(with_attempt(self.schema.names), schema=self.schema)


class Footer:
    """A Parquet file's footer, read once, and the time of the last write."""

    def __init__(self, path: str) -> None:
        self.path = path
        status = blocks.status_of(path)
        size = status.st_size
        self.written = status.st_mtime_ns
        """When the file was last written to, in nanoseconds since 1970."""
        tail = blocks.bytes_at(path, max(0, size - _TAIL_BYTES), size)
        length = int.from_bytes(tail[:4], "little")
        if len(tail) < _TAIL_BYTES or tail[4:] != b"PAR1" or length + _TAIL_BYTES > size:
            raise _not_parquet(path, "it does not end with a footer")
        footer = blocks.bytes_at(path, size - _TAIL_BYTES - length, size)
        self.identity = hashlib.sha256(b"%d\0" % size + footer).hexdigest()[:12]
        """12 hexadecimal digits from the layout and the statistics. A value may change without
        changing these."""
        try:
            self.metadata = pq.read_metadata(pa.BufferReader(footer))
        except (pa.ArrowException, OSError) as error:
            raise _not_parquet(path, str(error)) from None
        self.rows = [
            self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)
        ]
        """Row counts, by row group."""

    def schema(self, dictionaries: Sequence[str] = ()) -> pa.Schema:
        """The columns' Arrow types."""
        schema = self.metadata.schema.to_arrow_schema()
        fields = [
            field.with_type(pa.dictionary(pa.int32(), field.type))
            if field.name in dictionaries
            else field
            for field in schema
        ]
        return pa.schema([field.remove_metadata() for field in fields])

    def check(self, identity: str, written: int) -> None:
        """Raise :class:`~txtopo.errors.InputError` if the file has changed since ``identity`` and
        ``written`` were recorded."""
        if self.identity != identity:
            raise txtopo.errors.InputError(
                f"{self.path} has changed since a batch was planned from it\n"
                "  A batch must not change: restore the file, or start over with `txtopo state reset ID`. New rows go into a new file."
            )
        if not _is_same_time(self.written, written):
            raise self._written_again(written)

    def _written_again(self, written: int) -> txtopo.errors.InputError:
        seconds, nanoseconds = divmod(written, _SECOND)
        return txtopo.errors.InputError(
            f"{self.path} was written again since a batch was planned from it: its time differs, and values may differ under the same footer\n"
            "  A batch must not change: restore the file, or start over with `txtopo state reset ID`. To copy a file, use `cp -p` or\n"
            f"  `rsync -t`. If this is a copy with the same rows: touch -d @{seconds}.{nanoseconds:09} {shlex.quote(self.path)}"
        )

    def batches(
        self, begin: int, end: int, schema: pa.Schema, dictionaries: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read row groups ``begin … end - 1``, one after another, as RecordBatches with
        ``schema``."""
        try:
            # Only 96-bit times, Spark's default, get the unit that the reader asks for.
            coarse, fine = (self._open_file(unit).schema_arrow for unit in ("ms", "ns"))
            times = [
                field.name
                for field, other in zip(coarse, fine, strict=True)
                if field != other and field.name in schema.names
            ]
            units = {
                match[1]: name
                for name in times
                if (match := re.search(r"timestamp\[(\w+)", str(schema.field(name).type)))
            }
            if len(units) > 1:
                named = ", ".join(f"{name!r} in {unit}" for unit, name in units.items())
                raise txtopo.errors.InputError(
                    f"{self.path} has times of 96 bits, which are read in one unit, and columns declared in several: {named}\n"
                    "  Declare them in schema= in one unit: pa.timestamp('us') holds each year, pa.timestamp('ns') each digit."
                )
            unit = next(iter(units), "ns")
            with self._open_file(unit, dictionaries) as file:
                for row_group in range(begin, end):
                    for name in times:
                        self._check_times(row_group, name, unit)
                    rows = 0
                    for batch in file.iter_batches(
                        ROWS_AT_ONCE,
                        row_groups=[row_group],
                        columns=schema.names,
                        use_threads=False,
                    ):
                        rows += batch.num_rows
                        yield self._conforming(batch, schema)
                    # Arrow passes over unknown pages, and stops at a column that ends early (seen
                    # with pyarrow 26.0.1).
                    if rows != self.rows[row_group]:
                        raise _not_parquet(
                            self.path,
                            f"row group {row_group} has {rows} rows, and {self.rows[row_group]} by the footer",
                        )
            if blocks.status_of(self.path).st_mtime_ns != self.written:
                raise self._written_again(self.written)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and blocks.may_pass(error):
                raise txtopo.errors.FailedException(
                    f"cannot read {self.path} just now: {error}"
                ) from None
            raise _not_parquet(self.path, str(error)) from None

    def _open_file(self, unit: str, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
        # Threads would compete with the machine's other tasks: Spark has given the task one core.
        # The footer was read already.
        options = {
            "read_dictionary": list(dictionaries),
            "pre_buffer": False,
            "page_checksum_verification": True,
        }
        source = blocks.opened(self.path) if remote.is_remote(self.path) else self.path
        return pq.ParquetFile(
            source, metadata=self.metadata, coerce_int96_timestamp_unit=unit, **options
        )

    def _check_times(self, row_group: int, name: str, unit: str) -> None:
        """Refuse a 96-bit time that 64 bits in ``unit`` cannot hold: Arrow wraps years, and cuts
        digits."""
        files = map(self._open_file, ("ms", unit, "ns"))
        coarse, read, fine = (
            file.read_row_group(row_group, [name], use_threads=False).column(0) for file in files
        )
        with contextlib.suppress(pa.ArrowInvalid):
            coarse.cast(read.type)
            if read.cast(fine.type, safe=False).equals(fine):
                return
        raise txtopo.errors.InputError(
            f"{self.path}: row group {row_group} has a time in column {name!r} that {read.type} would change\n"
            "  Declare the column in schema=: pa.timestamp('us') holds each year, pa.timestamp('ns') each digit."
        )

    def _conforming(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        for field in schema:
            i = batch.schema.get_field_index(field.name)
            if i < 0 or batch.schema.types[i] != field.type:
                there_is = "has no" if i < 0 else f"has {batch.schema.types[i]} in"
                raise txtopo.errors.InputError(
                    f"{self.path} {there_is} column {field.name!r}; the others have {field.type}\n"
                    "  Write the file again with the others' type, or leave the file out."
                )
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in schema.names], schema=schema
        )


_SECOND = 10**9
_UNITS = (_SECOND, 10**6, 10**3, 100, 1)
"""Nanoseconds to which file systems and archives round the time of a file."""


def _is_same_time(one: int, other: int) -> bool:
    """Whether two times in nanoseconds are the same, in the coarser time's unit."""
    unit = next(unit for unit in _UNITS if one % unit == 0 or other % unit == 0)
    return one // unit == other // unit


def _not_parquet(path: str, why: str) -> txtopo.errors.InputError:
    cure = "Check that the file was written to its end, or leave it out of the list."
    return txtopo.errors.InputError(f"{path} cannot be read as Parquet: {why.strip()}\n  {cure}")


class _Planned(NamedTuple):
    """The part of a footer that planning needs."""

    identity: str
    written: int
    rows: list[int]


class _ParquetPlanner(planning.Planner):
    """Plans batches from footers, each read when first needed.

    A partition's metadata:

    - ``file`` and ``row_group``, ``end_file`` and ``end_row_group``: numbers of files in the group,
      and of row groups in a file, the last exclusive.
    - ``footers`` and ``written``: identities and times of the files ``file`` … ``end_file``.
    - ``group``: the identity of the paths 0 … ``end_file``.
    - ``rows``: how many rows the batch has.
    """

    def __init__(
        self,
        own: ParquetTransactionalSpout,
        partition: int,
        files: file_groups.SizedGroup,
        last: Any,
    ) -> None:
        super().__init__(partition, files)
        self._rows_per_batch = own.rows_per_batch
        self._files_per_batch = ranges.files_per_batch(own)
        self._footers: dict[str, _Planned] = {}
        if last is not None:
            ranges.check_group(files.group, partition, last)
            footer = Footer(files.group.paths[last["end_file"]])
            footer.check(last["footers"][-1], last["written"][-1])

    def bytes_read(self, last: Any) -> float:
        """How many bytes come before the next batch. A file that is not read to its end counts by
        row groups."""
        position = self._position(last)
        if position is None:
            return self.files.total
        file, row_group = position
        row_groups = len(self._footer(self.files.group.paths[file]).rows)
        return sum(self.files.sizes[:file]) + self.files.sizes[file] * row_group / row_groups

    def has_more(self, last: Any) -> bool:
        return self._position(last) is not None  # a file may have been empty when it was listed

    def plan(self, last: Any) -> dict[str, Any] | None:
        begin = self._position(last)
        if begin is None:
            return None
        group = self.files.group
        (file, row_group), rows = begin, 0
        end_file, end = file, row_group
        while True:
            of_file = self._footer(group.paths[end_file]).rows
            while end < len(of_file) and self._fits(rows, of_file[end]):
                rows += of_file[end]
                end += 1
            following = end_file + 1
            if end < len(of_file) or following == min(
                len(group.paths), file + self._files_per_batch
            ):
                break
            if not self._fits(rows, next(iter(self._footer(group.paths[following]).rows), 0)):
                break
            end_file, end = following, 0
        footers = [self._footer(path) for path in group.paths[file : end_file + 1]]
        return {
            "file": file,
            "row_group": row_group,
            "end_file": end_file,
            "end_row_group": end,
            "group": group.identities[end_file],
            "rows": rows,
            "footers": [footer.identity for footer in footers],
            "written": [footer.written for footer in footers],
        }

    def is_whole(self, metadata: Any) -> bool:
        footer = self._footer(self.files.group.paths[metadata["end_file"]])
        return bool(metadata["end_row_group"] >= len(footer.rows))

    def _fits(self, rows: int, more: int) -> bool:
        return not rows or rows + more <= self._rows_per_batch

    def _position(self, last: Any) -> tuple[int, int] | None:
        """File and row group where the next batch begins. ``None`` if no row group is left."""
        group, file, row_group = self.files.group, 0, 0
        if last is not None:
            ranges.check_group(group, self.partition, last)
            file, row_group = last["end_file"], last["end_row_group"]
        while file < len(group.paths) and row_group >= len(self._footer(group.paths[file]).rows):
            file, row_group = file + 1, 0
        return (file, row_group) if file < len(group.paths) else None

    def _footer(self, path: str) -> _Planned:
        if path not in self._footers:
            footer = Footer(path)
            self._footers[path] = _Planned(footer.identity, footer.written, footer.rows)
        return self._footers[path]


class _ParquetEmitter(spout.PartitionedSpoutEmitter):
    def __init__(self, own: ParquetTransactionalSpout) -> None:
        self._own, self._schema, self._dictionaries = own, own.schema, own.dictionaries

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        paths = self._own.planned(partition, metadata)
        begin = metadata["row_group"]
        for path, identity, time in zip(
            paths, metadata["footers"], metadata["written"], strict=True
        ):
            footer = Footer(path)
            texts = directories.texts_in(
                path,
                {*self._schema.names} - {*footer.metadata.schema.to_arrow_schema().names},
                self._own.above,
            )
            footer.check(identity, time)
            end = metadata["end_row_group"] if path == paths[-1] else len(footer.rows)
            for batch in footer.batches(
                begin, end, directories.left_to_file(self._schema, path, texts), self._dictionaries
            ):
                collector.emit_batch(directories.completed(batch, self._schema, path, texts))
            begin = 0
