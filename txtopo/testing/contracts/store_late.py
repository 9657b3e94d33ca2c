"""Clauses about late tasks that pass their own fence, and meet newer attempts of other components at
their keys (R29-R31).

A component without recent writes has an old fence. Its late tasks pass, and only the rows can tell
that they are late.
"""

from __future__ import annotations

import functools

from txtopo import errors
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import (
    Subject,
    block,
    contents,
    mismatched,
    recorded,
    run,
)

CONTRACT = clauses.Contract[Subject]("store")

_OVERTAKEN = "If an attempt's write is gone, look for a higher fence: with a higher fence the attempt is late, else the store was changed by hand."
_SETTLED = "A restored or adopted value belongs to an ended transaction: refuse every attempt of the transaction."


@CONTRACT.clause(
    "a late task is refused as late once later transactions have deleted its update",
    29,
    cure=_OVERTAKEN,
)
def _deleted(subject: Subject) -> None:
    store, late = subject.store(), subject.task("count")
    run(store, late, 1, 0, dog=1)
    block(store, subject.task("sum"), 2, 0, lambda t: t.delete("dog"))
    run(store, subject.task("sum"), 3, 4)
    refused(
        errors.StaleAttemptError,
        lambda: run(store, late, 1, 0, dog=1),
        "the late task's next update",
        "'sum' is fenced at attempt 3:4",
    )
    equal(contents(store), {}, "the contents")


@CONTRACT.clause(
    "a live task whose update is gone is refused as a state mismatch", 27, 29, cure=_OVERTAKEN
)
def _removed_by_others(subject: Subject) -> None:
    store, live = subject.store(), subject.task("count")
    run(store, subject.task("older", generation="zeroth"), 9, 0)
    run(store, subject.task("count", topology_id="neighbour"), 9, 0)
    run(store, subject.task("sum"), 2, 1)
    run(store, live, 2, 1, dog=1)
    # Adopting makes the value settled, while the topology runs.
    store.adopt("words", "first", 1, ["count"])
    again = functools.partial(run, store, live, 2, 1, dog=1)
    mismatched(again, "the live task's next update", "dog", "is gone")


@CONTRACT.clause(
    "a restored value is not changed by a late task of its transaction",
    29,
    30,
    31,
    cure=_SETTLED,
)
def _taken_back_to(subject: Subject) -> None:
    store = subject.store()
    known = recorded(store, 1, 1, "sum")
    run(store, subject.task("sum", known_stores={}), 1, 1, dog=5)
    run(store, subject.task("sum", known_stores=known), 2, 0, dog=10)
    # A replay of 2 is recorded, but has opened no store.
    run(store, subject.task("sum", known_stores=known), 3, 0)
    equal(contents(store), {"dog": 5}, "the contents once 2:0 was taken back")
    late = functools.partial(run, store, subject.task("count", known_stores={}), 1, 0, dog=100)
    refused(
        errors.StaleAttemptError,
        late,
        "a late task in 1:0 that meets a value from 1:1",
        "attempt 1 (settled); attempt 1:0",
    )
    equal(contents(store), {"dog": 5}, "the contents after the late task")
    known = recorded(store, 3, 0, "sum")
    equal(
        run(store, subject.task("sum", known_stores=known), 4, 0, dog=1),
        {"dog": Update(5, 6, applied=True)},
        "the next update",
    )
