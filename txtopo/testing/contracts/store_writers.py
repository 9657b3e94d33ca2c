"""Clauses about stores: several updates by one writer compose, and a key has one writer per
transaction (R32)."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

from txtopo.stores import transaction
from txtopo.stores.conflicts import StoreConflict
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused, true
from txtopo.testing.contracts.store_subject import (
    Subject,
    add,
    block,
    contents,
    plus,
    run,
    write_at_once,
)

CONTRACT = clauses.Contract[Subject]("store")

_STEPS = "Count a task's updates of a key in context.store_steps, once the database has committed."
_WRITER = "Keep component and task in the row's stamp, and compare them when the txid is the same."
_TASKS_AT_ONCE = 6


@CONTRACT.clause("several updates of a key compose, within and across blocks", 32, cure=_STEPS)
def _compose(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    run(store, subject.task(), 1, 0, dog=1)

    def first(opened: Any) -> None:
        equal(opened.update("dog", plus(1)), Update(1, 2, applied=True), "the first update")
        equal(
            opened.update_many({"dog": 1, "cat": 1}, add)["dog"],
            Update(2, 3, applied=True),
            "an update of many",
        )
        equal(opened.get("dog"), 3, "what the task reads then")

    def second(opened: Any) -> None:
        equal(opened.get("dog"), 3, "what the task reads in its next block")
        equal(opened.delete("dog"), Update(3, None, applied=True), "a deletion")
        equal(opened.get("dog"), None, "what the task reads then")
        equal(opened.update("dog", plus(8)), Update(None, 8, applied=True), "an update after it")

    block(store, context, 2, 0, first)
    block(store, context, 2, 0, second)
    equal(contents(store), {"cat": 1, "dog": 8}, "what is stored")


@CONTRACT.clause(
    "updates of a key compose across blocks that have others between them", 28, 32, cure=_STEPS
)
def _interleaved(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, ant=1, bee=1)
    for attempt in (0, 1):
        context = subject.task()
        for n, key in enumerate(("ant", "bee", "cat", "ant", "bee"), 1):
            run(store, context, 2, attempt, **{key: n})
        equal(
            contents(store),
            {"ant": 6, "bee": 8, "cat": 3},
            f"what is stored after attempt {attempt}",
        )


@CONTRACT.clause("a block that was rolled back is not counted as a step", 32, cure=_STEPS)
def _rolled_back(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    run(store, context, 1, 0, dog=1)

    def die(opened: Any) -> None:
        opened.update("dog", plus(50))
        raise ZeroDivisionError

    refused(ZeroDivisionError, lambda: block(store, context, 1, 0, die), "a block that raises")
    equal(run(store, context, 1, 0, dog=2), {"dog": Update(1, 3, applied=True)}, "the next update")


@CONTRACT.clause(
    "more keys than are held in memory are updated and replayed",
    28,
    32,
    cure="Read your own uncommitted rows: they were written earlier in the same transaction.",
)
def _many(subject: Subject) -> None:
    store, count = subject.store(), transaction.ROWS_HELD_MAX + 7
    deltas = {number: number for number in range(count)}

    def steps(applied: bool) -> Callable[[Any], None]:
        def twice(opened: Any) -> None:
            for times in (0, 1):
                expected = {
                    number: Update(
                        times * number or (None if not times else 0), (times + 1) * number, applied
                    )
                    for number in deltas
                }
                true(
                    opened.update_many(deltas, add) == expected,
                    f"update_many number {times + 1} does not return what it must",
                )

        return twice

    for applied in (True, False):
        block(store, subject.task(), 1, 0, steps(applied))
    true(
        contents(store) == {number: 2 * number for number in deltas},
        "not every key holds what it must",
    )


@CONTRACT.clause(
    "a second writer of a key in one transaction is refused, naming both", 32, cure=_WRITER
)
def _second_writer(subject: Subject) -> None:
    for name, other in (("task", ("count", 1)), ("component", ("sum", 0))):
        store = subject.store(name)
        run(store, subject.task("count", 0), 1, 0, dog=1)
        write = functools.partial(run, store, subject.task(*other), 1, 0, dog=1)
        error = pickle.loads(
            pickle.dumps(
                refused(StoreConflict, write, f"another {name}", "fields_grouping on the key")
            )
        )
        equal(
            (error.key, error.txid), ('"dog"', 1), "key and txid of the error, once it was pickled"
        )
        true(
            "'count' task 0" in error.first_writer,
            f"the first writer is called {error.first_writer}",
        )
        true(
            f"{other[0]!r} task {other[1]}" in error.second_writer,
            f"the second writer is called {error.second_writer}",
        )
        equal(contents(store), {"dog": 1}, "what is stored")
        run(store, subject.task(*other), 2, 0, dog=1)
        equal(store.get("dog"), 2, "what another writer makes of it in another transaction")


@CONTRACT.clause("deleting counts as writing", 32, cure=_WRITER)
def _deleting(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, dog=1)
    refused(
        StoreConflict,
        lambda: block(store, subject.task(task=1), 1, 0, lambda t: t.delete("dog")),
        "deleting what another task wrote",
    )
    block(store, subject.task(), 2, 0, lambda t: t.delete("dog"))
    refused(
        StoreConflict,
        lambda: run(store, subject.task(task=1), 2, 0, dog=1),
        "writing what another task deleted",
    )


@CONTRACT.clause(
    "a key of another topology is refused, whatever its txid",
    32,
    cure="Keep the topology id in the row's stamp.",
)
def _other_topology(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(topology_id="neighbour"), 1, 0, dog=1)
    write = functools.partial(run, store, subject.task(), 9, 0, dog=1)
    refused(
        StoreConflict,
        write,
        "writing another topology's key",
        "topology 'neighbour'",
        "topology 'words'",
    )
    block(store, subject.task(topology_id="neighbour"), 2, 0, lambda t: t.delete("dog"))
    refused(
        StoreConflict,
        write,
        "writing a key that another topology has just deleted, and may have to restore",
        "topology 'neighbour'",
    )
    run(store, subject.task(topology_id="neighbour"), 3, 0, cat=1)
    write()
    equal(
        contents(store), {"cat": 1, "dog": 1}, "what is stored once the other topology has gone on"
    )


@CONTRACT.clause(
    "what another task writes in the same transaction is never read",
    28,
    32,
    cure="Read prev where the stamp is of this txid and of another writer.",
)
def _unread(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(task=1), 1, 0, dog=1)
    for writes_first in (False, True):
        if writes_first:
            run(store, subject.task(task=1), 2, 0, dog=5)
        equal(
            block(store, subject.task(task=0), 2, 0, lambda t: t.get("dog")),
            1,
            "what task 0 reads " + ("after" if writes_first else "before"),
        )


@CONTRACT.clause(
    "tasks of one attempt may write at the same time",
    29,
    32,
    cure="A transient conflict of the database is a FailedException; nothing else, and no deadlock.",
    only="concurrent",
)
def _at_once(subject: Subject) -> None:
    write_at_once(subject, _TASKS_AT_ONCE, run)
