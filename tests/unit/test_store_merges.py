"""Integers that merging holds back until the database combines them, and the order of the keys left
to the rules."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from txtopo.stores import ADD, StoreConflict
from txtopo.testing import stores
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.transaction import TransactionAttempt

MANY = 9000
COPY_BYTES = 50_000
"""Less than a copy of a dict of so many keys takes."""


@pytest.mark.rule(30)
@pytest.mark.parametrize("reads", [False, True], ids=["kept", "combined"])
def test_merging_one_more_key_copies_none_of_those_before(reads: bool, tmp_path: Path) -> None:
    store = stores.MemoryStore("results", str(tmp_path))
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


@pytest.mark.rule(32)
def test_of_several_conflicts_the_first_that_was_given_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A database may return refused keys in any order, and a set has another order in every process.
    monkeypatch.setattr(stores._Session, "merge_rows", lambda session, deltas, *_: sorted(deltas))
    store, task = stores.MemoryStore("results", str(tmp_path)), WorkerProcess().task
    with store.transaction(task(task=1), TransactionAttempt(1, 0)) as transaction:
        transaction.put_many({"cat": 1, "dog": 1})
    with (
        pytest.raises(StoreConflict, match='key "dog"'),
        store.transaction(task(), TransactionAttempt(1, 0)) as transaction,
    ):
        transaction.merge_many({"dog": 1, "cat": 1}, ADD)
    store.forget()


@pytest.mark.rule(32)
def test_two_merges_of_a_key_in_a_row_both_count(tmp_path: Path) -> None:
    store = stores.MemoryStore("results", str(tmp_path))
    with store.transaction(WorkerProcess().task(), TransactionAttempt(1, 0)) as transaction:
        transaction.merge_many({"dog": 1, "cat": 1}, ADD)
        transaction.merge_many({"dog": 2}, ADD)
    assert dict(store.items()) == {"cat": 1, "dog": 3}
    store.forget()


@pytest.mark.rule(32)
def test_a_key_whose_update_failed_is_merged_and_then_read_with_the_merge(tmp_path: Path) -> None:
    store = stores.MemoryStore("results", str(tmp_path))
    with store.transaction(WorkerProcess().task(), TransactionAttempt(1, 0)) as transaction:
        with pytest.raises(ZeroDivisionError):
            transaction.update("dog", lambda old: 1 // 0)
        transaction.merge_many({"dog": 2}, ADD)
        assert transaction.get("dog") == 2
    store.forget()
