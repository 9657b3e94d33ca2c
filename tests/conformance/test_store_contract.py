"""What every store promises, run over every backend. A new backend adds one line to ``FACTORIES``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests import postgres, redis_server
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store, Update
from txtopo.testing import check_store
from txtopo.testing.contracts import store as contract
from txtopo.testing.contracts.store_subject import add, block, never, plus, run, set_to
from txtopo.testing.contracts.worker_process import WorkerProcess as Process
from txtopo.testing.stores import MemoryStore
from txtopo.topology.transaction import TransactionAttempt

__all__ = ["FACTORIES", "Process", "add", "block", "never", "plus", "run", "set_to"]


class StoreFactory(Protocol):
    """Makes a store of results ``name`` in ``directory``; called again with the same arguments it finds the same results."""

    def __call__(self, directory: Path, name: str = "results", *, opaque: bool = False) -> Store: ...


def sqlite(directory: Path, name: str = "results", *, opaque: bool = False) -> Store:
    return SqliteStore(directory / "results.db", name, opaque=opaque, busy_timeout_s=5)


def memory(directory: Path, name: str = "results", *, opaque: bool = False) -> Store:
    return MemoryStore(name, str(directory), opaque=opaque)


def postgresql(directory: Path, name: str = "results", *, opaque: bool = False) -> Store:
    schema = f"of_{hashlib.blake2b(str(directory).encode(), digest_size=8).hexdigest()}"
    return SqlStore(postgres.running_server().schema_url(schema), name, opaque=opaque, lock_timeout_s=5)


def redis(directory: Path, name: str = "results", *, opaque: bool = False) -> Store:
    return RedisStore(redis_server.running_server().url_for(directory), name, opaque=opaque)


FACTORIES: dict[str, StoreFactory] = {"memory": memory, "postgresql": postgresql, "redis": redis, "sqlite": sqlite}

CONCURRENT = {"postgresql", "redis", "sqlite"}
"""Stores that several tasks may write to at once."""

CLAUSES = [
    pytest.param(backend, opaque, clause, id=f"{backend}, {'opaque' if opaque else 'transactional'}: {clause.claim}")
    for backend in sorted(FACTORIES)
    for opaque in (False, True)
    for clause in contract.clauses_for(opaque, backend in CONCURRENT)
]


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


@pytest.mark.rule(7, 12, 27, 28, 29, 30, 31, 32)
@pytest.mark.parametrize(("backend", "opaque", "clause"), CLAUSES)
def test_it_keeps_the_contract(backend: str, opaque: bool, clause: Any, tmp_path: Path) -> None:
    contract.check_clause(clause, lambda name, *, opaque: FACTORIES[backend](tmp_path, name, opaque=opaque), opaque=opaque, prefix="contract")


@pytest.mark.parametrize("backend", sorted(FACTORIES))
def test_it_keeps_the_whole_contract_in_one_place(backend: str, tmp_path: Path) -> None:
    checked = check_store(lambda name, *, opaque: FACTORIES[backend](tmp_path, name, opaque=opaque), concurrent=backend in CONCURRENT)
    assert checked == sum(backend == parameters.values[0] for parameters in CLAUSES)


@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
@pytest.mark.parametrize("backend", sorted(FACTORIES))
def test_looking_at_a_store_leaves_nothing_behind(backend: str, opaque: bool, tmp_path: Path) -> None:
    store = FACTORIES[backend](tmp_path, opaque=opaque)
    assert (store.get("dog"), list(store.items()), list(store.scan("d")), store.fences(), store.inspect("dog")) == (None, [], [], [], None)
    assert (store.clear("words").rows, store.adopt("words", "first", 1, ["count"], dry_run=True).fences) == (0, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule(28, 32)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
@pytest.mark.parametrize("backend", sorted(FACTORIES))
def test_rows_are_written_and_read_again_in_small_portions_too(
    backend: str, opaque: bool, tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txtopo.stores.transaction.ROWS_HELD_MAX", 7)
    store, deltas = FACTORIES[backend](tmp_path, opaque=opaque), {number: number for number in range(40)}
    for attempt, applied in ((0, True), (0, False)):
        with store.transaction(process.task(), TransactionAttempt(1, attempt)) as t:
            assert t.update_many(deltas, add) == {number: Update(None, number, applied) for number in range(40)}
            assert t.update_many(deltas, add) == {number: Update(number, 2 * number, applied) for number in range(40)}
    assert dict(store.items()) == {number: 2 * number for number in range(40)}
