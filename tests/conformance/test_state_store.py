"""The contract of a store of znodes, over every implementation."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.state_backends import Backend, MemoryBackend, ZooKeeperBackend, wait_until
from txtopo import errors
from txtopo.state.base import Check, Create, Delete, Node, Operation, Set, StateConflictError, StateStore, size_of
from txtopo.state.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["memory", "zookeeper"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = MemoryBackend() if request.param == "memory" else ZooKeeperBackend(request.getfixturevalue("zookeeper"))
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend) -> StateStore:
    return backend.connect()


def test_what_was_created_is_read_and_its_version_counts_the_sets(store: StateStore) -> None:
    store.multi([Create("/a", b"one")])
    assert store.get("/a") == Node(b"one", 0)
    store.multi([Set("/a", b"two"), Set("/a", b"", version=1)])
    assert store.get("/a") == Node(b"", 2)


def test_an_absent_node_is_none_and_has_no_children(store: StateStore) -> None:
    assert store.get("/absent") is None
    assert store.children("/absent") == []
    assert store.children("/") == []


def test_children_are_names_sorted_and_only_the_next_level(store: StateStore) -> None:
    store.multi([Create("/a"), Create("/a/c"), Create("/a/b"), Create("/a/b/d"), Create("/ab")])
    assert store.children("/a") == ["b", "c"]
    assert store.children("/") == ["a", "ab"]


def test_a_multi_may_build_on_its_own_operations(store: StateStore) -> None:
    store.multi([Create("/a"), Create("/a/b", b"x"), Set("/a/b", b"y", version=0), Delete("/a/b", version=1), Create("/a/b", b"z"), Check("/a/b", 0)])
    assert store.get("/a/b") == Node(b"z", 0)


REFUSED = [
    ([Create("/a/x")], 0, "exists"),
    ([Create("/absent/x")], 0, "missing"),
    ([Set("/absent", b"")], 0, "missing"),
    ([Set("/a", b"", version=7)], 0, "version"),
    ([Delete("/absent")], 0, "missing"),
    ([Delete("/a/x", version=3)], 0, "version"),
    ([Delete("/a")], 0, "not empty"),
    ([Check("/absent", 0)], 0, "missing"),
    ([Check("/a", 1)], 0, "version"),
    ([Create("/b", ephemeral=True), Create("/b/c")], 1, "ephemeral parent"),
    ([Set("/a", b"changed"), Delete("/a/x"), Create("/new"), Check("/a", 0), Delete("/a")], 3, "version"),
]


@pytest.mark.parametrize(("operations", "culprit", "reason"), REFUSED)
def test_a_refused_multi_names_the_operation_and_changes_nothing(store: StateStore, operations: list[Operation], culprit: int, reason: str) -> None:
    store.multi([Create("/a", b"a"), Create("/a/x", b"x")])
    with pytest.raises(StateConflictError) as refused:
        store.multi(operations)
    assert (refused.value.operation, refused.value.reason) == (operations[culprit], reason)
    assert operations[culprit].path in str(refused.value)
    assert (store.children("/"), store.children("/a")) == (["a"], ["x"])
    assert (store.get("/a"), store.get("/a/x")) == (Node(b"a", 0), Node(b"x", 0))


def test_an_ephemeral_node_goes_when_its_session_is_closed(backend: Backend, store: StateStore) -> None:
    other = backend.connect()
    other.multi([Create("/gone", ephemeral=True), Create("/stays")])
    other.close()
    wait_until(lambda: store.get("/gone") is None)
    assert store.get("/stays") is not None


def test_an_ephemeral_node_goes_when_its_session_expires_and_the_client_goes_on(backend: Backend, store: StateStore) -> None:
    store.multi([Create("/gone", ephemeral=True), Create("/stays")])
    before = store.session
    backend.expire(store)
    wait_until(lambda: store.wait_until_connected(1) and store.get("/gone") is None)
    assert store.session not in (0, before)
    store.multi([Create("/gone", ephemeral=True)])
    assert store.get("/stays") is not None


def test_a_node_made_again_by_another_session_survives_the_end_of_the_first(backend: Backend, store: StateStore) -> None:
    other = backend.connect()
    other.multi([Create("/lease", b"theirs", ephemeral=True)])
    store.multi([Delete("/lease"), Create("/lease", b"ours", ephemeral=True)])
    other.close()
    assert store.get("/lease") == Node(b"ours", 0)


def test_every_request_counts_as_one_round_trip(store: StateStore) -> None:
    before = store.round_trips
    store.multi([Create("/a"), Create("/b"), Create("/c")])
    store.get("/a")
    store.children("/")
    with pytest.raises(StateConflictError):
        store.multi([Create("/a")])
    assert store.round_trips == before + 4


def test_ensure_makes_parents_and_leaves_what_is_there(store: StateStore) -> None:
    store.multi([Create("/a", b"kept")])
    for _ in range(2):
        store.ensure("/a/b/c")
        store.ensure("/")
    assert store.get("/a") == Node(b"kept", 0)
    assert store.get("/a/b/c") == Node(b"", 0)


def test_sessions_that_ensure_the_same_path_at_once_do_not_disturb_each_other(backend: Backend) -> None:
    stores = [backend.connect() for _ in range(4)]
    barrier = threading.Barrier(len(stores))
    failures: list[BaseException] = []

    def ensure(store: StateStore) -> None:
        barrier.wait(30)
        try:
            store.ensure("/deep/er/still")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ensure, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert stores[0].get("/deep/er/still") is not None


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a/../b", "/./a", "/a\0"])
def test_a_path_that_zookeeper_would_refuse_is_refused(store: StateStore, path: str) -> None:
    for call in (lambda: store.get(path), lambda: store.children(path), lambda: store.multi([Create(path)])):
        with pytest.raises(ValueError, match="path of a znode"):
            call()


def test_a_closed_session_answers_nothing_at_once(store: StateStore) -> None:
    store.close()
    store.close()
    assert store.session == 0
    with pytest.raises(errors.ZooKeeperUnavailableError, match="closed"):
        store.get("/")
    with pytest.raises(errors.ZooKeeperUnavailableError, match="closed"):
        store.multi([Create("/a")])


def test_large_data_comes_back_whole(store: StateStore) -> None:
    data = bytes(range(256)) * 2048
    store.multi([Create("/a", data)])
    assert store.get("/a") == Node(data, 0)
    assert size_of([Create("/a", data)]) >= len(data)
