"""A PostgreSQL server and its connections end at every moment of a store's transaction; a replay counts once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from tests.conformance import test_store_contract as contract
from tests.postgres import PostgresServer
from tests.servers import state
from txtopo.errors import FailedException
from txtopo.stores import SqlStore, StoreTransaction

BOUND_S = 60
ROOT = Path(__file__).parents[2]


@pytest.fixture
def process() -> Iterator[contract.Process]:
    process = contract.Process()
    yield process
    process.close()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.new_database()
    yield name
    postgres.start()
    postgres.drop(name)


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def store(request: pytest.FixtureRequest, postgres: PostgresServer, database: str) -> SqlStore:
    return SqlStore(postgres.url(database), "counts", opaque=request.param, lock_timeout_s=BOUND_S)


ENDS: dict[str, Callable[[PostgresServer, str], object]] = {
    "the server is killed": lambda postgres, database: postgres.kill(),
    "the server is shut down": lambda postgres, database: postgres.stop(),
    "the session is ended": lambda postgres, database: postgres.disconnect(database),
}


@pytest.mark.rule(7, 28)
@pytest.mark.parametrize("end", ENDS)
def test_a_connection_that_ends_inside_a_transaction_fails_the_attempt_and_its_replay_counts_once(
    postgres: PostgresServer, database: str, store: SqlStore, process: contract.Process, end: str
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)

    def lose_it(opened: StoreTransaction) -> None:
        opened.update("x", contract.plus(10))
        opened._write()
        ENDS[end](postgres, database)
        opened.update("y", contract.plus(10))

    with pytest.raises(FailedException, match="the connection is lost"):
        contract.block(store, process.task(), 2, 0, lose_it)
    if not postgres.is_running:
        with pytest.raises(FailedException, match="cannot be connected to"):
            contract.run(store, process.task(), 2, 1, x=10)
    postgres.start()
    assert dict(store.items()) == {"x": 1}
    contract.run(store, process.task(), 2, 2, x=10)
    assert dict(store.items()) == {"x": 11}


@pytest.mark.rule(12)
@pytest.mark.parametrize("end", ENDS)
def test_a_connection_that_ended_between_two_transactions_is_made_again_unnoticed(
    postgres: PostgresServer, database: str, store: SqlStore, process: contract.Process, end: str
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)
    [before] = postgres.backends(database)
    ENDS[end](postgres, database)
    postgres.start()
    contract.run(store, process.task(), 2, 0, x=1)
    assert dict(store.items()) == {"x": 2}
    [after] = postgres.backends(database)
    assert after != before


@pytest.mark.rule(28)
def test_a_commit_whose_acknowledgement_is_lost_is_not_applied_again(
    store: SqlStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)
    contract.run(store, process.task(task=1), 2, 0)
    commit = sa.Connection.commit

    def commit_and_die(connection: sa.Connection) -> None:
        commit(connection)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    context = process.task()
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_and_die)
        with pytest.raises(FailedException, match=r"the connection is lost \(server closed the connection"):
            contract.run(store, context, 2, 0, x=10)
    assert (context.store_steps, context.touched_stores, store.get("x")) == ({}, set(), 11)
    assert contract.run(store, process.task(), 2, 1, x=10)["x"].curr == 11
    assert dict(store.items()) == {"x": 11}


@pytest.mark.rule(29)
def test_a_server_that_is_paused_keeps_a_task_waiting_and_nothing_is_lost(
    postgres: PostgresServer, store: SqlStore, process: contract.Process
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)
    postgres.pause()
    thread = threading.Thread(target=lambda: contract.run(store, process.task(), 2, 0, x=1), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    postgres.resume()
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


def test_connections_are_not_shared_across_a_fork(postgres: PostgresServer, database: str) -> None:
    """In an interpreter of its own: one thread only, as in a worker that forks."""
    command = [sys.executable, "-W", "error", "-c", FORKING, postgres.url(database)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == "[('1', 1), ('2', 2), ('3', 3), ('4', 4), ('parent', 2)]"


# -- the server of the tests itself ----------------------------------------------------------------------------------------------------

OWNER = """
import sys
from tests.postgres import PostgresServer

with PostgresServer() as server:
    print(server._directory, server._process.pid, flush=True)
    sys.stdin.read()
    sys.exit("failed" if sys.argv[1] == "fail" else 0)
"""


@pytest.mark.parametrize("how", ["end", "fail", "kill"])
def test_the_server_ends_with_the_process_that_started_it(how: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, how], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        directory, pid = owner.stdout.readline().split()
        assert (Path(directory) / "data" / "postmaster.pid").exists()
        if how == "kill":
            owner.send_signal(signal.SIGKILL)
    assert owner.wait(BOUND_S) == {"end": 0, "fail": 1, "kill": -signal.SIGKILL}[how]
    for _ in range(BOUND_S * 100):
        if not Path(directory).exists():
            break
        threading.Event().wait(0.01)
    assert not Path(directory).exists()
    assert state(int(pid)) in "Z"


def test_the_server_of_the_tests_listens_on_loopback_only_and_never_runs_as_root(postgres: PostgresServer) -> None:
    assert postgres.is_running
    assert postgres._process is not None
    assert Path(f"/proc/{postgres._process.pid}").stat().st_uid != 0
    assert postgres.execute("SHOW listen_addresses") == [("127.0.0.1",)]

