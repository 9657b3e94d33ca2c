"""A live source cuts its batches differently from run to run, rightly so (R4): only results of the
same batch are compared."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest

from tests.topologies.simulated import (
    SPOUTS,
    Bolt,
    PartitionedSpout,
    PartitionEmitter,
    PlainEmitter,
    PlainSpout,
    Source,
    emit_range,
    outcome_of,
    row,
    spout,
)
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from txtopo.stores import SqliteStore
from txtopo.testing import Simulation
from txtopo.testing.simulator import current, fault_kinds
from txtopo.testing.simulator.decisions import Decisions, Fault, Script
from txtopo.testing.simulator.fault_kinds import DIES
from txtopo.testing.simulator.schedule import Schedule
from txtopo.topology.graph import TopologyGraph

SEEDS = 8
SIZES = [5, 4]

_looks = itertools.count(1)


def by_time() -> int:
    return 1 + time.perf_counter_ns() // 1000 % 3


def by_chance() -> int:
    return random.randrange(1, 4)


def by_what_is_there() -> int:
    """The source grows while it is looked at."""
    return 1 + next(_looks) % 3


CUTS = {"time": by_time, "chance": by_chance, "now": by_what_is_there}


class LiveSource(Source):
    """A batch has as many rows of a partition as ``CUTS[cut]`` says at that moment."""

    def __init__(self, cut: str) -> None:
        super().__init__(SIZES, 1)
        self.cut = cut

    def next_range(
        self, partition: int, last: Any, attempt: TransactionAttempt | None = None
    ) -> Any:
        self.take = CUTS[self.cut]()
        return super().next_range(partition, last)


class Batches(Bolt, BaseTransactionalBolt, ICommitter):
    """Writes down for each transaction how many rows it had, and sums all of them up."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update(f"batch {self.attempt.txid}", lambda old: sum(self.sums.values()))
            total = transaction.update("total", lambda old: (old or 0) + sum(self.sums.values()))
        self.collector.emit([self.attempt, "total", total.curr])


class Twice(Batches):
    """Wrong: adds whenever it is called."""

    def finish_batch(self) -> None:
        self.sums["extra"] = self.attempt.attempt_id
        super().finish_batch()


def live_spout(kind: str, cut: str) -> Any:
    source = spout(kind, SIZES, 1)
    source.source = LiveSource(cut)
    return source


def topology(source: Any, kind: str, bolt: type[Batches] = Batches) -> TopologyGraph:
    """spout ×2 → batches ×1, a committer whose results depend on where batches end."""
    builder = TransactionalTopologyBuilder("live", "spout", source, 2)
    builder.set_bolt(
        "batches", bolt(SqliteStore("/nowhere/live.db", "batches", opaque="opaque" in kind))
    ).global_grouping("spout")
    return builder.build_topology()


@pytest.mark.in_gate("time-storm", "chance-opaque", "now-planned")
@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.rule(4, 18)
def test_batches_that_end_elsewhere_in_every_run_are_no_violation(kind: str, cut: str) -> None:
    with Simulation(topology(live_spout(kind, cut), kind), {"max_spout_pending": 2}) as simulation:
        report = simulation.run(SEEDS)
        seen: set[tuple[str, ...]] = set()
        for seed in range(SEEDS):
            seen.add(tuple(sorted(map(str, outcome_of(simulation, seed).emitted.items()))))
            if len(seen) > 1:
                break
    assert report.violation is None, str(report)
    assert len(seen) > 1, "batches did end elsewhere"


@pytest.mark.in_gate("planned")
@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.rule(28)
def test_a_mistake_downstream_of_a_live_source_is_found(kind: str) -> None:
    with Simulation(
        topology(live_spout(kind, "chance"), kind, Twice), {"max_spout_pending": 2}
    ) as simulation:
        violation = simulation.run(100).violation
    assert violation is not None
    assert violation.component == "batches"


class Ready(LiveSource):
    """After the first batch there is nothing yet, now and then."""

    def is_ready(self, last: Any) -> bool:
        return super().is_ready(last) and (not last or random.random() < 0.8)


@pytest.mark.in_gate("committer")
@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.rule(5)
def test_a_source_that_has_nothing_yet_is_not_taken_to_have_lost_it(kind: str) -> None:
    source = live_spout(kind, "chance")
    source.source = Ready("chance")
    with Simulation(topology(source, kind), {"max_spout_pending": 2}) as simulation:
        report = simulation.run(SEEDS)
    assert report.violation is None, str(report)


