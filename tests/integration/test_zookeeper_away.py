"""ZooKeeper goes away and comes back while a topology runs; writes too large for ZooKeeper are
refused before any effect."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast
from tests.topologies.spouts import Keep, Partitioned, batches, keeping_topology
from txtopo import BatchTooLargeError, Fields, LocalCluster
from txtopo.journal import recording, watch
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


def test_commits_go_on_after_our_zookeeper_was_killed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = MemoryTransactionalSpout({0: [(n,) for n in range(10)]}, Fields("n"), 1)
    with LocalCluster(master="local[2]", data_dir=tmp_path / "zookeeper") as cluster:
        run = cluster.submit_topology(
            "killed",
            fast(),
            keeping_topology("killed", spout, Keep(store, Journal(tmp_path / "journal"))),
        )
        run.wait_for_txid(2, PATIENCE_S)
        assert cluster.zookeeper_pid is not None
        os.kill(cluster.zookeeper_pid, signal.SIGKILL)
        spout.append(0, [(n,) for n in range(10, 15)])
        run.wait_for_txid(15, PATIENCE_S)
        run.wait_until_idle(PATIENCE_S)
        run.stop()
    assert batches(store) == {txid: [txid - 1] for txid in range(1, 16)}
    view = watch.Watch(recording.place(tmp_path / "zookeeper", "killed")).refresh()
    assert view["live"]["zookeeper"]["outages"] == 1
    assert view["live"]["status"]["committed"] == len(view["transactions"]) == 15


@pytest.mark.rule(25)
def test_a_record_beyond_its_bound_is_refused_before_anything_is_committed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = Partitioned(Journal(tmp_path / "journal"), partitions=300, size=4, take=2, planned=True)
    topology = keeping_topology("too-large", spout, Keep(store, Journal(tmp_path / "journal")))
    run = cluster.submit_topology("too-large", fast(metadata_bytes_max=2048), topology)
    with pytest.raises(BatchTooLargeError, match=r"metadata_bytes_max = 2048") as caught:
        run.join(PATIENCE_S)
    assert "300 partitions" in str(caught.value)
    assert batches(store) == {}
