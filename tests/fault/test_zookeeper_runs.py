"""Topologies on Spark whose ZooKeeper is paused, cut off, or loses its leader: commits wait, work
does not pile up, nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.clusters import Journal, fast
from tests.servers.ensemble import Ensemble
from tests.servers.state_backends import wait_until
from tests.servers.zookeeper_proxy import Proxy
from tests.topologies.spouts import Keep, batches, keeping_topology
from txtopo import Fields, LocalCluster, TopologyRun, ZooKeeperUnavailableError
from txtopo.state import administration
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

PENDING = 3
END = 24


class Scene:
    """A topology that commits the numbers below ``END``, one per transaction, over a ZooKeeper at
    ``hosts``."""

    def __init__(self, id: str, folder: Path, spark: LocalCluster, hosts: str, **settings: Any) -> None:
        assert spark.context is not None
        self.id, self.hosts = id, hosts
        self.store = SqliteStore(folder / "kept.db", "kept")
        self.journal = Journal(folder / "journal")
        self.spout = MemoryTransactionalSpout({0: [(n,) for n in range(END)]}, Fields("n"), 1)
        self.topology = keeping_topology(id, self.spout, Keep(self.store, self.journal))
        self.conf = fast(max_spout_pending=PENDING, until="exhausted", **settings)

    @contextlib.contextmanager
    def running(self) -> Iterator[TopologyRun]:
        """The run, on the Spark session that all tests share."""
        with LocalCluster(zookeeper=self.hosts, master="local[2]") as cluster:
            yield cluster.submit_topology(self.id, self.conf, self.topology)

    def finish(self, run: TopologyRun, epoch: int = 1) -> None:
        """Wait for the end: every number was committed once, in its transaction, in this epoch."""
        run.join(90)
        self.require_all(epoch)

    def require_all(self, epoch: int) -> None:
        assert batches(self.store) == {txid: [txid - 1] for txid in range(1, END + 1)}
        with contextlib.closing(ZooKeeperStateStore(self.hosts)) as store:
            state = administration.show(store, self.id)
        assert (state["current"], state["epoch"], state["lease"]) == (END + 1, epoch, None)


def full_window(run: TopologyRun) -> bool:
    """Whether everything that may be in flight is, and all of it has been processed."""
    active = run.status().active
    assert len(active) <= PENDING
    return len(active) == PENDING and all(status not in ("emitting", "processing") for _, _, status in active)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("three")) as ensemble:
        yield ensemble


@pytest.mark.rule(2, 3, 25, 26)
def test_a_run_whose_ensemble_loses_its_leader_twice_commits_everything_once(three: Ensemble, cluster: LocalCluster, tmp_path: Path) -> None:
    scene = Scene("leaderless", tmp_path, cluster, three.hosts, zookeeper_session_timeout_s=4)
    with scene.running() as run:
        for txid in (3, 10):
            run.wait_for_txid(txid, 60)
            leader = three.leader()
            leader.kill()
            run.wait_for_txid(txid + 3, 60)
            leader.start()
        scene.finish(run)


@pytest.mark.rule(2, 3, 25, 26)
def test_while_zookeeper_is_paused_beyond_the_session_work_stays_within_the_window_and_then_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    with Ensemble(tmp_path / "zookeeper", size=1) as alone:
        scene = Scene("paused", tmp_path, cluster, alone.hosts, zookeeper_session_timeout_s=1)
        with scene.running() as run:
            run.wait_for_txid(3, 60)
            session = run._store.session
            alone.servers[0].pause()
            wait_until(lambda: run._store.session == 0 and full_window(run), 60)
            current = run.status().current
            # The board tells of every change: nothing does for longer than the session lives.
            with pytest.raises(TimeoutError, match="waited"):
                run.wait_for_txid(current, 2.0)
            assert (run.status().current, full_window(run)) == (current, True)
            alone.servers[0].resume()
            scene.finish(run)
            assert run._store.session != session


@pytest.mark.rule(2, 3, 25, 26)
def test_a_run_that_is_cut_off_for_seconds_pauses_and_goes_on(three: Ensemble, cluster: LocalCluster, tmp_path: Path) -> None:
    with Proxy(three.servers[0].hosts) as proxy:
        scene = Scene("cut-off", tmp_path, cluster, proxy.hosts, zookeeper_session_timeout_s=2)
        with scene.running() as run:
            run.wait_for_txid(3, 60)
            proxy.refuse()
            wait_until(lambda: full_window(run), 60)
            current = run.status().current
            with pytest.raises(TimeoutError, match="waited"):
                run.wait_for_txid(current, 3.0)
            assert full_window(run)
            proxy.accept()
            run.wait_for_txid(current + 2, 60)
            proxy.lose_next("answer", times=3)
            scene.finish(run)
            assert proxy.lost == 3


@pytest.mark.long
@pytest.mark.rule(3, 25)
def test_a_run_whose_zookeeper_stays_away_ends_with_exit_code_5_and_the_next_resumes(cluster: LocalCluster, three: Ensemble, tmp_path: Path) -> None:
    with Proxy(three.servers[0].hosts) as proxy:
        scene = Scene("stays-away", tmp_path, cluster, proxy.hosts, zookeeper_session_timeout_s=2, zookeeper_wait_s=1.5)
        with scene.running() as run:
            run.wait_for_txid(3, 60)
            proxy.refuse()
            with pytest.raises(ZooKeeperUnavailableError, match=r"has not answered for 1\.5 s[\s\S]*Nothing is lost") as away:
                run.join(60)
            assert away.value.exit_code == 5
        proxy.accept()
        with contextlib.closing(ZooKeeperStateStore(scene.hosts)) as store:
            wait_until(lambda: administration.show(store, scene.id)["lease"] is None)
        with scene.running() as run:
            scene.finish(run, epoch=2)
