"""The topology as a value: the builder's result, and its immutability."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.topologies.recording import (
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    RowsSpout,
    builder,
)
from txtopo import Fields, StreamSpec, TransactionalTopologyBuilder
from txtopo.topology import pickling
from txtopo.topology.graph import Subscription, TopologyGraph
from txtopo.topology.grouping import Grouping


def made() -> TransactionalTopologyBuilder:
    drafted = builder(parallelism=3)
    drafted.set_bolt("late", NotingBasicBolt(), 2).fields_grouping(
        "sum", Fields("value")
    ).none_grouping("spout")
    drafted.set_bolt("sum", NotingCommitter(), 4).global_grouping("split")
    drafted.set_bolt("split", NotingBolt(), 5).shuffle_grouping("spout").add_configuration(
        "batch", 10
    )
    drafted.set_committer_bolt("other", NotingBolt()).local_or_shuffle_grouping(
        "spout"
    ).all_grouping("split")
    return drafted


@pytest.fixture
def graph() -> TopologyGraph:
    return made().build_topology()


def test_components_are_in_topological_order_the_spout_first_ties_as_declared(
    graph: TopologyGraph,
) -> None:
    assert list(graph.components) == ["spout", "split", "sum", "late", "other"]
    assert graph.spout.id == "spout"


def test_the_graph_has_the_listeners_of_each_stream_with_their_groupings(
    graph: TopologyGraph,
) -> None:
    assert graph.components["late"].inputs == (
        Subscription("sum", "default", Grouping("fields", Fields("value"))),
        Subscription("spout", "default", Grouping("none")),
    )
    assert [
        (receiver.id, str(grouping)) for receiver, grouping in graph.receivers("spout", "default")
    ] == [
        ("split", "shuffle"),
        ("late", "none"),
        ("other", "local_or_shuffle"),
    ]
    assert graph.receivers("late", "default") == []


def test_the_graph_knows_kinds_tasks_and_committers(graph: TopologyGraph) -> None:
    assert graph.task_counts == {"spout": 3, "split": 5, "sum": 4, "late": 2, "other": 1}
    assert {id: component.kind for id, component in graph.components.items()} == {
        "spout": "spout",
        "split": "batch",
        "sum": "batch",
        "late": "basic",
        "other": "batch",
    }
    assert [id for id, component in graph.components.items() if component.committer] == [
        "sum",
        "other",
    ]
    assert graph.spout.spout_kind == "partitioned"
    assert graph.components["split"].outputs == {"default": StreamSpec(Fields("tx", "value"))}
    assert graph.components["split"].type_name == "NotingBolt"


def _assign(mapping: Any, key: str, value: Any) -> None:
    mapping[key] = value


@pytest.mark.parametrize("travelled", [False, True], ids=["built", "unpickled"])
def test_a_graph_cannot_be_changed(graph: TopologyGraph, travelled: bool) -> None:
    graph = pickling.loads(pickling.dumps(graph)) if travelled else graph
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.id = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.spout.parallelism = 9  # type: ignore[misc]
    for mapping in (graph.components, graph.spout.outputs, graph.components["split"].config):
        with pytest.raises(TypeError):
            _assign(mapping, "other", None)
    with pytest.raises(AttributeError):
        graph.spout.outputs["default"].fields = Fields("tx")  # type: ignore[misc]


def test_later_calls_of_the_builder_leave_a_built_graph_alone() -> None:
    drafted = builder()
    bolt = NotingBolt()
    declarer = (
        drafted.set_bolt("count", bolt).shuffle_grouping("spout").add_configuration("batch", [10])
    )
    graph = drafted.build_topology()
    declarer.add_configuration("batch", 20).add_configuration("more", 1)
    drafted.get_spout_declarer().add_configuration("more", 1)
    drafted.set_bolt("later", NotingBolt()).shuffle_grouping("count")
    bolt.seen.append("changed after the topology was built")
    assert list(graph.components) == ["spout", "count"]
    assert dict(graph.components["count"].config) == {"batch": [10]}
    assert dict(graph.spout.config) == {}
    assert pickling.loads(graph.components["count"].template).seen == []
    assert list(drafted.build_topology().components) == ["spout", "count", "later"]


def test_a_setting_is_copied_when_the_topology_is_built() -> None:
    drafted = builder()
    hosts = ["a"]
    drafted.set_bolt("count", NotingBolt()).shuffle_grouping("spout").add_configuration(
        "hosts", hosts
    )
    graph = drafted.build_topology()
    hosts.append("b")
    assert graph.components["count"].config["hosts"] == ["a"]


class ConfiguredBolt(NotingBolt):
    def get_component_configuration(self) -> dict[str, Any] | None:
        return {"batch": 1, "own": 2}


class ConfiguredSpout(RowsSpout):
    def get_component_configuration(self) -> dict[str, Any] | None:
        return {"from": "spout"}


def test_configuration_by_the_declarer_wins_over_the_components_own() -> None:
    drafted = builder(ConfiguredSpout())
    drafted.get_spout_declarer().add_configuration("more", True)
    drafted.set_bolt("count", ConfiguredBolt()).shuffle_grouping("spout").add_configuration(
        "batch", 10
    )
    graph = drafted.build_topology()
    assert dict(graph.components["count"].config) == {"batch": 10, "own": 2}
    assert dict(graph.spout.config) == {"from": "spout", "more": True}


class SideEffectBolt(NotingBolt):
    def declare_output_fields(self, declarer: Any) -> None:
        super().declare_output_fields(declarer)
        self.seen.append("declared")


def test_declaring_happens_on_a_copy_so_that_the_template_stays_unchanged() -> None:
    drafted = builder()
    bolt = SideEffectBolt()
    drafted.set_bolt("count", bolt).shuffle_grouping("spout")
    graph = drafted.build_topology()
    assert bolt.seen == []
    assert pickling.loads(graph.components["count"].template).seen == []


def test_the_graph_survives_pickling(graph: TopologyGraph) -> None:
    assert pickling.loads(pickling.dumps(graph)) == graph


@pytest.mark.rule(23)
def test_the_same_topology_can_be_had_under_other_task_counts(graph: TopologyGraph) -> None:
    sealed = graph.with_task_counts({"split": 2, "gone": 7})
    assert sealed.task_counts == {**graph.task_counts, "split": 2}
    assert graph.task_counts["split"] == 5
    assert sealed.components["split"].inputs == graph.components["split"].inputs
    assert sealed.components["split"].config == graph.components["split"].config


class LocalStore:
    local_only_reason = "its file is on the driver's machine"


def test_components_that_need_the_drivers_machine_are_listed_with_the_reason() -> None:
    drafted = builder()
    bolt = NotingBolt()
    bolt.store = LocalStore()  # type: ignore[attr-defined]
    drafted.set_bolt("count", bolt).shuffle_grouping("spout")
    assert drafted.build_topology().local_only == (
        ("count", "its file is on the driver's machine"),
    )
