"""A run of a local cluster reads the environment below the settings in code, on real Spark; user
code reads the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.clusters import Journal, run_to_idle
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    ICommitter,
    LocalCluster,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.testing import MemoryTransactionalSpout


class WritesSettings(BaseTransactionalBolt, ICommitter):
    """Writes down the settings it is given."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        seen = [
            conf[key]
            for key in (
                "topology.max.spout.pending",
                "max_crashes",
                "storm.zookeeper.session.timeout",
                "own",
            )
        ]
        self.journal.write(" ".join(map(str, seen)))

    def execute(self, tup: Tuple) -> None: ...


def test_a_run_and_its_bolts_follow_the_environment_and_the_spouts_window(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXTOPO_MAX_CRASHES", "5")
    monkeypatch.setenv("TXTOPO_ZOOKEEPER_SESSION_TIMEOUT_S", "9s")
    spout = MemoryTransactionalSpout({0: [("a",)]}, ["word"], 1)
    builder = TransactionalTopologyBuilder("config-of-a-run", "spout", spout)
    builder.get_spout_declarer().add_configuration("topology.max.spout.pending", 2)
    bolt = WritesSettings(tmp_path / "journal")
    builder.set_bolt("settings", bolt).shuffle_grouping("spout").add_configuration("own", 1)
    run = run_to_idle(cluster, builder.build_topology(), zookeeper_session_timeout_s=8)
    assert (
        run.conf.max_crashes,
        run.conf.zookeeper_session_timeout_s,
        run.conf.max_spout_pending,
    ) == (5, 8, 2)
    assert bolt.journal.lines() == ["2 5 8000 1"]
