"""Contents of each transaction, as the driver decides them: positions, plans and metadata over an
in-memory state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.clusters import Journal
from tests.topologies.spouts import Partitioned, Ranges
from txtopo import (
    BaseOpaquePartitionedTransactionalSpout,
    FailedException,
    MetadataError,
    OpaquePartitionedSpoutCoordinator,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from txtopo.engine.batches import Batches, partitioned_metadata
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.topology.context import SOME_TIME

HOLDER = Holder("host", 1, "now")


@pytest.fixture
def state() -> Iterator[TopologyState]:
    opened = TopologyState.open(MemoryStateStore(), "topology", HOLDER)
    yield opened
    opened.close()


def batches_of(spout: Any, state: TopologyState) -> Batches:
    return Batches(
        TransactionalTopologyBuilder("topology", "spout", spout, 2).build_topology(),
        {},
        state,
        lambda txid: SOME_TIME,
    )


def commit(state: TopologyState, batches: Batches, txid: int) -> None:
    attempt = TransactionAttempt(txid, 0)
    state.seal(attempt, {"spout": 2}, batches.metadata(txid))
    state.record(attempt, batches.moves(txid))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.mark.rule(21, 25)
def test_partitions_without_progress_are_neither_stored_nor_moved(
    state: TopologyState, journal: Journal
) -> None:
    assert partitioned_metadata(3, {0: [0, 2], 1: None, 2: None}) == {
        "num_partitions": 3,
        "partitions": {"0": [0, 2]},
    }
    spout = Uneven(journal)
    batches = batches_of(spout, state)
    for txid in (1, 2, 3):
        assert batches.open(txid)
        commit(state, batches, txid)
    assert state.positions() == {0: [4, 6], 1: [0, 2]}, (
        "a partition that stood still lost its position"
    )
    assert batches.moves(3) == {0: [4, 6]}


class Uneven(Partitioned):
    """Partition 1 has two numbers, partition 0 has six."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, partitions=2, size=6, take=2, planned=True)

    def get_coordinator(self, conf: Any, context: Any) -> Any:
        coordinator: Any = super().get_coordinator(conf, context)
        plan = coordinator.plan_partition_batch
        coordinator.plan_partition_batch = lambda txid, p, last: (
            None if p == 1 and last is not None else plan(txid, p, last)
        )
        return coordinator


@pytest.mark.rule(4, 20)
def test_open_transactions_continue_each_other_before_any_is_committed(
    state: TopologyState, journal: Journal
) -> None:
    batches = batches_of(Partitioned(journal, 2, 7, 3, planned=True), state)
    assert [batches.open(txid) for txid in (1, 2, 3, 4)] == [True, True, True, False]
    assert [batches.batch(txid).partitions for txid in (1, 2, 3)] == [
        {0: [0, 3], 1: [0, 3]},
        {0: [3, 6], 1: [3, 6]},
        {0: [6, 7], 1: [6, 7]},
    ]


@pytest.mark.rule(4)
def test_a_plain_spout_gets_the_metadata_of_the_transaction_before(
    state: TopologyState, journal: Journal
) -> None:
    batches = batches_of(Ranges(journal, end=10, take=4), state)
    assert [batches.open(txid) for txid in (1, 2, 3, 4)] == [True, True, True, False]
    assert batches.batch(3).metadata == {"begin": 8, "end": 10}
    assert [line for line in journal.lines() if line.startswith("init")] == [
        "initialize 1",
        "initialize 2",
        "initialize 3",
    ]


@pytest.mark.rule(5)
def test_a_failed_exception_while_opening_stores_nothing_and_passes_through(
    state: TopologyState, journal: Journal
) -> None:
    class Failing(Ranges):
        fails = 1

        def get_coordinator(self, conf: Any, context: Any) -> Any:
            coordinator: Any = super().get_coordinator(conf, context)
            initialize = coordinator.initialize_transaction

            def fail_once(txid: int, previous: Any) -> Any:
                if self.fails:
                    self.fails -= 1
                    raise FailedException("not yet")
                return initialize(txid, previous)

            coordinator.initialize_transaction = fail_once
            return coordinator

    batches = batches_of(Failing(journal, end=10, take=4), state)
    with pytest.raises(FailedException, match="not yet"):
        batches.open(1)
    assert batches.known_txids() == []
    assert batches.open(1)
    assert batches.known_txids() == [1]


