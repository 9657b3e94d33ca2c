"""ZooKeeper servers that are killed, started again, paused, and lost by their ensemble, under a
coordinator that commits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.ensemble import Ensemble, Server
from tests.servers.state_backends import RoundTrips
from tests.servers.zookeeper_proxy import Proxy
from tests.servers.zookeepers import SESSION_S
from txtopo import errors
from txtopo.state import administration
from txtopo.state.retry import Retry
from txtopo.state.topology import Holder, Seal, TopologyState
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.topology.transaction import TransactionAttempt

ALICE = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00")
SHORT_S = 1.0
"""A session whose client soon notices that a server does not answer."""
TASKS = {"spout": 1}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("alone"), size=1) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("three")) as ensemble:
        yield ensemble


def connected(hosts: str, root: str, session_s: float = SESSION_S) -> ZooKeeperStateStore:
    return ZooKeeperStateStore(hosts, root, PATIENCE_S, session_s)


class Committing:
    """A coordinator that commits transactions in turn in a thread, until ``end`` is committed.
    After the commit of ``pause_after`` the thread waits for :meth:`go_on`."""

    def __init__(
        self, hosts: str, root: str, end: int, session_s: float = SESSION_S, pause_after: int = 0
    ) -> None:
        self.store = connected(hosts, root, session_s)
        self.state = TopologyState.open(self.store, "words", ALICE)
        wait_until(lambda: self.store.session)
        self.session = self.store.session
        self.committed = 0
        self.error: BaseException | None = None
        self._end, self._pause_after = end, pause_after
        self._may_go_on = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.state.seal(TransactionAttempt(1, 0), TASKS, None)
            for txid in range(1, self._end + 1):
                self.state.record(
                    TransactionAttempt(txid, 0),
                    {txid % 5: txid},
                    {},
                    Seal(TransactionAttempt(txid + 1, 0), TASKS),
                )
                self.committed = txid
                if txid == self._pause_after:
                    self._may_go_on.wait()
        except BaseException as error:
            self.error = error

    def wait_for(self, txid: int) -> None:
        wait_until(lambda: self.committed >= txid or self.error is not None)
        assert self.error is None

    def go_on(self) -> None:
        self._may_go_on.set()

    def finish(self, same_session: bool = False) -> None:
        """All commits: everything up to ``end`` is committed once, in one epoch, and the lease is
        held. In the ``same_session`` it was held all the time."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None
        end, stored = self._end, dict[str, Any]()

        def is_held() -> bool:
            if not same_session:
                # A session that ended after the last commit took the lease with it.
                self.state.renew()
            stored.update(
                Retry(self.store, PATIENCE_S).call(lambda: administration.show(self.store, "words"))
            )
            return stored["lease"] is not None

        if same_session:
            assert is_held()
        wait_until(is_held, "the lease")
        assert (stored["epoch"], stored["current"], stored["lease"]["pid"]) == (1, end + 1, 11)
        assert stored["positions"] == {str(txid % 5): txid for txid in range(end - 4, end + 1)}
        assert list(stored["records"]) == [str(end), str(end + 1)]

    def close(self) -> None:
        self.state.abandon()
        self.go_on()
        self._thread.join(PATIENCE_S)
        self.state.close()
        self.store.close()


@pytest.mark.rule(3, 25, 26)
def test_nothing_is_lost_when_the_server_is_killed_and_started_again(alone: Ensemble) -> None:
    server = alone.servers[0]
    with contextlib.closing(Committing(alone.hosts, "/killed", end=120)) as committing:
        for txid in (5, 60):
            committing.wait_for(txid)
            server.kill()
            server.start()
        committing.finish(same_session=True)
        wait_until(lambda: committing.store.session == committing.session, "the same session")


@pytest.mark.thorough
@pytest.mark.rule(3, 25, 26)
def test_a_server_that_was_paused_beyond_the_session_finds_the_coordinator_alone_and_it_goes_on(
    alone: Ensemble,
) -> None:
    server = alone.servers[0]
    with (
        Proxy(server.hosts) as proxy,
        contextlib.closing(
            Committing(proxy.hosts, "/paused", 200, SHORT_S, pause_after=5)
        ) as committing,
    ):
        committing.wait_for(5)
        server.pause()
        committing.go_on()
        wait_until(lambda: committing.store.session == 0)
        # A server that wakes may hear a client before it misses the client, and keep the session.
        proxy.refuse()
        server.resume()
        with contextlib.closing(connected(server.hosts, "/paused")) as direct:
            wait_until(lambda: direct.get("/words/lease") is None)
        assert committing.committed == 5
        proxy.accept()
        committing.finish()
        assert committing.store.session != committing.session


