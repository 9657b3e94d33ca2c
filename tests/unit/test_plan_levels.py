"""From graph to plan: held components, shared levels, late components; and the independence of the
plan from cores, but for the slots."""

from __future__ import annotations

import pytest

from tests.topologies.recording import NotingBasicBolt, NotingBolt, NotingCommitter, builder
from txtopo import Fields
from txtopo.plan import compiler, explain, levels
from txtopo.plan.compiler import Plan
from txtopo.plan.levels import Level
from txtopo.topology.graph import TopologyGraph


def shape(plan: levels.Levels) -> list[tuple[tuple[str, ...], int]]:
    return [(level.components, level.slots) for level in plan.levels]


def chain(*groupings: str, parallelism: int = 3) -> TopologyGraph:
    """The spout and one bolt per grouping, each listening to the one before."""
    topology = builder(parallelism=parallelism)
    before = "spout"
    for i, grouping in enumerate(groupings):
        keys = [Fields("value")] if grouping == "fields" else []
        getattr(topology.set_bolt(f"bolt-{i}", NotingBolt(), parallelism), f"{grouping}_grouping")(
            before, *keys
        )
        before = f"bolt-{i}"
    return topology.build_topology()


@pytest.mark.rule(16)
@pytest.mark.parametrize("grouping", ["shuffle", "fields", "global", "all"])
def test_a_grouping_that_may_leave_the_sender_begins_a_level(grouping: str) -> None:
    plan = compiler.compile_plan(chain(grouping), 2)
    assert shape(plan.processing) == [(("spout",), 2), (("bolt-0",), 2)]
    assert plan.processing.fused == frozenset()


@pytest.mark.rule(16)
@pytest.mark.parametrize("grouping", ["none", "local_or_shuffle"])
def test_a_grouping_that_may_stay_with_the_sender_shares_its_level(grouping: str) -> None:
    plan = compiler.compile_plan(chain(grouping, grouping), 2)
    assert shape(plan.processing) == [(("spout", "bolt-0", "bolt-1"), 2)]
    assert plan.processing.fused == {
        ("spout", "default", "bolt-0"),
        ("bolt-0", "default", "bolt-1"),
    }


@pytest.mark.rule(16)
@pytest.mark.parametrize(
    "grouping", ["shuffle", "fields", "global", "all", "none", "local_or_shuffle"]
)
def test_where_there_is_one_slot_everything_stays(grouping: str) -> None:
    assert shape(compiler.compile_plan(chain(grouping), 1).processing) == [(("spout", "bolt-0"), 1)]
    assert shape(compiler.compile_plan(chain(grouping, parallelism=1), 8).processing) == [
        (("spout", "bolt-0"), 1)
    ]


@pytest.mark.rule(12, 16)
def test_on_one_slot_a_whole_transaction_can_be_one_task() -> None:
    topology = builder(parallelism=4)
    topology.set_bolt("committer", NotingCommitter(), 4).fields_grouping("spout", Fields("value"))
    topology.set_bolt("after", NotingBolt(), 4).shuffle_grouping("committer")
    plan = compiler.compile_plan(topology.build_topology(), 1)
    assert [
        len(plan.levels_of(part).levels) for part in ("processing", "late", "commit", "whole")
    ] == [1, 1, 1, 1]
    assert shape(plan.whole) == [(("spout", "committer", "after"), 1)]


@pytest.mark.rule(16)
def test_a_local_grouping_is_not_fused_where_a_sender_has_no_receiving_task_beside_it() -> None:
    topology = builder(parallelism=3)
    topology.set_bolt("two", NotingBolt(), 2).none_grouping("spout")
    graph = topology.build_topology()
    assert shape(compiler.compile_plan(graph, 1).processing) == [(("spout", "two"), 1)]
    assert shape(compiler.compile_plan(graph, 2).processing) == [(("spout", "two"), 2)], (
        "task 2 of the spout and task 0 of the bolt share slot 0"
    )
    assert shape(compiler.compile_plan(graph, 3).processing) == [(("spout",), 3), (("two",), 2)], (
        "task 2 of the spout is alone on slot 2"
    )


