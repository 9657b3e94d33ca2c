"""Configuration of one component: it reaches every task, the spout's coordinator and its emitters,
and no other component."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from tests.topologies.recording import (
    InProcessTopology,
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    RowsSpout,
    builder,
    note,
    rows,
    run_once,
)
from txtopo import (
    Config,
    ConfigError,
    CoordinatorContext,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TopologyConf,
    TopologyContext,
    config,
)
from txtopo.dataplane.job import Batch
from txtopo.engine.batches import Batches
from txtopo.state import memory
from txtopo.state.topology import Holder, TopologyState
from txtopo.topology.context import SOME_TIME
from txtopo.topology.graph import TopologyGraph

KEYS = (
    "max_spout_pending",
    "topology.max.spout.pending",
    "storm.zookeeper.session.timeout",
    "zookeeper_session_timeout_s",
    "own",
    "more",
    "topology.debug",
)
RUN = {
    **Config(max_spout_pending=3, zookeeper_session_timeout_s=10, user={"a": 1}).as_mapping(),
    "topology.name": "run",
}

coordinators: list[dict[str, Any]] = []
"""Settings of coordinators, by key."""


def read(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The answers of ``conf`` to the known ones of ``KEYS``."""
    return {key: conf[key] for key in KEYS if key in conf}


