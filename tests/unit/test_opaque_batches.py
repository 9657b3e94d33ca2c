"""Transactions of an opaque spout: chosen anew for every attempt, from the end of the preceding
transaction's current attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.topologies.planned_spouts import Row
from txtopo import Fields, TransactionalTopologyBuilder, TransactionAttempt
from txtopo.engine.batches import Batches
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.testing import OpaqueMemoryTransactionalSpout
from txtopo.topology.context import SOME_TIME

A = TransactionAttempt


class Opened:
    """A run of an opaque spout over ``rows``, ``take`` of them at a time, without Spark."""

    def __init__(self, rows: dict[int, list[Row]], take: int) -> None:
        self.spout = OpaqueMemoryTransactionalSpout(rows, Fields("n"), take)
        self.store = MemoryStateStore()
        self.restart()

    def restart(self) -> None:
        """A second run of the topology."""
        self.state = TopologyState.open(
            self.store, "topology", Holder("host", 1, "now"), displaces=True
        )
        graph = TransactionalTopologyBuilder("topology", "spout", self.spout, 2).build_topology()
        self.batches = Batches(graph, {}, self.state, lambda txid: SOME_TIME)

    def plan(self, txid: int, attempt: int = 0) -> dict[int, Any]:
        """Plan an attempt and put the plan to use; returns ``{partition: (first row, rows)}``."""
        metadata = self.batches.plan(txid)
        self.batches.learnt(A(txid, attempt), metadata)
        return {
            p: (m["index"], m["amount"])
            for p, m in self.batches.batch(txid, metadata).partitions.items()
        }

    def record(self, txid: int, attempt: int = 0) -> None:
        """Commit, and forget."""
        self.state.seal(A(txid, attempt), {"spout": 2}, self.batches.metadata(txid))
        self.state.record(A(txid, attempt), self.batches.moves(txid))
        self.batches.discard(A(txid, attempt))


@pytest.fixture
def opened() -> Iterator[Callable[..., Opened]]:
    spouts: list[Opened] = []

    def make(rows: int = 100, take: int = 10, partitions: int = 1) -> Opened:
        spouts.append(Opened({p: [(n,) for n in range(rows)] for p in range(partitions)}, take))
        return spouts[-1]

    yield make
    for each in spouts:
        each.spout.close()
        each.state.close()


@pytest.mark.rule(20)
def test_after_a_failure_the_next_batch_begins_where_the_attempt_in_use_ended(
    opened: Callable[..., Opened],
) -> None:
    run = opened(rows=200, take=50)
    assert run.plan(1) == {0: (0, 50)}
    assert run.plan(2) == {0: (50, 50)}
    for attempt in (A(2, 0), A(1, 0)):
        run.batches.discard(attempt)
    shorter = {"num_partitions": 1, "partitions": {"0": {"index": 0, "amount": 40}}}
    run.batches.learnt(A(1, 1), shorter)
    assert run.plan(2, 1) == {0: (40, 50)}
    run.record(1, 1)
    run.record(2, 1)
    assert run.state.positions() == {0: {"index": 40, "amount": 50}}


@pytest.mark.rule(4)
def test_nothing_of_an_opaque_batch_is_sealed_and_the_position_is_recorded(
    opened: Callable[..., Opened],
) -> None:
    run = opened()
    run.plan(1)
    assert run.batches.metadata(1) is None
    run.record(1)
    assert run.state.positions() == {0: {"index": 0, "amount": 10}}


@pytest.mark.rule(4, 23)
def test_after_a_restart_a_sealed_transaction_is_known_and_planned_anew_from_the_committed_positions(
    opened: Callable[..., Opened],
) -> None:
    run = opened(partitions=2)
    run.plan(1)
    run.record(1)
    run.plan(2)
    run.state.seal(A(2, 0), {"spout": 2}, None)
    run.state.close()
    run.restart()
    run.spout.set_disabled(1, True)
    assert run.batches.known_txids() == [2]
    assert run.plan(2, 1_000_000) == {0: (10, 10)}
    run.record(2, 1_000_000)
    run.spout.set_disabled(1, False)
    assert run.plan(3) == {0: (20, 10), 1: (10, 10)}, (
        "a partition that was away goes on where it stopped"
    )


@pytest.mark.rule(5)
def test_readiness_is_judged_from_the_positions_moved_by_open_transactions(
    opened: Callable[..., Opened],
) -> None:
    run = opened(rows=15)
    for txid in (1, 2):
        assert run.batches.open(txid)
        run.plan(txid)
    assert not run.batches.open(3)
    run.batches.discard(A(2, 0))
    run.record(1)
    assert run.batches.open(2)


@pytest.mark.rule(20)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_batch_that_is_recorded_while_the_next_is_planned_is_not_planned_again(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The planning thread reads, the commit thread records, the engine forgets, and the planning
    thread reads on."""
    run = opened()
    run.plan(1)
    original = TopologyState.committed_positions

    def interrupted(state: TopologyState) -> Any:
        monkeypatch.undo()
        if moment == "after":
            planned = original(state)
            run.record(1)
            return planned
        run.record(1)
        return original(state)

    monkeypatch.setattr(TopologyState, "committed_positions", interrupted)
    assert run.plan(2) == {0: (10, 10)}
    assert run.state.current == 2, "the planning was not interrupted"


@pytest.mark.rule(6)
def test_the_plan_of_a_cancelled_attempt_stays_its_own_after_a_new_attempt_began(
    opened: Callable[..., Opened],
) -> None:
    run = opened()
    metadata = run.batches.plan(1)
    run.batches.learnt(A(1, 0), metadata)
    run.batches.discard(A(1, 0))
    assert run.batches.batch(1, metadata).partitions == {0: {"index": 0, "amount": 10}}
    run.batches.discard(A(1, 7))
    run.spout.set_disabled(0, True)
    assert run.plan(1, 1) == {}
    assert run.batches.batch(1, metadata).partitions == {0: {"index": 0, "amount": 10}}
