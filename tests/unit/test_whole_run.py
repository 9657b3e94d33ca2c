"""A whole transaction in one task: the parts follow each other, and values handed from part to part
are checked as if they had travelled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.topologies.recording import (
    FIRST,
    InProcessTopology,
    NotingBolt,
    NotingCommitter,
    builder,
    journals,
    pass_on,
    planned,
    rows,
)
from txtopo import FailedException
from txtopo.dataplane import wire
from txtopo.dataplane.one_task import WholeRun
from txtopo.dataplane.receive import MixedEmissionsError
from txtopo.dataplane.slot import SlotRun
from txtopo.topology.graph import TopologyGraph

BATCH = planned({0: rows(1, 2), 1: rows(3)})


def eager(bolt: Any, tup: Any) -> None:
    """A committer that emits while executing: its downstream runs in the late part."""
    pass_on(bolt, tup)


def fail(bolt: Any, tup: Any = None) -> None:
    raise FailedException("told to fail")


def graph(keep: NotingCommitter, after: NotingBolt | None = None) -> TopologyGraph:
    """spout ×2 → keep ×2 (committer), to all → after."""
    declared = builder(parallelism=2)
    declared.set_bolt("keep", keep, 2).all_grouping("spout")
    declared.set_bolt("after", after or NotingBolt()).global_grouping("keep")
    return declared.build_topology()


def parts_of(topology: InProcessTopology, slot_run: Any = SlotRun) -> WholeRun:
    """One run, to its end."""
    run = WholeRun(topology.worker, topology.job("whole", batch=BATCH, cores=1), 7, slot_run)
    ((slot, report),) = run.run(iter([b""]))
    assert (slot, wire.unpack_report(report)) == (0, run.report)
    return run


@pytest.mark.rule(12, 13)
def test_processing_late_and_commit_part_follow_each_other() -> None:
    with InProcessTopology(graph(NotingCommitter(eager))) as topology:
        run = parts_of(topology)
        assert [part.job.part for part in run.parts] == ["processing", "late", "commit"]
        assert [part.job.expected for part in run.parts] == [None, (7,), (7,)]
        assert (run.report.job, run.report.slot, run.report.task_attempt, run.report.failure) == (
            "1:0:whole",
            0,
            7,
            None,
        )
        happened = [
            (event.component, event.phase, event.hook)
            for event in journals[topology.graph.id]
            if event.hook != "prepare"
        ]
    keep = [("keep", "processing", "execute")] * 6
    assert [one for one in happened if one[0] == "keep"] == [
        *keep,
        *[("keep", "commit", "finish_batch")] * 2,
    ]
    assert [one for one in happened if one[0] == "after"] == [
        *[("after", "processing", "execute")] * 6,
        ("after", "commit", "finish_batch"),
    ]
    assert run.report.own.executed == {"spout": 0, "keep": 6, "after": 6}


def test_without_emits_while_executing_or_without_committers_there_are_fewer_parts() -> None:
    with InProcessTopology(graph(NotingCommitter())) as topology:
        assert [part.job.part for part in parts_of(topology).parts] == ["processing", "commit"]
    plain = builder()
    plain.set_bolt("only", NotingBolt()).shuffle_grouping("spout")
    with InProcessTopology(plain.build_topology()) as topology:
        assert [part.job.part for part in parts_of(topology).parts] == ["processing"]


@pytest.mark.rule(7)
@pytest.mark.parametrize(
    ("keep", "after", "parts", "phase"),
    [
        (NotingCommitter(fail), NotingBolt(), ["processing"], "processing"),
        (NotingCommitter(eager), NotingBolt(fail), ["processing", "late"], "processing"),
        (NotingCommitter(on_finish=fail), NotingBolt(), ["processing", "commit"], "commit"),
    ],
    ids=["processing", "late", "commit"],
)
def test_a_part_that_failed_is_the_last_one(
    keep: NotingCommitter, after: NotingBolt, parts: list[str], phase: str
) -> None:
    with InProcessTopology(graph(keep, after)) as topology:
        run = parts_of(topology)
    assert [part.job.part for part in run.parts] == parts
    assert run.report.failure is not None
    assert (run.report.failure.kind, run.report.failure.attempt, run.report.failure.phase) == (
        "failed",
        FIRST,
        phase,
    )


@pytest.mark.rule(33)
@pytest.mark.parametrize("strange", ["processing", "late"])
def test_results_of_another_task_attempt_are_not_taken(strange: str) -> None:
    def slot_run(worker: Any, job: Any, level: int, slot: int, task_attempt: int) -> SlotRun:
        return SlotRun(worker, job, level, slot, 8 if job.part == strange else task_attempt)

    with (
        InProcessTopology(graph(NotingCommitter(eager))) as topology,
        pytest.raises(MixedEmissionsError, match="was made by task attempt 8, not by 7"),
    ):
        parts_of(topology, slot_run)


@pytest.mark.rule(14)
def test_each_task_has_values_of_its_own_although_all_are_in_one_process() -> None:
    """A tuple for all tasks goes to each: changes to a list in one task do not reach the next."""

    def spoil(bolt: Any, tup: Any) -> None:
        tup["value"].append(bolt.context.task_index)

    with InProcessTopology(graph(NotingCommitter(spoil))) as topology:
        ran = topology.run(planned({0: rows([1], [2])}), whole=True)
    assert ran.failure is None
    assert [ran.executed("keep", task) for task in (0, 1)] == [
        [[1, 0], [2, 0]],
        [[1, 1], [2, 1]],
    ], "with what it did, and nobody else"
