"""The contract of a store of znodes, over every implementation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import state_contract as contract
from tests.conformance.state_contract import check_state
from tests.servers.state_backends import Backend, MemoryBackend, ZooKeeperBackend
from txtopo.state.base import StateStore
from txtopo.state.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class Places:
    """Backends by place, made when they are first asked for."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._backends: dict[str, Backend] = {}
        self._of_session: dict[int, Backend] = {}

    def connect(self, place: str) -> StateStore:
        """A session with the store at ``place``."""
        if place not in self._backends:
            is_memory = self._request.param == "memory"
            self._backends[place] = (
                MemoryBackend()
                if is_memory
                else ZooKeeperBackend(self._request.getfixturevalue("zookeeper"))
            )
        store = self._backends[place].connect()
        self._of_session[id(store)] = self._backends[place]
        return store

    def expire(self, store: StateStore) -> None:
        """End its session as the server would."""
        self._of_session[id(store)].expire(store)

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()


@pytest.fixture(params=["memory", "zookeeper"])
def places(request: pytest.FixtureRequest) -> Iterator[Places]:
    places = Places(request)
    yield places
    places.close()


@pytest.mark.in_gate("memory*")
@pytest.mark.rule(25, 26)
@pytest.mark.parametrize("clause", contract.STATE_CLAUSES, ids=str)
def test_it_keeps_the_contract(places: Places, clause: contract.StateClause) -> None:
    contract.check_clause(clause, places.connect, expire=places.expire, place="contract")


def test_it_keeps_the_whole_contract_in_one_go(places: Places) -> None:
    assert check_state(places.connect, expire=places.expire) == len(contract.STATE_CLAUSES)


def test_without_a_way_to_expire_a_session_only_that_clause_is_left_out(places: Places) -> None:
    assert check_state(places.connect) == len(contract.STATE_CLAUSES) - 1
