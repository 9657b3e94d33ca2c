"""A transactional spout over a directory that a ``FileSink`` writes: topologies chain exactly once.

The driver names the next committed transaction. Executors read its record, and share its files out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.files import committed, storage
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.stream import OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt

POLL_S = 1.0
"""How long the directory is left alone after it had no new transaction."""


class CommittedFilesSpout(spout.BaseTransactionalSpout):
    """Emits what a :class:`~txtopo.connectors.files.FileSink` has committed, each of its
    transactions as one.

    ``builder.set_spout("sales", CommittedFilesSpout("/data/sales"), 4)``

    Tuples are ``[attempt, *columns]``: JSON values as they were, texts for CSV and for columns that
    folders name. From Parquet come RecordBatches. Transactions without rows are passed over. What
    an opaque spout wrote is read when it cannot be taken back any more. The tasks share the files
    out.

    :param root: as for the sink.
    :param columns: the columns in the files. If neither these nor ``schema`` are given, the sink
        must have written rows before the topology is built.
    :param schema: for Parquet, the columns and their types.
    :param client: as for the sink.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        schema: Any = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.root, self.client = storage.absolute(root), dict(client or {})
        storage.check_client(self.root, self.client)
        if schema is None and columns is None:
            form = committed.read_committed(self.root, client=self.client).form
            schema, columns = form.schema(), form.kept().get("columns")
        if schema is None and columns is None:
            raise errors.ConfigError(
                f"CommittedFilesSpout: there are no rows in {self.root} yet, so the columns are not known\n"
                "  Give columns=[…], or for Parquet schema=pyarrow.schema([…])."
            )
        self.schema, self.emits_columns = schema, schema is not None
        self.columns = tuple(schema.names if columns is None else columns)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(with_attempt(self.columns), schema=self.schema)

    def _read(self) -> committed.Committed:
        return committed.read_committed(self.root, client=self.client)

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.TransactionalSpoutCoordinator:
        return _Coordinator(self._read(), context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.TransactionalSpoutEmitter:
        return _Emitter(self, self._read(), context)


class _Coordinator(spout.TransactionalSpoutCoordinator):
    """Names the next transaction in the directory. The position is in the metadata only."""

    def __init__(self, read: committed.Committed, context: CoordinatorContext) -> None:
        self._read, self._context = read, context
        self._at: committed.Position | None = None
        """Where ``_ahead`` begins."""
        self._ahead: Iterator[committed.Position] = iter(())
        self._following: committed.Position | None = None
        self._seen: committed.Position | None = None
        """The last transaction that was looked at, perhaps without rows."""
        self._asks_at = 0.0

    def is_ready(self) -> bool:
        return self._behind(self._context.last_metadata) is not None

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        following = self._behind(prev_metadata)
        if following is None:
            raise errors.FailedException("the directory has no further transaction yet")
        return following._asdict()

    def _behind(self, metadata: Any) -> committed.Position | None:
        """The next transaction with rows."""
        at = None if metadata is None else committed.Position(**metadata)
        if at != self._at:
            if at != self._following:
                self._ahead, self._seen = iter(()), at
            self._at, self._following = at, None
        if self._following is None:
            self._following = next(self._ahead, None)
        if self._following is None and time.monotonic() >= self._asks_at:
            self._ahead = self._with_rows()
            self._following = next(self._ahead, None)
            self._asks_at = 0.0 if self._following else time.monotonic() + POLL_S
        return self._following

    def _with_rows(self) -> Iterator[committed.Position]:
        for position, files in self._read.behind(self._seen):
            self._seen = position
            if files:
                yield position


class _Emitter(spout.TransactionalSpoutEmitter):
    def __init__(
        self, own: CommittedFilesSpout, read: committed.Committed, context: TopologyContext
    ) -> None:
        self._own, self._read, self._context = own, read, context

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        files = self._read.at(committed.Position(**metadata))
        self._check()
        for file in files[self._context.task_index :: self._context.num_tasks]:
            if self._own.emits_columns:
                for batch in self._read.table([file]).to_batches():
                    collector.emit_batch(batch)
            else:
                collector.emit_all((attempt, *row) for row in self._read.rows(file))

    def _check(self) -> None:
        kept, schema = tuple(self._read.form.kept()["columns"]), self._read.form.schema()
        if kept != self._own.columns or schema != self._own.schema:
            raise errors.SetupError(
                f"the files in {self._own.root} have the columns {schema or kept}, and the spout has {self._own.schema or self._own.columns}\n"
                "  Give the spout what the files have."
            )
