"""Small topologies of every shape, made from a number: material for the simulator.

Tuples are ``(tx, key, value)``. The stores hold in the end the sum of the values by key; no batch
boundary, no order and (without all grouping) no number of tasks may change these sums.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from txtopo import (
    BaseBasicBolt,
    BaseBatchBolt,
    BaseCommitterTransactionalSpout,
    BaseOpaquePartitionedTransactionalSpout,
    BasePartitionedTransactionalSpout,
    BaseTransactionalBolt,
    BaseTransactionalSpout,
    BasicOutputCollector,
    BatchOutputCollector,
    CommitterSpoutEmitter,
    CoordinatorContext,
    Fields,
    ICommitter,
    OpaquePartitionedSpoutCoordinator,
    OpaquePartitionedSpoutEmitter,
    OutputFieldsDeclarer,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TopologyConf,
    TopologyContext,
    TransactionalSpoutCoordinator,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing import Simulation
from txtopo.testing.simulator.outcome import Outcome
from txtopo.testing.simulator.schedule import Schedule
from txtopo.topology.graph import TopologyGraph

SPOUTS = ("plain", "committer", "planned", "storm", "opaque", "planned opaque")
NOWHERE = "/nowhere/simulated.db"
"""Stores are replaced before anything is written."""

FIELDS = Fields("tx", "key", "value")


def row(partition: int, n: int) -> tuple[str, int]:
    """Row ``n`` of ``partition``."""
    return "abcd"[(7 * partition + 3 * n) % 4], 1 + 10 * partition + n


# -- spouts --------------------------------------------------------------------------------------


class Source:
    """``sizes`` are the rows of each partition; a batch has ``take`` of each. ``varies``: a replay
    may have one more or less."""

    def __init__(self, sizes: list[int], take: int, varies: bool = False) -> None:
        self.sizes, self.take, self.varies = sizes, take, varies

    def next_range(
        self, partition: int, last: Any, attempt: TransactionAttempt | None = None
    ) -> Any:
        """[first row, end), ``None`` if there is nothing."""
        begin = 0 if last is None else last[1]
        take = self.take
        if self.varies and attempt is not None:
            take = max(1, take + (attempt.attempt_id + attempt.txid) % 3 - 1)
        return (
            None
            if begin >= self.sizes[partition]
            else [begin, min(begin + take, self.sizes[partition])]
        )

    def is_ready(self, last: Mapping[int, Any] | None) -> bool:
        """Whether any partition has rows after ``last``."""
        return any(
            self.next_range(p, (last or {}).get(p)) is not None for p in range(len(self.sizes))
        )


def emit_range(
    attempt: TransactionAttempt, collector: BatchOutputCollector, partition: int, metadata: Any
) -> None:
    for n in range(*metadata):
        collector.emit([attempt, *row(partition, n)])


class Declares:
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(FIELDS)


class PlainSpout(Declares, BaseTransactionalSpout):
    """The batch as a whole; partitions are dealt to the tasks."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return PlainCoordinator(self.source, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> CommitterSpoutEmitter:
        return PlainEmitter(context)


class CommitterSpout(Declares, BaseCommitterTransactionalSpout):
    """The same, taking part in the commit."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return PlainCoordinator(self.source, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> CommitterSpoutEmitter:
        return PlainEmitter(context)


class PlainCoordinator(TransactionalSpoutCoordinator):
    def __init__(self, source: Source, context: CoordinatorContext) -> None:
        self.source, self.context = source, context

    def is_ready(self) -> bool:
        last = self.context.last_metadata
        return self.source.is_ready(None if last is None else dict(enumerate(last)))

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        last = prev_metadata or [[0, 0]] * len(self.source.sizes)
        return [
            self.source.next_range(p, last[p]) or [last[p][1], last[p][1]] for p in range(len(last))
        ]


class PlainEmitter(CommitterSpoutEmitter):
    def __init__(self, context: TopologyContext) -> None:
        self.context = context

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        self.attempt = attempt
        for partition in range(self.context.task_index, len(metadata), self.context.num_tasks):
            emit_range(attempt, collector, partition, metadata[partition])

    def commit(self, attempt: TransactionAttempt) -> None:
        assert (attempt, self.context.phase) == (self.attempt, "commit"), (
            "the emission that is used is the one that is committed"
        )


class PartitionedSpout(Declares, BasePartitionedTransactionalSpout):
    """Planned, or learning its metadata by emitting."""

    def __init__(self, source: Source, planned: bool) -> None:
        self.source, self.planned = source, planned

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return (
            PlanningCoordinator(self.source, context)
            if self.planned
            else AskingCoordinator(self.source, context)
        )

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return PartitionEmitter(self.source)


class AskingCoordinator(PartitionedSpoutCoordinator):
    def __init__(self, source: Source, context: CoordinatorContext) -> None:
        self.source, self.context = source, context

    def num_partitions(self) -> int:
        return len(self.source.sizes)

    def is_ready(self) -> bool:
        return self.source.is_ready(self.context.last_metadata)


class PlanningCoordinator(AskingCoordinator):
    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        return self.source.next_range(partition, last_metadata)


class PartitionEmitter(PartitionedSpoutEmitter):
    def __init__(self, source: Source) -> None:
        self.source = source

    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        # Metadata that comes from emitting may differ until the seal.
        metadata = self.source.next_range(partition, last_metadata)
        if metadata is not None:
            emit_range(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        emit_range(attempt, collector, partition, metadata)


class OpaqueSpout(Declares, BaseOpaquePartitionedTransactionalSpout):
    """A replay may have other batches; planned, or learning by emitting."""

    def __init__(self, source: Source, planned: bool) -> None:
        self.source, self.planned = source, planned

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return (
            OpaquePlanner(self.source, context)
            if self.planned
            else OpaqueAsker(self.source, context)
        )

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> OpaquePartitionedSpoutEmitter:
        return OpaqueEmitter(self.source)


class OpaqueAsker(OpaquePartitionedSpoutCoordinator):
    def __init__(self, source: Source, context: CoordinatorContext) -> None:
        self.source, self.context = source, context
        self.plans = 0

    def is_ready(self) -> bool:
        return self.source.is_ready(self.context.last_metadata)


class OpaquePlanner(OpaqueAsker):
    def num_partitions(self) -> int:
        return len(self.source.sizes)

    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        self.plans += 1
        return self.source.next_range(
            partition, last_metadata, TransactionAttempt(txid, self.plans)
        )


class OpaqueEmitter(OpaquePartitionedSpoutEmitter):
    def __init__(self, source: Source) -> None:
        self.source = source

    def num_partitions(self) -> int:
        return len(self.source.sizes)

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        metadata = self.source.next_range(partition, last_metadata, attempt)
        if metadata is not None:
            emit_range(attempt, collector, partition, metadata)
        return metadata

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        emit_range(attempt, collector, partition, metadata)


def spout(kind: str, sizes: list[int], take: int) -> Any:
    """A spout of ``kind``."""
    source = Source(sizes, take, varies="opaque" in kind)
    if kind in ("plain", "committer"):
        return CommitterSpout(source) if kind == "committer" else PlainSpout(source)
    if "opaque" in kind:
        return OpaqueSpout(source, planned=kind == "planned opaque")
    return PartitionedSpout(source, planned=kind == "planned")


# -- bolts ---------------------------------------------------------------------------------------


class Bolt(Declares, BaseBatchBolt):
    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.sums: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.sums[tup["key"]] += tup["value"]


class Pass(Bolt):
    """Emits its tuples, at once."""

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(tup.values)


class Sum(Bolt):
    """Emits its part of the batch, summed up, in the end."""

    def finish_batch(self) -> None:
        for key, value in sorted(self.sums.items()):
            self.collector.emit([self.attempt, key, value])


class Double(Declares, BaseBasicBolt):
    """Emits twice the value."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup[0], tup["key"], 2 * tup["value"]])


