"""Hooks by phase: the number of calls, and the tuples in their order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.topologies.recording import (
    ROOMY,
    Event,
    InProcessTopology,
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    builder,
    pass_on,
    pass_on_basic,
    planned,
    rows,
    run_once,
)
from txtopo import Fields, TransactionAttempt
from txtopo.dataplane import wire
from txtopo.dataplane.job import Limits, Part
from txtopo.dataplane.receive import MixedEmissionsError
from txtopo.dataplane.slot import SlotRun, forward
from txtopo.topology.graph import TopologyGraph

CORES = [1, 2, 3, 8]


def saying(word: str) -> Any:
    return lambda bolt: bolt.emit(word)


def answering(word: str) -> Any:
    return lambda bolt, tup: bolt.emit(f"{word}({tup[1]})")


@pytest.mark.rule(10, 11)
@pytest.mark.parametrize("cores", CORES)
def test_every_task_is_prepared_and_finished_once_also_with_zero_tuples(cores: int) -> None:
    declared = builder(parallelism=2)
    declared.set_bolt("count", NotingBolt(), 5).fields_grouping("spout", Fields("value"))
    ran = run_once(declared.build_topology(), {0: rows("a")}, cores=cores)
    lives = [ran.of("count", task) for task in range(5)]
    whole = [("processing", "prepare"), ("processing", "execute"), ("processing", "finish_batch")]
    assert sorted(lives, key=len) == [[whole[0], whole[2]]] * 4 + [whole]


@pytest.mark.rule(11)
@pytest.mark.parametrize("cores", CORES)
def test_a_bolt_finishes_after_the_last_tuple_of_its_last_source(cores: int) -> None:
    declared = builder(parallelism=3)
    declared.set_bolt("a", NotingBolt(on_finish=saying("a")), 3).none_grouping("spout")
    declared.set_bolt("b", NotingBolt(on_finish=saying("b")), 2).shuffle_grouping("a")
    declared.set_bolt("end", NotingBolt(), 2).all_grouping("b").all_grouping("a").all_grouping(
        "spout"
    )
    ran = run_once(declared.build_topology(), {0: rows("s")}, cores=cores)
    for task in range(2):
        assert sorted(ran.executed("end", task)) == ["a", "a", "a", "b", "b", "s"]
        assert ran.of("end", task)[-1] == ("processing", "finish_batch")
        assert [hook for _, hook in ran.of("end", task)].count("finish_batch") == 1


@pytest.mark.rule(13)
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("grouping", ["none", "all", "shuffle"])
def test_the_example_of_the_rule(cores: int, parallelism: int, grouping: str) -> None:
    """A → B(committer), A → C, B → C, C → D(committer)."""

    def listen(declarer: Any, *sources: str) -> None:
        for source in sources:
            getattr(declarer, f"{grouping}_grouping")(source)

    declared = builder()
    listen(
        declared.set_bolt("A", NotingBolt(answering("A"), saying("A.finish")), parallelism), "spout"
    )
    listen(
        declared.set_bolt("B", NotingCommitter(answering("B"), saying("B.finish")), parallelism),
        "A",
    )
    listen(
        declared.set_bolt("C", NotingBolt(answering("C"), saying("C.finish")), parallelism),
        "A",
        "B",
    )
    listen(declared.set_bolt("D", NotingCommitter(), parallelism), "C")
    ran = run_once(declared.build_topology(), {0: rows("s")}, cores=cores)
    assert ran.failure is None, ran.failure

    phases: dict[tuple[str, str], set[str]] = {}
    for event in ran.events:
        hook = event.details[3][0] if event.hook == "execute" else event.hook
        phases.setdefault((event.component, hook), set()).add(event.phase)
    processing, commit = {"processing"}, {"commit"}
    assert {
        key: phase for key, phase in phases.items() if key[1] != "prepare" and key[0] != "spout"
    } == {
        ("A", "s"): processing,
        ("A", "finish_batch"): processing,
        ("B", "A(s)"): processing,
        ("B", "A.finish"): processing,
        ("C", "A(s)"): processing,
        ("C", "A.finish"): processing,
        ("C", "B(A(s))"): processing,
        ("C", "B(A.finish)"): processing,
        ("D", "C(A(s))"): processing,
        ("D", "C(A.finish)"): processing,
        ("D", "C(B(A(s)))"): processing,
        ("D", "C(B(A.finish))"): processing,
        ("B", "finish_batch"): commit,
        ("C", "B.finish"): commit,
        ("C", "finish_batch"): commit,
        ("D", "C(B.finish)"): commit,
        ("D", "C.finish"): commit,
        ("D", "finish_batch"): commit,
    }
    order = [(event.component, event.hook) for event in ran.events if event.phase == "commit"]
    for earlier, later in (("B", "C"), ("C", "D")):
        for task in range(parallelism):
            finished = [
                i
                for i, event in enumerate(ran.events)
                if (event.component, event.task, event.hook) == (later, task, "finish_batch")
            ]
            executed = [
                i
                for i, event in enumerate(ran.events)
                if (event.component, event.task, event.hook) == (later, task, "execute")
            ]
            assert len(finished) == 1
            assert all(i < finished[0] for i in executed), (
                f"{later} finished before it had everything {earlier} sent"
            )
    assert order.count(("B", "finish_batch")) == parallelism


@pytest.mark.rule(12)
@pytest.mark.parametrize("cores", CORES)
def test_components_fed_by_held_ones_only_execute_in_the_phase_of_the_emit(cores: int) -> None:
    """The tuples of a committer's execute need a job of their own: nothing else reaches those bolts
    in the processing phase."""
    declared = builder(parallelism=2)
    declared.set_bolt(
        "sum", NotingCommitter(answering("sum"), saying("sum.finish")), 2
    ).none_grouping("spout")
    declared.set_bolt(
        "after", NotingBolt(answering("after"), saying("after.finish")), 3
    ).shuffle_grouping("sum")
    declared.set_bolt("end", NotingBasicBolt(), 2).fields_grouping("after", Fields("value"))
    ran = run_once(declared.build_topology(), {0: rows("s"), 1: rows("t")}, cores=cores)
    assert ran.failure is None, ran.failure
    assert list(ran.reports) == ["processing", "late", "commit"]
    seen = sorted(
        (e.phase, e.component, e.details[3][0])
        for e in ran.events
        if e.hook == "execute" and e.component != "sum"
    )
    assert seen == [
        *[("commit", "after", "sum.finish")] * 2,
        *sorted(
            [("commit", "end", "after(sum.finish)")] * 2 + [("commit", "end", "after.finish")] * 3
        ),
        ("processing", "after", "sum(s)"),
        ("processing", "after", "sum(t)"),
        ("processing", "end", "after(sum(s))"),
        ("processing", "end", "after(sum(t))"),
    ]
    for component, tasks, last in (("after", 3, "finish_batch"), ("end", 2, "cleanup")):
        for task in range(tasks):
            hooks = [hook for _, hook in ran.of(component, task)]
            assert (hooks[0], hooks[-1], hooks.count("prepare"), hooks.count(last)) == (
                "prepare",
                last,
                1,
                1,
            )


@pytest.mark.rule(12)
def test_without_such_tuples_the_late_job_does_not_run_and_the_bolts_are_prepared_in_the_commit() -> (
    None
):
    declared = builder()
    declared.set_bolt("sum", NotingCommitter(on_finish=saying("total"))).none_grouping("spout")
    declared.set_bolt("after", NotingBolt()).shuffle_grouping("sum")
    ran = run_once(declared.build_topology(), {0: rows("s")})
    assert list(ran.reports) == ["processing", "commit"]
    assert ran.of("after") == [
        ("commit", "prepare"),
        ("commit", "execute"),
        ("commit", "finish_batch"),
    ]


@pytest.mark.rule(15)
@pytest.mark.parametrize("cores", CORES)
def test_a_basic_bolt_is_prepared_executes_and_is_cleaned_up_once_per_task(cores: int) -> None:
    declared = builder(parallelism=2)
    declared.set_bolt("upper", NotingBasicBolt(pass_on_basic), 3).shuffle_grouping("spout")
    declared.set_bolt("end", NotingBolt()).global_grouping("upper")
    ran = run_once(declared.build_topology(), {0: rows("a", "b", "c", "d")}, cores=cores)
    for task in range(3):
        hooks = [hook for _, hook in ran.of("upper", task)]
        assert hooks == ["prepare"] + ["execute"] * (len(hooks) - 2) + ["cleanup"]
    assert sorted(ran.executed("end")) == ["a", "b", "c", "d"]


def many_sources(parallelism: int, grouping: str) -> TopologyGraph:
    declared = builder(parallelism=3)
    for id in ("x", "y"):
        declared.set_bolt(id, NotingBolt(pass_on, saying("end")), parallelism).none_grouping(
            "spout"
        )
    end = declared.set_bolt("end", NotingBolt(), 2)
    for source in ("y", "spout", "x"):
        getattr(end, f"{grouping}_grouping")(source)
    return declared.build_topology()


@pytest.mark.rule(17)
@pytest.mark.parametrize("grouping", ["none", "local_or_shuffle", "shuffle", "all", "global"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_tuples_come_by_source_component_source_task_and_emission_fused_or_not(
    grouping: str, parallelism: int
) -> None:
    graph = many_sources(parallelism, grouping)
    batch = {partition: rows(*(f"{partition}.{i}" for i in range(4))) for partition in range(3)}
    sequences = []
    for cores in (1, 2, 3, 8):
        ran = run_once(graph, batch, cores=cores, rng=random.Random(cores))
        sequence = {
            task: [
                e.details
                for e in ran.events
                if (e.component, e.task, e.hook) == ("end", task, "execute")
            ]
            for task in range(2)
        }
        for details in sequence.values():
            places = [
                (["spout", "x", "y"].index(component), task) for component, task, _, _ in details
            ]
            assert places == sorted(places), (
                "by source component, in topological order, then by source task"
            )
        sequences.append(sequence)
    assert all(sequence == sequences[0] for sequence in sequences)
    assert sum(map(len, sequences[0].values())) == (12 + 2 * (12 + parallelism)) * (
        2 if grouping == "all" else 1
    )


@pytest.mark.rule(17)
@pytest.mark.parametrize("cores", [1, 2])
def test_tuples_of_one_sender_on_several_streams_come_in_the_order_of_emission(cores: int) -> None:
    def alternate(bolt: Any, tup: Any) -> None:
        for i, stream in enumerate(["default", "side", "side", "default", "side"]):
            bolt.emit(i, stream=stream)

    declared = builder()
    streams = {"default": ("tx", "value"), "side": ("tx", "value")}
    declared.set_bolt("alternates", NotingBolt(alternate, streams=streams)).none_grouping("spout")
    declared.set_bolt("near", NotingBolt()).none_grouping("alternates").none_grouping(
        "alternates", "side"
    )
    declared.set_bolt("far", NotingBolt()).all_grouping("alternates", "side").global_grouping(
        "alternates"
    )
    ran = run_once(declared.build_topology(), {0: rows("a", "b")}, cores=cores)
    assert ran.executed("near") == ran.executed("far") == [0, 1, 2, 3, 4] * 2


@pytest.mark.rule(17)
def test_a_slot_computed_again_sends_the_same() -> None:
    graph = many_sources(3, "shuffle")
    with InProcessTopology(graph, cores=2) as topology:
        job = topology.job("processing", batch=planned({p: rows(*range(50)) for p in range(3)}))
        runs = [
            list(SlotRun(topology.worker, job, 0, 1, task_attempt).run(iter([b""])))
            for task_attempt in (1, 2)
        ]
    first, second = ([(slot, wire.unpack_chunk(data)[1]) for slot, data in run] for run in runs)
    assert first == second


@pytest.mark.rule(16)
@pytest.mark.parametrize("cores", [1, 2])
def test_shuffle_spreads_one_busy_task_over_all_receivers(cores: int) -> None:
    declared = builder(parallelism=2)
    declared.set_bolt("work", NotingBolt(), 4).shuffle_grouping("spout")
    ran = run_once(declared.build_topology(), {0: rows(*range(10))}, cores=cores)
    assert sorted(len(ran.executed("work", task)) for task in range(4)) == [2, 2, 3, 3]


@pytest.mark.parametrize(
    "limits",
    [Limits(blob_bytes_max=200, spill_bytes=0, inline_bytes_max=1 << 40), ROOMY],
    ids=["tight", "roomy"],
)
def test_more_rows_than_are_packed_at_once_arrive_in_order(limits: Limits) -> None:
    def many(bolt: Any, tup: Any) -> None:
        for i in range(10_000):
            bolt.emit(i)

    declared = builder()
    declared.set_bolt("many", NotingBolt(many)).none_grouping("spout")
    declared.set_bolt("end", NotingCommitter()).global_grouping("many")
    declared.set_bolt("far", NotingBolt()).all_grouping("end").global_grouping("many")
    ran = run_once(declared.build_topology(), {0: rows("go")}, limits=limits)
    assert ran.failure is None, ran.failure
    assert ran.executed("end") == ran.executed("far") == list(range(10_000))


@pytest.mark.rule(12)
@pytest.mark.parametrize("cores", [1, 2])
def test_more_rows_than_wait_in_memory_for_a_fused_neighbours_turn_are_executed_in_order(
    cores: int,
) -> None:
    def many(bolt: Any, tup: Any) -> None:
        for i in range(9_000):
            bolt.emit([i])

    declared = builder()
    declared.set_bolt("early", NotingBolt(on_finish=saying("early"))).none_grouping("spout")
    declared.set_bolt("many", NotingBolt(many)).none_grouping("spout")
    declared.set_bolt("end", NotingBolt()).none_grouping("many").none_grouping("early")
    ran = run_once(
        declared.build_topology(),
        {0: rows("go")},
        cores=cores,
        limits=Limits(spill_bytes=0, inline_bytes_max=1 << 40),
    )
    assert ran.executed("end") == ["early", *([i] for i in range(9_000))]


def test_counts_are_told_by_component() -> None:
    def twice(bolt: Any, tup: Any) -> None:
        bolt.emit("a")
        bolt.emit("b")

    declared = builder(parallelism=2)
    declared.set_bolt("twice", NotingBolt(twice), 2).none_grouping("spout")
    declared.set_bolt("sum", NotingCommitter(), 2).shuffle_grouping("twice")
    ran = run_once(declared.build_topology(), {0: rows(1, 2, 3), 1: rows(4)}, cores=2)
    reports = ran.reports["processing"]
    assert all(report.before == reports[0].before for report in reports)
    assert reports[0].before.executed == {"spout": 0, "twice": 4}
    assert reports[0].before.emitted == {"spout": 4, "twice": 8}
    assert sum(report.own.executed["sum"] for report in reports) == 8
    assert {
        place: attempts for report in reports for place, attempts in report.lineage.items()
    } == {(0, 0): 0, (0, 1): 1}


@pytest.mark.rule(23)
@pytest.mark.parametrize("cores", [1, 3])
def test_an_attempt_runs_under_the_task_counts_it_was_sealed_with(cores: int) -> None:
    declared = builder(parallelism=2)
    declared.set_bolt("sum", NotingCommitter(), 4).shuffle_grouping("spout")
    graph = declared.build_topology()
    with InProcessTopology(graph, cores) as topology:
        topology.graph = graph.with_task_counts({"sum": 3})
        topology.plan = topology.worker.plan(topology.graph.task_counts)
        ran = topology.run(planned({0: rows(*range(6))}))
    assert {event.task for event in ran.events if event.component == "sum"} == {0, 1, 2}
    assert [len(ran.executed("sum", task)) for task in range(3)] == [2, 2, 2]


# -- handing results over ------------------------------------------------------------------------


def held_graph() -> TopologyGraph:
    declared = builder(parallelism=2)
    declared.set_bolt("sum", NotingCommitter(), 4).shuffle_grouping("spout")
    declared.set_bolt("wide", NotingBolt(), 5).shuffle_grouping("sum")
    return declared.build_topology()


def test_results_beyond_the_inline_bound_are_dropped_and_reported_as_outgrown() -> None:
    with InProcessTopology(
        held_graph(), limits=Limits(inline_bytes_max=100, spill_bytes=0)
    ) as topology:
        reports, _ = topology.run_job(
            topology.job("processing", batch=planned({0: rows(*range(6))}))
        )
        assert [(report.outgrown, report.failure) for report in reports] == [(True, None)] * 2
        assert {record[:1] for record in topology.jobs.records} == {wire.REPORT}
        pinned, result = topology.run_job(
            topology.job("processing", batch=planned({0: rows(*range(6))}), pinned=True)
        )
        assert [report.outgrown for report in pinned] == [False, False], (
            "pinned results may be as large as they like"
        )
        assert len(result.frames) == 4


def slots(
    topology: InProcessTopology,
    part: Part,
    level: int,
    task_attempts: dict[int, int],
    incoming: dict[int, list[bytes]],
    **job: Any,
) -> list[list[tuple[int, bytes]]]:
    """Output of the slots of one level."""
    part_job = topology.job(part, **job)
    here = topology.plan.levels_of(part).levels[level]
    runs = [
        SlotRun(topology.worker, part_job, level, slot, task_attempts[slot])
        for slot in range(here.slots)
    ]
    return [list(run.run(iter(incoming.get(run.slot, [])))) for run in runs]


@pytest.mark.rule(33)
def test_pinned_results_are_forwarded_where_the_commit_has_other_slots() -> None:
    with InProcessTopology(held_graph(), cores=4) as topology:
        batch = planned({0: rows(*range(6))})
        sent = slots(topology, "processing", 0, {0: 0, 1: 1}, {0: [b""], 1: [b""]}, batch=batch)
        incoming = {
            slot: [data for of_slot in sent for to, data in of_slot if to == slot]
            for slot in range(4)
        }
        results = slots(
            topology,
            "processing",
            1,
            {slot: 10 + slot for slot in range(4)},
            incoming,
            batch=batch,
            pinned=True,
        )
        assert topology.plan.commit.levels[0].slots == 4
        job = topology.job("commit", expected=(10, 11, 12, 13), forwarding_slots=4)
        forwarded = [
            list(
                forward(
                    topology.worker,
                    job,
                    slot,
                    20 + slot,
                    3,
                    iter([data for _, data in results[slot]]),
                )
            )
            for slot in range(4)
        ]
        held = sorted(
            frame.task
            for of_slot in forwarded
            for _, data in of_slot
            for frame in wire.unpack_chunk(data)[1]
        )
        assert held == [0, 1, 2, 3]
        assert {to for of_slot in forwarded for to, _ in of_slot} == {0, 1, 2}, (
            "every receiving slot hears of every sender"
        )
        with pytest.raises(MixedEmissionsError, match="made by task attempt 11, not by 10"):
            forward(topology.worker, job, 0, 20, 3, iter([data for _, data in results[1]]))


@pytest.mark.rule(33)
def test_a_slot_that_is_sent_a_mixture_executes_nothing() -> None:
    with InProcessTopology(held_graph(), cores=2) as topology:
        batch = planned({0: rows(*range(6))})
        one, other = (
            slots(topology, "processing", 0, {0: n, 1: n + 1}, {0: [b""], 1: [b""]}, batch=batch)
            for n in (0, 5)
        )
        before = len(events_of(topology))
        mixed = [data for to, data in one[0] + other[0] + one[1] if to == 0]
        with pytest.raises(MixedEmissionsError, match="computed more than once"):
            SlotRun(topology.worker, topology.job("processing", batch=batch), 1, 0, 9).run(
                iter(mixed)
            )
        assert len(events_of(topology)) == before


def events_of(topology: InProcessTopology) -> list[Event]:
    from tests.topologies.recording import journals

    return journals[topology.graph.id]


@pytest.mark.rule(14)
def test_a_tuple_of_another_attempt_never_reaches_a_bolt() -> None:
    graph = held_graph()
    with InProcessTopology(graph, cores=2) as topology:
        batch = planned({0: rows(*range(6))})
        older = slots(topology, "processing", 0, {0: 0, 1: 1}, {0: [b""], 1: [b""]}, batch=batch)
        newer = topology.job("processing", TransactionAttempt(1, 1), batch)
        with pytest.raises(
            MixedEmissionsError, match="a chunk of 1:0:processing, level 0, arrived"
        ):
            SlotRun(topology.worker, newer, 1, 0, 9).run(
                iter([data for of_slot in older for to, data in of_slot if to == 0])
            )