class ReadingBolt(NotingBolt):
    """Notes its settings; ``own`` is the component's own configuration."""

    def __init__(self, own: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.own = own

    def get_component_configuration(self) -> dict[str, Any] | None:
        return self.own

    def execute(self, tup: Any) -> None:
        note(self.context, "settings", read(self.conf))


class ReadingCommitter(ReadingBolt, NotingCommitter):
    """The same as a committer, which reads them in the commit phase too."""

    def finish_batch(self) -> None:
        note(self.context, "settings", read(self.conf))


class ReadingBasicBolt(NotingBasicBolt):
    """The same as a basic bolt."""

    def prepare(self, conf: TopologyConf, context: TopologyContext) -> None:
        super().prepare(conf, context)
        note(context, "settings", read(conf))


class OneBatch(PartitionedSpoutCoordinator):
    """Has one partition."""

    def num_partitions(self) -> int:
        return 1


class ReadingSpout(RowsSpout):
    """Coordinator and emitters note their settings."""

    def __init__(self, own: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.own = own

    def get_component_configuration(self) -> dict[str, Any] | None:
        return self.own

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        coordinators.append(read(conf))
        return OneBatch()

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        note(context, "settings", read(conf))
        return super().get_emitter(conf, context)


def settings_in_tasks(graph: TopologyGraph) -> dict[str, list[dict[str, Any]]]:
    """Settings of each component's tasks in an attempt of one tuple, in order."""
    ran = run_once(graph, {0: rows("a")}, conf=RUN)
    assert ran.failure is None
    noted = sorted(
        (event for event in ran.events if event.hook == "settings"),
        key=lambda event: event.component,
    )
    return {
        id: [event.details[0] for event in events]
        for id, events in itertools.groupby(noted, key=lambda event: event.component)
    }


def settings_of_coordinator(graph: TopologyGraph) -> dict[str, Any]:
    """Settings of the spout's coordinator at the beginning of a run."""
    coordinators.clear()
    state = TopologyState.open(
        memory.MemoryStateStore(memory.MemoryServer()), graph.id, Holder("host", 1, "now", "run")
    )
    Batches(graph, RUN, state, lambda txid: SOME_TIME).close()
    state.close()
    (settings,) = coordinators
    return settings


OF_THE_RUN = {
    "max_spout_pending": 3,
    "topology.max.spout.pending": 3,
    "storm.zookeeper.session.timeout": 10000,
    "zookeeper_session_timeout_s": 10.0,
}


@pytest.mark.parametrize(
    ("own", "declared", "expected"),
    [
        (None, {}, {}),
        ({"own": 1}, {}, {"own": 1}),
        ({}, {"own": [1, {"a": None}]}, {"own": [1, {"a": None}]}),
        ({"own": 1, "more": 1}, {"own": 2}, {"own": 2, "more": 1}),
        (
            {"topology.max.spout.pending": 7},
            {},
            {"max_spout_pending": 7, "topology.max.spout.pending": 7},
        ),
        ({}, {"max_spout_pending": 7}, {"max_spout_pending": 7, "topology.max.spout.pending": 7}),
        (
            {"max_spout_pending": 6},
            {"topology.max.spout.pending": 7},
            {"max_spout_pending": 7, "topology.max.spout.pending": 7},
        ),
        (
            {"topology.max.spout.pending": 6},
            {"max_spout_pending": 7},
            {"max_spout_pending": 7, "topology.max.spout.pending": 7},
        ),
        (
            {"storm.zookeeper.session.timeout": 20000},
            {},
            {"storm.zookeeper.session.timeout": 20000, "zookeeper_session_timeout_s": 20},
        ),
        (
            {"storm.zookeeper.session.timeout": "20s"},
            {},
            {"storm.zookeeper.session.timeout": "20s", "zookeeper_session_timeout_s": "20s"},
        ),
        ({"topology.debug": True}, {}, {"topology.debug": True}),
    ],
)
@pytest.mark.parametrize("bolt", [ReadingBolt, ReadingCommitter, ReadingBasicBolt])
def test_a_components_configuration_lies_over_the_runs_for_it_alone(
    bolt: Any, own: dict[str, Any] | None, declared: dict[str, Any], expected: dict[str, Any]
) -> None:
    drafted = builder(ReadingSpout())
    template = bolt()
    template.get_component_configuration = lambda: own
    configured = drafted.set_bolt("configured", template).shuffle_grouping("spout")
    drafted.set_bolt("other", ReadingBolt()).shuffle_grouping("spout")
    for key, value in declared.items():
        configured.add_configuration(key, value)
    graph = drafted.build_topology()
    seen = settings_in_tasks(graph)
    assert seen.keys() == {"configured", "other", "spout"}
    assert [settings for settings in seen["configured"] if settings != OF_THE_RUN | expected] == []
    assert [
        settings for settings in [*seen["other"], *seen["spout"]] if settings != OF_THE_RUN
    ] == []
    assert settings_of_coordinator(graph) == OF_THE_RUN


def test_a_committer_has_its_configuration_in_both_phases() -> None:
    drafted = builder()
    drafted.set_bolt("count", ReadingCommitter({"own": 1})).shuffle_grouping(
        "spout"
    ).add_configuration("more", 2)
    ran = run_once(drafted.build_topology(), {0: rows("a")}, conf=RUN)
    assert [
        (event.phase, event.details[0]) for event in ran.events if event.hook == "settings"
    ] == [(phase, OF_THE_RUN | {"own": 1, "more": 2}) for phase in ("processing", "commit")]


@pytest.mark.parametrize(
    ("own", "declared", "expected"),
    [
        ({"own": 1}, {}, {"own": 1}),
        (None, {"own": 2}, {"own": 2}),
        (
            {"own": 1, "more": 1},
            {"own": 2, "topology.debug": False},
            {"own": 2, "more": 1, "topology.debug": False},
        ),
        (
            {"max_spout_pending": 6},
            {"topology.max.spout.pending": 7},
            {"max_spout_pending": 7, "topology.max.spout.pending": 7},
        ),
    ],
)
def test_the_spouts_configuration_reaches_its_coordinator_and_its_emitters(
    own: dict[str, Any] | None, declared: dict[str, Any], expected: dict[str, Any]
) -> None:
    drafted = builder(ReadingSpout(own))
    for key, value in declared.items():
        drafted.get_spout_declarer().add_configuration(key, value)
    drafted.set_bolt("other", ReadingBolt()).shuffle_grouping("spout")
    graph = drafted.build_topology()
    assert settings_of_coordinator(graph) == OF_THE_RUN | expected
    seen = settings_in_tasks(graph)
    assert seen["spout"] == [OF_THE_RUN | expected]
    assert seen["other"] == [OF_THE_RUN]


def test_the_emission_of_a_batch_that_is_learnt_by_emitting_has_the_spouts_configuration_too() -> (
    None
):
    drafted = builder(ReadingSpout({"own": 1}))
    drafted.set_bolt("other", ReadingBolt()).shuffle_grouping("spout")
    with InProcessTopology(drafted.build_topology(), conf=RUN) as topology:
        ran = topology.run(Batch("new", num_partitions=1))
    assert [
        event.details[0]
        for event in ran.events
        if event.hook == "settings" and event.component == "spout"
    ] == [OF_THE_RUN | {"own": 1}]


# -- settings of the run ---------------------------------------------------------------------------


def resolved(spout: dict[str, Any], **more: Any) -> config.Resolved:
    return config.resolve(
        Config(max_spout_pending=3), spout=spout, environment={"TXTOPO_CONFIG_FILE": ""}, **more
    )


@pytest.mark.parametrize("key", ["max_spout_pending", "topology.max.spout.pending"])
def test_the_window_set_for_the_spout_is_the_runs_as_in_storm(key: str) -> None:
    settings = resolved({key: 7, "own": 1})
    assert (settings.config.max_spout_pending, settings.origins["max_spout_pending"]) == (
        7,
        "code (the spout's configuration)",
    )
    assert resolved({key: 7}, command_line={"max_spout_pending": "9"}).config.max_spout_pending == 9
    with pytest.raises(
        ConfigError,
        match=r"'max_spout_pending' is 0: .*\n  It is given in the configuration of the spout",
    ):
        resolved({key: 0})


def test_nothing_else_that_is_set_for_the_spout_is_the_runs() -> None:
    assert resolved(
        {"topology.message.timeout.secs": 7, "own": 1, "max_attempts": 2}
    ).config == Config(max_spout_pending=3)
