"""Endless sources whose rows are a function of the seed: one spout of every kind, so that every
checker can compute the consumed rows.

How many rows there are so far is the feed's to say; which of them a transaction gets is the
spout's, and it is a different matter for each kind.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from tests.soak.world import Feed
from txtopo import (
    BaseOpaquePartitionedTransactionalSpout,
    BasePartitionedTransactionalSpout,
    BaseTransactionalSpout,
    BatchOutputCollector,
    CoordinatorContext,
    Fields,
    OpaquePartitionedSpoutCoordinator,
    OpaquePartitionedSpoutEmitter,
    OutputFieldsDeclarer,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TopologyConf,
    TopologyContext,
    TransactionalSpoutCoordinator,
    TransactionalSpoutEmitter,
    TransactionAttempt,
)

PARTITIONS = 2


class Rows(Protocol):
    """An endless table."""

    @property
    def fields(self) -> tuple[str, ...]:
        """What its columns are called."""

    def row(self, partition: int, index: int) -> tuple[Any, ...]:
        """Row ``index`` of ``partition``: always the same."""


class _Source:
    def __init__(self, rows: Rows, feed: Feed, take: int) -> None:
        self.rows, self.feed, self.take = rows, feed, take

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", self.rows.fields))

    def after(self, last: Any, take: int) -> list[int] | None:
        """The rows that follow ``last``, at most ``take``, as ``[begin, end]``; ``None`` if there
        are none (R21)."""
        begin = 0 if last is None else last[1]
        end = min(begin + take, self.feed.available())
        return [begin, end] if end > begin else None

    def emit(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        span: Any,
    ) -> None:
        """Emit the rows of ``span``."""
        for index in range(*span):
            collector.emit([attempt, *self.rows.row(partition, index)])


# -- transactional -------------------------------------------------------------------------------


class Whole(_Source, BaseTransactionalSpout):
    """Decided as a whole: transaction n is rows (n - 1) * take … n * take - 1 of the only
    partition, always a full batch."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return _WholeCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return _WholeEmitter(self, context)


class _WholeCoordinator(TransactionalSpoutCoordinator):
    def __init__(self, source: Whole, context: CoordinatorContext) -> None:
        self.source, self.context = source, context

    def is_ready(self) -> bool:
        span = self.source.after(self.context.last_metadata, self.source.take)
        return span is not None and span[1] - span[0] == self.source.take

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        return self.source.after(prev_metadata, self.source.take)


class _WholeEmitter(TransactionalSpoutEmitter):
    def __init__(self, source: Whole, context: TopologyContext) -> None:
        self.source, self.context = source, context

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        for index in range(*metadata):
            if index % self.context.num_tasks == self.context.task_index:
                collector.emit([attempt, *self.source.rows.row(0, index)])


class Planned(_Source, BasePartitionedTransactionalSpout):
    """Partitioned; the driver fixes each batch before anything is emitted."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return _PlanningCoordinator(self, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return _PartitionEmitter(self)


class Learning(_Source, BasePartitionedTransactionalSpout):
    """Partitioned, as in Storm: the batch's metadata comes from emitting the batch."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return _Coordinator(self, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return _PartitionEmitter(self)


class _Coordinator(PartitionedSpoutCoordinator):
    def __init__(self, source: _Source, context: CoordinatorContext) -> None:
        self.source, self.context = source, context

    def num_partitions(self) -> int:
        return PARTITIONS

    def is_ready(self) -> bool:
        last = self.context.last_metadata or {}
        return any(
            self.source.after(last.get(partition), 1) is not None for partition in range(PARTITIONS)
        )


class _PlanningCoordinator(_Coordinator):
    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        return self.source.after(last_metadata, self.source.take)


class _PartitionEmitter(PartitionedSpoutEmitter):
    def __init__(self, source: _Source) -> None:
        self.source = source

    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        span = self.source.after(last_metadata, self.source.take)
        if span is not None:
            self.source.emit(attempt, collector, partition, span)
        return span

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        self.source.emit(attempt, collector, partition, metadata)


# -- opaque --------------------------------------------------------------------------------------


class Moody(_Source, BaseOpaquePartitionedTransactionalSpout):
    """Opaque: every attempt gets as many rows as it happens to get, none at all among them;
    ``planned`` by the driver or learnt by emitting."""

    def __init__(self, rows: Rows, feed: Feed, take: int, seed: str, planned: bool) -> None:
        super().__init__(rows, feed, take)
        self.seed, self.planned = seed, planned

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return _MoodyPlanner(self, context) if self.planned else _MoodyCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> OpaquePartitionedSpoutEmitter:
        return _MoodyEmitter(self)


class _MoodyCoordinator(OpaquePartitionedSpoutCoordinator):
    def __init__(self, source: Moody, context: CoordinatorContext) -> None:
        self.source, self.context = source, context
        self.mood = random.Random(source.seed)

    def is_ready(self) -> bool:
        last = self.context.last_metadata or {}
        return any(
            self.source.after(last.get(partition), 1) is not None for partition in range(PARTITIONS)
        )


class _MoodyPlanner(_MoodyCoordinator):
    def num_partitions(self) -> int:
        return PARTITIONS

    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        return self.source.after(last_metadata, self.mood.randint(0, self.source.take))


class _MoodyEmitter(OpaquePartitionedSpoutEmitter):
    def __init__(self, source: Moody) -> None:
        self.source = source

    def num_partitions(self) -> int:
        return PARTITIONS

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        mood = random.Random(f"{self.source.seed}/{attempt}/{partition}")
        span = self.source.after(last_metadata, mood.randint(0, self.source.take))
        if span is not None:
            self.source.emit(attempt, collector, partition, span)
        return span

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        self.source.emit(attempt, collector, partition, metadata)
