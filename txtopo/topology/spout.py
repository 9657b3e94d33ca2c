"""The spouts users write.

A spout has two halves. Its *coordinator* runs on the driver and decides each transaction's batch.
Its *emitter* runs on executors and emits the batch. Between the halves, and to later runs, passes
*metadata*: JSON that is enough to emit the same batch again.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from txtopo.topology.bolt import BatchOutputCollector, _Component
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.transaction import TransactionAttempt


class SpoutCoordinator:
    """The driver's half, common part.

    Where the source has an end, the coordinator may also define ``fraction_done(last_metadata) ->
    float or None``: how much of the source is committed, from 0 to 1, for the line that shows a
    run's progress. Runs on: driver, off the commit path. Called: before each ``is_ready``.
    ``last_metadata`` comes from the newest committed transaction. It is ``None`` before the first,
    and for a partitioned spout a dict from partition to its last committed metadata. On replay: not
    asked. Nothing else depends on the answer.

    The coordinator may define ``lag(last_metadata) -> dict`` and ``lost(last_metadata) -> dict`` as
    well: by the name of a source partition, how much is not committed, and how much was lost before
    it was read (``None``: not known). Both are for ``run.status()``, and are called after each
    ``is_ready``. The rest is as for ``fraction_done``.
    """

    def is_ready(self) -> bool:
        """Whether a new transaction may begin.

        Runs on: driver, off the commit path. Called: for a new txid only, never for a replay (R5).
        Order: before the txid's metadata is made. On replay: not asked. After ``False`` the
        question comes again a little later. The classic mistake: always answering ``True`` without
        data, which makes empty transactions as fast as they go.
        """
        return True

    def close(self) -> None:
        """Close opened resources. Runs on: driver. Called: once, when the run ends."""


class TransactionalSpoutCoordinator(SpoutCoordinator, abc.ABC):
    """Coordinator of an :class:`ITransactionalSpout`."""

    @abc.abstractmethod
    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """Decide the batch of transaction ``txid``. Return metadata (JSON) from which every replay
        emits the same tuples.

        Runs on: driver, off the commit path. Called: once per txid, in order (R4). Called again
        only if it raised, or if the driver died before any effect of the txid could exist.
        ``prev_metadata`` is the metadata of ``txid - 1``, ``None`` for txid 1. On replay: not
        called, because the stored metadata is used. ``FailedException`` stores nothing and is tried
        again later.
        """


class TransactionalSpoutEmitter(abc.ABC):
    """Emitter of an :class:`ITransactionalSpout`. Lives for one task and attempt: made, one emit,
    closed (R22)."""

    @abc.abstractmethod
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        """Emit this task's part of the batch. The tasks' parts together are the batch.

        Runs on: executor. Called: once per attempt, on every task. Order: any order between tasks
        and transactions. On replay: again, and must emit the same tuples (R18). First value of each
        tuple: ``attempt``.
        """

    def cleanup_before(self, txid: int) -> None:
        """Forget the data kept for transactions below ``txid``. Runs on: executor. Called: late,
        repeatedly, in any process (R22)."""

    def close(self) -> None:
        """Runs on: executor. Called: once, after the emit."""


class CommitterSpoutEmitter(TransactionalSpoutEmitter, abc.ABC):
    """Emitter of an :class:`ICommitterTransactionalSpout`: held after its emit, like a committer,
    and committed in its turn."""

    @abc.abstractmethod
    def commit(self, attempt: TransactionAttempt) -> None:
        """Commit the batch emitted by this instance.

        Runs on: executor. Called: once, in the commit phase, on the instance that emitted, on every
        task. Order: by txid. On replay: again, on the instance that emitted in the new attempt. Its
        work must be safe to do twice.
        """


class PartitionedSpoutCoordinator(SpoutCoordinator, abc.ABC):
    """Coordinator of an :class:`IPartitionedTransactionalSpout`.

    It may also *plan*: define ``plan_batch(txid, last) -> {partition: metadata or None}``, or for
    one partition at a time ``plan_partition_batch(txid, partition, last_metadata) -> metadata or
    None``. The batch is then fixed on the driver before any executor runs, and transactions need
    not wait for each other's emission. ``None`` means no progress: nothing is emitted, and the
    position stays (R21).
    """

    @abc.abstractmethod
    def num_partitions(self) -> int:
        """How many partitions (0 … n-1) the source has now. Asked once per txid, and fixed for the
        txid (R19)."""


class PartitionedSpoutEmitter(abc.ABC):
    """Emitter of an :class:`IPartitionedTransactionalSpout`. Partition p belongs to task p mod
    tasks (R19)."""

    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        """Emit a new batch from ``partition``, beginning where ``last_metadata`` ended. Return the
        batch's metadata, or ``None`` for no batch.

        Runs on: executor. Called: for a spout that does not plan, until the first success for the
        txid. Order: transactions in order. On replay: ``emit_partition_batch`` instead. ``None``
        together with emitted tuples is an error (R21).
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define emit_partition_batch_new, and its coordinator does not plan (plan_batch or plan_partition_batch)"
        )

    @abc.abstractmethod
    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        """Emit exactly the tuples that ``metadata`` stands for.

        Runs on: executor. Called: on replay, and always for a spout that plans. Order: any. Not
        called where metadata is ``None``.
        """

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        """Emit the planned batch. The same as :meth:`emit_partition_batch` unless overridden."""
        self.emit_partition_batch(attempt, collector, partition, metadata)

    def close(self) -> None:
        """Runs on: executor. Called: once, after the emit."""


