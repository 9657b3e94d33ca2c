"""Topologies on Spark whose ZooKeeper is paused, cut off, or loses its leader: commits wait, work
does not pile up, nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import Journal, fast
from tests.servers.ensemble import Ensemble
from tests.servers.zookeeper_proxy import Proxy
from tests.servers.zookeepers import SESSION_S, end_session
from tests.topologies.spouts import Keep, batches, keeping_topology
from txtopo import Fields, LocalCluster, TopologyRun, ZooKeeperUnavailableError
from txtopo.state import administration
from txtopo.state.retry import Retry
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

PENDING = 3


class Scene:
    """A topology that commits the numbers from 0 on, one per transaction, over a ZooKeeper at
    ``hosts``: ten numbers, and those that a test adds."""

    def __init__(
        self,
        id: str,
        folder: Path,
        spark: LocalCluster,
        hosts: str,
        session_s: float = SESSION_S,
        **settings: Any,
    ) -> None:
        assert spark.context is not None
        self.id, self.hosts = id, hosts
        self.store = SqliteStore(folder / "kept.db", "kept")
        self.journal = Journal(folder / "journal")
        self.end = 10
        self.spout = MemoryTransactionalSpout({0: [(n,) for n in range(self.end)]}, Fields("n"), 1)
        self.topology = keeping_topology(id, self.spout, Keep(self.store, self.journal))
        sessions = {
            "zookeeper_connect_timeout_s": PATIENCE_S,
            "zookeeper_session_timeout_s": session_s,
        }
        self.conf = fast(max_spout_pending=PENDING, **sessions, **settings)

    @contextlib.contextmanager
    def running(self) -> Iterator[TopologyRun]:
        """The run, on the Spark session that all tests share."""
        with LocalCluster(zookeeper=self.hosts, master="local[2]") as cluster:
            yield cluster.submit_topology(self.id, self.conf, self.topology)

    def add(self, count: int) -> None:
        """Numbers for so many more transactions."""
        self.spout.append(0, [(n,) for n in range(self.end, self.end + count)])
        self.end += count

    def finish(self, run: TopologyRun, epoch: int = 1) -> None:
        """Wait for the end: every number was committed once, in its transaction, in this epoch."""
        run.wait_for_txid(self.end, PATIENCE_S)
        run.stop(PATIENCE_S)
        assert batches(self.store) == {txid: [txid - 1] for txid in range(1, self.end + 1)}
        with contextlib.closing(
            ZooKeeperStateStore(self.hosts, connect_timeout_s=PATIENCE_S)
        ) as store:
            # Another server of an ensemble may lag behind the one that the run has asked.
            patience = Retry(store, PATIENCE_S)
            wait_until(
                lambda: patience.call(lambda: administration.show(store, self.id))["lease"] is None
            )
            state = patience.call(lambda: administration.show(store, self.id))
        assert (state["current"], state["epoch"]) == (self.end + 1, epoch)


def full_window(run: TopologyRun) -> bool:
    """Whether everything that may be in flight is, and all of it has been processed."""
    active = run.status().active
    assert len(active) <= PENDING
    return len(active) == PENDING and all(
        status not in ("emitting", "processing") for _, _, status in active
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("three")) as ensemble:
        yield ensemble


@pytest.mark.rule(2, 3, 25, 26)
def test_a_run_whose_ensemble_loses_its_leader_twice_commits_everything_once(
    three: Ensemble, cluster: LocalCluster, tmp_path: Path
) -> None:
    scene = Scene("leaderless", tmp_path, cluster, three.hosts)
    with scene.running() as run:
        for _ in range(2):
            run.wait_for_txid(scene.end - 7, PATIENCE_S)
            leader = three.leader()
            leader.kill()
            scene.add(3)
            run.wait_for_txid(scene.end, PATIENCE_S)
            leader.start()
            scene.add(7)
        scene.finish(run)


@pytest.mark.thorough
@pytest.mark.rule(2, 3, 25, 26)
def test_while_zookeeper_is_paused_beyond_the_session_work_stays_within_the_window_and_then_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with Ensemble(tmp_path / "zookeeper", size=1) as alone, Proxy(alone.hosts) as proxy:
        scene = Scene("paused", tmp_path, cluster, proxy.hosts, session_s=1.0)
        with scene.running() as run:
            run.wait_for_txid(3, PATIENCE_S)
            session = run._store.session
            alone.servers[0].pause()
            scene.add(PENDING)
            wait_until(lambda: run._store.session == 0 and full_window(run))
            current = run.status().current
            # A server that wakes may hear a client before it misses the client, and keep the
            # session.
            proxy.refuse()
            alone.servers[0].resume()
            with contextlib.closing(
                ZooKeeperStateStore(alone.hosts, connect_timeout_s=PATIENCE_S)
            ) as direct:
                wait_until(lambda: administration.show(direct, scene.id)["lease"] is None)
            assert (run.status().current, full_window(run)) == (current, True)
            proxy.accept()
            run.wait_for_txid(scene.end, PATIENCE_S)
            assert run._store.session != session
            scene.finish(run)


@pytest.mark.thorough
@pytest.mark.rule(2, 3, 25, 26)
def test_a_run_that_is_cut_off_within_its_session_pauses_and_goes_on(
    three: Ensemble, cluster: LocalCluster, tmp_path: Path
) -> None:
    with Proxy(three.servers[0].hosts) as proxy:
        scene = Scene("cut-off", tmp_path, cluster, proxy.hosts)
        with scene.running() as run:
            run.wait_for_txid(3, PATIENCE_S)
            session = run._store.session
            proxy.refuse()
            scene.add(PENDING)
            wait_until(lambda: full_window(run))
            current, tries = run.status().current, proxy.connections
            wait_until(lambda: proxy.connections > tries + 2)
            assert (run.status().current, full_window(run)) == (current, True)
            proxy.accept()
            run.wait_for_txid(scene.end, PATIENCE_S)
            assert run._store.session == session
            proxy.lose_next("answer", times=3)
            scene.add(7)
            scene.finish(run)
            assert proxy.lost == 3


@pytest.mark.thorough
@pytest.mark.rule(3, 25)
def test_a_run_whose_zookeeper_stays_away_ends_with_exit_code_5_and_the_next_resumes(
    cluster: LocalCluster, three: Ensemble, tmp_path: Path
) -> None:
    with Proxy(three.servers[0].hosts) as proxy:
        scene = Scene("stays-away", tmp_path, cluster, proxy.hosts, zookeeper_wait_s=1.5)
        with scene.running() as run:
            run.wait_for_txid(3, PATIENCE_S)
            session = run._store.session
            proxy.refuse()
            scene.add(PENDING)
            with pytest.raises(
                ZooKeeperUnavailableError,
                match=r"has not answered for 1\.5 s[\s\S]*Nothing is lost",
            ) as away:
                run.join(PATIENCE_S)
            assert away.value.exit_code == 5
        proxy.accept()
        end_session(three.servers[0].hosts, session)
        with scene.running() as run:
            scene.finish(run, epoch=2)
