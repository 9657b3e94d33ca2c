"""Clauses about writers: they write any number of keys, and a key has one writer per transaction
(R28, R32)."""

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
from txtopo.testing.contracts.store_subject import Subject, add, block, contents

CONTRACT = clauses.Contract[Subject]("store")

_WRITER = "Keep component and task in the row's stamp, and compare both if the txids are equal."


@CONTRACT.clause(
    "more keys than are held in memory are updated and replayed",
    28,
    32,
    cure="Read your own uncommitted rows, written earlier in the transaction.",
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
                    f"call {times + 1} of update_many returns wrong updates",
                )

        return twice

    for applied in (True, False):
        block(store, subject.task(), 1, 0, steps(applied))
    true(
        contents(store) == {number: 2 * number for number in deltas},
        "some keys have wrong values",
    )


@CONTRACT.clause(
    "a key's second writer in one transaction is refused, naming both writers",
    32,
    cure=_WRITER,
    also="plain",
)
def _second_writer(subject: Subject) -> None:
    for name, other in (("task", ("count", 1)), ("component", ("sum", 0))):
        store = subject.store(name)
        subject.write(store, subject.task("count", 0), 1, 0, dog=1)
        write = functools.partial(subject.write, store, subject.task(*other), 1, 0, dog=1)
        error = refused(StoreConflict, write, f"another {name}", "fields_grouping on the key")
        error = pickle.loads(pickle.dumps(error))
        for order, (component, task) in (("first", ("count", 0)), ("second", other)):
            named = getattr(error, f"{order}_writer")
            true(f"{component!r} task {task}" in named, f"the {order} writer is called {named}")
        equal(
            (error.key, error.txid), ('"dog"', 1), "key and txid of the error, once it was pickled"
        )
        equal(contents(store), {"dog": 1}, "the contents")
        subject.write(store, subject.task(*other), 2, 0, dog=3)
        expected = 3 if subject.kind == "plain" else 4
        equal(store.get("dog"), expected, "the value after another writer's next transaction")


@CONTRACT.clause("deleting counts as writing", 32, cure=_WRITER, also="plain")
def _deleting(subject: Subject) -> None:
    store = subject.store()
    subject.write(store, subject.task(), 1, 0, dog=1)
    refused(
        StoreConflict,
        lambda: block(store, subject.task(task=1), 1, 0, lambda t: t.delete("dog")),
        "deleting a key that another task wrote",
    )
    block(store, subject.task(), 2, 0, lambda t: t.delete("dog"))
    refused(
        StoreConflict,
        lambda: subject.write(store, subject.task(task=1), 2, 0, dog=1),
        "writing a key that another task deleted",
    )


@CONTRACT.clause(
    "another topology's key is refused, under any txid",
    32,
    cure="Keep the topology id in the row's stamp.",
    also="plain",
)
def _other_topology(subject: Subject) -> None:
    store = subject.store()
    subject.write(store, subject.task(topology_id="neighbour"), 1, 0, dog=1)
    write = functools.partial(subject.write, store, subject.task(), 9, 0, dog=1)
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
    subject.write(store, subject.task(topology_id="neighbour"), 3, 0, cat=1)
    write()
    equal(
        contents(store),
        {"cat": 1, "dog": 1},
        "the contents after the other topology's next transaction",
    )