class Pausing(Source):
    """After a restart there is nothing for a moment: it is there at every fifth look."""

    def is_ready(self, last: Any) -> bool:
        return super().is_ready(last) and (
            current.world().driver_number == 1 or next(_looks) % 5 == 0
        )


@pytest.mark.in_gate("opaque")
@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.rule(5)
def test_a_source_that_pauses_when_a_driver_has_died_is_not_taken_to_have_lost_it(
    kind: str,
) -> None:
    source = spout(kind, SIZES, 1)
    source.source = Pausing(SIZES, 1, varies="opaque" in kind)
    died = Fault(
        "driver", "before processing job of attempt 2:0, level 0, slot 0, in driver 1", DIES
    )
    with Simulation(topology(source, kind), {"max_spout_pending": 2}) as simulation:
        assert [
            difference.place for _ in range(4) for difference in simulation.replay(Script((died,)))
        ] == []


@pytest.mark.parametrize("kind", SPOUTS)
def test_asking_a_source_again_is_no_opportunity_for_a_fault(kind: str) -> None:
    """Otherwise the same rates would let fewer faults strike, and a schedule played again would
    have them elsewhere."""
    source = spout(kind, SIZES, 1)
    with Simulation(topology(source, kind), {"max_spout_pending": 2}) as simulation:
        patient, usual = Decisions(), Decisions()
        Schedule(simulation.subject, patient, is_patient=True).play()
        Schedule(simulation.subject, usual).play()
    assert patient.opportunities == usual.opportunities


class Forgetful(LiveSource):
    """Wrong: a row that was given once is gone."""

    given = 0

    def next_range(
        self, partition: int, last: Any, attempt: TransactionAttempt | None = None
    ) -> Any:
        if partition:
            return None
        begin, type(self).given = type(self).given, min(type(self).given + 1, SIZES[0])
        return None if begin >= SIZES[0] else [begin, begin + 1]

    def is_ready(self, last: Any) -> bool:
        return type(self).given < SIZES[0]


@pytest.mark.rule(20)
def test_a_source_that_gives_every_row_only_once_loses_the_rows_of_a_failed_opening() -> None:
    source = live_spout("planned", "chance")
    source.source = Forgetful("chance")
    fault = Fault(
        "coordinator",
        "plan_partition_batch of the coordinator of 'spout', call 4 of driver 1",
        "after it was called",
    )
    with Simulation(topology(source, "planned")) as simulation:
        verdict = simulation.replay(Script((fault,)))
    assert verdict
    assert verdict[0].component == "spout"
    assert str(verdict[0]).startswith("all that 'spout' emitted is without ('")


class Careless(PartitionedSpout):
    """Wrong: emits all available rows, under any metadata."""

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionEmitter:
        return CarelessEmitter(self.source)


class CarelessEmitter(PartitionEmitter):
    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        emit_range(
            attempt, collector, partition, [metadata[0], metadata[1] + attempt.attempt_id % 2]
        )


@pytest.mark.rule(18)
def test_other_tuples_of_the_same_metadata_are_the_spouts_fault() -> None:
    with Simulation(topology(Careless(Source(SIZES, 1), planned=True), "planned")) as simulation:
        verdict = simulation.replay(
            Script(
                (
                    Fault(
                        "job",
                        "processing job of attempt 1:0, level 0, slot 0",
                        fault_kinds.JOB_FAULTS[0],
                    ),
                )
            )
        )
    assert verdict[0].component == "spout"
    assert str(verdict[0]).startswith("what 'spout' emitted in transaction 1, of metadata {")


class DirectSpout(PlainSpout):
    """Says of every tuple which task it is for."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "value"), direct=True)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PlainEmitter:
        return DirectEmitter(context)


class DirectEmitter(PlainEmitter):
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        for partition in range(self.context.task_index, len(metadata), self.context.num_tasks):
            for n in range(*metadata[partition]):
                collector.emit_direct(n % 2, [attempt, *row(partition, n)])


class ByTask(Batches):
    """Sums up by task."""

    has_own_keys = True

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update(
                f"task {self.context.task_index}", lambda old: (old or 0) + sum(self.sums.values())
            )


@pytest.mark.rule(4)
def test_a_live_batch_of_a_direct_stream_is_emitted_again_to_the_same_tasks() -> None:
    builder = TransactionalTopologyBuilder("direct", "spout", DirectSpout(LiveSource("chance")), 2)
    builder.set_bolt("tasks", ByTask(SqliteStore("/nowhere/live.db", "tasks")), 2).direct_grouping(
        "spout"
    )
    with Simulation(builder.build_topology(), {"max_spout_pending": 2}) as simulation:
        report = simulation.run(SEEDS)
    assert report.violation is None, str(report)
