"""Clauses about plain stores: the newest attempt's last write stands, and late writes are refused
(R27, R29, R32).

Nearly all other clauses are about the value before a transaction, which a plain store does not
keep.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from txtopo import errors
from txtopo.stores import transaction
from txtopo.stores.conflicts import StoreConflict
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import (
    Subject,
    add,
    block,
    contents,
    failing_block,
    mismatched,
    plus,
    put,
    recorded,
    refused_as_second,
    write_at_once,
)
from txtopo.topology import merge, pickling

CONTRACT = clauses.Contract[Subject]("store")

_LAST = "Overwrite an earlier transaction's or attempt's value, and keep the stamp, but not the old value."
_STAMP = "Compare txid, attempt and writer in the row's stamp with the task's own (stamps.plain_standing)."
_TASKS_AT_ONCE = 4


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
    "updates are refused with the cure, and so are writes to a key that was read",
    28,
    cure="Refuse what a replay would do twice.",
    only="plain",
)
def _no_updates(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, dog=1)
    for update in (
        lambda t: t.update("dog", plus(1)),
        lambda t: t.update_many({"dog": 1}, add),
        lambda t: t.merge_many({"dog": 1}, merge.ADD),
    ):
        refused(
            errors.UsageError,
            functools.partial(block, store, subject.task(), 2, 0, update),
            "an update",
            "is plain",
            "plain=True",
            "put()",
        )

    def write_after_read(opened: Any) -> None:
        opened.put("dog", opened.get("dog") + 1)

    refused(
        errors.UsageError,
        lambda: block(store, subject.task(), 2, 0, write_after_read),
        "writing a key that was read",
        '"dog"',
        "update()",
    )
    equal(contents(store), {"dog": 1}, "the contents")

    def read_other(opened: Any) -> None:
        equal(opened.get("dog"), 1, "the first key's value")
        opened.put("cat", 2)
        equal(opened.get("cat"), 2, "the second key's value")
        opened.put("cat", 3)

    block(store, subject.task(), 2, 1, read_other)
    equal(contents(store), {"cat": 3, "dog": 1}, "the contents after a write beside a read key")


@CONTRACT.clause(
    "a late task that passes its own fence does not overwrite a plain store's newer value",
    29,
    cure=_STAMP,
    only="plain",
)
def _ahead(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task("sum"), 9, 4, dog=1)
    for txid, attempt in ((8, 0), (9, 3)):
        for action in (
            lambda t: t.put("dog", 5),
            lambda t: t.delete("dog"),
            lambda t: t.get("dog"),
        ):
            late = functools.partial(block, store, subject.task("count"), txid, attempt, action)
            refused(
                errors.StaleAttemptError,
                late,
                f"attempt {txid}:{attempt} at a value from 9:4",
                "9:4",
                f"{txid}:{attempt}",
            )
    equal(contents(store), {"dog": 1}, "the contents")
    block(store, subject.task("sum"), 9, 5, lambda t: t.delete("dog"))
    refused(
        errors.StaleAttemptError,
        lambda: put(store, subject.task("count"), 9, 4, dog=5),
        "writing a key that a newer attempt deleted",
    )
    equal(contents(store), {}, "the contents after the deletion")


@CONTRACT.clause(
    "a plain store refuses a key's second writer in one attempt, naming both writers",
    32,
    cure=_STAMP,
    only="plain",
)
def _second_writer(subject: Subject) -> None:
    for name, other in (("task", ("count", 1)), ("component", ("sum", 0))):
        store = subject.store(name)
        put(store, subject.task("count", 0), 1, 0, dog=1)
        write = functools.partial(put, store, subject.task(*other), 1, 0, dog=1)
        refused_as_second(write, name, other)
        block(store, subject.task("count", 0), 2, 0, lambda t: t.delete("dog"))
        refused(
            StoreConflict,
            functools.partial(put, store, subject.task(*other), 2, 0, dog=1),
            "writing a key that another task deleted",
        )
        write = functools.partial(put, store, subject.task(topology_id="neighbour"), 9, 0, dog=1)
        put(store, subject.task(*other), 3, 0, dog=3)
        refused(
            StoreConflict,
            write,
            "writing another topology's key",
            "topology 'neighbour'",
            "topology 'words'",
        )
        equal(contents(store), {"dog": 3}, "the contents")


@CONTRACT.clause(
    "a plain store of another generation or age is refused, and so is an emptied plain store",
    27,
    29,
    cure="Compare generation, fence and record before the first write, also in a plain store.",
    only="plain",
)
def _mismatch(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 7, 1, dog=1)
    write = functools.partial(put, store, subject.task(generation="second"), 8, 0, dog=2)
    mismatched(
        write,
        "another generation",
        "txtopo state reset words",
        "txtopo store adopt",
        "txtopo store clear",
    )
    for attempt, word in (((9, 2), "behind"), ((7, 0), "ahead")):
        known = recorded(store, *attempt)
        write = functools.partial(put, store, subject.task(known_stores=known), 10, 0, dog=2)
        mismatched(write, "another age", f"is {word}")
    rewound = subject.task(known_stores=recorded(store, 6), first_attempt=1_000_000)
    write = functools.partial(put, store, rewound, 7, 1_000_000, cat=2)
    mismatched(write, "an attempt that was never sealed", "never sealed")
    empty = subject.store("empty")
    known = recorded(empty, 2)
    write = functools.partial(put, empty, subject.task(known_stores=known), 3, 0, dog=2)
    mismatched(write, "an emptied store", "holds nothing")
    equal((contents(store), contents(empty)), ({"dog": 1}, {}), "the contents")
    equal(store.adopt("words", "second", 0, ["count"]).rows, 1, "the rows that are adopted")
    put(store, subject.task(generation="second"), 1, 0, cat=1)
    equal(contents(store), {"cat": 1, "dog": 1}, "the contents of the adopted store")
    equal(store.clear("words").rows, 2, "the rows that are cleared")


@CONTRACT.clause(
    "a plain store's block that raises leaves nothing, and a written store pickles",
    29,
    cure="Roll the transaction back.",
    only="plain",
)
def _all_or_nothing(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, dog=1)

    def steps(opened: Any) -> None:
        opened.delete("dog")
        opened.put_many(dict.fromkeys(range(transaction.ROWS_HELD_MAX + 1), 1))

    failing_block(store, subject.task(), 2, 0, steps)
    copies = pickling.loads(pickling.dumps(store)), copy.deepcopy(store)
    equal(
        [contents(each) for each in copies], [{"dog": 1}] * 2, "the contents in the store's copies"
    )


@CONTRACT.clause(
    "tasks of one attempt may write to a plain store at the same time",
    29,
    cure="No deadlock, and no error but a transient one.",
    only="plain, concurrent",
)
def _at_once(subject: Subject) -> None:
    write_at_once(subject, _TASKS_AT_ONCE, put)
