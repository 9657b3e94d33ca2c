"""The wire between coordinator and ZooKeeper: cut, blocked, slow, and losing requests and answers
of real multis."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.ensemble import Ensemble, Server
from tests.servers.zookeeper_proxy import Proxy
from tests.servers.zookeepers import SESSION_S, end_session
from txtopo import errors
from txtopo.state import administration, client
from txtopo.state.topology import Holder, Seal, TopologyState
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.topology.transaction import TransactionAttempt

ALICE = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00")
BOB = Holder("beta.example", 22, "2024-05-01T10:00:10+00:00")
SHORT_S = 2.0
"""A session whose client soon notices that no packet comes through."""
TASKS = {"spout": 1}

Lost = Literal["request", "answer"]
BOTH = pytest.mark.parametrize("lost", ["request", "answer"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Ensemble(tmp_path_factory.mktemp("zookeeper"), size=1) as ensemble:
        yield ensemble.servers[0]


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    return "/" + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.hosts) as proxy:
        yield proxy


def connected(
    hosts: str, root: str, session_s: float = SESSION_S
) -> contextlib.closing[ZooKeeperStateStore]:
    return contextlib.closing(ZooKeeperStateStore(hosts, root, PATIENCE_S, session_s))


@pytest.fixture
def store(proxy: Proxy, root: str) -> Iterator[ZooKeeperStateStore]:
    """A session through the proxy."""
    with connected(proxy.hosts, root) as store:
        yield store


@pytest.fixture
def direct(server: Server, root: str) -> Iterator[ZooKeeperStateStore]:
    """A session without any fault."""
    with connected(server.hosts, root) as store:
        yield store


def attempt(txid: int, number: int = 0) -> TransactionAttempt:
    return TransactionAttempt(txid, number)


def opened(store: ZooKeeperStateStore, holder: Holder = ALICE) -> TopologyState:
    return TopologyState.open(store, "words", holder)


def shown(store: ZooKeeperStateStore) -> Any:
    return administration.show(store, "words")


def held(state: TopologyState, store: ZooKeeperStateStore) -> Any:
    """What ``store`` shows when the lease is there, which ``state`` may have to take again."""

    def is_held() -> bool:
        state.renew()
        return shown(store)["lease"] is not None

    wait_until(is_held)
    return shown(store)


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """``call`` in a thread, and its exception."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def finish(thread: threading.Thread, raised: list[BaseException]) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert raised == []


@pytest.mark.in_gate("existing-*")
@BOTH
@pytest.mark.rule(25, 26)
@pytest.mark.parametrize("existed", [False, True], ids=["new", "existing"])
def test_a_topology_is_taken_once_when_the_multi_that_takes_it_is_lost(
    existed: bool, lost: Lost, proxy: Proxy, store: ZooKeeperStateStore, direct: ZooKeeperStateStore
) -> None:
    if existed:
        opened(direct, BOB).close()
    proxy.lose_next(lost)
    state = opened(store)
    assert proxy.lost == 1
    assert (state.epoch, shown(direct)["epoch"]) == ((2, 2) if existed else (1, 1))
    state.renew()
    state.seal(attempt(1), TASKS, None)
    state.record(attempt(1), {0: "a"})
    assert shown(direct)["current"] == 2
    with pytest.raises(errors.FencedError, match="pid 11"):
        opened(direct, BOB)


@BOTH
@pytest.mark.rule(23, 25)
def test_seals_and_records_that_are_lost_take_effect_exactly_once(
    lost: Lost, proxy: Proxy, store: ZooKeeperStateStore, direct: ZooKeeperStateStore
) -> None:
    state = opened(store)
    proxy.lose_next(lost)
    state.seal(attempt(1), TASKS, {"from": 0})
    assert shown(direct)["records"]["1"]["status"] == "sealed"
    for txid in (1, 2, 3):
        proxy.lose_next(lost)
        state.record(
            attempt(txid),
            {0: txid},
            {f"keep/{txid}": 1},
            Seal(attempt(txid + 1), TASKS, {"from": txid}),
        )
    assert proxy.lost == 4
    stored = shown(direct)
    assert (stored["epoch"], stored["current"], stored["positions"], stored["stores"]) == (
        1,
        4,
        {"0": 3},
        ["keep/1", "keep/2", "keep/3"],
    )
    assert stored["records"]["4"] == {
        "txid": 4,
        "status": "sealed",
        "attempt_id": 0,
        "tasks": TASKS,
        "metadata": {"from": 3},
        "opened_at": None,
    }


@pytest.mark.rule(26)
def test_a_lease_whose_release_was_applied_but_not_acknowledged_is_free_at_once(
    proxy: Proxy, store: ZooKeeperStateStore, direct: ZooKeeperStateStore
) -> None:
    state = opened(store)
    proxy.lose_next("answer")
    state.close()
    assert proxy.lost == 1
    assert shown(direct)["lease"] is None
    assert opened(direct, BOB).epoch == 2


@pytest.mark.thorough
@pytest.mark.rule(26)
def test_a_lease_whose_release_never_arrived_ends_with_its_session(
    proxy: Proxy, store: ZooKeeperStateStore, direct: ZooKeeperStateStore
) -> None:
    state = opened(store)
    proxy.lose_next("request")
    state.close()
    assert proxy.lost == 1
    with pytest.raises(errors.FencedError, match="pid 11"):
        opened(direct, BOB)
    # A client that is not connected could not say goodbye.
    wait_until(lambda: store.session != 0)
    store.close()
    wait_until(lambda: shown(direct)["lease"] is None)
    assert opened(direct, BOB).epoch == 2


