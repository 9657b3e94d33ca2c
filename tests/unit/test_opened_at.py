"""``context.opened_at``: a transaction is opened once, under any crash and any number of replays."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests import local_engine
from tests.servers.clusters import Journal, fast
from tests.topologies.columns import NotingArrowCommitter
from tests.topologies.recording import (
    FIRST,
    InProcessTopology,
    NotingCommitter,
    RowsSpout,
    builder,
    journals,
    note,
    rows,
)
from tests.topologies.spouts import Keep
from tests.topologies.step_spouts import SPOUTS, Source
from tests.unit.test_engine_defers import Jobs
from txtopo import TopologyContext, TransactionalTopologyBuilder, TransactionAttempt
from txtopo.dataplane.job import Batch, Job, Run
from txtopo.dataplane.outcome import Failure, Tally
from txtopo.engine.batches import Batches, partitioned_metadata
from txtopo.engine.engine import Engine
from txtopo.engine.jobs import JobResult
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.spark.machine import Machine
from txtopo.state import records
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.stores import SqliteStore
from txtopo.testing.simulator.driver import BETWEEN_OPENINGS
from txtopo.topology.context import SOME_TIME

NOON = datetime.datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


class Life:
    """One driver over ``store``: its batches, and a clock that shows ``now`` and runs on by a
    second whenever it is looked at."""

    def __init__(
        self, store: MemoryStateStore, kind: str, journal: Path, now: datetime.datetime
    ) -> None:
        clock = itertools.count()
        spout: Any = SPOUTS[kind](Source(journal, 100, 1))
        graph = TransactionalTopologyBuilder("topology", "spout", spout, 2).build_topology()
        self.state = TopologyState.open(store, "topology", Holder("host", 1, "now"), displaces=True)
        self.batches = Batches(
            graph, {}, self.state, lambda txid: now + datetime.timedelta(seconds=next(clock))
        )

    def begin(self, txid: int, attempt_id: int) -> TransactionAttempt:
        """The engine's steps with an attempt before the seal."""
        attempt = TransactionAttempt(txid, attempt_id)
        if self.batches.is_opaque or self.batches.emits_metadata:
            self.batches.learnt(attempt, partitioned_metadata(2, {0: [0, 4], 1: [0, 4]}))
        return attempt

    def seal(self, attempt: TransactionAttempt) -> None:
        self.state.seal(
            attempt,
            {"spout": 2},
            self.batches.metadata(attempt.txid),
            self.batches.opened_at(attempt.txid),
        )

    def record(self, attempt: TransactionAttempt) -> None:
        self.state.record(attempt, self.batches.moves(attempt.txid))
        self.batches.discard(attempt)


@pytest.fixture
def store() -> MemoryStateStore:
    return MemoryStateStore()


@pytest.fixture
def live(store: MemoryStateStore, tmp_path: Path) -> Callable[[str, datetime.datetime], Life]:
    return lambda kind, now: Life(store, kind, tmp_path / "journal", now)


@pytest.mark.rule(36)
@pytest.mark.parametrize("kind", SPOUTS)
def test_all_attempts_of_a_transaction_have_one_opening_time(
    live: Callable[[str, datetime.datetime], Life], kind: str
) -> None:
    life = live(kind, NOON)
    assert life.batches.open(1)
    opened = life.batches.opened_at(1)
    assert NOON <= opened < NOON + HOUR
    for attempt_id in range(3):
        attempt = life.begin(1, attempt_id)
        assert life.batches.opened_at(1) == opened
        life.batches.discard(attempt)
    attempt = life.begin(1, 3)
    life.seal(attempt)
    assert life.batches.opened_at(1) == opened
    life.record(attempt)
    assert life.batches.open(2)
    life.begin(2, 0)
    assert life.batches.opened_at(2) > opened


@pytest.mark.rule(36)
@pytest.mark.parametrize("kind", SPOUTS)
def test_a_sealed_transaction_keeps_its_time_over_deaths_of_the_driver(
    live: Callable[[str, datetime.datetime], Life], kind: str
) -> None:
    life = live(kind, NOON)
    assert life.batches.open(1)
    opened = life.batches.opened_at(1)
    life.seal(life.begin(1, 0))
    for number in (1, 2, 3):
        life = live(kind, NOON + number * HOUR)
        assert life.batches.opened_at(1) == opened
        life.seal(life.begin(1, number * 1_000_000))
    assert life.batches.opened_at(1) == opened


@pytest.mark.rule(36)
@pytest.mark.parametrize("kind", ["plain", "committer", "planned", "storm"])
def test_a_transaction_with_durable_metadata_keeps_its_opening_time(
    live: Callable[[str, datetime.datetime], Life], kind: str
) -> None:
    """The record of the second one rides along with the seal of the first."""
    life = live(kind, NOON)
    attempts = []
    for txid in (1, 2):
        assert life.batches.open(txid)
        attempts.append(life.begin(txid, 0))
    opened = life.batches.opened_at(2)
    life.seal(attempts[0])
    life = live(kind, NOON + HOUR)
    assert life.batches.known_txids() == [1, 2]
    assert life.batches.opened_at(2) == opened


