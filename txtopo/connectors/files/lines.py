"""Transactional spouts over files: lines, as tuples or as a column, and JSON objects as tuples."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import txtopo.errors
from txtopo.connectors.files import directories, following, ranges, records
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt

ERROR_PAGE = "sources.html"

Format = Literal["lines", "json"]
DecodingErrors = Literal["strict", "replace"]


class FileTransactionalSpout(ranges.ByteRanges):
    """Emits the lines of files, each once and in order within its file, as ``[attempt, line]`` or
    ``[attempt, *fields of a JSON object]``.

    - ``paths_or_glob``: a path, a :mod:`glob` pattern (``**`` for any depth), or an iterable of
      paths and patterns. Relative paths start from the directory that is current now. Executors
      must see the files under the same absolute paths. Addresses with ``hdfs://``, ``s3://``,
      ``gs://`` and ``az://`` are files on other machines: ``s3://bucket/in/**/*.csv``. Their
      patterns have ``*``, ``**`` and ``[…]``, and pass over names that begin with a dot or an
      underscore.
    - ``bytes_per_batch``: per partition and transaction, at most this many bytes. Only a line that
      is longer makes a larger batch, by itself. A batch spans many small files (at most 1000).
    - ``partitions``: the files, sorted by path, are dealt out: file i to partition i mod
      ``partitions``.
    - ``fields``: for ``format="lines"`` the line's field name. For ``"json"`` the fields to take
      from each object, in this order. Field ``tx``, the attempt, comes first. A field that an
      object lacks, or sets to null, has the text that a directory in the path names, as
      ``dt=2026-01-01/`` does.
    - ``errors``: ``"strict"`` stops at bytes that are not ``encoding`` and at a missing JSON field,
      naming file and byte. ``"replace"`` puts U+FFFD and ``None`` instead. A line that is no JSON
      object is always an error. So is a line with ``NaN``, ``Infinity`` or a number beyond 64 bits,
      with half a surrogate pair, or with a field in ``fields`` twice: readers differ on these.

    - ``client``: for addresses, settings of the library that reaches the files, as for
      :class:`~txtopo.connectors.files.FileSink`.
    - ``growing``: list the files again while the run goes on, and take up new ones, each once. A
      new file must sort behind all that were read. These may go. What follows on frozen lists
      does not hold then.
    - ``follow``: read local files that are appended to and rotated, as logs are, each line once when
      it has got its end. Give paths without patterns. Each is a partition.

    In ``encoding`` each line must be text by itself: ISO 2022, UTF-16 and similar encodings are
    refused.

    A line ends with the byte ``\\n`` and nothing else. A single ``\\r`` before ``\\n`` is not part
    of the line. A last line without an end is a line. Empty lines are lines, but ``"json"`` passes
    over blank lines. A UTF-8 byte order mark at the beginning of a file is dropped.

    *Frozen.* The list of files when the topology is built, the files' sizes when the run begins.
    The next run reads lines added to the last file that a partition has read, and files that sort
    behind all others. The next run also reads a line in the last file that was incomplete when the
    run began and had grown when the run came to it. Files before the place where the earlier run
    ended must keep their names and sizes, and ``partitions`` its value: otherwise nothing runs. The
    last 4 KiB that a batch has read from each file must also stay. A file that was rotated, cut or
    written anew is refused by its name when the run begins, when the next batch is planned, and
    when a batch is read again. A change before these 4 KiB is not noticed.

    Raises :class:`~txtopo.errors.ConfigError` for an impossible argument. Raises
    :class:`~txtopo.errors.InputError` when the run begins if nothing matches, or if a file is
    missing, a directory, unreadable, named twice by symbolic links, or changed since it was read.
    Executors raise ``InputError`` if a file has shrunk, is compressed, or contradicts the
    arguments.
    """

    def __init__(
        self,
        paths_or_glob: ranges.Paths,
        bytes_per_batch: int = 1 << 20,
        partitions: int = 1,
        fields: Fields | Sequence[str] = ("line",),
        errors: DecodingErrors = "strict",
        format: Format = "lines",
        encoding: str = "utf-8",
        client: Mapping[str, Any] | None = None,
        growing: bool = False,
        follow: bool = False,
    ) -> None:
        super().__init__(paths_or_glob, partitions, bytes_per_batch, client, growing)
        self.followed = following.checked_paths(self.patterns) if follow else ()
        if follow and (growing or partitions > 1):
            raise txtopo.errors.ConfigError(
                "file spout: with follow=True each file is a partition\n  Leave partitions and growing out."
            )
        self.fields = with_attempt(fields)
        self.format = one_of(
            "format", format, ("lines",) if self.emits_columns else get_args(Format)
        )
        self.errors = one_of("errors", errors, get_args(DecodingErrors))
        self.codec = records.checked_encoding(encoding)
        if len(self.fields) < 2 or (self.format == "lines" and len(self.fields) > 2):
            raise txtopo.errors.ConfigError(
                f"file spout: fields are {list(self.fields)[1:]}; a line is a single value, for example fields=('line',)"
                "\n  To take several fields from each line, write JSON objects and set format='json'."
            )

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.PartitionedSpoutCoordinator:
        if self.followed:
            self.require_own_positions(context)
            return following.FollowingCoordinator(self.followed, self.bytes_per_batch, context)
        return super().get_coordinator(conf, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.PartitionedSpoutEmitter:
        return _FileEmitter(self)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields)


class LinesTransactionalSpout(FileTransactionalSpout):
    """Emits lines as :class:`~txtopo.connectors.files.FileTransactionalSpout` does, but as
    RecordBatches with one text column. The arguments are the same, but for ``format="json"``."""

    emits_columns = True


class _FileEmitter(ranges.ByteRangeEmitter):
    def __init__(self, file_spout: FileTransactionalSpout) -> None:
        super().__init__(file_spout)
        self._format = "columns" if file_spout.emits_columns else file_spout.format
        self._fields, self._above = tuple(file_spout.fields)[1:], file_spout.above
        self._codec = file_spout.codec
        self._errors = file_spout.errors

    def emit_block(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        path: str,
        offset: int,
        block: bytes,
    ) -> None:
        if self._format == "columns":
            arrow = importlib.import_module("pyarrow")
            lines = arrow.array(
                records.lines(path, offset, block, self._codec, self._errors), arrow.string()
            )
            collector.emit_batch(arrow.record_batch([lines], names=self._fields))
        elif self._format == "lines":
            collector.emit_all(
                zip(
                    itertools.repeat(attempt),
                    records.lines(path, offset, block, self._codec, self._errors),
                )
            )
        else:
            texts = directories.texts_in(path, self._fields, self._above)
            objects = records.objects(
                path, offset, block, self._codec, self._errors, self._fields, texts
            )
            collector.emit_all((attempt, *values) for values in objects)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return ``value``, or raise :class:`~txtopo.errors.ConfigError` if it is not ``allowed``."""
    if value not in allowed:
        raise txtopo.errors.ConfigError(
            f"file spout: {name} is {value!r}; it is one of {', '.join(map(repr, allowed))}"
        )
    return value
