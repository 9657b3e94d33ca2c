"""Every fault a schedule can have strikes where its script says, and leaves nothing behind."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.topologies.simulated import Bolt, Committer, Pass, Store, generated, outcome_of, spout
from txtopo import Fields, OutputFieldsDeclarer, TransactionalTopologyBuilder, Tuple
from txtopo.errors import UsageError
from txtopo.faults import FaultPoint
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout, Simulation, simulate
from txtopo.testing.simulator import fault_kinds
from txtopo.testing.simulator.decisions import Fault, Script
from txtopo.testing.simulator.fault_kinds import THE_END, FaultKind, JobFault, RunsOn

NOWHERE = "/nowhere/simulated.db"
STRUCK_ELSEWHERE: dict[str, tuple[FaultKind, str, str]] = {
    "seal.inside": ("state", "write 2 of driver 1 to ZooKeeper", fault_kinds.STATE_FAULTS[3]),
    "apply.inside": (
        "driver",
        "before commit job of attempt 2:0, level 0, slot 1, in driver 1",
        fault_kinds.DIES,
    ),
    "record.inside": ("state", "write 3 of driver 1 to ZooKeeper", fault_kinds.STATE_FAULTS[3]),
}
"""Inside these steps the simulated driver is struck at ZooKeeper, or at an executor; further points
come without a strike."""
POINTS = [point for point in get_args(FaultPoint) if point not in STRUCK_ELSEWHERE]


def topology(kind: str = "planned", opaque: bool = False) -> Any:
    """spout ×2 → pass ×2 → count ×2 (committer) → after ×1, downstream of it; three transactions."""
    builder = TransactionalTopologyBuilder(f"scheduled-{kind}", "spout", spout(kind, [3, 3], 1), 2)
    builder.set_bolt("pass", Pass(), 2).shuffle_grouping("spout")
    builder.set_bolt(
        "count", Committer(SqliteStore(NOWHERE, "counts", opaque=opaque)), 2
    ).fields_grouping("pass", Fields("key"))
    builder.set_bolt("after", Store(SqliteStore(NOWHERE, "after", opaque=opaque))).global_grouping(
        "count"
    )
    return builder.build_topology()


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    with Simulation(topology(), {"max_spout_pending": 2}) as simulated:
        yield simulated


def struck(
    simulation: Simulation, kind: FaultKind, where: str, how: Any, *more: Fault
) -> list[str]:
    """The consequences of this fault alone; nothing differs in the end."""
    trace: list[str] = []
    verdict = simulation.replay(Script((Fault(kind, where, how), *more)), trace.append)
    assert verdict == [], "\n".join([*map(str, verdict), *trace])
    return [line.partition(" s  ")[2] for line in trace]


def starts(trace: list[str], *beginnings: str) -> list[str]:
    return [line for line in trace if line.startswith(beginnings)]


def test_without_faults_nothing_special_happens(simulation: Simulation) -> None:
    trace: list[str] = []
    assert simulation.replay(Script(), trace.append) == []
    assert [
        line.partition(" s  ")[2] for line in trace if "driver" in line and "submits" not in line
    ] == [
        "driver 1 starts",
        *(f"transaction {txid} is committed by driver 1" for txid in (1, 2, 3)),
        "driver 1 ends",
    ]
    assert simulation.expected.committed == 3
    assert {address.partition("#")[2] for address in simulation.expected.stores} == {
        "counts",
        "after",
    }


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("txid", [1, 2, 3])
@pytest.mark.rule(1, 23, 25, 28)
def test_the_driver_may_die_at_every_named_fault_point(
    simulation: Simulation, point: str, txid: int
) -> None:
    trace = struck(simulation, "driver", f"{point} of txid {txid} in driver 1", fault_kinds.DIES)
    assert starts(trace, "driver 1 dies", "driver 2 starts") == ["driver 1 dies", "driver 2 starts"]


@pytest.mark.parametrize("point", STRUCK_ELSEWHERE)
@pytest.mark.rule(23, 25, 28)
def test_the_driver_may_die_inside_a_step(simulation: Simulation, point: str) -> None:
    trace = struck(simulation, *STRUCK_ELSEWHERE[point])
    assert starts(trace, "driver 1 dies", "driver 2 starts") == ["driver 1 dies", "driver 2 starts"]
    assert ("transaction 1 is committed by driver 1" in trace) == (point != "seal.inside")


def test_a_driver_that_sleeps_past_the_last_transaction_wakes_up_although_its_successor_has_nothing_to_do() -> (
    None
):
    how = max(fault_kinds.SUSPENSIONS, key=fault_kinds.SUSPENSIONS.__getitem__)
    with Simulation(topology(), transactions=2) as simulation:
        trace = struck(simulation, "driver", "record.after of txid 2 in driver 1", how)
    assert (
        starts(trace, "driver 1 is suspended", "driver 2 starts", "driver 1 wakes up")[-1]
        == "driver 1 wakes up"
    )


@pytest.mark.parametrize("point", [point for point in POINTS if not point.startswith("forget")])
@pytest.mark.parametrize("how", fault_kinds.SUSPENSIONS)
@pytest.mark.rule(26, 29)
def test_the_driver_may_be_suspended_there_and_wake_up_when_another_has_taken_over(
    simulation: Simulation, point: str, how: str
) -> None:
    trace = struck(simulation, "driver", f"{point} of txid 2 in driver 1", how)
    assert starts(trace, "driver 1 is suspended", "driver 2 starts", "driver 1 wakes up") == [
        "driver 1 is suspended",
        "driver 2 starts",
        "driver 1 wakes up",
    ]
    assert "transaction 3 is committed by driver 2" in trace


@pytest.mark.parametrize("how", fault_kinds.JOB_FAULTS, ids=str)
@pytest.mark.parametrize("part", ["processing", "commit"])
@pytest.mark.rule(6, 7, 8, 29, 33)
def test_a_job_may_be_lost_or_slow_and_its_tasks_may_run_on(
    simulation: Simulation, part: str, how: JobFault
) -> None:
    trace = struck(simulation, "job", f"{part} job of attempt 2:0, level 0, slot 0", how)
    ran_on = [
        line
        for line in trace
        if line.startswith(f"a task of the given up {part} job of attempt 2:0 runs on")
    ]
    assert bool(ran_on) == (how.tasks.after is not None)
    assert any(
        line.startswith(f"the {part} job of attempt 2:0 is {'done' if how.answers else 'lost'}")
        for line in trace
    )
    assert f"driver 1 submits the {part} job of attempt 2:1" in trace
    if how.tasks == RunsOn(THE_END):
        assert trace.index(ran_on[0]) > trace.index("transaction 3 is committed by driver 1")


@pytest.mark.parametrize("how", fault_kinds.RECOMPUTED)
@pytest.mark.rule(28, 33)
def test_a_slot_may_be_computed_twice_and_never_are_two_results_mixed(
    simulation: Simulation, how: str
) -> None:
    for part in ("processing", "commit"):
        trace = struck(simulation, "recomputed", f"{part} job of attempt 2:0, level 0, slot 0", how)
        lost = [line for line in trace if line.startswith(f"the {part} job of attempt 2:0 is lost")]
        assert bool(lost) == (how == fault_kinds.RECOMPUTED[2])


@pytest.mark.parametrize("how", fault_kinds.CHUNK_FAULTS)
@pytest.mark.rule(11, 33)
def test_a_lost_or_doubled_chunk_fails_the_attempt(simulation: Simulation, how: str) -> None:
    trace = struck(simulation, "chunk", "processing job of attempt 1:0, level 0, slot 1", how)
    assert starts(trace, "the processing job of attempt 1:0 is lost: 1:0:processing")


@pytest.mark.parametrize("when", ["before it is called", "after it was called"])
@pytest.mark.parametrize("kind", ["hook", "worker"])
@pytest.mark.rule(7, 10, 28)
def test_every_hook_may_fail_and_its_worker_may_die(
    simulation: Simulation, kind: FaultKind, when: str
) -> None:
    hooks = ["get_emitter of 'spout'", "emit_planned_partition_batch, partition 0 of 'spout'"]
    hooks += [
        f"{hook} of {id!r}"
        for hook in ("prepare", "finish_batch")
        for id in ("pass", "count", "after")
    ]
    for hook in hooks:
        trace = struck(simulation, kind, f"{hook} task 0, attempt 2:0", when)
        if kind == "hook":
            assert any(line.endswith("told to fail by the simulator") for line in trace), hook
        else:
            assert "worker 0 dies" in trace, hook


@pytest.mark.rule(7)
def test_execute_may_fail_at_a_tuple(simulation: Simulation) -> None:
    trace = struck(
        simulation,
        "hook",
        "execute of 'pass' task 0, processing job of attempt 2:0",
        "at tuple number 1",
    )
    assert any(line.startswith("the processing job of attempt 2:0 fails") for line in trace)


@pytest.mark.parametrize("how", ["before it is called", "after it was called"])
@pytest.mark.rule(5)
def test_the_spout_coordinator_may_fail(simulation: Simulation, how: str) -> None:
    for hook in ("is_ready", "num_partitions", "plan_partition_batch"):
        calls = [
            Fault(
                "coordinator", f"{hook} of the coordinator of 'spout', call {call} of driver 1", how
            )
            for call in range(1, 6)
        ]
        trace = struck(simulation, "coordinator", calls[0].where, how, *calls[1:])
        assert "transaction 3 is committed by driver 1" in trace


@pytest.mark.parametrize("how", fault_kinds.STATE_FAULTS)
@pytest.mark.parametrize("write", range(1, 6))
@pytest.mark.rule(25, 26)
def test_a_write_to_zookeeper_or_its_acknowledgement_may_be_lost(
    simulation: Simulation, write: int, how: str
) -> None:
    trace = struck(simulation, "state", f"write {write} of driver 1 to ZooKeeper", how)
    assert ("driver 1 dies" in trace) == (how == fault_kinds.STATE_FAULTS[3])


@pytest.mark.parametrize("how", ["before it began", "after it committed"])
@pytest.mark.rule(28)
def test_a_store_transaction_may_fail(simulation: Simulation, how: str) -> None:
    for number in range(1, 10):
        name = "after" if number % 3 == 0 else "counts"
        trace = struck(
            simulation,
            "store",
            f"transaction {number} of the schedule on store {NOWHERE}#{name}",
            how,
        )
        assert any("as the simulator asked" in line for line in trace)


@pytest.mark.rule(23)
def test_a_driver_may_start_with_other_settings_also_while_a_txid_is_half_applied() -> None:
    with Simulation(topology(), {"max_spout_pending": 2}, vary_parallelism=True) as simulation:
        variants = simulation.subject.variants
        assert len({variant.task_counts for variant in variants}) == 3
        for variant in variants:
            dies = Fault(
                "driver",
                "before commit job of attempt 2:0, level 1, slot 0, in driver 1",
                fault_kinds.DIES,
            )
            trace = struck(
                simulation, "settings", "driver 2 starts with other settings", variant, dies
            )
            assert "driver 2 starts" in trace


@pytest.mark.rule(12, 33)
def test_results_that_outgrow_the_way_through_the_driver_are_pinned_and_released(
    simulation: Simulation,
) -> None:
    variant = next(
        variant for variant in simulation.subject.variants if not variant.inline_bytes_max
    )
    trace = struck(simulation, "settings", "driver 1 starts with other settings", variant)
    assert "driver 1 submits the processing job of attempt 1:1" in trace, "replayed, pinned"


@pytest.mark.in_gate("committer", "planned opaque")
@pytest.mark.parametrize("kind", ["plain", "committer", "storm", "opaque", "planned opaque"])
@pytest.mark.rule(4, 18, 20, 22, 31)
def test_spouts_of_every_kind_survive_all_faults_of_a_schedule(kind: str) -> None:
    report = simulate(
        topology(kind, opaque="opaque" in kind),
        {"max_spout_pending": 3},
        seeds=30,
        other_processes=False,
    )
    assert report.violation is None, str(report)
    assert report.faults.total() > 60


# -- what cannot be simulated --------------------------------------------------------------------


def test_a_topology_that_fails_by_itself_is_refused() -> None:
    builder = TransactionalTopologyBuilder("failing", "spout", spout("planned", [1], 1))
    builder.set_bolt("bolt", Store(SqliteStore(NOWHERE, "t"))).global_grouping("spout")
    with pytest.raises(
        UsageError,
        match="topology 'failing' ends with an error without any failure: UsageError: store",
    ):
        Simulation(builder.build_topology())


def test_a_topology_without_input_is_refused() -> None:
    builder = TransactionalTopologyBuilder(
        "empty", "spout", MemoryTransactionalSpout({0: []}, ["key"], 1)
    )
    builder.set_bolt("bolt", Pass()).global_grouping("spout")
    with pytest.raises(UsageError, match="topology 'empty' commits no transaction"):
        Simulation(builder.build_topology())


def test_an_opaque_topology_must_be_run_to_its_end() -> None:
    with pytest.raises(UsageError, match="allow more transactions"):
        Simulation(topology("opaque", opaque=True), transactions=2)


def test_a_spout_that_is_always_ready_ends_after_so_many_transactions() -> None:
    builder = TransactionalTopologyBuilder(
        "endless",
        "spout",
        MemoryTransactionalSpout({0: [("a", 1)]}, ["key", "value"], 1, always_ready=True),
    )
    builder.set_bolt("count", Committer(SqliteStore(NOWHERE, "t"))).global_grouping("spout")
    report = simulate(builder.build_topology(), seeds=20, transactions=5, other_processes=False)
    assert (report.violation, report.transactions) == (None, 5)


class PassDirectly(Bolt):
    """Each tuple to the task that its number says, on a direct stream."""

    def execute(self, tup: Tuple) -> None:
        self.collector.emit_direct(tup[2] % 2, list(tup), "directly")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare_stream("directly", Fields("tx", "key", "value"), direct=True)


def test_a_topology_with_a_direct_stream_can_be_simulated() -> None:
    builder = TransactionalTopologyBuilder(
        "scheduled-direct", "spout", spout("planned", [3, 3], 1), 2
    )
    builder.set_bolt("pass", PassDirectly(), 2).shuffle_grouping("spout")
    builder.set_bolt("count", Committer(SqliteStore(NOWHERE, "directly")), 2).direct_grouping(
        "pass", "directly"
    )
    report = simulate(
        builder.build_topology(), {"max_spout_pending": 2}, seeds=20, other_processes=False
    )
    assert report.violation is None


# -- what it leaves behind -----------------------------------------------------------------------


def test_the_same_seed_is_the_same_schedule_in_the_same_words() -> None:
    said: list[list[str]] = [[], []]
    for lines in said:
        with Simulation(generated(4), {"max_spout_pending": 2}) as simulation:
            for seed in range(10):
                outcome_of(simulation, seed, lines.append)
    assert said[0] == said[1]
    assert len(said[0]) > 100


def test_nothing_is_left_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = threading.enumerate()
    simulate(generated(2), seeds=5)
    assert set(threading.enumerate()) <= set(threads)
    assert list(tmp_path.iterdir()) == []
