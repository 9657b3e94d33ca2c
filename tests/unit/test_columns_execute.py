"""Columns through the data plane: each task's rows, in order, and as tuples or columns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.topologies.columns import ColumnsSpout, NotingArrowBolt, NotingArrowCommitter, pass_on
from tests.topologies.recording import Ran, builder, run_once
from txtopo import Fields


def column_rows(ran: Ran, component: str, task: int | None = None) -> list[Any]:
    """The rows an arrow bolt was given, in order."""
    events = [
        event
        for event in ran.events
        if event.component == component
        and event.hook == "execute_batch"
        and task in (None, event.task)
    ]
    return [row for event in events for row in event.details[3]]


@pytest.mark.rule(12, 16, 17)
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_columns_reach_a_committer_through_a_fields_grouping(cores: int) -> None:
    topology = builder(ColumnsSpout(), 2)
    topology.set_bolt("middle", NotingArrowBolt(pass_on), 3).fields_grouping("spout", Fields("key"))
    topology.set_bolt("last", NotingArrowCommitter(), 2).fields_grouping("middle", Fields("key"))
    rows = {
        partition: [["default", [[f"key{i % 5}", 10 * partition + i] for i in range(9)]]]
        for partition in range(2)
    }
    ran = run_once(topology.build_topology(), rows, cores=cores)
    assert ran.failure is None, ran.failure
    finished = [
        event for event in ran.events if event.component == "last" and event.hook == "finish_batch"
    ]
    assert {event.phase for event in finished} == {"commit"}
    assert sorted(row for event in finished for row in event.details) == sorted(
        (f"key{i % 5}", 10 * p + i) for p in range(2) for i in range(9)
    )
    by_task = [{row[0] for row in column_rows(ran, "last", task)} for task in range(2)]
    assert not by_task[0] & by_task[1], "equal keys meet in one task"
    assert column_rows(ran, "middle", 0) == [
        row for row in column_rows(ran, "middle", 0) if row in column_rows(ran, "middle")
    ]