@pytest.mark.rule(4)
def test_the_first_metadata_stays_over_any_number_of_answers(
    state: TopologyState, journal: Journal
) -> None:
    batches = batches_of(Partitioned(journal, 1, 8, 2, planned=False), state)
    assert batches.emits_metadata
    assert batches.open(1)
    batches.learnt(TransactionAttempt(1, 0), partitioned_metadata(1, {0: [0, 2]}))
    batches.learnt(TransactionAttempt(1, 1), partitioned_metadata(1, {0: [0, 1]}))
    assert batches.batch(1).partitions == {0: [0, 2]}
    assert batches.new_batch(2).partitions == {0: [0, 2]}


@pytest.mark.rule(4)
def test_a_plan_for_a_partition_that_is_not_there_is_refused(
    state: TopologyState, journal: Journal
) -> None:
    class Beyond(Partitioned):
        def get_coordinator(self, conf: Any, context: Any) -> Any:
            coordinator: Any = super().get_coordinator(conf, context)
            coordinator.plan_batch = lambda txid, last: {2: [0, 1]}
            return coordinator

    batches = batches_of(Beyond(journal, 2, 8, 2, planned=True), state)
    with pytest.raises(MetadataError, match=r"plan_batch: it returned \{2: \[0, 1\]\}"):
        batches.open(1)


