"""A database server and its connections end at every moment of a store's transaction; a replay
counts once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from tests.conformance import test_store_contract as contract
from tests.servers.databases import Database
from txtopo.errors import FailedException
from txtopo.stores import SqlStore, StoreTransaction

BOUND_S = 60
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def store(request: pytest.FixtureRequest, database: Database) -> SqlStore:
    return SqlStore(database.url, "counts", opaque=request.param, lock_timeout_s=BOUND_S)


LOST: dict[str, Exception] = {
    "postgresql+psycopg": psycopg.OperationalError("the server went away"),
    "mysql+pymysql": pymysql.err.OperationalError(2013, "the server went away"),
}
"""The message of a driver when an answer does not come."""

ENDS: dict[str, Callable[[Database], object]] = {
    "the server is killed": lambda database: database.server.kill(),
    "the server is shut down": lambda database: database.server.stop(),
    "the session is ended": lambda database: database.server.disconnect(database.name),
}


@pytest.mark.rule(7, 28)
@pytest.mark.parametrize("end", ENDS)
def test_a_connection_that_ends_inside_a_transaction_fails_the_attempt_and_its_replay_counts_once(
    database: Database, store: SqlStore, process: contract.Process, end: str
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)

    def lose_it(opened: StoreTransaction) -> None:
        opened.update("x", contract.plus(10))
        opened._write()
        ENDS[end](database)
        opened.update("y", contract.plus(10))

    with pytest.raises(FailedException, match="the connection is lost"):
        contract.block(store, process.task(), 2, 0, lose_it)
    if not database.server.is_running:
        with pytest.raises(FailedException, match="cannot be connected to"):
            contract.run(store, process.task(), 2, 1, x=10)
    database.server.start()
    assert dict(store.items()) == {"x": 1}
    contract.run(store, process.task(), 2, 2, x=10)
    assert dict(store.items()) == {"x": 11}


@pytest.mark.rule(12)
@pytest.mark.parametrize("end", ENDS)
def test_a_connection_that_ended_between_two_transactions_is_made_again_unnoticed(
    database: Database, store: SqlStore, process: contract.Process, end: str
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)
    [before] = database.backends()
    ENDS[end](database)
    database.server.start()
    contract.run(store, process.task(), 2, 0, x=1)
    assert dict(store.items()) == {"x": 2}
    [after] = database.backends()
    assert after != before


@pytest.mark.rule(28)
def test_a_commit_whose_acknowledgement_is_lost_is_not_applied_again(
    database: Database, store: SqlStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.rule(29)
def test_a_server_that_is_paused_keeps_a_task_waiting_and_nothing_is_lost(
    database: Database, store: SqlStore, process: contract.Process
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)
    database.server.pause()
    thread = threading.Thread(target=lambda: contract.run(store, process.task(), 2, 0, x=1), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    database.server.resume()
    thread.join(BOUND_S)
    assert dict(store.items()) == {"x": 2}


FORKING = """
import os, sys
from tests.conformance import test_store_contract as contract
from txtopo.stores import SqlStore
from txtopo.topology.transaction import TransactionAttempt

store = SqlStore(sys.argv[1], "counts", opaque=True)
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
before = connection._raw
with store.transaction(process.task(), TransactionAttempt(2, 0)) as t:
    t.update("parent", contract.plus(1))
    child = os.fork()
    if child == 0:
        sys.exit(process.close())
    assert os.waitpid(child, 0)[1] == 0
assert connection._raw is before
process.close()
print(sorted(store.items()))
"""


def test_connections_are_not_shared_across_a_fork(database: Database) -> None:
    """In an interpreter of its own: one thread only, as in a worker that forks."""
    command = [sys.executable, "-W", "error", "-c", FORKING, database.url]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == "[('1', 1), ('2', 2), ('3', 3), ('4', 4), ('parent', 2)]"