@pytest.mark.rule(3, 25, 26)
def test_an_ensemble_that_loses_its_leader_loses_nothing(three: Ensemble) -> None:
    three.start_missing()
    with contextlib.closing(Committing(three.hosts, "/leaderless", end=400)) as committing:
        for txid in (5, 130, 260):
            committing.wait_for(txid)
            leader = three.leader()
            leader.kill()
            committing.wait_for(txid + 50)
            assert three.leader() is not leader
            leader.start()
        committing.finish(same_session=True)
        wait_until(lambda: committing.store.session == committing.session, "the same session")


@pytest.mark.thorough
@pytest.mark.rule(3, 25, 26)
def test_an_ensemble_whose_leader_hangs_goes_on_without_it(three: Ensemble) -> None:
    three.start_missing()
    with contextlib.closing(
        Committing(three.hosts, "/hanging", end=200, session_s=4.0)
    ) as committing:
        committing.wait_for(5)
        leader = three.leader()
        leader.pause()
        try:
            committing.wait_for(100)
        finally:
            leader.resume()
        committing.finish()


@pytest.mark.rule(3, 25, 26)
def test_without_a_majority_commits_pause_and_with_one_they_go_on(three: Ensemble) -> None:
    three.start_missing()
    with contextlib.closing(
        Committing(three.hosts, "/minority", end=100, pause_after=5)
    ) as committing:
        committing.wait_for(5)
        for server in three.servers[:2]:
            server.kill()
        # A leader counts its followers every half tick only, and serves clients until then.
        wait_until(lambda: "not currently serving" in three.servers[2].ask("srvr"))
        wait_until(lambda: committing.store.session == 0)
        committing.go_on()
        assert not committing.store.wait_until_connected(0.5)
        assert committing.committed == 5
        three.start_missing()
        committing.finish()


@pytest.mark.rule(3, 25)
def test_commits_survive_the_death_of_all_servers_at_once(three: Ensemble) -> None:
    three.start_missing()
    with contextlib.closing(Committing(three.hosts, "/all", end=100)) as committing:
        committing.wait_for(20)
        for server in three.servers:
            server.kill()
        for server in three.servers:
            server.launch()
        committing.finish()


# -- what is too large -----------------------------------------------------------------------------

LARGEST = 1000 * 1024
"""The largest ``metadata_bytes_max`` there may be."""


def metadata_of(size: int) -> dict[str, str]:
    return {"0": "x" * size}


@pytest.mark.thorough
@pytest.mark.rule(25)
def test_the_largest_record_that_we_allow_is_taken_by_a_server_as_it_comes(alone: Ensemble) -> None:
    with contextlib.closing(connected(alone.hosts, "/largest")) as store:
        state = TopologyState.open(store, "words", ALICE, metadata_bytes_max=LARGEST)
        size, trips = LARGEST, RoundTrips(store)
        while True:
            before, sent = administration.show(store, "words"), trips.count
            try:
                state.seal(TransactionAttempt(1, 0), TASKS, metadata_of(size))
                break
            except errors.BatchTooLargeError as refused:
                assert trips.count == sent
                assert administration.show(store, "words") == before
                size -= refused.size - LARGEST
        # The refused size was one byte above the bound.
        sealed = state.sealed()
        assert sealed is not None
        assert LARGEST - 2048 < len(sealed.metadata["0"]) < LARGEST
        with pytest.raises(errors.BatchTooLargeError):
            state.seal(TransactionAttempt(1, 1), TASKS, metadata_of(size + 1))
        state.record(TransactionAttempt(1, 0), {0: "a"})
        assert administration.show(store, "words")["current"] == 2
        state.close()


