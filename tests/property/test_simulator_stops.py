"""The stop of a run is independent of all speeds: the engine on virtual time, in
hundreds of orders, with a transaction that cannot be."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.topologies.simulated import NOWHERE, Declares, PlainCoordinator, PlainEmitter, Source
from txtopo import (
    BaseTransactionalBolt,
    BaseTransactionalSpout,
    BatchOutputCollector,
    CoordinatorContext,
    FailedException,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing.simulator.decisions import Chance, Decisions
from txtopo.testing.simulator.outcome import Outcome
from txtopo.testing.simulator.schedule import Schedule
from txtopo.testing.simulator.subject import Subject
from txtopo.topology.graph import TopologyGraph

BAD = 3
"""The transaction because of which a run stops."""
SCHEDULES = 120


class Spout(Declares, BaseTransactionalSpout):
    """A row for each transaction; transaction ``bad`` cannot be opened."""

    def __init__(self, bad: int | None = None) -> None:
        self.source, self.bad = Source([6], 1), bad

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> PlainCoordinator:
        return Coordinator(self.source, context, self.bad)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PlainEmitter:
        return PlainEmitter(context)


class Coordinator(PlainCoordinator):
    def __init__(self, source: Source, context: CoordinatorContext, bad: int | None) -> None:
        super().__init__(source, context)
        self.bad = bad

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        if txid == self.bad:
            raise ValueError("no such transaction")
        return super().initialize_transaction(txid, prev_metadata)


class Breaks(Declares, BaseTransactionalBolt):
    """Passes tuples on; in transaction ``BAD`` it raises ``error``."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt

    def execute(self, tup: Tuple) -> None:
        if self.error is not None and self.attempt.txid == BAD:
            raise self.error
        self.collector.emit([*tup])


class Count(BaseTransactionalBolt, ICommitter):
    def __init__(self) -> None:
        self.store = SqliteStore(NOWHERE, "rows")

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt, self.count = context, attempt, 0

    def execute(self, tup: Tuple) -> None:
        self.count += 1

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as t:
            t.update("rows", lambda rows: (rows or 0) + self.count)


def topology(error: Exception | None = None, unopenable: int | None = None) -> TopologyGraph:
    builder = TransactionalTopologyBuilder("stops", "spout", Spout(unopenable))
    builder.set_bolt("breaks", Breaks(error), 2).shuffle_grouping("spout")
    builder.set_bolt("count", Count()).global_grouping("breaks")
    return builder.build_topology()


def outcomes(graph: TopologyGraph, **conf: Any) -> list[Outcome]:
    """Results of every schedule: no failure comes by chance, but any event may overtake any
    other.
    """
    subject = Subject(graph, {"max_spout_pending": 4})
    subject.conf = subject.conf.replaced(**conf)
    try:
        chances = [
            Chance(random.Random(seed), {}, 0.1 * (seed % 10), seed if seed % 2 else None)
            for seed in range(SCHEDULES)
        ]
        return [Schedule(subject, Decisions(chance=chance)).play() for chance in chances]
    finally:
        subject.close()


@pytest.mark.rule(3, 7)
@pytest.mark.parametrize(
    ("graph", "error"),
    [
        (
            topology(FailedException("poison")),
            f"PoisonBatchError: transaction {BAD} failed 1 time,",
        ),
        (topology(ValueError("no such value")), "UserCodeError: ValueError: no such value"),
        (topology(unopenable=BAD), "UserCodeError: ValueError: no such transaction"),
    ],
    ids=["poison", "error", "unopenable"],
)
def test_a_run_stops_at_the_same_transaction_in_every_order(
    graph: TopologyGraph, error: str
) -> None:
    for outcome in outcomes(graph, max_attempts=1):
        assert (outcome.error or "").startswith(error)
        assert outcome.committed == BAD - 1
        assert [list(store.values()) for store in outcome.stores.values()] == [[BAD - 1]]
