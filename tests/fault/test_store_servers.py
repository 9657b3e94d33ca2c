"""The server of a store, or a connection to the server, ends around and inside a transaction; a
replay counts once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S, wait_until
from tests.processes.workers import Worker
from tests.servers import owned
from tests.servers.databases import Database
from tests.servers.server_stores import DatabasePlace, StorePlace
from txtopo.errors import FailedException
from txtopo.stores import RedisStore, SqlStore, Store, StoreTransaction

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def opaque(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def store(place: StorePlace, opaque: bool) -> RedisStore | SqlStore:
    return place.store(opaque)


LOST: dict[str, Exception] = {
    "postgresql+psycopg": psycopg.OperationalError("the server went away"),
    "mysql+pymysql": pymysql.err.OperationalError(2013, "the server went away"),
}
"""The message of a driver when an answer does not come."""

ENDS: dict[str, Callable[[StorePlace], object]] = {
    "the server is killed": lambda place: place.server.kill(),
    "the server is shut down": lambda place: place.server.stop(),
    "the connection is cut": lambda place: place.disconnect(),
}


@pytest.mark.in_gate("*-opaque-the server is killed")
@pytest.mark.rule(7, 28)
@pytest.mark.parametrize("end", ENDS)
def test_a_connection_that_ends_inside_a_transaction_fails_the_attempt_and_its_replay_counts_once(
    place: StorePlace, store: Store, process: contract.Process, end: str
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)

    def lose_it(opened: StoreTransaction) -> None:
        opened.update("x", contract.plus(10))
        opened.flush()
        ENDS[end](place)
        opened.update("y", contract.plus(10))

    with pytest.raises(FailedException, match="the connection is lost"):
        contract.block(store, process.task(), 2, 0, lose_it)
    if not place.server.is_running:
        with pytest.raises(FailedException, match="cannot be connected to"):
            contract.run(store, process.task(), 2, 1, x=10)
    place.server.start()
    assert dict(store.items()) == {"x": 1}
    contract.run(store, process.task(), 2, 2, x=10)
    assert dict(store.items()) == {"x": 11}


@pytest.mark.thorough
@pytest.mark.rule(12)
@pytest.mark.parametrize("end", ENDS)
def test_a_connection_that_ended_between_two_transactions_is_made_again_unnoticed(
    place: StorePlace, store: Store, process: contract.Process, end: str
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)
    before = only_connection(place)
    ENDS[end](place)
    place.server.start()
    contract.run(store, process.task(), 2, 0, x=1)
    assert dict(store.items()) == {"x": 2}
    assert only_connection(place) != before


def only_connection(place: StorePlace) -> object:
    """The connection of the store's task: a server ends the session of a reader a moment later."""
    wait_until(lambda: len(place.connections()) == 1, "one connection")
    return place.connections()[0]


@pytest.mark.in_gate("*-opaque")
@pytest.mark.rule(28)
def test_a_commit_whose_acknowledgement_is_lost_is_not_applied_again(
    database: Database, opaque: bool, process: contract.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DatabasePlace(database).store(opaque)
    contract.run(store, process.task(), 1, 0, x=1)
    contract.run(store, process.task(task=1), 2, 0)
    commit = sa.Connection.commit

    def commit_and_die(connection: sa.Connection) -> None:
        commit(connection)
        raise LOST[database.url.partition(":")[0]]

    context = process.task()
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_and_die)
        with pytest.raises(FailedException, match=r"the connection is lost \(the server went away"):
            contract.run(store, context, 2, 0, x=10)
    assert (context.store_steps, context.touched_stores, store.get("x")) == ({}, {}, 11)
    assert contract.run(store, process.task(), 2, 1, x=10)["x"].curr == 11
    assert dict(store.items()) == {"x": 11}


@pytest.mark.thorough
@pytest.mark.rule(29)
def test_a_server_that_is_paused_keeps_a_task_waiting_and_nothing_is_lost(
    place: StorePlace, store: Store, workers: list[Worker]
) -> None:
    worker = workers[0]
    contract.run(store, worker.process.task(), 1, 0, x=1)
    place.server.pause()
    worker.start(lambda: contract.run(store, worker.process.task(), 2, 0, x=1))
    wait_until(
        lambda: worker.outcome is not None or owned.has_unread_input(place.server.port),
        "a question to the paused server",
    )
    assert worker.outcome is None
    place.server.resume()
    assert worker.ended()["x"].applied
    assert dict(store.items()) == {"x": 2}


FORKING = """
import os, sys
from tests.conformance import test_store_contract as contract
from txtopo import stores
from txtopo.topology.transaction import TransactionAttempt

kind, url, name = sys.argv[1:]
link_of = {"RedisStore": lambda connection: connection._links[None], "SqlStore": lambda connection: connection._raw}[kind]
store = getattr(stores, kind)(url, name, opaque=True)
process = contract.Process()
contract.run(store, process.task(), 1, 0, parent=1)
children = []
for task in range(1, 5):
    child = os.fork()
    if child == 0:  # the child has its parent's connection, and must neither use nor end it
        contract.run(store, process.task(task=task), 1, 0, **{str(task): task})
        assert len(process._resources) == 2
        process.close()
        os._exit(0)
    children.append(child)
contract.run(store, process.task(), 1, 0, parent=0)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
[connection] = process._resources.values()
before = link_of(connection)
with store.transaction(process.task(), TransactionAttempt(2, 0)) as t:
    t.update("parent", contract.plus(1))
    child = os.fork()
    if child == 0:
        sys.exit(process.close())
    assert os.waitpid(child, 0)[1] == 0
assert link_of(connection) is before and not getattr(before, "has_news", False)
process.close()
print(sorted(store.items()))
"""


@pytest.mark.thorough
def test_connections_are_not_shared_across_a_fork(place: StorePlace) -> None:
    """In an interpreter of its own: one thread only, as in a worker that forks."""
    store = place.store()
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        FORKING,
        type(store).__name__,
        store.url,
        store.name,
    ]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == "[('1', 1), ('2', 2), ('3', 3), ('4', 4), ('parent', 2)]"
