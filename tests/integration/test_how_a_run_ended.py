"""A run's end is kept in ZooKeeper, and its attempts are in the journal, on real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import fast, run_to_idle
from tests.topologies.spouts import Ranges
from tests.unit.test_journal import counts
from tests.wrong.failing_hooks import FaultyCount
from txtopo import LocalCluster, PoisonBatchError, StateMismatchError
from txtopo.journal import fold, reader, recording
from txtopo.state import administration
from txtopo.state.zookeeper import ZooKeeperStateStore


@pytest.fixture
def store(cluster: LocalCluster) -> Iterator[ZooKeeperStateStore]:
    """The cluster's state, for a reader."""
    state = ZooKeeperStateStore(str(cluster.zookeeper), "/txtopo", PATIENCE_S)
    yield state
    state.close()


def ended(store: ZooKeeperStateStore, topology_id: str) -> dict[str, Any]:
    record = administration.show(store, topology_id)["ended"]
    assert record is not None
    return dict(record)


def test_the_state_says_how_each_run_ended_and_the_journal_has_its_attempts(
    cluster: LocalCluster, tmp_path: Path, store: ZooKeeperStateStore
) -> None:
    faulty = FaultyCount("how-it-ended", tmp_path, [("split.execute", "failed")])
    run = cluster.submit_topology("poisoned", fast(max_attempts=1), faulty.topology)
    with pytest.raises(PoisonBatchError):
        run.join(PATIENCE_S)
    status, record = run.status(), ended(store, run.topology_id)
    assert (record["exit_code"], record["name"], record["epoch"]) == (3, "poisoned", 1)
    assert "told to fail" in record["error"]
    assert (record["failed"], record["behind"]) == (status.failed, status.behind) == (1, 0)

    run_to_idle(cluster, faulty.topology)
    record = ended(store, run.topology_id)
    assert (record["exit_code"], record["error"], record["epoch"]) == (0, None, 2)
    assert record["committed"] == 2

    place = recording.place(Path(record["data_dir"]), run.topology_id)
    view = fold.fold(reader.Reader(place).about(range(1, 4)))
    assert (counts(view), view.holes(1, 3)) == ((3, 1, 0), [])
    assert [each["ended"]["exit_code"] for each in view.runs] == [3, 0]
    (failure,) = view.transactions[2].failed
    assert (failure["cause"]["component"], failure["cause"]["hook"]) == ("split", "execute")
    committed = view.transactions[3].committed
    assert committed is not None
    assert committed["stores"]

    (tmp_path / "other").mkdir()
    other = FaultyCount("how-it-ended", tmp_path / "other", spout=Ranges(faulty.journal, 6, 2))
    with pytest.raises(StateMismatchError):
        cluster.submit_topology("refused", fast(), other.topology)
    record = ended(store, run.topology_id)
    assert (record["exit_code"], record["name"], record["epoch"]) == (6, "refused", 3)
    assert "has positions from the spout" in record["error"]
