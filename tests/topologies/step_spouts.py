"""A spout of every kind over the same numbers, for topologies whose drivers are killed.

The size of a batch changes with every driver (``life``) and, where the kind of spout allows, with
every attempt: a batch that is chosen anew is a different batch. Apart from ``step_topologies``
because spouts know nothing of bolts and stores. Workers import this module: all of it is quick to
import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txtopo import (
    BaseCommitterTransactionalSpout,
    BaseOpaquePartitionedTransactionalSpout,
    BasePartitionedTransactionalSpout,
    BaseTransactionalSpout,
    BatchOutputCollector,
    CommitterSpoutEmitter,
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
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH

PARTITIONS, KEYS = 2, 4
TAKE_MIN, TAKE_MAX = KEYS, KEYS + 1
"""How many numbers of a partition are in a batch, but for the last one; so every key is."""


def write_down(
    journal: Path, note: str, attempt: TransactionAttempt, task: int, values: Any
) -> None:
    """Append a line to ``journal``."""
    with journal.open("a") as file:
        # One write: lines of several processes do not mix.
        file.write(json.dumps([note, attempt.txid, attempt.attempt_id, task, values]) + "\n")


@dataclass(frozen=True)
class Source:
    """Partition p holds the numbers p * 1000 … p * 1000 + size - 1. ``life`` numbers the drivers."""

    journal: Path
    size: int
    life: int

    def next_range(self, begin: int, whim: int) -> list[int] | None:
        """The end of a batch from ``begin`` on, by whim; None if no number is left."""
        take = TAKE_MIN + (self.life + whim) % (TAKE_MAX - TAKE_MIN + 1)
        return None if begin >= self.size else [begin, min(begin + take, self.size)]

    def is_left(self, last: Mapping[int, Any]) -> bool:
        """Whether a partition has anything after ``last``."""
        return any(
            partition not in last or last[partition][1] < self.size
            for partition in range(PARTITIONS)
        )


def _whim(attempt: TransactionAttempt) -> int:
    return attempt.attempt_id % ATTEMPTS_PER_EPOCH


class Numbers:
    """The common part of the spouts."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "n"))


class Plain(Numbers, BaseTransactionalSpout):
    """Decides a batch as a whole."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return _WholeCoordinator(self.source, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return _WholeEmitter(context)


class Committer(Numbers, BaseCommitterTransactionalSpout):
    """A spout as above, whose emitters write down their commits."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return _WholeCoordinator(self.source, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> CommitterSpoutEmitter:
        return _CommittingEmitter(self.source, context)


class _WholeCoordinator(TransactionalSpoutCoordinator):
    def __init__(self, source: Source, context: CoordinatorContext) -> None:
        self.source, self.context, self.calls = source, context, 0

    def is_ready(self) -> bool:
        last = self.context.last_metadata
        return bool(last is None or last[1] < self.source.size)

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        self.calls += 1
        return self.source.next_range(0 if prev_metadata is None else prev_metadata[1], self.calls)


class _WholeEmitter(TransactionalSpoutEmitter):
    def __init__(self, context: TopologyContext) -> None:
        self.context = context
        self.numbers: list[int] = []

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        self.numbers = [
            n for n in range(*metadata) if n % self.context.num_tasks == self.context.task_index
        ]
        for n in self.numbers:
            collector.emit([attempt, n % KEYS, n])


class _CommittingEmitter(_WholeEmitter, CommitterSpoutEmitter):
    def __init__(self, source: Source, context: TopologyContext) -> None:
        super().__init__(context)
        self.source = source

    def commit(self, attempt: TransactionAttempt) -> None:
        write_down(self.source.journal, "committed", attempt, self.context.task_index, self.numbers)


class Storm(Numbers, BasePartitionedTransactionalSpout):
    """Partitioned; the metadata of a batch comes from emitting the batch."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return _PartitionCoordinator(self.source, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return _PartitionEmitter(self.source)


class Planned(Storm):
    """Partitioned; the driver plans the batch."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return _PlanningCoordinator(self.source, context)


class _PartitionCoordinator(PartitionedSpoutCoordinator):
    def __init__(self, source: Source, context: CoordinatorContext) -> None:
        self.source, self.context, self.calls = source, context, 0

    def num_partitions(self) -> int:
        return PARTITIONS

    def is_ready(self) -> bool:
        return self.source.is_left(self.context.last_metadata or {})


class _PlanningCoordinator(_PartitionCoordinator):
    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        self.calls += 1
        return self.source.next_range(0 if last_metadata is None else last_metadata[1], self.calls)


class _PartitionEmitter(PartitionedSpoutEmitter):
    def __init__(self, source: Source) -> None:
        self.source = source

    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        metadata = self.source.next_range(
            0 if last_metadata is None else last_metadata[1], _whim(attempt)
        )
        if metadata is not None:
            self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for n in range(*metadata):
            collector.emit([attempt, n % KEYS, partition * 1000 + n])


class OpaqueStorm(Numbers, BaseOpaquePartitionedTransactionalSpout):
    """Opaque; the metadata of a batch comes from emitting it, and every attempt emits another
    batch.
    """

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return _OpaqueCoordinator(self.source, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> OpaquePartitionedSpoutEmitter:
        return _OpaqueEmitter(self.source)


class OpaquePlanned(OpaqueStorm):
    """Opaque; the driver plans every attempt anew, and differently."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return _OpaquePlanningCoordinator(self.source, context)


class _OpaqueCoordinator(OpaquePartitionedSpoutCoordinator):
    def __init__(self, source: Source, context: CoordinatorContext) -> None:
        self.source, self.context, self.calls = source, context, 0

    def is_ready(self) -> bool:
        return self.source.is_left(self.context.last_metadata or {})


class _OpaquePlanningCoordinator(_OpaqueCoordinator):
    def num_partitions(self) -> int:
        return PARTITIONS

    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        self.calls += 1
        return self.source.next_range(0 if last_metadata is None else last_metadata[1], self.calls)


class _OpaqueEmitter(OpaquePartitionedSpoutEmitter):
    def __init__(self, source: Source) -> None:
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
        metadata = self.source.next_range(
            0 if last_metadata is None else last_metadata[1], _whim(attempt)
        )
        if metadata is not None:
            self.emit_planned_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for n in range(*metadata):
            collector.emit([attempt, n % KEYS, partition * 1000 + n])


SPOUTS: dict[str, type[Numbers]] = {
    "plain": Plain,
    "committer": Committer,
    "storm": Storm,
    "planned": Planned,
    "opaque-storm": OpaqueStorm,
    "opaque-planned": OpaquePlanned,
}