@pytest.mark.thorough
@pytest.mark.rule(25)
def test_a_record_and_a_seal_that_do_not_fit_into_one_write_follow_each_other_on_a_real_server(
    alone: Ensemble,
) -> None:
    with contextlib.closing(connected(alone.hosts, "/two-writes")) as store:
        state = TopologyState.open(store, "words", ALICE, metadata_bytes_max=LARGEST)
        state.seal(TransactionAttempt(1, 0), TASKS, None)
        trips = RoundTrips(store)
        half = 600 * 1024
        state.record(
            TransactionAttempt(1, 0),
            {0: "x" * half},
            {},
            Seal(TransactionAttempt(2, 0), TASKS, metadata_of(half)),
        )
        assert trips.count == 2
        stored = administration.show(store, "words")
        assert (
            stored["current"],
            stored["records"]["2"]["status"],
            len(stored["positions"]["0"]),
        ) == (2, "sealed", half)
        with pytest.raises(errors.BatchTooLargeError, match="the record of txid 2"):
            state.record(TransactionAttempt(2, 0), {0: "x" * LARGEST})
        assert administration.show(store, "words") == stored
        state.record(TransactionAttempt(2, 0), {0: "b"})
        assert administration.show(store, "words")["positions"] == {"0": "b"}
        state.close()


@pytest.mark.thorough
@pytest.mark.rule(25)
def test_a_server_that_takes_less_than_we_write_is_named_as_the_cause_and_nothing_is_applied(
    tmp_path: Path,
) -> None:
    with Ensemble(tmp_path, size=1, flags=["-Djute.maxbuffer=200000"]) as narrow:
        with contextlib.closing(connected(narrow.hosts, "/narrow")) as store:
            state = TopologyState.open(store, "words", ALICE)
            before = administration.show(store, "words")
            hung_up = r"hung up 5 times in a row at a write of 3\d{5} bytes[\s\S]*jute\.maxbuffer"
            with pytest.raises(errors.ZooKeeperUnavailableError, match=hung_up) as caught:
                state.seal(TransactionAttempt(1, 0), TASKS, metadata_of(300_000))
            assert caught.value.exit_code == 5
            assert store.wait_until_connected(PATIENCE_S)
            assert administration.show(store, "words") == before
            state.close()
            again = TopologyState.open(store, "words", ALICE, metadata_bytes_max=150_000)
            with pytest.raises(errors.BatchTooLargeError):
                again.seal(TransactionAttempt(1, 0), TASKS, metadata_of(300_000))
            again.seal(TransactionAttempt(1, 0), TASKS, metadata_of(100_000))
            again.record(TransactionAttempt(1, 0), {0: "a"})
            assert administration.show(store, "words")["current"] == 2
            again.close()


@pytest.mark.thorough
@pytest.mark.rule(25)
def test_a_quota_that_is_used_up_is_exit_5_and_the_topology_goes_on_without_the_quota(
    tmp_path: Path,
) -> None:
    with Ensemble(tmp_path, size=1, flags=["-Dzookeeper.enforceQuota=true"]) as strict:
        with contextlib.closing(connected(strict.hosts, "/strict")) as store:
            state = TopologyState.open(store, "words", ALICE)
            state.seal(TransactionAttempt(1, 0), TASKS, metadata_of(100))
            kazoo = store._link.kazoo
            kazoo.ensure_path("/zookeeper/quota/strict")
            kazoo.create("/zookeeper/quota/strict/zookeeper_stats", b"count=1,bytes=1")
            kazoo.create(
                "/zookeeper/quota/strict/zookeeper_limits",
                b"count=-1,bytes=-1=;byteHardLimit=5000;countHardLimit=-1",
            )
            before = administration.show(store, "words")
            with pytest.raises(
                errors.ZooKeeperUnavailableError, match=r"refused to .*QuotaExceeded[\s\S]*setquota"
            ) as caught:
                state.record(TransactionAttempt(1, 0), {0: "x" * 10_000})
            assert (caught.value.exit_code, administration.show(store, "words")) == (5, before)
            state.close()
            kazoo.delete("/zookeeper/quota/strict", recursive=True)
            again = TopologyState.open(store, "words", ALICE)
            again.record(TransactionAttempt(1, 0), {0: "x" * 10_000})
            again.close()


@pytest.mark.thorough
def test_a_server_of_the_harness_that_was_killed_is_gone(alone: Ensemble) -> None:
    server: Server = alone.servers[0]
    wait_until(lambda: "Mode: standalone" in server.ask("srvr"))
    server.kill()
    assert (server.is_running, server.ask("srvr")) == (False, "")
    server.start()
    assert server.is_running
