"""The copies that a soak fails over to are whole states of one store, and leave its neighbours
alone. Run over every backend that a soak has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.test_store_contract import FACTORIES, Process, run
from tests.soak import replicas


@pytest.mark.rule(34)
@pytest.mark.parametrize("backend", sorted(FACTORIES.keys() - {"memory"}))
def test_a_copy_takes_the_place_of_one_store_with_its_fence_and_its_count(
    backend: str, tmp_path: Path, process: Process
) -> None:
    lost, neighbour = (
        FACTORIES[backend](tmp_path / "a", "lost"),
        FACTORIES[backend](tmp_path / "a", "neighbour"),
    )
    (tmp_path / "a").mkdir(exist_ok=True)
    task = process.task(num_tasks=2)
    run(lost, task, 1, 0, x=1)
    put_back = replicas.copy_of(lost, tmp_path / "copy")
    run(lost, task, 1, 0, y=1)
    run(lost, process.task(num_tasks=2), 2, 0, z=1)
    if backend != "sqlite":
        run(neighbour, process.task(num_tasks=2), 1, 0, x=7)
    process.close()
    put_back()
    assert dict(lost.items()) == {"x": 1}
    assert [(fence.txid, fence.attempt, fence.count) for fence in lost.fences()] == [(1, 0, 1)]
    assert dict(neighbour.items()) == ({} if backend == "sqlite" else {"x": 7}), (
        "SQLite's stores have a file each in a soak"
    )
    run(lost, process.task(num_tasks=2), 2, 0, x=1)
    assert dict(lost.items()) == {"x": 2}


@pytest.fixture
def process() -> Process:
    return Process()
