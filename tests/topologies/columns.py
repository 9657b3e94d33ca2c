"""Small spouts and bolts of columns that note their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tests.topologies.recording import NoCoordinator, Streams, note
from txtopo import (
    BaseArrowBatchBolt,
    BasePartitionedTransactionalSpout,
    BatchOutputCollector,
    CoordinatorContext,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
)

PAIRS: Streams = {"default": ("tx", "key", "value")}
Schemas = Mapping[str, pa.Schema]


def batch(
    names: Sequence[str], rows: Iterable[Sequence[Any]], schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """Rows as a RecordBatch."""
    listed = list(rows)
    columns = [[row[i] for row in listed] for i in range(len(names))]
    if schema is not None:
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=list(names))


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows of a RecordBatch, by Arrow's own means."""
    return [tuple(row.values()) for row in batch.to_pylist()]


def declare(
    declarer: OutputFieldsDeclarer,
    streams: Streams,
    schemas: Schemas | None = None,
    direct: bool = False,
) -> None:
    for stream, fields in streams.items():
        declarer.declare_stream(stream, Fields(fields), direct, (schemas or {}).get(stream))


class ColumnsSpout(BasePartitionedTransactionalSpout):
    """Emits its metadata: a list of ``[stream, [rows]]``, each as one RecordBatch; ``[stream,
    row]`` with a dict ``row`` as one tuple."""

    emits_columns = True

    def __init__(
        self,
        streams: Streams = PAIRS,
        schemas: Schemas | None = None,
        fresh: Mapping[int, Any] | None = None,
    ) -> None:
        self.streams, self.schemas, self.fresh = streams, schemas, dict(fresh or {})

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return NoCoordinator()

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return ColumnsEmitter(self)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declare(declarer, self.streams, self.schemas)


class ColumnsEmitter(PartitionedSpoutEmitter):
    def __init__(self, spout: ColumnsSpout) -> None:
        self.spout = spout

    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        fresh = self.spout.fresh.get(partition)
        if fresh is not None:
            self.emit_partition_batch(attempt, collector, partition, fresh)
        return fresh

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for stream, emitted in metadata:
            names = self.spout.streams[stream][1:]
            if isinstance(emitted, dict):
                collector.emit([attempt, *(emitted[name] for name in names)], stream)
            else:
                collector.emit_batch(
                    batch(names, emitted, (self.spout.schemas or {}).get(stream)), stream
                )


class NotingArrowBolt(BaseArrowBatchBolt):
    """Notes every call; ``on_batch(bolt, batch)`` and ``on_finish(bolt)`` are its further deeds."""

    context: TopologyContext
    collector: BatchOutputCollector
    attempt: TransactionAttempt

    def __init__(
        self,
        on_batch: Callable[[Any, pa.RecordBatch], None] | None = None,
        on_finish: Callable[[Any], None] | None = None,
        streams: Streams = PAIRS,
        schemas: Schemas | None = None,
    ) -> None:
        self.on_batch, self.on_finish, self.streams, self.schemas = (
            on_batch,
            on_finish,
            streams,
            schemas,
        )
        self.kept: list[pa.RecordBatch] = []

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        note(context, "prepare")

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        source = self.context.source
        assert source is not None
        note(
            self.context,
            "execute_batch",
            source.component,
            source.task,
            source.stream,
            tuple(rows_of(batch)),
            tuple(map(str, batch.schema.types)),
        )
        self.kept.append(batch)
        if self.on_batch is not None:
            self.on_batch(self, batch)

    def finish_batch(self) -> None:
        note(self.context, "finish_batch", *(row for kept in self.kept for row in rows_of(kept)))
        if self.on_finish is not None:
            self.on_finish(self)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declare(declarer, self.streams, self.schemas)


class NotingArrowCommitter(NotingArrowBolt, ICommitter):
    """The same as a committer."""


def pass_on(bolt: NotingArrowBolt, batch: pa.RecordBatch) -> None:
    """Emit the columns again."""
    bolt.collector.emit_batch(batch)