class OpaquePartitionedSpoutCoordinator(SpoutCoordinator):
    """Coordinator of an :class:`IOpaquePartitionedTransactionalSpout`.

    It may also *plan*, like a partitioned spout's coordinator: define ``num_partitions()`` and
    ``plan_batch(txid, last)`` or ``plan_partition_batch(txid, partition, last_metadata)``. An
    opaque batch is planned anew for every attempt (R4).
    """


class OpaquePartitionedSpoutEmitter:
    """Emitter of an :class:`IOpaquePartitionedTransactionalSpout`. Partition p belongs to task p
    mod tasks (R19)."""

    def num_partitions(self) -> int:
        """How many partitions (0 … n-1) the source has now.

        Runs on: executor. Called: once per attempt and task, for a spout that does not plan. All
        tasks of an attempt must agree, or the attempt is replayed.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define num_partitions, and its coordinator does not plan (plan_batch)"
        )

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        """Emit the tuples after ``last_metadata``. Return the emitted tuples' metadata, or ``None``
        if there are none (R21).

        Runs on: executor. Called: once per attempt, for a spout that does not plan. Order:
        transactions in order. On replay: again, and may emit other tuples. Each tuple must succeed
        in exactly one transaction (R18).
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define emit_partition_batch, and its coordinator does not plan (plan_batch)"
        )

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        """Emit the planned batch. Raise ``FailedException`` if that is not possible: the batch is
        then planned anew.

        Runs on: executor. Called: for a spout that plans, where the plan is not ``None``. Order:
        any. On replay: with another plan.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define emit_planned_partition_batch, but its coordinator plans"
        )

    def close(self) -> None:
        """Runs on: executor. Called: once, after the emit."""


class _Spout(_Component):
    metadata_type: ClassVar[Any] = None
    """A pydantic model class for the metadata. Without it metadata is plain JSON."""


class ITransactionalSpout(_Spout, abc.ABC):
    """A spout whose batches are decided as a whole (Storm: ``ITransactionalSpout``)."""

    @abc.abstractmethod
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        """Runs on: driver. Called: once per run."""

    @abc.abstractmethod
    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        """Runs on: executor. Called: once per attempt and task."""


class IPartitionedTransactionalSpout(_Spout, abc.ABC):
    """A spout over partitions, each with its own metadata (Storm:
    ``IPartitionedTransactionalSpout``)."""

    @abc.abstractmethod
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        """Runs on: driver. Called: once per run."""

    @abc.abstractmethod
    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        """Runs on: executor. Called: once per attempt and task."""


class ICommitterTransactionalSpout(ITransactionalSpout):
    """A spout whose emitters take part in the commit (Storm: ``ICommitterTransactionalSpout``)."""

    @abc.abstractmethod
    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> CommitterSpoutEmitter:
        """Runs on: executor. Called: once per attempt and task."""


class IOpaquePartitionedTransactionalSpout(_Spout, abc.ABC):
    """A spout over partitions whose replays may differ (Storm:
    ``IOpaquePartitionedTransactionalSpout``), for sources that cannot always give the same batch
    again. Exactly-once results then need opaque stores."""

    @abc.abstractmethod
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        """Runs on: driver. Called: once per run."""

    @abc.abstractmethod
    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> OpaquePartitionedSpoutEmitter:
        """Runs on: executor. Called: once per attempt and task."""


class BaseTransactionalSpout(ITransactionalSpout):
    """Base for spouts whose batches are decided as a whole."""

    Coordinator = TransactionalSpoutCoordinator
    Emitter = TransactionalSpoutEmitter


class BasePartitionedTransactionalSpout(IPartitionedTransactionalSpout):
    """Base for spouts over partitions."""

    Coordinator = PartitionedSpoutCoordinator
    Emitter = PartitionedSpoutEmitter


class BaseCommitterTransactionalSpout(ICommitterTransactionalSpout):
    """Base for spouts whose emitters take part in the commit."""

    Coordinator = TransactionalSpoutCoordinator
    Emitter = CommitterSpoutEmitter


class BaseOpaquePartitionedTransactionalSpout(IOpaquePartitionedTransactionalSpout):
    """Base for spouts over partitions whose replays may differ."""

    Coordinator = OpaquePartitionedSpoutCoordinator
    Emitter = OpaquePartitionedSpoutEmitter


def plans(coordinator: Any) -> bool:
    """Whether a partitioned spout's coordinator fixes its batches on the driver."""
    return hasattr(coordinator, "plan_batch") or hasattr(coordinator, "plan_partition_batch")
