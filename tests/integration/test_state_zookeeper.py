"""A real ZooKeeper that goes away, comes back, and swallows answers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.ports import free_port
from tests.servers.zookeeper_proxy import Proxy
from tests.servers.zookeepers import SESSION_S
from txtopo import errors
from txtopo.state import administration
from txtopo.state.base import Create, Node, Set, StateUnavailableError
from txtopo.state.embedded import EmbeddedZooKeeper
from txtopo.state.topology import Holder, Seal, TopologyState
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.topology.transaction import TransactionAttempt

HOLDER = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(
        tmp_path_factory.mktemp("zookeeper"), choose_port=free_port, is_private=False
    ) as server:
        yield server


@pytest.fixture
def proxy(server: EmbeddedZooKeeper) -> Iterator[Proxy]:
    with Proxy(server.hosts) as proxy:
        yield proxy


def test_a_missing_server_is_exit_5_with_its_address_and_the_cure() -> None:
    hosts = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        errors.ZooKeeperUnavailableError, match=rf"{hosts}[\s\S]*--zookeeper"
    ) as unreachable:
        ZooKeeperStateStore(hosts, connect_timeout_s=0.3)
    assert unreachable.value.exit_code == 5


@pytest.mark.parametrize("hosts", ["host:port", ":2181", "localhost:2181/a//b", ""])
def test_an_address_that_cannot_be_understood_is_a_usage_error(hosts: str) -> None:
    with pytest.raises(errors.ConfigError, match="host:port"):
        ZooKeeperStateStore(hosts, connect_timeout_s=0.3)


def test_chroot_and_root_are_made_and_keep_topologies_apart(server: EmbeddedZooKeeper) -> None:
    with contextlib.ExitStack() as stack:
        deep, other, bare = (
            stack.enter_context(
                contextlib.closing(ZooKeeperStateStore(server.hosts + chroot, root))
            )
            for chroot, root in (("/prod/teams", "/txtopo"), ("/prod", "/other"), ("", "/"))
        )
        deep.multi([Create("/words", b"deep")])
        assert other.children("/") == []
        assert bare.get("/prod/teams/txtopo/words") == Node(b"deep", 0)
        assert deep.address == f"{server.hosts}/prod/teams/txtopo"


@pytest.mark.rule(25)
def test_an_answer_swallowed_on_the_wire_leaves_the_write_applied_exactly_once(
    server: EmbeddedZooKeeper, proxy: Proxy
) -> None:
    with contextlib.closing(
        ZooKeeperStateStore(proxy.hosts, "/swallowed", session_timeout_s=SESSION_S)
    ) as store:
        store.multi([Create("/a")])
        proxy.lose_next()
        with pytest.raises(StateUnavailableError, match="did not answer"):
            store.multi([Set("/a", b"once")])
        assert store.wait_until_connected(PATIENCE_S)
        assert store.get("/a") == Node(b"once", 1)
        state = TopologyState.open(store, "words", HOLDER)
        for txid in (1, 2, 3):
            proxy.lose_next()
            state.seal(TransactionAttempt(txid, 0), {"spout": 1}, None)
            proxy.lose_next()
            state.record(TransactionAttempt(txid, 0), {0: txid})
        assert (state.current, state.positions(), state.epoch) == (4, {0: 3}, 1)
        assert administration.show(store, "words")["current"] == 4
        assert proxy.lost == 7
        state.close()


@pytest.mark.rule(25, 26)
def test_commits_pause_while_zookeeper_restarts_and_nothing_is_lost(
    server: EmbeddedZooKeeper,
) -> None:
    with contextlib.closing(
        ZooKeeperStateStore(server.hosts, "/restarts", session_timeout_s=SESSION_S)
    ) as store:
        state = TopologyState.open(store, "words", HOLDER)
        state.seal(TransactionAttempt(1, 0), {"spout": 1}, None)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: store.is_away)
        restart = threading.Thread(target=server.restart)
        restart.start()
        state.record(
            TransactionAttempt(1, 0), {0: "a"}, {}, Seal(TransactionAttempt(2, 0), {"spout": 1})
        )
        restart.join(PATIENCE_S)
        sealed = state.sealed()
        assert sealed is not None
        assert (state.current, sealed.txid, state.epoch) == (2, 2, 1)
        assert (store.is_away, store.outages) == (False, 1)
        state.close()


def test_while_disconnected_a_request_fails_at_once_and_abandoning_ends_the_wait(
    server: EmbeddedZooKeeper, proxy: Proxy
) -> None:
    with contextlib.closing(
        ZooKeeperStateStore(proxy.hosts, "/away", session_timeout_s=3600)
    ) as store:
        state = TopologyState.open(store, "words", HOLDER, wait_s=3600)
        proxy.close()
        wait_until(lambda: store.session == 0)
        with pytest.raises(StateUnavailableError, match="not connected"):
            store.get("/words")
        raised: list[str] = []

        def seal() -> None:
            try:
                state.seal(TransactionAttempt(1, 0), {"spout": 1}, None)
            except errors.ZooKeeperUnavailableError as error:
                raised.append(type(error).__name__)

        thread = threading.Thread(target=seal)
        thread.start()
        state.abandon()
        thread.join(PATIENCE_S)
        assert raised == ["AbandonedError"]
        state.close()


QUIET = """
import sys
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo import errors
store = ZooKeeperStateStore(sys.argv[1], "/quiet")
store._client._connection._socket.shutdown(2)
assert store.wait_until_connected(300)
store.close()
try:
    ZooKeeperStateStore("127.0.0.1:" + sys.argv[2], connect_timeout_s=0.5)
except errors.ZooKeeperUnavailableError:
    print("refused")
"""


def test_the_client_writes_nothing_to_stderr_when_connections_break(
    server: EmbeddedZooKeeper,
) -> None:
    command = [sys.executable, "-c", QUIET, server.hosts, str(free_port())]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "refused\n", "")