@pytest.mark.rule(36)
@pytest.mark.parametrize("kind", SPOUTS)
def test_a_transaction_of_which_nothing_is_durable_is_opened_anew(
    live: Callable[[str, datetime.datetime], Life], kind: str
) -> None:
    assert live(kind, NOON).batches.open(1)
    life = live(kind, NOON + HOUR)
    assert life.batches.known_txids() == []
    assert life.batches.open(1)
    assert life.batches.opened_at(1) >= NOON + HOUR


def test_the_times_of_transactions_that_are_over_are_forgotten(
    live: Callable[[str, datetime.datetime], Life],
) -> None:
    life = live("opaque-planned", NOON)
    for txid in range(1, 6):
        assert life.batches.open(txid)
        attempt = life.begin(txid, 0)
        life.seal(attempt)
        life.record(attempt)
    assert life.batches._opened_at == {}


def test_a_transaction_is_opened_while_others_are_forgotten(
    live: Callable[[str, datetime.datetime], Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spout's thread opens one while the loop forgets those that are over."""
    life = live("opaque-planned", NOON)
    assert life.batches.open(1)
    assert life.batches.open(2)
    opening = itertools.count(3)

    class Current(int):
        """Gives a second thread its turn at each comparison."""

        def __gt__(self, other: int) -> bool:
            life.batches._opened_at[next(opening)] = NOON
            return int(self) > other

    monkeypatch.setattr(
        TopologyState, "current", property(lambda state: Current(state._writer.current))
    )
    life.batches.discard(TransactionAttempt(1, 0))
    assert 3 in life.batches._opened_at, "it had its turn"


@pytest.mark.rule(36)
def test_a_record_has_the_opening_time_as_readable_text() -> None:
    record = records.TxidRecord(txid=8, opened_at=NOON.isoformat())
    assert (
        records.decode_json("/p", record.encode())["opened_at"]
        == "2026-03-01T12:00:00.250000+00:00"
    )
    berlin = records.TxidRecord.decode(
        "/p", b'{"version":2,"txid":8,"opened_at":"2026-03-01T13:00:00.25+01:00"}'
    ).opened
    assert (berlin, str(berlin)) == (NOON, "2026-03-01 12:00:00.250000+00:00")


class Surroundings(Machine):
    """A machine whose clock shows another hour at each look."""

    def __init__(self) -> None:
        super().__init__("topology")
        self.hours = itertools.count()

    def time_of_opening(self, txid: int) -> datetime.datetime:
        return NOON + next(self.hours) * HOUR


@pytest.mark.rule(36)
@pytest.mark.parametrize("kind", ["plain", "opaque-planned"])
@pytest.mark.parametrize("pending", [1, 3])
def test_all_jobs_and_the_seal_of_a_transaction_have_one_opening_time(
    tmp_path: Path, kind: str, pending: int
) -> None:
    def fail(job: Job) -> JobResult:
        return JobResult(
            Tally(),
            Failure(
                "failed", "keep", 0, job.attempt, "commit", "finish_batch", "FailedException", ""
            ),
        )

    jobs = Jobs({f"2:{n}:{part}": fail for n, part in enumerate(["processing", "commit"])})
    store = MemoryStateStore()
    state = TopologyState.open(store, "topology", Holder("host", 1, "now"))
    spout: Any = SPOUTS[kind](Source(tmp_path / "journal", 100, 1))
    topology = TransactionalTopologyBuilder("topology", "spout", spout, 1)
    topology.set_bolt("count", NotingCommitter()).shuffle_grouping("spout")
    graph = topology.build_topology()
    board = StatusBoard(RunStatus("topology", "run"))
    conf = fast(max_transactions=5, max_spout_pending=pending, small_transaction_s=0)
    run = Run("run", graph, 2, conf.as_mapping(), state.generation)
    Engine(run, conf, jobs, state, [board], random.Random(1), lambda: None, Surroundings()).run()
    times = {
        txid: {job.opened_at for job in jobs.began if job.attempt.txid == txid}
        for txid in range(1, 6)
    }
    assert [len(seen) for seen in times.values()] == [1] * 5
    assert len({time for seen in times.values() for time in seen}) == 5
    assert {job.attempt.attempt_id for job in jobs.began if job.attempt.txid == 2} >= {0, 1, 2}
    node = store.get("/topology/txids/0000000005")
    assert node is not None
    assert {records.TxidRecord.decode("", node.data).opened} == times[5]
    state.close()


class Dying(local_engine.Dying):
    """The clock shows ``hour``."""

    def __init__(self, point: str | None, hour: int) -> None:
        super().__init__(point, 2)
        self.hour = hour

    def time_of_opening(self, txid: int) -> datetime.datetime:
        return NOON + self.hour * HOUR + txid * datetime.timedelta(seconds=1)


class Stamped(Keep):
    """Writes down when the transaction was opened, as far as the commit phase knows; keeps it by
    the txid."""

    def finish_batch(self) -> None:
        self.journal.write(
            f"{self.attempt.txid} {self.attempt.attempt_id} {self.context.opened_at.isoformat()}"
        )
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.put(self.attempt.txid, self.context.opened_at.isoformat())


@pytest.mark.in_gate("*-opaque-planned-3")
@pytest.mark.rule(36)
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.parametrize("point", local_engine.POINTS)
def test_wherever_the_driver_dies_every_commit_of_a_transaction_sees_one_time(
    tmp_path: Path, point: str, kind: str, pending: int
) -> None:
    """Between the two drivers an hour passes. A sealed transaction keeps the time of the first
    driver.
    """
    journal, store = (
        Journal(tmp_path / "journal"),
        SqliteStore(tmp_path / "kept.db", "kept", opaque=True),
    )
    state = MemoryStateStore()

    def run(surroundings: Dying, life: int) -> None:
        spout: Any = SPOUTS[kind](Source(tmp_path / "spouts", 40, life))
        topology = TransactionalTopologyBuilder("topology", "numbers", spout, 2)
        topology.set_bolt("keep", Stamped(store, journal)).global_grouping("numbers")
        local_engine.run_to_idle(
            topology.build_topology(), state, surroundings, max_spout_pending=pending
        )

    with pytest.raises(local_engine.Died, match=point):
        run(Dying(point, 0), 1)
    run(Dying(None, 1), 2)
    told: dict[int, set[str]] = {}
    for line in journal.lines():
        txid, _, opened_at = line.split()
        told.setdefault(int(txid), set()).add(opened_at)
    assert {txid: len(times) for txid, times in told.items()} == dict.fromkeys(told, 1)
    assert {txid: {opened_at} for txid, opened_at in store.items()} == told
    if point != "seal.before":
        assert told[2] == {(NOON + datetime.timedelta(seconds=2)).isoformat()}
    assert max(told[max(told)]) >= (NOON + HOUR).isoformat()


@pytest.mark.rule(36)
@pytest.mark.parametrize("whole", [False, True])
def test_emitters_and_bolts_of_both_kinds_see_the_opening_time_in_both_phases(
    whole: bool,
) -> None:
    class Spout(RowsSpout):
        def get_emitter(self, conf: Any, context: TopologyContext) -> Any:
            note(context, "opened", context.opened_at)
            return super().get_emitter(conf, context)

    def tell(bolt: Any, *arguments: Any) -> None:
        note(bolt.context, "opened", bolt.context.opened_at)

    class Columns(NotingArrowCommitter):
        def execute_batch(self, batch: pa.RecordBatch) -> None:
            tell(self)

        def finish_batch(self) -> None:
            tell(self)

    topology = builder(Spout())
    topology.set_bolt("rows", NotingCommitter(tell, tell, tell)).shuffle_grouping("spout")
    topology.set_bolt("columns", Columns()).shuffle_grouping("spout")
    graph = topology.build_topology()
    with InProcessTopology(graph) as running:
        batch = Batch("planned", partitions={0: rows("a")}, num_partitions=1)
        journals[graph.id].clear()
        if whole:
            running.jobs.run(running.job("whole", FIRST, batch, cores=1, opened_at=NOON))
        else:
            result = running.jobs.run(running.job("processing", FIRST, batch, opened_at=NOON))
            running.jobs.run(running.job("commit", FIRST, opened_at=NOON), result.frames)
        events = list(journals[graph.id])
    told = {
        (event.component, event.phase): event.details[0]
        for event in events
        if event.hook == "opened"
    }
    assert told == dict.fromkeys(
        [
            ("spout", "processing"),
            ("rows", "processing"),
            ("rows", "commit"),
            ("columns", "processing"),
            ("columns", "commit"),
        ],
        NOON,
    )


def test_a_context_made_by_a_test_has_a_fixed_opening_time() -> None:
    context = TopologyContext(
        "t", "g", "count", 0, {"count": 1}, "commit", lambda name, factory: factory()
    )
    assert context.opened_at == SOME_TIME == datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize("txid", [1, 7])
def test_the_simulator_has_one_time_for_each_transaction_after_any_history(txid: int) -> None:
    """Results of a schedule are compared with those of another schedule, with other delays."""
    from txtopo.testing.simulator.driver import SimulatedLoop

    assert SimulatedLoop.time_of_opening(txid) == SOME_TIME + txid * BETWEEN_OPENINGS


@pytest.mark.parametrize(
    ("point", "replays"), [("seal.before", 0), ("seal.after", 1), ("record.after", 0)]
)
def test_a_transaction_that_an_earlier_run_sealed_is_counted_as_a_replay(
    tmp_path: Path, point: str, replays: int
) -> None:
    state, board = MemoryStateStore(), StatusBoard(RunStatus("topology", "run"))
    topology = TransactionalTopologyBuilder(
        "topology", "numbers", SPOUTS["plain"](Source(tmp_path / "spouts", 40, 1))
    )
    topology.set_bolt("keep", NotingCommitter()).global_grouping("numbers")
    graph = topology.build_topology()
    with pytest.raises(local_engine.Died, match=point):
        local_engine.run_to_idle(graph, state, Dying(point, 0), max_spout_pending=1)
    local_engine.run_to_idle(graph, state, observers=[board], max_spout_pending=1)
    assert board.snapshot().replays == replays
