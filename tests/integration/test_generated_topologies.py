"""Random topologies on real Spark: every task does the same as in the plain model of
``tests.property.test_dataplane_model``."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.patience import PATIENCE_S
from tests.property.test_dataplane_model import Drawn, Model, Tag, topologies
from tests.servers.clusters import fast
from tests.topologies.recording import RowsSpout, journal_file
from txtopo import CoordinatorContext, LocalCluster, PartitionedSpoutCoordinator, TopologyConf
from txtopo.topology import pickling

TOPOLOGIES = 60


class OneBatchSpout(RowsSpout):
    """Plans all its rows as transaction 1."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return _OneBatch(self)


class _OneBatch(PartitionedSpoutCoordinator):
    def __init__(self, spout: RowsSpout) -> None:
        self.spout = spout

    def num_partitions(self) -> int:
        return max(self.spout.fresh, default=-1) + 1

    def plan_batch(self, txid: int, last: dict[int, Any]) -> dict[int, Any]:
        return self.spout.fresh


def plain(value: Any) -> Any:
    """Tuples as lists, as they come back from a file."""
    return json.loads(json.dumps(value))


@pytest.mark.thorough
@pytest.mark.rule(10, 11, 12, 13, 14, 15, 16, 17, 19)
def test_sixty_generated_topologies_on_spark_equal_the_model(cluster: LocalCluster) -> None:
    ran = 0

    @settings(
        deadline=None,
        derandomize=True,
        max_examples=TOPOLOGIES,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(drawn=topologies())
    def run(drawn: Drawn) -> None:
        nonlocal ran
        ran += 1
        drawn = dataclasses.replace(drawn, txid=1)
        graph = drawn.graph()
        spout = pickling.loads(graph.spout.template)
        template = pickling.dumps(OneBatchSpout(spout.fresh, spout.streams))
        components = {
            **graph.components,
            "spout": dataclasses.replace(graph.spout, template=template),
        }
        graph = dataclasses.replace(
            graph, id=f"generated-{uuid.uuid4().hex}", components=components
        )
        journal = journal_file(graph.id)
        journal.touch()
        try:
            cluster.submit_topology(graph.id, fast(max_transactions=1), graph).join(PATIENCE_S)
            lines = journal.read_text().splitlines()
        finally:
            journal.unlink()
        happened: dict[Tag, list[Any]] = defaultdict(list)
        prepared = []
        for component, task, phase, hook, details in map(json.loads, lines):
            if hook == "prepare":
                prepared.append((component, task))
            elif component != "spout":
                happened[component, task].append([phase, hook, *details])
        assert happened == {tag: plain(events) for tag, events in Model(drawn).run().items()}
        assert sorted(prepared) == sorted(
            (spec.id, task) for spec in drawn.bolts for task in range(spec.parallelism)
        ), "once each"

    run()
    assert ran >= 50