def test_slots_are_as_many_as_cores_or_the_widest_component_of_the_level_needs() -> None:
    topology = builder(parallelism=2)
    topology.set_bolt("wide", NotingBolt(), 5).none_grouping("spout")
    topology.set_bolt("narrow", NotingBolt(), 1).global_grouping("wide")
    graph = topology.build_topology()
    assert [
        [slots for _, slots in shape(compiler.compile_plan(graph, cores).processing)]
        for cores in (1, 2, 3, 4, 5, 8)
    ] == [
        [1],
        [2, 1],
        [3, 1],
        [4, 1],
        [5, 1],
        [5, 1],
    ]


def test_a_component_is_below_its_furthest_source_even_if_another_source_is_near() -> None:
    topology = builder(parallelism=2)
    topology.set_bolt("far", NotingBolt(), 2).shuffle_grouping("spout")
    topology.set_bolt("both", NotingBolt(), 2).none_grouping("spout").none_grouping("far")
    plan = compiler.compile_plan(topology.build_topology(), 2)
    assert shape(plan.processing) == [(("spout",), 2), (("far", "both"), 2)]
    assert plan.processing.fused == {("far", "default", "both")}


def test_a_component_that_widens_a_level_does_not_join_it_if_that_tears_another_edge_apart() -> (
    None
):
    topology = builder(parallelism=2)
    topology.set_bolt("one", NotingBolt(), 1).none_grouping("spout")
    topology.set_bolt("wide", NotingBolt(), 4).none_grouping("spout")
    for cores in range(1, 9):
        plan = compiler.compile_plan(topology.build_topology(), cores)
        for level in plan.processing.levels:
            for source, _, receiver in plan.processing.fused:
                if source in level.components:
                    tasks = plan.graph.task_counts
                    for task in range(tasks[source]):
                        assert (
                            levels.local_task(task, tasks[receiver]) % level.slots
                            == task % level.slots
                        )


@pytest.mark.rule(12)
def test_held_are_the_committers_and_everything_downstream_of_one() -> None:
    topology = builder()
    topology.set_bolt("before", NotingBolt()).shuffle_grouping("spout")
    topology.set_bolt("committer", NotingCommitter()).shuffle_grouping("before")
    topology.set_bolt("basic", NotingBasicBolt()).shuffle_grouping("committer")
    topology.set_bolt("end", NotingBolt()).shuffle_grouping("basic").shuffle_grouping("spout")
    topology.set_bolt("beside", NotingBolt()).shuffle_grouping("spout")
    plan = compiler.compile_plan(topology.build_topology(), 2)
    assert plan.held == {"committer", "basic", "end"}
    assert {id for level in plan.commit.levels for id in level.components} == plan.held
    assert {id for level in plan.late.levels for id in level.components} == set(), (
        "end hears the spout, and basic feeds end"
    )


@pytest.mark.rule(12)
def test_components_fed_only_by_held_components_run_late() -> None:
    topology = builder()
    topology.set_bolt("committer", NotingCommitter()).shuffle_grouping("spout")
    topology.set_bolt("after", NotingBolt()).shuffle_grouping("committer")
    topology.set_bolt("end", NotingBolt(), 2).all_grouping("after")
    plan = compiler.compile_plan(topology.build_topology(), 2)
    assert shape(plan.processing) == [(("spout", "committer"), 1)]
    assert shape(plan.late) == [(("after",), 1), (("end",), 2)]
    assert shape(plan.commit) == [(("committer", "after"), 1), (("end",), 2)]


def test_without_committers_nothing_is_held_and_the_commit_has_no_levels() -> None:
    plan = compiler.compile_plan(chain("shuffle"), 2)
    assert (plan.held, plan.late, plan.commit) == (frozenset(), levels.Levels(), levels.Levels())
    assert not plan.commit


def test_the_emission_job_is_the_spout_alone_on_the_slots_it_has_when_processing() -> None:
    plan = compiler.compile_plan(chain("none", "fields"), 2)
    assert plan.emission.levels == (Level(("spout",), 2),)
    assert plan.levels_of("emission") is plan.emission


def test_every_component_has_one_level_and_no_source_comes_after_its_receiver() -> None:
    topology = builder(parallelism=4)
    topology.set_bolt("a", NotingBolt(), 4).none_grouping("spout")
    topology.set_bolt("b", NotingBolt(), 2).local_or_shuffle_grouping("a").none_grouping("spout")
    topology.set_bolt("c", NotingBolt(), 3).shuffle_grouping("b").none_grouping("a")
    graph = topology.build_topology()
    for cores in range(1, 9):
        processing = compiler.compile_plan(graph, cores).processing
        assert sorted(id for level in processing.levels for id in level.components) == sorted(
            graph.components
        )
        for component in graph.components.values():
            for subscription in component.inputs:
                source, receiver = (
                    processing.level_of(subscription.source),
                    processing.level_of(component.id),
                )
                assert source is not None
                assert receiver is not None
                fused = (subscription.source, subscription.stream, component.id) in processing.fused
                assert source == receiver if fused else source < receiver


