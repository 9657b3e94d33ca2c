"""A store that several processes can write to, while worker processes come, die and come back late."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests import mariadb, postgres, redis_server
from tests.conformance import test_store_contract as contract
from tests.databases import DatabaseServer
from txtopo.errors import FailedException, StaleAttemptError
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store, StoreTransaction
from txtopo.topology.transaction import TransactionAttempt

BOUND_S = 60
"""Longest wait for another process before a test fails."""

spawning = multiprocessing.get_context("spawn")


SERVERS: dict[str, Callable[[], DatabaseServer]] = {"mariadb": mariadb.running_server, "postgresql": postgres.running_server}


class MakeStore(Protocol):
    """Makes an empty store."""

    def __call__(self, *, opaque: bool = False, patience_s: float = BOUND_S) -> Store: ...


@pytest.fixture(params=["mariadb", "postgresql", "redis", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    def sqlite(*, opaque: bool = False, patience_s: float = BOUND_S) -> Store:
        return SqliteStore(tmp_path / "counts.db", "counts", opaque=opaque, busy_timeout_s=patience_s)

    def on_server(*, opaque: bool = False, patience_s: float = BOUND_S) -> Store:
        return SqlStore(SERVERS[request.param]().new_url(), "counts", opaque=opaque, lock_timeout_s=patience_s)

    def redis(*, opaque: bool = False, patience_s: float = BOUND_S) -> Store:
        return RedisStore(redis_server.running_server().url_for(tmp_path), "counts", opaque=opaque, answer_timeout_s=patience_s)

    return {"sqlite": sqlite, "redis": redis}.get(request.param, on_server)


def start(target: Any, *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = spawning.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def ended(process: multiprocessing.process.BaseProcess) -> int | None:
    """The exit code, once the process has ended."""
    process.join(BOUND_S)
    if process.is_alive():
        process.kill()
        process.join(BOUND_S)
        raise AssertionError("the process did not end in time")
    return process.exitcode


def work(store: Store, task: int, first_txid: int, last_txid: int) -> None:
    """One task of component ``count``: in every transaction it adds 1 to keys of its own, in two blocks."""
    process = contract.Process()
    for txid in range(first_txid, last_txid + 1):
        context = process.task(task=task)
        for _ in range(2):
            contract.run(store, context, txid, 0, **{f"{task}/{number}": 1 for number in range(20)})
    process.close()


def hang(store: Store, txid: int, attempt: int, inside: Event) -> None:
    """Updates, says so, and waits with the transaction open."""
    process = contract.Process()
    with store.transaction(process.task(), TransactionAttempt(txid, attempt)) as t:
        t.update("dog", contract.plus(100))
        t._write()  # what was updated so far is in the database transaction
        inside.set()
        signal.pause()


def come_late(store: Store, txid: int, attempt: int, before_writing: Event, may_write: Event, outcome: Any) -> None:
    process = contract.Process()
    before_writing.set()
    may_write.wait(BOUND_S)
    try:
        contract.run(store, process.task(), txid, attempt, dog=100)
    except StaleAttemptError as error:
        outcome.put(str(error))
    else:
        outcome.put("written")
    process.close()


@pytest.mark.rule(29, 32)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_processes_that_find_no_tables_make_them_together_and_lose_nothing(make_store: MakeStore, opaque: bool) -> None:
    store = make_store(opaque=opaque)
    processes = [start(work, store, task, 1, 1) for task in range(6)]
    assert [ended(process) for process in processes] == [0] * 6
    assert dict(store.items()) == {f"{task}/{number}": 2 for task in range(6) for number in range(20)}


@pytest.mark.rule(29)
def test_tasks_in_processes_of_their_own_commit_transaction_after_transaction(make_store: MakeStore) -> None:
    store = make_store(opaque=True)
    for txid in range(1, 4):
        assert [ended(process) for process in [start(work, store, task, txid, txid) for task in range(3)]] == [0] * 3
    assert dict(store.items()) == {f"{task}/{number}": 6 for task in range(3) for number in range(20)}


@pytest.mark.rule(29)
@pytest.mark.parametrize("late", [(2, 0), (1, 0)], ids=["same txid", "earlier txid"])
def test_a_zombie_process_that_comes_late_changes_nothing(make_store: MakeStore, late: tuple[int, int]) -> None:
    store = make_store()
    before_writing, may_write, outcome = spawning.Event(), spawning.Event(), spawning.Queue()
    zombie = start(come_late, store, *late, before_writing, may_write, outcome)
    assert before_writing.wait(BOUND_S)
    process = contract.Process()
    contract.run(store, process.task(), 2, 1, dog=1)
    process.close()
    may_write.set()
    assert f"fenced at attempt 2:1; attempt {late[0]}:{late[1]} may not write" in outcome.get(timeout=BOUND_S)
    assert ended(zombie) == 0
    assert dict(store.items()) == {"dog": 1}


@pytest.mark.rule(28, 29)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_a_process_killed_inside_its_transaction_leaves_nothing_and_blocks_nobody(make_store: MakeStore, opaque: bool) -> None:
    store = make_store(opaque=opaque, patience_s=0.2)
    process = contract.Process()
    contract.run(store, process.task(), 1, dog=1)
    inside = spawning.Event()
    victim = start(hang, store, 2, 0, inside)
    assert inside.wait(BOUND_S)
    if isinstance(store, RedisStore):
        contract.run(store, process.task(), 2, 1, cat=5)
        assert dict(store.items()) == {"dog": 1, "cat": 5}, "a transaction there is nothing before its last step, and keeps nobody waiting"
    else:
        with pytest.raises(FailedException, match="is busy"):
            contract.run(store, process.task(), 2, 1, dog=5)
        assert dict(store.items()) == {"dog": 1}, "readers neither wait nor see it"

    victim.kill()

    assert ended(victim) == -signal.SIGKILL
    contract.run(store, process.task(), 2, 2, dog=5)
    assert dict(store.items()) == ({"dog": 6, "cat": 5} if isinstance(store, RedisStore) and not opaque else {"dog": 6})
    process.close()


@pytest.mark.rule(28)
def test_a_process_killed_between_two_blocks_is_completed_by_its_replay(make_store: MakeStore) -> None:
    store = make_store()
    assert ended(start(die_between_blocks, store)) == -signal.SIGKILL
    assert dict(store.items()) == {"dog": 1}
    process = contract.Process()
    context = process.task()

    def finish_batch(t: StoreTransaction) -> list[bool]:
        return [t.update(key, contract.plus(1)).applied for key in ("dog", "dog", "cat")]

    assert contract.block(store, context, 1, 1, finish_batch) == [False, True, True]
    assert dict(store.items()) == {"cat": 1, "dog": 2}
    process.close()


def die_between_blocks(store: Store) -> None:
    context = contract.Process().task()
    contract.run(store, context, 1, 0, dog=1)
    os.kill(os.getpid(), signal.SIGKILL)


FORKING = """
import os, sys
from tests.conformance import test_store_contract as contract
from txtopo.stores import SqliteStore
from txtopo.topology.transaction import TransactionAttempt

store = SqliteStore(sys.argv[1], "counts", opaque=True, busy_timeout_s=30)
process = contract.Process()
contract.run(store, process.task(), 1, 0, parent=1)
inherited = dict(process._resources)
children = []
for task in range(1, 5):
    child = os.fork()
    if child == 0:  # the child has its parent's resources, and must not use them
        assert all(connection._raw is None for connection in inherited.values())
        contract.run(store, process.task(task=task), 1, 0, **{str(task): task})
        assert len(process._resources) == 2
        os._exit(0)
    children.append(child)
contract.run(store, process.task(), 1, 0, parent=0)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
with store.transaction(process.task(), TransactionAttempt(2, 0)) as t:
    t.update("parent", contract.plus(1))
    child = os.fork()
    if child == 0:  # a child that leaves at once does not disturb its parent's open transaction
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(sorted(store.items()))
"""


def test_connections_are_not_carried_across_a_fork(tmp_path: Path) -> None:
    """In an interpreter of its own: one thread only, as in a worker that forks."""
    command = [sys.executable, "-c", FORKING, str(tmp_path / "counts.db")]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[('1', 1), ('2', 2), ('3', 3), ('4', 4), ('parent', 2)]"
