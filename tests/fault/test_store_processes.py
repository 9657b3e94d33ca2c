"""A store that several processes can write to, while worker processes come, die and come back late."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import multiprocessing.process
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S, wait_until
from tests.servers.places import PLACES
from tests.servers.server_stores import DATABASES
from txtopo.errors import FailedException
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store, StoreTransaction, stamps
from txtopo.testing.contracts.store import KINDS
from txtopo.topology.transaction import TransactionAttempt

spawning = multiprocessing.get_context("spawn")


@dataclasses.dataclass(frozen=True)
class Place:
    """An empty place for a store. All handles to the store see the same content."""

    backend: str
    address: str

    def store(self, kind: stamps.Kind = "transactional", *, busy_s: float = PATIENCE_S) -> Store:
        """A store whose transactions wait so long for rival transactions."""
        opaque, plain = kind == "opaque", kind == "plain"
        if self.backend == "sqlite":
            return SqliteStore(
                self.address, "counts", opaque=opaque, plain=plain, busy_timeout_s=busy_s
            )
        if self.backend == "redis":
            return RedisStore(
                self.address, "counts", opaque=opaque, plain=plain, answer_timeout_s=PATIENCE_S
            )
        return SqlStore(
            self.address,
            "counts",
            opaque=opaque,
            plain=plain,
            lock_timeout_s=busy_s,
            idle_timeout_s=PATIENCE_S,
        )

    def disconnect(self) -> None:
        """End every session of a database from the server's side, as a server does that finds it
        silent for too long."""
        DATABASES[self.backend]().disconnect(str(sa.make_url(self.address).database))


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, PLACES[request.param](tmp_path))


def start(target: Any, *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = spawning.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def ended(process: multiprocessing.process.BaseProcess) -> int | None:
    """The exit code, once the process has ended."""
    wait_until(lambda: not process.is_alive(), "the end of a process")
    return process.exitcode


def work(store: Store, task: int, first_txid: int, last_txid: int) -> None:
    """One task of component ``count``: in every transaction it adds 1 to keys of its own, in two
    blocks."""
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
        change(store.kind, t, {"dog": 100})
        t.flush()
        inside.set()
        signal.pause()


@pytest.mark.thorough
@pytest.mark.rule(29, 32)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_processes_that_find_no_tables_make_them_together_and_lose_nothing(
    place: Place, opaque: bool
) -> None:
    store = place.store("opaque" if opaque else "transactional")
    processes = [start(work, store, task, 1, 1) for task in range(6)]
    assert [ended(process) for process in processes] == [0] * 6
    assert dict(store.items()) == {
        f"{task}/{number}": 2 for task in range(6) for number in range(20)
    }


@pytest.mark.thorough
@pytest.mark.rule(29)
def test_tasks_in_processes_of_their_own_commit_transaction_after_transaction(place: Place) -> None:
    store = place.store("opaque")
    for txid in range(1, 4):
        assert [
            ended(process)
            for process in [start(work, store, task, txid, txid) for task in range(3)]
        ] == [0] * 3
    assert dict(store.items()) == {
        f"{task}/{number}": 6 for task in range(3) for number in range(20)
    }


# -- zombies ---------------------------------------------------------------------------------------

MOMENTS = ("before its first block", "between two blocks", "inside a block")
"""Where a process stops, while newer attempts come."""
BATCH = {"dog": 100, "owl": 100}
"""Of transaction 2, in its first attempt; where it does not change, in every attempt."""
LATE_WRITES: tuple[Callable[[stamps.Kind, StoreTransaction], object], ...] = (
    lambda kind, opened: change(kind, opened, {"dog": 9}),
    lambda kind, opened: change(kind, opened, {"owl": 9}),
    lambda kind, opened: change(kind, opened, {"cat": 9}),
    lambda kind, opened: change(kind, opened, {"never written": 9}),
    lambda kind, opened: opened.delete("cat"),
)


def change(kind: stamps.Kind, opened: StoreTransaction, values: dict[str, int]) -> None:
    """Set the values, of plain ones; add them, to others."""
    if kind == "plain":
        opened.put_many(values)
    else:
        opened.update_many(values, contract.add)


def haunt(store: Store, moment: str, is_there: Event, may_go_on: Semaphore, outcomes: Any) -> None:
    """A task of attempt 2:0 that stops at ``moment``, and then writes as if nothing had happened."""
    process = contract.Process()
    context = process.task()

    def stop() -> None:
        is_there.set()
        may_go_on.acquire(timeout=PATIENCE_S)

    def stop_inside(opened: StoreTransaction) -> None:
        change(store.kind, opened, {"dog": BATCH["dog"]})
        opened.flush()
        stop()
        change(store.kind, opened, {"owl": BATCH["owl"]})

    def write(act: Callable[[StoreTransaction], object]) -> None:
        try:
            contract.block(store, context, 2, 0, act)
        except FailedException as error:
            outcomes.put(str(error))
        else:
            outcomes.put("written")

    if moment == "inside a block":
        write(stop_inside)
    elif moment == "between two blocks":
        write(lambda opened: change(store.kind, opened, BATCH))
    stop()
    for act in LATE_WRITES:
        write(functools.partial(act, store.kind))
    process.close()


class Zombie:
    """A process that runs :func:`haunt`; it lives inside a ``with``."""

    def __init__(self, store: Store, moment: str) -> None:
        self._is_there, self._may_go_on, self._outcomes = (
            spawning.Event(),
            spawning.Semaphore(0),
            spawning.Queue(),
        )
        self._process = start(haunt, store, moment, self._is_there, self._may_go_on, self._outcomes)

    def __enter__(self) -> Zombie:
        wait_until(self._is_there.is_set, "the process to stop")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def go_on(self) -> None:
        """Let the process go on from its stop."""
        self._may_go_on.release()

    def outcome(self) -> str:
        """The result of its next block."""
        return str(self._outcomes.get(timeout=PATIENCE_S))


@pytest.mark.in_gate(
    "*-opaque-inside a block-an older attempt", "*-transactional-between two blocks-an older txid"
)
@pytest.mark.rule(29, 30, 31)
@pytest.mark.parametrize("newest", [(2, 1), (3, 0)], ids=["an older attempt", "an older txid"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_stopped_and_comes_late_changes_nothing(
    place: Place, process: contract.Process, kind: stamps.Kind, moment: str, newest: tuple[int, int]
) -> None:
    def live(txid: int, attempt: int, values: dict[str, int]) -> None:
        contract.block(
            store, process.task(), txid, attempt, lambda opened: change(kind, opened, values)
        )

    is_inside = moment == "inside a block"
    store = place.store(kind)
    # No process can take the lock of a file from another: a writer that stops inside its block is
    # in time at any end.
    is_in_time = moment == "between two blocks" or (is_inside and isinstance(store, SqliteStore))
    live(1, 0, {"dog": 1, "cat": 1})
    with Zombie(store, moment) as zombie:
        if is_in_time:
            if is_inside:
                with pytest.raises(FailedException, match="is busy"):
                    contract.block(
                        place.store(kind, busy_s=0.1), process.task(), 2, 1, lambda opened: None
                    )
                zombie.go_on()
            assert zombie.outcome() == "written"
        elif is_inside and not isinstance(store, RedisStore):
            place.disconnect()
        live(2, 1, BATCH if kind == "transactional" else {"dog": 10})
        if newest == (3, 0):
            live(3, 0, {"dog": 1000})
        if is_inside and not is_in_time:
            zombie.go_on()
            # The server has ended its transaction; in Redis a transaction has no effect before its
            # last step.
            assert (
                "attempt 2:0 may not write"
                if isinstance(store, RedisStore)
                else "the connection is lost"
            ) in zombie.outcome()
        zombie.go_on()
        outcomes = [zombie.outcome() for _ in LATE_WRITES]
    refusal = f"is fenced at attempt {newest[0]}:{newest[1]}; attempt 2:0 may not write"
    assert [outcome for outcome in outcomes if refusal not in outcome] == []
    # Where a batch does not change, writes in time equal those of the replay; opaque values are
    # taken back; plain values are overwritten.
    dog = {"transactional": 101, "opaque": 11, "plain": 0 if newest == (3, 0) else 10}[kind] + (
        1000 if newest == (3, 0) else 0
    )
    owl = {"owl": 100} if kind == "transactional" or (kind == "plain" and is_in_time) else {}
    assert dict(store.items()) == {"dog": dog, "cat": 1, **owl}


@pytest.mark.in_gate("*-opaque")
@pytest.mark.rule(28, 29)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_killed_inside_its_transaction_leaves_no_rows_and_no_locks(
    place: Place, process: contract.Process, kind: stamps.Kind
) -> None:
    def live(txid: int, attempt: int, values: dict[str, int]) -> None:
        contract.block(
            store, process.task(), txid, attempt, lambda opened: change(kind, opened, values)
        )

    store = place.store(kind)
    live(1, 0, {"dog": 1})
    inside = spawning.Event()
    victim = start(hang, store, 2, 0, inside)
    wait_until(inside.is_set, "the process to be inside its transaction")
    if isinstance(store, RedisStore):
        live(2, 1, {"cat": 5})
        assert dict(store.items()) == {"dog": 1, "cat": 5}, (
            "a transaction there is nothing before its last step, and keeps nobody waiting"
        )
    else:
        with pytest.raises(FailedException, match="is busy"):
            contract.block(
                place.store(kind, busy_s=0.2),
                process.task(),
                2,
                1,
                lambda opened: change(kind, opened, {"dog": 5}),
            )
        assert dict(store.items()) == {"dog": 1}, "readers neither wait nor see it"

    victim.kill()

    assert ended(victim) == -signal.SIGKILL
    live(2, 2, {"dog": 5})
    replayed = {"cat": 5} if isinstance(store, RedisStore) and kind != "opaque" else {}
    assert dict(store.items()) == {"dog": 5 if kind == "plain" else 6, **replayed}


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_a_process_killed_between_two_blocks_is_completed_by_its_replay(place: Place) -> None:
    store = place.store()
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
from tests.patience import PATIENCE_S
from txtopo.stores import SqliteStore
from txtopo.topology.transaction import TransactionAttempt

store = SqliteStore(sys.argv[1], "counts", opaque=True, busy_timeout_s=PATIENCE_S)
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
    result = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[('1', 1), ('2', 2), ('3', 3), ('4', 4), ('parent', 2)]"
