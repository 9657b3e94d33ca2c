"""Writes a batch's tuples to files, a whole transaction at once or not at all (R28 to R31).

``FileSink`` is a committer. While it executes, each task writes files under names of the attempt. In
``finish_batch`` the transaction is decided (see ``file_ledger``). This module takes and checks the
user's arguments, and the tuples.

Runs on: executor.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NoReturn

from txtopo import errors
from txtopo.connectors.files import decisions, file_ledger, form, formats, share, storage
from txtopo.sinks import sink as sinks
from txtopo.sinks import streaming, tuple_rows
from txtopo.topology import arrow
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields, Tuple
from txtopo.topology.transaction import TransactionAttempt

Format = Literal["lines", "json", "csv", "parquet"]
Visible = Literal["transaction", "file"]
Compression = Literal["gzip", "zstd"]

ROWS_AT_ONCE = 8192
"""How many tuples become a RecordBatch at once."""


class FileSink(sinks.Sink):
    """A committer that writes every tuple as a row in files. A transaction's files are there all at
    once.

    ``builder.set_bolt("write", FileSink("/data/sales", format="parquet", partition_by=["day"]),
    2).shuffle_grouping("prices")``

    :param root: a directory of this machine, ``hdfs://host:port/folder``, or ``s3://``, ``gs://`` or
        ``az://`` with bucket and folder. One sink's alone.
    :param format: ``"json"``: a JSON object in each line. ``"lines"``: one field, a ``str`` or
        bytes without a line break. ``"csv"``, with a header. ``"parquet"``, which also takes
        RecordBatches as they are, and needs pyarrow.
    :param columns: the fields to write. Give ``{column: field}`` if the names differ. If not given,
        all fields except the attempt.
    :param visible: ``"transaction"``: a transaction's files of all tasks appear together. ``"file"``,
        for readers that only list files in an object store: each file appears by itself, once.
    :param partition_by: columns whose values name folders, as ``day=2026-11-26/``, and are not in
        the files.
    :param compression: ``"gzip"`` or ``"zstd"``. For Parquet: of its pages, and ``"snappy"`` if not
        given.
    :param schema: for Parquet, the columns' types. If not given, those of the first rows.
    :param opaque: for an opaque spout: a transaction's files appear when it is recorded, with the
        next transaction.
    :param roll_bytes: how large a file may become before the next one begins.
    :param name: the name by which the topology's state knows the sink, as ``component/name``.
    :param client: settings for the library that reaches ``root``.

    :raises errors.ConfigError: an impossible argument.
    """

    ledger: file_ledger.FileLedger
    kept_in = "directory"
    few_partitions = "earlier batches are not whole: give the number, and begin again with an empty place and a new checkpoint"
    keeps_rows = False

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        format: Format = "json",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        visible: Visible = "transaction",
        partition_by: Sequence[str] = (),
        compression: Compression | None = None,
        schema: Any = None,
        opaque: bool = False,
        roll_bytes: int = 128 << 20,
        name: str = file_ledger.NAME,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        _one_of("format", format, tuple(formats.FORMATS))
        _one_of("visible", visible, ("transaction", "file"))
        _one_of("compression", compression, (None, *formats.COMPRESSIONS))
        if format == "parquet" or compression == "zstd":
            arrow.require_pyarrow(f"FileSink with {'zstd' if compression == 'zstd' else 'parquet'}")
        if visible == "file" and opaque:
            raise errors.ConfigError(
                "FileSink: visible='file' cannot take files back, and opaque is True\n  Give visible='transaction'."
            )
        by_name = _columns(columns)
        if schema is not None and format != "parquet":
            raise errors.ConfigError(
                f"FileSink: schema is for format='parquet', and format is {format!r}\n  Leave it out."
            )
        if isinstance(partition_by, str) or (
            by_name is not None and not by_name.keys() >= set(partition_by)
        ):
            raise errors.ConfigError(
                f"FileSink: partition_by is {partition_by!r}\n  Give a list of columns, which columns= names too."
            )
        if not isinstance(roll_bytes, int) or roll_bytes < 1:
            raise errors.ConfigError(
                f"FileSink: roll_bytes is {roll_bytes!r}\n  Give a number of bytes."
            )
        self.shape = share.Shape(format, by_name, tuple(partition_by), compression, roll_bytes)
        self.schema = schema
        self.input_fields = None if by_name is None else Fields(dict.fromkeys(by_name.values()))
        self.takes_columns = format == "parquet"
        place = storage.absolute(root)
        storage.check_client(place, client or {})
        self._begin()
        self.ledger = file_ledger.FileLedger(place, name, opaque, visible == "file", client or {})

    @property
    def opaque(self) -> bool:
        """Whether a failed attempt's rows are taken back."""
        return self.ledger.opaque

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        super().prepare(conf, context, collector, attempt)
        self._begin()

    def _begin(self) -> None:
        self._files: tuple[decisions.File, ...] = ()
        self._count = 0
        self._share: share.Share | None = None
        self._error: Exception | None = None
        self.rows = []

    def execute(self, tup: Tuple) -> None:
        try:
            if tup.fields is not self._taken_from:
                self._begin_to_take(tup.fields)
                self._share = self._begin_share(self._fields)
            self._add(self._take(tup.values))
        except Exception as error:
            self._fail(error)

    def execute_batch(self, batch: Any) -> None:
        """Take RecordBatches, for Parquet."""
        try:
            fields = ("tx", *batch.schema.names)
            if self._share is None or fields != self._fields:
                self._fields = fields
                self._share = self._begin_share(fields)
            by_name = self.shape.columns
            if by_name is not None:
                batch = batch.select(list(by_name.values())).rename_columns(list(by_name))
            self._add_batch(batch)
            self._count += batch.num_rows
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        """Fail the attempt, even if user code around the sink catches the exception (R39)."""
        if isinstance(error, OSError):
            error = self.ledger.log(self.context.resource).storage.explained(error)
        self._error = error
        if self._share is not None:
            self._share.abandon()
        self.context.on_failure(error)
        raise error

    def _add(self, values: Sequence[Any]) -> None:
        assert self._share is not None
        self._count += 1
        if self.takes_columns:
            self.rows.append(values)
            if len(self.rows) == ROWS_AT_ONCE:
                self._add_rows()
            return
        try:
            self._share.add(values)
        except formats.RefusedError as error:
            raise self._row_error(self._count, values, error) from error

    def _add_rows(self) -> None:
        """Make a RecordBatch of the tuples that wait."""
        assert self._share is not None
        arrow = importlib.import_module("pyarrow")
        exact_columns = importlib.import_module("txtopo.topology.exact_columns")
        rows, self.rows = self.rows, []
        schema, arrays = self._form().schema() or self.schema, []
        for i, name in enumerate(self._share.columns):
            wanted = (
                schema.field(name).type if schema is not None and name in schema.names else None
            )
            try:
                arrays.append(exact_columns.array([row[i] for row in rows], wanted, True))
            except exact_columns.ChangedValueError as error:
                number = self._count - len(rows) + error.row + 1
                raise self._row_error(number, rows[error.row], error) from error
        self._add_batch(arrow.record_batch(arrays, names=list(self._share.columns)))

    def _add_batch(self, batch: Any) -> None:
        assert self._share is not None
        try:
            self._share.add_batch(self._form().fitted(batch, self.shape.partition_by, self.schema))
        except (formats.RefusedError, importlib.import_module("pyarrow").ArrowInvalid) as error:
            raise self._row_error(self._count, (), error) from error

    def _form(self) -> form.Form:
        return self.ledger.log(self.context.resource).form

    def _row_error(
        self, number: int, values: Sequence[Any], why: Exception
    ) -> errors.RowRefusedError:
        columns = () if self._share is None else self._share.columns
        return errors.RowRefusedError(
            self.ledger.root,
            self.owner(self.context),
            self.context.task_index,
            str(self.attempt),
            number,
            tuple_rows.described(columns, values),
            str(why),
        )

    def _begin_share(self, fields: Sequence[str]) -> share.Share:
        context = self.context
        log = self.ledger.log(context.resource)
        current = self.ledger.current(context)
        place = share.Place(
            context.generation,
            0 if current is None else current.number,
            self.attempt.txid,
            self.attempt.attempt_id,
            context.task_index,
            self.ledger.stay(log.storage, context.generation),
        )
        columns = tuple(fields[1:] if self.shape.columns is None else self.shape.columns)
        missing = [name for name in self.shape.partition_by if name not in columns]
        if missing or not set(columns) - set(self.shape.partition_by):
            raise errors.UsageError(
                f"the sink of {self.owner(context)!r} gets the columns {', '.join(columns)}, and partition_by is {list(self.shape.partition_by)}\n"
                "  Name columns that are there, and leave one for the files."
            )
        if self.shape.format == "lines" and len(columns) != 1:
            raise errors.UsageError(
                f"the sink of {self.owner(context)!r} gets the columns {', '.join(columns)}, and a line has one\n"
                "  Give columns=['field'], or format='json'."
            )
        if not self.takes_columns:
            log.form.check(self.shape.format, columns, self.shape.partition_by)
        return share.Share(log.storage, self.shape, place, columns, self._finish_files())

    def _finish_files(self) -> tuple[decisions.File, ...]:
        if self._share is not None:
            if self.rows:
                self._add_rows()
            self._files = self._share.finish()
            self._share = None
        return self._files

    def taker(
        self, context: TopologyContext, fields: Sequence[str]
    ) -> Callable[[Sequence[Any]], Any]:
        wanted = fields[1:] if self.shape.columns is None else tuple(self.shape.columns.values())
        return tuple_rows.taker(fields, wanted, self.owner(context))

    def finish_batch(self) -> None:
        if self._error is not None:
            raise self._error
        try:
            files = self._finish_files()
        except Exception as error:
            self._fail(error)
        self.ledger.apply(self.context, self.attempt, self._count, files)
        self.collector.emit([self.attempt, self._count])

    def write(
        self,
        context: TopologyContext,
        attempt: TransactionAttempt,
        fields: Sequence[str],
        rows: Collection[Any],
    ) -> bool:
        self.context, self.attempt = context, attempt
        self._begin()
        if fields:
            self._share = self._begin_share(fields)
            for row in rows:
                self._add(row)
        return self.ledger.apply(
            context, attempt, self._count, self._finish_files(), comes_alone=True
        )

    def foreach_batch(self, query_id: str, *, begin_at: int = 0) -> streaming.ForeachBatch:
        self._refuse_queries()
        return super().foreach_batch(query_id, begin_at=begin_at)

    def foreach_writer(
        self, query_id: str, *, partitions: int, begin_at: int = 0
    ) -> streaming.ForeachWriter:
        self._refuse_queries()
        return super().foreach_writer(query_id, partitions=partitions, begin_at=begin_at)

    def _refuse_queries(self) -> None:
        if self.ledger.shows_files:
            raise errors.UsageError(
                "FileSink: with visible='file' a replay must have the rows in the same order, and a query of Structured Streaming does not"
                " promise it\n  Give visible='transaction'."
            )

    def __getstate__(self) -> dict[str, Any]:
        if self._share is not None:
            # Held for the commit: the files are finished now, and more rows begin new ones.
            self._finish_files()
            self._taken_from = None
        return super().__getstate__()


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise errors.ConfigError(
            f"FileSink: {name} is {value!r}\n  Give one of {', '.join(map(repr, allowed))}."
        )


def _columns(columns: Any) -> dict[str, str] | None:
    if columns is None:
        return None
    by_name = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    if (
        isinstance(columns, str)
        or not by_name
        or not all(isinstance(text, str) and text for text in (*by_name, *by_name.values()))
    ):
        raise errors.ConfigError(
            f"FileSink: columns is {columns!r}\n  Give a list of fields, or {{'column': 'field'}}."
        )
    return by_name
