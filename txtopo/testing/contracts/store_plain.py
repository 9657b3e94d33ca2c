"""Clauses about plain stores: the newest attempt's last write stands, and late writes are refused
(R27, R29, R32).

Nearly all other clauses are about the value before a transaction, which a plain store does not
keep.
"""

from __future__ import annotations

from typing import Any

from txtopo import errors
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import (
    Subject,
    block,
    contents,
    put,
    recorded,
)

CONTRACT = clauses.Contract[Subject]("store")

_LAST = "Overwrite an earlier transaction's or attempt's value, and keep the stamp, but not the old value."
_STAMP = "Compare txid, attempt and writer in the row's stamp with the task's own (stamps.plain_standing)."


@CONTRACT.clause(
    "the last write stands, within a transaction, on a replay, and in the next transaction",
    29,
    cure=_LAST,
    only="plain",
)
def _last_write(subject: Subject) -> None:
    store = subject.store()

    def steps(opened: Any) -> None:
        opened.put("dog", 1)
        opened.put_many({"dog": 2, "cat": 2, ("ant", 7): None})
        equal(opened.delete("cat"), Update(None, None, applied=True), "a deletion's result")
        equal((opened.get("dog"), opened.get("cat")), (2, None), "the values that the task reads")

    block(store, subject.task(), 1, 0, steps)
    equal(contents(store), {"dog": 2, ("ant", 7): None}, "the contents")
    block(store, subject.task(), 1, 1, steps)
    equal(contents(store), {"dog": 2, ("ant", 7): None}, "the contents after a replay")
    put(store, subject.task(task=1), 2, 0, dog=7, cat=7)
    equal(
        contents(store),
        {"cat": 7, "dog": 7, ("ant", 7): None},
        "the contents after another task's next transaction",
    )
    row = store.inspect("dog")
    equal(
        row and (row.curr, row.prev, row.txid, row.task), (7, None, 2, 1), "the value and its stamp"
    )


@CONTRACT.clause(
    "a failed attempt's writes are overwritten, by any task, and not taken back",
    29,
    32,
    cure=_LAST,
    only="plain",
)
def _not_taken_back(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, dog=1)
    put(store, subject.task(), 2, 0, dog=2, cat=2)
    put(store, subject.task(task=1), 2, 1, dog=3)
    equal(
        contents(store),
        {"cat": 2, "dog": 3},
        "the contents after a replay in a second task with different keys",
    )
    put(store, subject.task(known_stores=recorded(store, 1)), 3, 0, bird=1)
    equal(
        contents(store),
        {"bird": 1, "cat": 2, "dog": 3},
        "the contents after a recorded attempt that opened no store",
    )


@CONTRACT.clause(
    "a late task that passes its own fence does not write a key that a newer attempt deleted",
    29,
    cure=_STAMP,
    only="plain",
)
def _deleted(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task("sum"), 9, 4, dog=1)
    block(store, subject.task("sum"), 9, 5, lambda t: t.delete("dog"))
    refused(
        errors.StaleAttemptError,
        lambda: put(store, subject.task("count"), 9, 4, dog=5),
        "writing a key that a newer attempt deleted",
    )
    equal(contents(store), {}, "the contents after the deletion")
