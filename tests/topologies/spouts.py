"""A spout of every kind over the same numbers, so that tests can compare the results of a topology
over each."""

from __future__ import annotations

from typing import Any

from tests.servers.clusters import Journal
from txtopo import (
    BaseBatchBolt,
    BasePartitionedTransactionalSpout,
    BaseTransactionalBolt,
    BaseTransactionalSpout,
    BatchOutputCollector,
    CoordinatorContext,
    FailedException,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TopologyConf,
    TopologyContext,
    TransactionalSpoutCoordinator,
    TransactionalSpoutEmitter,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore


class Ranges(BaseTransactionalSpout):
    """Plain transactional: txid n is the n-th ``take`` numbers below ``end``, dealt to the tasks in
    turn."""

    def __init__(self, journal: Journal, end: int, take: int) -> None:
        self.journal, self.end, self.take = journal, end, take

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return _RangesCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return _RangesEmitter(self, context)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))


class _RangesCoordinator(TransactionalSpoutCoordinator):
    def __init__(self, spout: Ranges, context: CoordinatorContext) -> None:
        self.spout, self.context = spout, context

    def is_ready(self) -> bool:
        last = self.context.last_metadata
        return (0 if last is None else last["end"]) < self.spout.end

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        self.spout.journal.write(f"initialize {txid}")
        begin = 0 if prev_metadata is None else prev_metadata["end"]
        return {"begin": begin, "end": min(begin + self.spout.take, self.spout.end)}

    def close(self) -> None:
        self.spout.journal.write("coordinator closed")


class _RangesEmitter(TransactionalSpoutEmitter):
    def __init__(self, spout: Ranges, context: TopologyContext) -> None:
        self.spout, self.context = spout, context

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        for n in range(metadata["begin"], metadata["end"]):
            if n % self.context.num_tasks == self.context.task_index:
                collector.emit([attempt, n])

    def cleanup_before(self, txid: int) -> None:
        self.spout.journal.write(f"cleanup before {txid}")

    def close(self) -> None:
        self.spout.journal.write("emitter closed")


class Partitioned(BasePartitionedTransactionalSpout):
    """Partition p of ``partitions`` holds the numbers p * 1000 … p * 1000 + ``size`` - 1. Planned,
    or (Storm's way) learning by emitting."""

    def __init__(
        self, journal: Journal, partitions: int, size: int, take: int, planned: bool
    ) -> None:
        self.journal, self.partitions, self.size, self.take, self.planned = (
            journal,
            partitions,
            size,
            take,
            planned,
        )

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return (
            _PlanningCoordinator(self, context)
            if self.planned
            else _AskingCoordinator(self, context)
        )

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return _PartitionEmitter(self)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))

    def next_range(self, last: Any) -> Any:
        begin = 0 if last is None else last[1]
        return None if begin >= self.size else [begin, min(begin + self.take, self.size)]


class _AskingCoordinator(PartitionedSpoutCoordinator):
    def __init__(self, spout: Partitioned, context: CoordinatorContext) -> None:
        self.spout, self.context = spout, context

    def num_partitions(self) -> int:
        return self.spout.partitions

    def is_ready(self) -> bool:
        last = self.context.last_metadata
        return any(
            self.spout.next_range(last.get(p)) is not None for p in range(self.spout.partitions)
        )


class _PlanningCoordinator(_AskingCoordinator):
    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        return self.spout.next_range(last_metadata)


class _PartitionEmitter(PartitionedSpoutEmitter):
    def __init__(self, spout: Partitioned) -> None:
        self.spout = spout

    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        metadata = self.spout.next_range(last_metadata)
        self.spout.journal.write(f"new {attempt.txid}/{partition}")
        if metadata is not None:
            self.emit(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        self.spout.journal.write(f"again {attempt.txid}/{partition}")
        self.emit(attempt, collector, partition, metadata)

    def emit(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for n in range(*metadata):
            collector.emit([attempt, partition * 1000 + n])


class Keep(BaseTransactionalBolt, ICommitter):
    """Stores, per transaction, the sorted numbers of its batch; fails once for each (txid, hook) in
    ``fails``, counted over all processes."""

    def __init__(
        self, store: SqliteStore, journal: Journal, fails: tuple[tuple[int, str], ...] = ()
    ) -> None:
        self.store, self.journal, self.fails = store, journal, fails

    def fail_once(self, hook: str) -> None:
        line = f"failed {self.attempt.txid} in {hook}"
        if (self.attempt.txid, hook) in self.fails and self.journal.claim(line):
            raise FailedException(line)

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.numbers: list[int] = []

    def execute(self, tup: Tuple) -> None:
        self.fail_once("execute")
        self.numbers.append(tup["n"])

    def finish_batch(self) -> None:
        self.fail_once("before")
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("total", lambda old: (old or 0) + sum(self.numbers))
            transaction.update(
                ("batch", self.attempt.txid), lambda old: [*(old or []), *sorted(self.numbers)]
            )
        self.fail_once("after")
        self.journal.write(
            f"tasks {self.attempt} {self.context.num_tasks} {len(self.context.component_tasks('pass'))}"
        )


class Pass(BaseBatchBolt):
    """Passes numbers on, after a shuffle."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(tup.values)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))


def keeping_topology(
    id: str, spout: Any, keep: Keep, spout_tasks: int = 2, pass_tasks: int = 2
) -> Any:
    """spout → pass (shuffle) → keep (global, committer)."""
    builder = TransactionalTopologyBuilder(id, "numbers", spout, spout_tasks)
    builder.set_bolt("pass", Pass(), pass_tasks).shuffle_grouping("numbers")
    builder.set_bolt("keep", keep).global_grouping("pass")
    return builder.build_topology()


def batches(store: SqliteStore) -> dict[int, list[int]]:
    """The stored batches, by txid."""
    return {
        key[1]: value
        for key, value in store.items()
        if isinstance(key, tuple) and isinstance(key[1], int)
    }
