"""What merging keeps in memory until the database combines it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from txtopo.stores import ADD
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.testing.stores import MemoryStore
from txtopo.topology.transaction import TransactionAttempt

MANY = 9000
COPY_BYTES = 50_000
"""Less than a copy of a dict of so many keys takes."""


@pytest.mark.rule(30)
@pytest.mark.parametrize("reads", [False, True], ids=["kept", "combined"])
def test_merging_one_more_key_copies_none_of_those_before(reads: bool, tmp_path: Path) -> None:
    store = MemoryStore("results", str(tmp_path))
    with store.transaction(WorkerProcess().task(), TransactionAttempt(1, 0)) as transaction:
        transaction.merge_many({f"key {number}": 1 for number in range(MANY)}, ADD)
        if reads:
            transaction.get("nothing")
        tracemalloc.start()
        try:
            transaction.merge_many({"one more": 1}, ADD)
            if reads:
                transaction.get("nothing")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < COPY_BYTES
    assert store.count() == MANY + 1
    store.forget()