@pytest.mark.rule(16, 17)
def test_where_a_local_tuple_goes_does_not_depend_on_cores() -> None:
    assert [levels.local_task(task, 3) for task in range(5)] == [0, 1, 2, 0, 1]


def example() -> Plan:
    topology = builder(parallelism=2)
    topology.set_bolt(
        "split", NotingBolt(streams={"default": ("tx", "value"), "errors": ("tx", "why")}), 2
    ).none_grouping("spout")
    topology.set_bolt("sum", NotingCommitter()).global_grouping("split")
    topology.set_bolt("bad", NotingBasicBolt()).fields_grouping("split", Fields("why"), "errors")
    topology.set_bolt("after", NotingBolt(), 2).all_grouping("sum")
    return compiler.compile_plan(topology.build_topology(), 2)


def test_the_explanation_names_shuffles_and_components_that_wait_for_the_commit() -> None:
    plan = example()
    assert explain.explain(plan).splitlines() == [
        f"topology {plan.graph.id}, planned for 2 cores",
        "",
        "processing phase: one Spark job per attempt, several transactions side by side",
        "  level 0, 2 slots",
        "    spout  RowsSpout x 2: emits the batch",
        "    split  NotingBolt x 2: executes, finishes",
        "             <- spout, none: stays in the process",
        "    ~~~~~ shuffle ~~~~~",
        "  level 1, 1 slot",
        "    sum    NotingCommitter x 1: executes, then is held (committer)",
        "             <- split, global: crosses the shuffle",
        "    bad    NotingBasicBolt x 1: executes, cleans up",
        "             <- split stream errors, fields(why): crosses the shuffle",
        "",
        "  only if a held component emits while executing, still in the processing phase:",
        "  level 0, 2 slots",
        "    after  NotingBolt x 2: executes, then is held",
        "             <- sum, all: crosses the shuffle",
        "",
        "===== sum, after: held here until every earlier transaction has committed =====",
        "",
        "commit phase: one Spark job per transaction, in the order of txids, never two at once",
        "  level 0, 1 slot",
        "    sum    NotingCommitter x 1: finishes (committer)",
        "    ~~~~~ shuffle ~~~~~",
        "  level 1, 2 slots",
        "    after  NotingBolt x 2: executes tuples emitted in this phase, finishes (downstream of a committer)",
        "             <- sum, all: crosses the shuffle",
        "",
        "guarantees, for batches that a replay repeats exactly (transactional spout):",
        "  sum    no store or sink is known in it: it is called again on a replay, and must write once by itself",
    ]


def test_the_explanation_of_a_topology_without_committers_says_that_the_commit_only_records() -> (
    None
):
    text = explain.explain(compiler.compile_plan(chain("shuffle"), 1))
    assert text.endswith(
        "commit phase: nothing is held, so the phase only records the transaction as done\n"
    )
    assert "planned for 1 core\n" in text


def test_the_picture_has_a_box_per_component_and_an_arrow_per_subscription() -> None:
    plan = example()
    lines = explain.mermaid(plan).splitlines()
    assert lines[0] == "flowchart LR"
    for id in plan.graph.components:
        assert sum(line.strip().startswith(f"c_{id}") and "<br/>" in line for line in lines) == 1
    arrows = [line.strip() for line in lines if "-->" in line or "==>" in line]
    assert arrows == [
        'c_spout -->|"none"| c_split',
        'c_split ==>|"global"| c_sum',
        'c_split ==>|"errors: fields(why)"| c_bad',
        'c_sum ==>|"all"| c_after',
    ]
    assert lines[-1] == "  class c_sum,c_after held"


def test_ids_that_mermaid_cannot_read_are_spelled_out() -> None:
    topology = builder()
    topology.set_bolt('a b"c-1', NotingBolt()).shuffle_grouping("spout")
    text = explain.mermaid(compiler.compile_plan(topology.build_topology(), 1))
    assert 'c_a_20_b_22_c_2d_1["a b#quot;c-1<br/>NotingBolt x 1"]' in text
