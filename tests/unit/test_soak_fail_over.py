"""A fail-over of the soak: copies of stores are taken during writes, put back whole, and a refusal
is judged by the recorded transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.soak import fail_over
from tests.soak.fail_over import FailOver
from tests.soak.workloads import WORKLOADS
from tests.soak.world import World
from txtopo.state import administration
from txtopo.stores import SqliteStore
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.transaction import TransactionAttempt


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path), 1, ("bank", "append"), zookeeper="127.0.0.1:1")


def write(
    process: WorkerProcess, store: SqliteStore, workload: str, txid: int, tasks: int = 2
) -> None:
    for task in range(tasks):
        context = process.task("ledger", task, num_tasks=2, topology_id=f"soak-{workload}")
        with store.transaction(context, TransactionAttempt(txid, 0)) as opened:
            opened.put(f"task {task}", txid)


def of(world: World, workload: str) -> SqliteStore:
    store: SqliteStore = WORKLOADS[workload].stores(world)[workload]
    return store


def record(monkeypatch: pytest.MonkeyPatch, txid: int, count: int) -> None:
    def show(state: object, topology_id: str) -> dict[str, Any]:
        name = f"ledger/{topology_id.removeprefix('soak-')}"
        return {"recorded": {name: f"{txid}:0"}, "counts": {name: count}}

    class Nowhere:
        def __init__(self, *args: Any, **options: Any) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(fail_over, "ZooKeeperStateStore", Nowhere)
    monkeypatch.setattr(administration, "show", show)


@pytest.mark.rule(34)
def test_transactions_missing_in_a_copy_are_put_back_after_a_refused_driver(
    world: World, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, notes = FailOver(world, lambda note: notes.append(note)), list[str]()
    bank = of(world, "bank")
    write(process, bank, "bank", 1)
    write(process, bank, "bank", 2, tasks=1)
    stores.stop()
    write(process, bank, "bank", 2)
    process.close()
    stores.lose(lambda workload: 3)
    assert dict(bank.items()) == {"task 0": 2, "task 1": 1}
    record(monkeypatch, 2, 2)
    assert stores.refused(f"StateMismatchError: store {bank.address} is behind: …") is None
    assert (dict(bank.items()), stores.refusals, len(notes)) == ({"task 0": 2, "task 1": 2}, 1, 1)
    again = stores.refused(f"StateMismatchError: store {bank.address} is behind: …")
    assert again is not None
    assert again.startswith("refused over stores that nothing was done to")


@pytest.mark.rule(34)
def test_a_refusal_of_a_copy_that_lacks_nothing_recorded_is_a_violation(
    world: World, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, bank = FailOver(world, lambda note: None), of(world, "bank")
    write(process, bank, "bank", 2)
    process.close()
    stores.stop()
    stores.lose(lambda workload: 3)
    record(monkeypatch, 2, 2)
    wrong = stores.refused(f"StateMismatchError: store {bank.address} is behind: …")
    assert wrong is not None
    assert wrong.startswith("bank: refused, although its replica lacks nothing that was recorded")


def test_it_is_settled_when_every_workload_has_gone_on(world: World) -> None:
    stores = FailOver(world, lambda note: None)
    current = {"bank": 3, "append": 5}
    stores.stop()
    stores.lose(current.__getitem__)
    assert not stores.is_settled(current.__getitem__)
    current["bank"] = 5
    assert not stores.is_settled(current.__getitem__)
    current["append"] = 7
    assert stores.is_settled(current.__getitem__)
    stores.end()
    assert stores.refused(f"store {of(world, 'bank').address} is behind") is not None


@pytest.mark.rule(34)
def test_a_replica_is_stopped_in_a_part_of_the_attempt_that_is_recorded_a_moment_later(
    world: World, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, append = FailOver(world, lambda note: None), of(world, "append")
    write(process, append, "append", 1)
    write(process, append, "append", 2, tasks=1)
    shown = iter([(1, 2), (1, 2), (2, 2)])

    def show(state: object, topology_id: str) -> dict[str, Any]:
        txid, count = next(shown, (2, 2))
        return {"recorded": {"ledger/append": f"{txid}:0"}, "counts": {"ledger/append": count}}

    record(monkeypatch, 1, 2)
    monkeypatch.setattr(administration, "show", show)
    assert stores.stop_in_a_part(["append"], 10.0)
    write(process, append, "append", 2)
    process.close()
    assert stores.lacking("append") == "nothing"
    stores.lose(lambda workload: 3)
    assert stores.lacking("append") == "a part of an attempt"
    assert dict(append.items()) == {"task 0": 2, "task 1": 1}


@pytest.mark.rule(34)
def test_a_replica_of_which_no_part_is_recorded_goes_on(
    world: World, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, append = FailOver(world, lambda note: None), of(world, "append")
    write(process, append, "append", 1)
    record(monkeypatch, 1, 2)
    assert not stores.stop_in_a_part(["append"], 0.1)
    write(process, append, "append", 2, tasks=1)
    shown = iter([1, 3])

    def show(state: object, topology_id: str) -> dict[str, Any]:
        return {
            "recorded": {"ledger/append": f"{next(shown, 3)}:0"},
            "counts": {"ledger/append": 2},
        }

    monkeypatch.setattr(administration, "show", show)
    assert not stores.stop_in_a_part(["append"], 0.1)