class Opaque(BaseOpaquePartitionedTransactionalSpout):
    """One partition; a batch ends where ``ends`` says, one entry per plan."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)

    def get_coordinator(self, conf: Any, context: Any) -> Any:
        return _OpaqueCoordinator(self.ends)

    def get_emitter(self, conf: Any, context: Any) -> Any:
        raise NotImplementedError

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare(["tx", "n"])


class _OpaqueCoordinator(OpaquePartitionedSpoutCoordinator):
    def __init__(self, ends: list[int]) -> None:
        self.ends = ends

    def num_partitions(self) -> int:
        return 1

    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        return [1 if last_metadata is None else last_metadata[1] + 1, self.ends.pop(0)]


@pytest.mark.rule(4, 20)
def test_an_opaque_batch_begins_where_the_attempt_in_use_ended(state: TopologyState) -> None:
    """A takes 1 to 50 and fails; its replay takes 1 to 40: B is 41 to 90, and nothing is skipped."""
    batches = batches_of(Opaque(50, 100, 40, 90), state)
    for txid in (1, 2):
        assert batches.open(txid)
        batches.learnt(TransactionAttempt(txid, 0), batches.plan(txid))
    assert [batches.batch(txid).partitions for txid in (1, 2)] == [{0: [1, 50]}, {0: [51, 100]}]
    for txid in (2, 1):
        batches.discard(TransactionAttempt(txid, 0))
    for txid in (1, 2):
        batches.learnt(TransactionAttempt(txid, 1), batches.plan(txid))
        batches.discard(TransactionAttempt(txid, 0))
    assert [batches.batch(txid).partitions for txid in (1, 2)] == [{0: [1, 40]}, {0: [41, 90]}]


@pytest.mark.rule(4, 23)
def test_opaque_metadata_is_durable_with_the_record_and_not_before(state: TopologyState) -> None:
    batches = batches_of(Opaque(50, 60), state)
    batches.learnt(TransactionAttempt(1, 0), batches.plan(1))
    batches.learnt(TransactionAttempt(1, 1), batches.plan(1))
    assert batches.batch(1).partitions == {0: [1, 60]}, "the newest attempt is the one in use"
    assert batches.metadata(1) is None
    assert state.positions() == {}
    commit(state, batches, 1)
    assert state.positions() == {0: [1, 60]}


@pytest.mark.parametrize("kind", ["whole", "partitioned"])
def test_fraction_done_is_asked_with_the_committed_positions(
    kind: str, state: TopologyState, journal: Journal
) -> None:
    asked: list[Any] = []
    spout: Any = (
        Ranges(journal, end=10, take=4)
        if kind == "whole"
        else Partitioned(journal, 2, 7, 3, planned=True)
    )
    batches = batches_of(spout, state)
    assert batches.open(1)
    shown = [batches.progress.fraction_done]
    answers = iter([0.25, None, 7])

    def fraction_done(last_metadata: Any) -> float | None:
        asked.append(last_metadata)
        return next(answers)

    batches._hooks._coordinator.fraction_done = fraction_done
    assert batches.open(2)
    shown.append(batches.progress.fraction_done)
    commit(state, batches, 1)
    assert batches.open(3)
    shown.append(batches.progress.fraction_done)
    assert not batches.open(4)
    shown.append(batches.progress.fraction_done)
    assert shown == [None, 0.25, None, 1.0], (
        "at first the spout does not say; what it says is kept between 0 and 1"
    )
    cases: Any = (None, {"begin": 0, "end": 4}), ({}, {0: [0, 3], 1: [0, 3]})
    nothing, first = cases[kind == "partitioned"]
    assert asked == [nothing, first, first]


def test_a_fraction_that_is_no_number_is_not_shown_and_any_other_answer_is_refused(
    state: TopologyState, journal: Journal
) -> None:
    """0 / 0 is no number where NumPy divides: the progress line could not show it, and ended the
    run."""
    batches = batches_of(Ranges(journal, end=10, take=4), state)
    answers: Any = iter([float("nan"), "half"])
    batches._hooks._coordinator.fraction_done = lambda last_metadata: next(answers)
    assert batches.open(1)
    assert batches.progress.fraction_done is None
    with pytest.raises(
        MetadataError,
        match="fraction_done: it returned 'half', but must return a number from 0 to 1, or None",
    ):
        batches.open(2)


def test_lag_and_loss_are_asked_with_the_committed_positions_and_must_be_numbers(
    state: TopologyState, journal: Journal
) -> None:
    batches = batches_of(Partitioned(journal, 2, 7, 3, planned=True), state)
    assert batches.open(1)
    assert (batches.progress.lag, batches.progress.lost) == ({}, {})
    batches._hooks._coordinator.lag = lambda committed: {
        f"p{number}": 7 - end for number, (_, end) in committed.items()
    }
    batches._hooks._coordinator.lost = lambda committed: {"p0": None}
    commit(state, batches, 1)
    assert batches.open(2)
    assert (batches.progress.lag, batches.progress.lost) == ({"p0": 4, "p1": 4}, {"p0": None})
    batches._hooks._coordinator.lag = lambda committed: ["p0"]
    with pytest.raises(
        MetadataError,
        match="lag: it returned \\['p0'\\], but must return a dict from partition name to number",
    ):
        batches.open(3)


@pytest.mark.parametrize(
    "value",
    [10**5000, "\ud83d\ude00", {1: 2}, {"a": float("inf")}],
    ids=["huge", "surrogates", "int key", "inf"],
)
@pytest.mark.parametrize("hook", ["initialize_transaction", "planning partition 1"])
@pytest.mark.rule(4)
def test_metadata_that_could_not_be_written_is_refused_with_component_and_hook(
    state: TopologyState, journal: Journal, hook: str, value: Any
) -> None:
    ranges = Ranges(journal, 9, 3)
    spout = ranges if hook == "initialize_transaction" else Uneven(journal)
    batches = batches_of(spout, state)
    coordinator: Any = batches._hooks._coordinator
    coordinator.initialize_transaction = lambda txid, last: value
    coordinator.plan_partition_batch = lambda txid, partition, last: (
        value if partition == 1 else None
    )
    with pytest.raises(
        MetadataError, match=r"its metadata would not come back as it was: at \$"
    ) as refused:
        batches.open(1)
    assert (refused.value.component, refused.value.hook) == ("spout", hook)
    assert state.txids.txids() == []


def test_the_last_positions_are_told_before_the_spout_is_closed(
    state: TopologyState, journal: Journal
) -> None:
    """No opening follows the last commit of a run."""
    batches = batches_of(Partitioned(journal, 1, 7, 3, planned=True), state)
    told: list[Any] = []

    def lag(committed: Any) -> dict[str, int]:
        told.append(dict(committed))
        return {}

    batches._hooks._coordinator.lag = lag
    batches._hooks._coordinator.close = lambda: told.append("closed")
    assert batches.open(1)
    commit(state, batches, 1)
    batches.close()
    assert told == [{}, {0: [0, 3]}, "closed"]
