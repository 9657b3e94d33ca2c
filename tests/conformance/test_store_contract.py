"""The promises of every store, run over every backend. A new backend adds one line to
``FACTORIES``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.conformance import store_clauses
from tests.patience import PATIENCE_S
from tests.servers import mariadb as maria
from tests.servers import redis_server
from tests.servers.postgres import running_server
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store, Update, stamps
from txtopo.testing import check_store
from txtopo.testing.contracts import store as contract
from txtopo.testing.contracts.store_subject import add, block, never, plus, run, set_to
from txtopo.testing.contracts.worker_process import WorkerProcess as Process
from txtopo.testing.stores import MemoryStore
from txtopo.topology.transaction import TransactionAttempt

__all__ = ["FACTORIES", "Process", "add", "block", "never", "plus", "run", "set_to"]


class StoreFactory(Protocol):
    """Makes a store of results ``name`` in ``directory``. Equal arguments give stores with the same
    results."""

    def __call__(self, directory: Path, name: str = "results", **form: Any) -> Store: ...


def sqlite(directory: Path, name: str = "results", **form: Any) -> Store:
    return SqliteStore(directory / "results.db", name, busy_timeout_s=PATIENCE_S, **form)


def memory(directory: Path, name: str = "results", **form: Any) -> Store:
    return MemoryStore(name, str(directory), **form)


def postgresql(directory: Path, name: str = "results", **form: Any) -> Store:
    schema = f"of_{hashlib.blake2b(str(directory).encode(), digest_size=8).hexdigest()}"
    return SqlStore(running_server().schema_url(schema), name, lock_timeout_s=PATIENCE_S, **form)


def mariadb(directory: Path, name: str = "results", **form: Any) -> Store:
    database = f"of_{hashlib.blake2b(str(directory).encode(), digest_size=8).hexdigest()}"
    return SqlStore(maria.running_server().url(database), name, lock_timeout_s=PATIENCE_S, **form)


def redis(directory: Path, name: str = "results", **form: Any) -> Store:
    return RedisStore(redis_server.running_server().url_for(directory), name, **form)


FACTORIES: dict[str, StoreFactory] = {
    "mariadb": mariadb,
    "memory": memory,
    "postgresql": postgresql,
    "redis": redis,
    "sqlite": sqlite,
}

CONCURRENT = {"mariadb", "postgresql", "redis", "sqlite"}
"""Stores that several tasks may write to at once."""

CLAUSES = [
    pytest.param(backend, kind, clause, id=f"{backend}, {kind}: {clause.claim}")
    for backend in sorted(FACTORIES)
    for kind in contract.KINDS
    for clause in store_clauses.clauses_for(kind, backend in CONCURRENT)
]


@pytest.mark.usefixtures("few_rows")
@pytest.mark.in_gate(
    "memory*",
    "sqlite*",
    "postgresql, opaque: *late task*",
    "postgresql, opaque: *taken back*",
    "mariadb, tr*: *late task*",
)
@pytest.mark.rule(7, 12, 27, 28, 29, 30, 31, 32)
@pytest.mark.parametrize(("backend", "kind", "clause"), CLAUSES)
def test_it_keeps_the_contract(
    backend: str, kind: stamps.Kind, clause: Any, tmp_path: Path
) -> None:
    contract.check_clause(
        clause,
        lambda name, **form: FACTORIES[backend](tmp_path, name, **form),
        kind=kind,
        prefix="contract",
    )


IN_ONE_PLACE: list[tuple[str, tuple[stamps.Kind, ...]]] = [
    ("redis", contract.KINDS),
    ("mariadb", ("plain",)),
    ("postgresql", ("plain",)),
    ("postgresql", ("opaque",)),
    ("memory", contract.KINDS),
    ("sqlite", contract.KINDS),
]
"""Not all kinds in each database: each clause has a place of its own above, and databases take
their time to make tables."""


@pytest.mark.usefixtures("few_rows")
@pytest.mark.in_gate("mariadb-plain", "postgresql-plain", "redis-*")
@pytest.mark.parametrize(
    ("backend", "kinds"),
    IN_ONE_PLACE,
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_it_keeps_the_whole_contract_in_one_place(
    backend: str, kinds: tuple[stamps.Kind, ...], tmp_path: Path
) -> None:
    checked = check_store(
        lambda name, **form: FACTORIES[backend](tmp_path, name, **form),
        kinds=kinds,
        concurrent=backend in CONCURRENT,
    )
    assert checked == sum(len(contract.clauses_for(kind, backend in CONCURRENT)) for kind in kinds)


@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
@pytest.mark.parametrize("backend", sorted(FACTORIES))
def test_looking_at_a_store_leaves_nothing_behind(
    backend: str, opaque: bool, tmp_path: Path
) -> None:
    store = FACTORIES[backend](tmp_path, opaque=opaque)
    assert (
        store.get("dog"),
        list(store.items()),
        list(store.scan("d")),
        store.fences(),
        store.inspect("dog"),
    ) == (None, [], [], [], None)
    assert (
        store.clear("words").rows,
        store.adopt("words", "first", 1, ["count"], dry_run=True).fences,
    ) == (0, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule(28, 32)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
@pytest.mark.parametrize("backend", sorted(FACTORIES))
def test_rows_are_written_and_read_again_in_small_portions_too(
    backend: str, opaque: bool, tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txtopo.stores.transaction.ROWS_HELD_MAX", 7)
    store, deltas = (
        FACTORIES[backend](tmp_path, opaque=opaque),
        {number: number for number in range(40)},
    )
    for attempt, applied in ((0, True), (0, False)):
        with store.transaction(process.task(), TransactionAttempt(1, attempt)) as t:
            assert t.update_many(deltas, add) == {
                number: Update(None, number, applied) for number in range(40)
            }
            assert t.update_many(deltas, add) == {
                number: Update(number, 2 * number, applied) for number in range(40)
            }
    assert dict(store.items()) == {number: 2 * number for number in range(40)}


@pytest.mark.rule(28)
@pytest.mark.parametrize("kind", contract.KINDS)
@pytest.mark.parametrize("backend", sorted(FACTORIES))
def test_many_keys_are_read_and_removed_as_one_is_and_in_one_go(
    backend: str,
    kind: stamps.Kind,
    tmp_path: Path,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txtopo.stores.transaction.ROWS_HELD_MAX", 7)
    store = FACTORIES[backend](tmp_path, opaque=kind == "opaque", plain=kind == "plain")
    block(
        store, process.task(), 1, 0, lambda t: t.put_many({number: -number for number in range(20)})
    )
    for attempt in (0, 1):
        with store.transaction(process.task(), TransactionAttempt(2, attempt)) as t:
            of_writing = "read_rows_to_write" if kind == "plain" else "read_rows_to_change"
            read, to_write = Counting(t.session.read_rows), Counting(getattr(t.session, of_writing))
            monkeypatch.setattr(t.session, "read_rows", read)
            assert t.get_many([*range(15, 29), 15]) == {
                number: -number if number < 20 else None for number in range(15, 29)
            }
            assert read.counts == [7, 7]
            monkeypatch.setattr(t.session, of_writing, to_write)
            removed = t.delete_many([*range(14), 30, 0])
            assert (list(removed), to_write.counts) == ([*range(14), 30], [7, 7, 1])
            if kind != "plain":
                applied = kind == "opaque" or attempt == 0
                assert removed == {
                    number: Update(-number if number < 20 else None, None, applied)
                    for number in removed
                }
                assert t.get_many([0, 14, 30]) == {0: None, 14: -14, 30: None}
            assert t.get_many([]) == t.delete_many([]) == {}
    assert dict(store.items()) == {number: -number for number in range(14, 20)}


class Counting:
    """Reads rows, and knows how many were asked for each time."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self.counts: list[int] = []

    def __call__(self, texts: Sequence[str], *of: Any) -> Any:
        self.counts.append(len(texts))
        return self._read(texts, *of)


@pytest.mark.rule(31)
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("backend", sorted(FACTORIES))
def test_opaque_and_transactional_writes_of_one_attempt_are_all_taken_back(
    backend: str, tasks: int, tmp_path: Path, process: Process
) -> None:
    opaque, transactional = FACTORIES[backend](tmp_path, opaque=True), FACTORIES[backend](tmp_path)
    run(opaque, process.task(num_tasks=tasks, known_stores={}), 1, 0, dog=1)
    run(transactional, process.task(num_tasks=tasks, known_stores={}), 1, 0, cat=1)
    run(opaque, process.task(num_tasks=tasks, known_stores={}), 2, 0, owl=1)
    assert dict(opaque.items()) == {"owl": 1}, (
        "the recorded attempt of transaction 1 opened nothing"
    )
