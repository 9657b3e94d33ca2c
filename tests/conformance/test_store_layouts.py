"""A store that the version before this one wrote is read as it is, and brought forward by the first
task that writes to it.

Run over every backend.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_store_contract import FACTORIES, Process, run
from tests.patience import PATIENCE_S
from tests.processes.earlier_layouts import EARLIER, dies_while_bringing_forward
from txtopo.errors import FailedException, StateMismatchError
from txtopo.stores import Store, VisibleTxid
from txtopo.topology.transaction import RecordedAttempt, TransactionAttempt

TASKS = 4
STATEMENTS = {"sqlite": 3, "postgresql": 3, "mariadb": 3, "redis": 0}
"""By backend: how many statements bring a store forward. Redis does it in the script that opens the
store."""


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    processes = [Process() for _ in range(TASKS)]
    yield processes
    for process in processes:
        process.close()


@pytest.fixture(params=sorted(EARLIER))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(backend: str, tmp_path: Path, processes: list[Process]) -> Store:
    """At transaction 1, which two tasks have written, in the earlier layout."""
    store = FACTORIES[backend](tmp_path)
    for task in range(2):
        run(store, processes[0].task(task=task, num_tasks=2), 1, 0, **{f"key {task}": 1})
    processes[0].close()
    EARLIER[backend](store)
    return store


OLD = {"count/results": TransactionAttempt(1, 0)}


@pytest.mark.rule(34)
def test_an_earlier_layout_is_read_unchanged(store: Store, backend: str, tmp_path: Path) -> None:
    for name in ("results", "results"):
        looked_at = FACTORIES[backend](tmp_path, name)
        assert dict(looked_at.items(as_of=VisibleTxid(1, "words", "first", OLD))) == {"key 0": 1, "key 1": 1}
        assert [(fence.txid, fence.attempt) for fence in looked_at.fences()] == [(1, 0)]
    if STATEMENTS[backend]:
        assert [fence.count for fence in store.fences()] == [None]


@pytest.mark.rule(34)
def test_the_first_writing_task_brings_an_earlier_layout_forward_and_counting_begins(store: Store, processes: list[Process]) -> None:
    for txid, known in ((2, OLD), (3, {"count/results": RecordedAttempt(2, 0, 2)})):
        for task in range(2):
            run(store, processes[0].task(task=task, num_tasks=2, known_stores=known), txid, 0, **{f"key {task}": 1})
    assert (dict(store.items()), [fence.count for fence in store.fences()]) == ({"key 0": 3, "key 1": 3}, [2])
    with pytest.raises(StateMismatchError, match="has recorded 3"):
        run(store, processes[0].task(known_stores={"count/results": RecordedAttempt(3, 0, 3)}), 4, 0)


@pytest.mark.rule(34)
def test_an_attempt_that_an_earlier_version_began_is_not_compared_by_its_count(store: Store, processes: list[Process], backend: str) -> None:
    run(store, processes[0].task(task=1, num_tasks=2), 1, 0, other=1)
    counts = [fence.count for fence in store.fences()]
    assert counts == ([None] if STATEMENTS[backend] else [1])
    run(store, processes[0].task(task=1, num_tasks=2, known_stores=OLD), 2, 0, other=1)
    assert store.get("other") == 2


@pytest.mark.in_gate("mariadb", "redis", "sqlite")
@pytest.mark.rule(34)
def test_several_tasks_may_bring_it_forward_at_once(store: Store, processes: list[Process]) -> None:
    begin, failures = threading.Barrier(TASKS), list[BaseException]()

    def write(task: int) -> None:
        begin.wait(PATIENCE_S)
        context = processes[task].task(task=task, num_tasks=TASKS, known_stores=OLD)
        try:
            while True:
                try:
                    run(store, context, 2, 0, **{f"key {task}": 1})
                    return
                except FailedException:
                    continue  # busy, as a store may be
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(task,), daemon=True) for task in range(TASKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert failures == []
    assert dict(store.items()) == {"key 0": 2, "key 1": 2, "key 2": 1, "key 3": 1}
    assert [fence.count for fence in store.fences()] == [TASKS]


@pytest.mark.in_gate("redis")
@pytest.mark.rule(34)
def test_a_process_that_dies_while_bringing_a_store_forward_leaves_the_store_whole(
    store: Store, backend: str, processes: list[Process], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("half-way")
    for statement in range(1, STATEMENTS[backend] + 1):
        assert dies_while_bringing_forward(store, statement, directory), f"there is a statement {statement}"
        assert dict(store.items(as_of=VisibleTxid(1, "words", "first", OLD))) == {"key 0": 1, "key 1": 1}
    assert not dies_while_bringing_forward(store, STATEMENTS[backend] + 1, directory), "the next process brings it forward"
    run(store, processes[0].task(known_stores={"count/results": RecordedAttempt(2, 0, 1)}), 3, 0, x=1)
    assert dict(store.items()) == {"key 0": 1, "key 1": 1, "x": 3}


@pytest.mark.in_gate("postgresql", "redis", "sqlite")
@pytest.mark.rule(34)
def test_another_store_of_the_earlier_layout_beside_it_stays_as_it_is(backend: str, tmp_path: Path, processes: list[Process]) -> None:
    stores = [FACTORIES[backend](tmp_path, name) for name in ("older", "newer")]
    for store in stores:
        run(store, processes[0].task(), 1, 0, x=1)
    processes[0].close()
    for store in stores:
        if store is stores[0] or backend == "redis":
            EARLIER[backend](store)
    run(stores[1], processes[0].task(), 2, 0, x=1)
    run(FACTORIES[backend](tmp_path, "newest"), processes[0].task(), 1, 0, x=1)
    assert (stores[0].get("x"), stores[1].get("x")) == (1, 2)
    run(stores[0], processes[0].task(), 2, 0, x=1)
    assert [fence.count for store in stores for fence in store.fences()] == [1, 1]