class Store(Bolt):
    """Adds the batch to a store; emits what has changed. Held because a committer is upstream, or
    because it is one."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            updates = transaction.update_many(self.sums, lambda old, more: (old or 0) + more)
        for key, update in sorted(updates.items()):
            self.collector.emit([self.attempt, key, update.curr - (update.prev or 0)])


class Committer(Store, BaseTransactionalBolt, ICommitter):
    """The same as a committer."""


class EagerCommitter(Committer):
    """Emits in ``execute`` too: a part of the downstream belongs to the processing phase."""

    def execute(self, tup: Tuple) -> None:
        super().execute(tup)
        self.collector.emit(tup.values)


GROUPINGS = ("shuffle", "fields", "global", "none", "local_or_shuffle", "all")


def generated(number: int, tasks_matter: bool = True) -> TopologyGraph:
    """The topology of ``number``. Unless ``tasks_matter``, its results do not depend on how many
    tasks there are."""
    rng = random.Random(number)
    kind = SPOUTS[number % len(SPOUTS)]
    sizes = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 3))]
    spout_of_kind = spout(kind, sizes, rng.randrange(1, 3))
    builder = TransactionalTopologyBuilder(
        f"generated-{number}", "spout", spout_of_kind, rng.randrange(1, 3)
    )
    known, held = ["spout"], set[str]()
    for i in range(rng.randrange(1, 4)):
        id = f"bolt-{i}"
        sources = rng.sample(known, k=min(len(known), rng.choice((1, 1, 2))))
        is_held = bool(held & {*sources})
        kinds = [
            "committer",
            "committer",
            "eager",
            *(["store"] if is_held else []),
            "pass",
            "sum",
            "double",
        ]
        role = "committer" if i == 0 and rng.random() < 0.5 else rng.choice(kinds)
        store = SqliteStore(NOWHERE, f"table_{i}", opaque="opaque" in kind)
        writers: dict[str, Any] = {
            "committer": Committer(store),
            "eager": EagerCommitter(store),
            "store": Store(store),
        }
        bolts = {**writers, "pass": Pass(), "sum": Sum(), "double": Double()}
        declarer = builder.set_bolt(id, bolts[role], rng.choice((1, 1, 2, 3)))
        writes = role in writers
        # A key has one writer, so all that reaches a store is grouped in the same way.
        groupings = GROUPINGS if tasks_matter else GROUPINGS[:-1]
        grouping = rng.choice(("fields", "global")) if writes else None
        for source in sources:
            chosen = grouping or rng.choice(groupings)
            if chosen == "fields":
                declarer.fields_grouping(source, Fields("key"))
            else:
                getattr(declarer, f"{chosen}_grouping")(source)
        known.append(id)
        if is_held or role in ("committer", "eager"):
            held.add(id)
    return builder.build_topology()


def outcome_of(
    simulation: Simulation, seed: int, trace: Callable[[str], None] | None = None
) -> Outcome:
    """Play the schedule for ``seed``, and return its outcome. ``trace`` gets its events, line by
    line."""
    return Schedule(simulation.subject, simulation._decisions_of(seed), trace).play()
