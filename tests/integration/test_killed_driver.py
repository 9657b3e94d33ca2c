"""SIGKILL of a driver after the effects of a transaction and before their record: the next driver
finds them, and everything counts once. ``tests/fault`` kills at every step."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from starter import transactional_global_count
from tests.patience import PATIENCE_S
from tests.processes import drivers
from tests.servers.clusters import fast
from txtopo import LocalCluster


@pytest.mark.rule(3, 23, 25, 28)
def test_a_transaction_whose_record_was_killed_counts_once(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The next driver has the Spark of ``shared_cluster``, and a ZooKeeper of its own on the killed
    driver's data."""
    kill = "apply.after@2"
    killed = drivers.drive("global-count", tmp_path, pending=3, fault=f"{kill}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "fault: apply.after at txid 2: kill" in killed.stderr
    store = transactional_global_count.open_store(tmp_path / "store.db")
    assert store.get("GLOBAL-COUNT") == 16
    with LocalCluster(master="local[2]", data_dir=tmp_path / "zookeeper") as cluster:
        run = cluster.submit_topology(
            "global-count",
            fast(max_spout_pending=3, until="exhausted"),
            drivers.make("global-count", tmp_path),
        )
        assert run.began is not None
        last = run.join(PATIENCE_S)
    assert (run.began.current, last.committed, last.current, last.epoch) == (2, 2, 4, 2)
    assert store.get("GLOBAL-COUNT") == 19