@pytest.mark.in_gate("answer")
@BOTH
@pytest.mark.rule(25, 26)
def test_a_lease_is_taken_again_also_when_the_multi_that_does_it_is_lost(
    lost: Lost,
    server: Server,
    proxy: Proxy,
    store: ZooKeeperStateStore,
    direct: ZooKeeperStateStore,
) -> None:
    state = opened(store)
    state.seal(attempt(1), TASKS, None)
    expired = store.session
    proxy.refuse()
    end_session(server.hosts, expired)
    wait_until(lambda: shown(direct)["lease"] is None)
    proxy.accept()
    wait_until(lambda: store.session not in (0, expired))
    proxy.lose_next(lost)
    state.renew()
    assert proxy.lost == 1
    state.record(attempt(1), {0: "a"})
    stored = shown(direct)
    assert (stored["epoch"], stored["current"], stored["lease"]["pid"]) == (1, 2, 11)


@pytest.mark.in_gate("block-*")
@pytest.mark.rule(25, 26)
@pytest.mark.parametrize("is_expired", [False, True], ids=["within the session", "beyond it"])
@pytest.mark.parametrize("how", ["refuse", "block"])
def test_a_commit_waits_while_the_connection_is_gone(
    how: str, is_expired: bool, root: str, server: Server, proxy: Proxy, direct: ZooKeeperStateStore
) -> None:
    with connected(proxy.hosts, root, SHORT_S if how == "block" else SESSION_S) as store:
        state = opened(store)
        state.seal(attempt(1), TASKS, None)
        session = store.session
        getattr(proxy, how)()
        thread, raised = in_thread(
            lambda: state.record(attempt(1), {0: "a"}, {}, Seal(attempt(2), TASKS))
        )
        wait_until(lambda: store.session == 0)
        if is_expired:
            end_session(server.hosts, session)
            wait_until(lambda: shown(direct)["lease"] is None)
        assert (thread.is_alive(), shown(direct)["current"]) == (True, 1)
        proxy.accept()
        proxy.unblock()
        finish(thread, raised)
        if is_expired:
            wait_until(lambda: store.session not in (0, session))
        stored = held(state, direct)
        assert (
            stored["epoch"],
            stored["current"],
            stored["positions"],
            stored["lease"]["pid"],
        ) == (1, 2, {"0": "a"}, 11)


@pytest.mark.rule(25, 26)
def test_a_session_outlives_connections_that_a_starting_server_never_answers(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HANDSHAKE_MIN_S", 0.2)
    monkeypatch.setattr(client, "HANDSHAKE_SHARE", 0.0)
    with contextlib.closing(
        ZooKeeperStateStore(proxy.hosts, "/unanswered", PATIENCE_S, SESSION_S)
    ) as store:
        session = store.session
        proxy.block()
        proxy.cut()
        wait_until(lambda: proxy.connections >= 4, "further connections")
        proxy.unblock()
        # A late connection of the same session may replace the first; the client makes it anew.
        wait_until(lambda: store.session == session, "the same session")


@pytest.mark.thorough
@pytest.mark.rule(25)
def test_slow_answers_are_waited_for(
    proxy: Proxy, store: ZooKeeperStateStore, direct: ZooKeeperStateStore
) -> None:
    state = opened(store)
    proxy.delay_s = 0.3
    state.seal(attempt(1), TASKS, None)
    state.record(attempt(1), {0: "a"})
    assert (proxy.connections, shown(direct)["current"]) == (1, 2)


@pytest.mark.rule(3, 23, 25, 26)
def test_many_transactions_survive_everything_that_can_happen_to_the_wire(
    proxy: Proxy, store: ZooKeeperStateStore, direct: ZooKeeperStateStore
) -> None:
    seed = 20240501
    chance = random.Random(seed)
    state = opened(store)
    state.seal(attempt(1), TASKS, None)
    cures: list[tuple[threading.Thread, list[BaseException]]] = []

    def accept_after_two_tries() -> None:
        seen = proxy.connections
        wait_until(lambda: proxy.connections >= seen + 2)
        proxy.accept()

    for txid in range(1, 41):
        match chance.randrange(6):
            case 0:
                proxy.cut()
            case 1:
                proxy.lose_next("answer", chance.randrange(1, 4))
            case 2:
                proxy.lose_next("request", chance.randrange(1, 3))
            case 3 if txid % 10 == 0:
                proxy.refuse()
                wait_until(lambda: store.session == 0)
                state.renew()
                cures.append(in_thread(accept_after_two_tries))
            case _:
                pass
        state.record(attempt(txid), {txid % 3: txid}, {}, Seal(attempt(txid + 1), TASKS))
        assert shown(direct)["current"] == txid + 1, f"seed {seed}"
    for cure in cures:
        finish(*cure)
    assert cures
    assert proxy.lost > 12, f"seed {seed}"
    stored = shown(direct)
    assert (stored["epoch"], stored["positions"], list(stored["records"])) == (
        1,
        {"0": 39, "1": 40, "2": 38},
        ["40", "41"],
    )
