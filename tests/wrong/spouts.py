"""A right spout of every kind, whose hooks can be exchanged for wrong ones.

All of them emit the numbers 0, 1, 2 …: a plain spout ``size`` of them, a partitioned spout p * 1000
… p * 1000 + ``size`` - 1 in each partition. Metadata is ``[begin, end]``.
"""

from __future__ import annotations

from collections.abc import Callable
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

Hook = Callable[..., Any]
PARTITIONS, SIZE, TAKE = 3, 14, 4

SHARED: dict[str, Any] = {}
"""State that outlives attempts and stays in this process; hooks reach it through the module,
because objects in closures are copied with the hooks."""


def expected(partitions: int = PARTITIONS, size: int = SIZE) -> list[tuple[int]]:
    """All emissions of a right spout."""
    return [(partition * 1000 + n,) for partition in range(partitions) for n in range(size)]


def following(spout: Any, last: Any) -> Any:
    """The metadata after ``last``; None if there is nothing."""
    begin = 0 if last is None else last[1]
    return None if begin >= spout.size else [begin, min(begin + spout.take, spout.size)]


def emit_range(
    collector: BatchOutputCollector, attempt: TransactionAttempt, partition: int, metadata: Any
) -> None:
    """Emit what ``metadata`` stands for."""
    for n in range(*metadata):
        collector.emit([attempt, partition * 1000 + n])


class _Hooked:
    """Hooks given to the constructor take the place of methods; the first argument is the
    coordinator or emitter."""

    def __init__(
        self,
        size: int = SIZE,
        take: int = TAKE,
        partitions: int = PARTITIONS,
        metadata_type: Any = None,
        **hooks: Hook,
    ) -> None:
        self.size, self.take, self.partitions, self.hooks = size, take, partitions, hooks
        self.metadata_type = metadata_type

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))


class _Half:
    """A coordinator or an emitter; ``hooked`` gives the exchanged hook, if there is one."""

    def __init__(self, spout: Any, context: Any) -> None:
        self.spout, self.context = spout, context

    def hooked(self, name: str, right: Hook, *args: Any) -> Any:
        wrong = self.spout.hooks.get(name)
        return right(*args) if wrong is None else wrong(self, *args)

    def close(self) -> None:
        self.hooked("close", lambda: None)


# -- whole batches -------------------------------------------------------------------------------


class Plain(_Hooked, BaseTransactionalSpout):
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return PlainCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return PlainEmitter(self, context)


class Committing(_Hooked, BaseCommitterTransactionalSpout):
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return PlainCoordinator(self, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> CommitterSpoutEmitter:
        return CommittingEmitter(self, context)


class PlainCoordinator(_Half, TransactionalSpoutCoordinator):
    def is_ready(self) -> bool:
        return bool(
            self.hooked(
                "is_ready", lambda: following(self.spout, self.context.last_metadata) is not None
            )
        )

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        return self.hooked(
            "initialize_transaction",
            lambda txid, last: following(self.spout, last),
            txid,
            prev_metadata,
        )


class PlainEmitter(_Half, TransactionalSpoutEmitter):
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        self.hooked("emit_batch", self.dealt, attempt, metadata, collector)

    def dealt(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        """This task's part of the batch."""
        for n in range(*metadata):
            if n % self.context.num_tasks == self.context.task_index:
                collector.emit([attempt, n])

    def cleanup_before(self, txid: int) -> None:
        self.hooked("cleanup_before", lambda txid: None, txid)


class CommittingEmitter(PlainEmitter, CommitterSpoutEmitter):
    def commit(self, attempt: TransactionAttempt) -> None:
        self.hooked("commit", lambda attempt: None, attempt)


# -- partitions ----------------------------------------------------------------------------------


class Asking(_Hooked, BasePartitionedTransactionalSpout):
    """Storm's way: learns metadata by emitting."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return AskingCoordinator(self, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return PartitionEmitter(self, context)


class Planned(Asking):
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return PlanningCoordinator(self, context)


class AskingCoordinator(_Half, PartitionedSpoutCoordinator):
    def num_partitions(self) -> int:
        return int(self.hooked("num_partitions", lambda: self.spout.partitions))

    def is_ready(self) -> bool:
        return bool(self.hooked("is_ready", self.has_more))

    def has_more(self) -> bool:
        last = self.context.last_metadata
        return any(
            following(self.spout, last.get(partition)) is not None
            for partition in range(self.spout.partitions)
        )


class PlanningCoordinator(AskingCoordinator):
    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        right = lambda txid, partition, last: following(self.spout, last)  # noqa: E731
        return self.hooked("plan_partition_batch", right, txid, partition, last_metadata)


class PartitionEmitter(_Half, PartitionedSpoutEmitter):
    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        return self.hooked(
            "emit_partition_batch_new", self.emit_new, attempt, collector, partition, last_metadata
        )

    def emit_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        """What comes after ``last_metadata``."""
        metadata = following(self.spout, last_metadata)
        if metadata is not None:
            emit_range(collector, attempt, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        self.hooked(
            "emit_partition_batch",
            lambda a, c, p, m: emit_range(c, a, p, m),
            attempt,
            collector,
            partition,
            metadata,
        )


class Opaque(_Hooked, BaseOpaquePartitionedTransactionalSpout):
    """Learns metadata by emitting; takes more or less of each partition, attempt by attempt."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return OpaqueCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> OpaquePartitionedSpoutEmitter:
        return OpaqueEmitter(self, context)


class PlannedOpaque(Opaque):
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return PlanningOpaqueCoordinator(self, context)


class OpaqueCoordinator(_Half, OpaquePartitionedSpoutCoordinator):
    def is_ready(self) -> bool:
        return bool(self.hooked("is_ready", lambda: AskingCoordinator.has_more(self)))  # type: ignore[arg-type]


class PlanningOpaqueCoordinator(OpaqueCoordinator):
    def num_partitions(self) -> int:
        return int(self.spout.partitions)

    def plan_batch(self, txid: int, last: dict[int, Any]) -> dict[int, Any]:
        right = lambda txid, last: {  # noqa: E731
            p: following(self.spout, last.get(p)) for p in range(self.spout.partitions)
        }
        planned: dict[int, Any] = self.hooked("plan_batch", right, txid, last)
        return planned


class OpaqueEmitter(_Half, OpaquePartitionedSpoutEmitter):
    def num_partitions(self) -> int:
        return int(self.hooked("num_partitions", lambda: self.spout.partitions))

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        return self.hooked(
            "emit_partition_batch", self.emit_some, attempt, collector, partition, last_metadata
        )

    def emit_some(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        """What comes after ``last_metadata``: other amounts in other attempts."""
        metadata = following(self.spout, last_metadata)
        if metadata is not None:
            metadata[1] = max(
                metadata[0] + 1, metadata[1] - (attempt.attempt_id + partition) % self.spout.take
            )
            emit_range(collector, attempt, partition, metadata)
        return metadata

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        self.hooked(
            "emit_planned_partition_batch",
            lambda a, c, p, m: emit_range(c, a, p, m),
            attempt,
            collector,
            partition,
            metadata,
        )
