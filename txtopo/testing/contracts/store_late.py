"""Clauses about stores: a late task whose own fence nobody has raised meets what newer attempts of
other components left of its keys (R29-R31).

Apart from ``store_fences``, where the fence alone tells: a component that had nothing to do since
has an old fence, and its late tasks pass it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import Subject, block, contents, plus, run
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_OVERTAKEN = "Where what an attempt did is gone, look for a fence above it: then the attempt is late, and otherwise somebody else changed the store."
_SETTLED = "A value that was taken back to, or adopted, is of a transaction that is over: refuse every attempt of that transaction."


@CONTRACT.clause(
    "a late task whose update was taken over, and taken back there, is told that it is late",
    29,
    31,
    cure=_OVERTAKEN,
    only="opaque",
)
def _taken_over(subject: Subject) -> None:
    for name, before in (("new", {}), ("known", {"dog": 1})):
        store, late = subject.store(name), subject.task("count")
        run(store, subject.task("first"), 1, 0, **before)
        run(store, late, 2, 0, dog=5)
        run(store, subject.task("sum"), 2, 1, dog=5)
        run(store, subject.task("sum"), 2, 2)
        equal(
            contents(store), before, "what is stored once the update was taken over and taken back"
        )
        attempted = "another update by the late task"
        refused(
            errors.StaleAttemptError,
            functools.partial(run, store, late, 2, 0, dog=5),
            attempted,
            "'sum' is fenced at attempt 2:2; attempt 2:0",
        )
        equal(contents(store), before, "what is stored after that")


@CONTRACT.clause(
    "a late task whose update was deleted in later transactions is told that it is late",
    29,
    cure=_OVERTAKEN,
)
def _deleted(subject: Subject) -> None:
    store, late = subject.store(), subject.task("count")
    run(store, late, 1, 0, dog=1)
    block(store, subject.task("sum"), 2, 0, lambda t: t.delete("dog"))
    run(store, subject.task("sum"), 3, 0)
    refused(
        errors.StaleAttemptError,
        lambda: run(store, late, 1, 0, dog=1),
        "another update by the late task",
        "'sum' is fenced at attempt 3:0",
    )
    equal(contents(store), {}, "what is stored")


@CONTRACT.clause("a live task whose update others removed is told so", 27, 29, cure=_OVERTAKEN)
def _removed_by_others(subject: Subject) -> None:
    store, live = subject.store(), subject.task("count")
    run(store, subject.task("older", generation="zeroth"), 9, 0)
    run(store, subject.task("count", topology_id="neighbour"), 9, 0)
    run(store, subject.task("sum"), 2, 1)
    run(store, live, 2, 1, dog=1)
    # Somebody makes a settled value of it, beneath the running topology.
    store.adopt("words", "first", 1, ["count"])
    error = refused(
        errors.StateMismatchError,
        lambda: run(store, live, 2, 1, dog=1),
        "another update by the live task",
        "dog",
        "is gone",
    )
    equal(error.exit_code, 6, "its exit code")


@CONTRACT.clause(
    "a late task that meets the key of a newer attempt is late, and no second writer",
    29,
    32,
    cure="Compare the attempts first.",
)
def _met(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task("sum"), 1, 1, dog=1)
    actions: list[Callable[[Any], Any]] = [
        lambda t: t.update("dog", plus(1)),
        lambda t: t.delete("dog"),
        lambda t: t.get("dog"),
    ]
    for action in actions:
        late = functools.partial(block, store, subject.task("count"), 1, 0, action)
        refused(
            errors.StaleAttemptError,
            late,
            "a late task of 1:0 that meets a key of 1:1",
            "attempt 1:1; attempt 1:0",
        )
    equal(contents(store), {"dog": 1}, "what is stored")


@CONTRACT.clause(
    "a value that was taken back to is not changed by a late task of its transaction",
    29,
    30,
    31,
    cure=_SETTLED,
)
def _taken_back_to(subject: Subject) -> None:
    store = subject.store()
    known = {f"sum/{store.name}": TransactionAttempt(1, 1)}
    run(store, subject.task("sum", known_stores={}), 1, 1, dog=5)
    run(store, subject.task("sum", known_stores=known), 2, 0, dog=10)
    # The replay of 2 that is recorded opened nothing.
    run(store, subject.task("sum", known_stores=known), 3, 0)
    equal(contents(store), {"dog": 5}, "what is stored once 2:0 was taken back")
    late = functools.partial(run, store, subject.task("count", known_stores={}), 1, 0, dog=100)
    refused(
        errors.StaleAttemptError,
        late,
        "a late task of 1:0 that comes to the value of 1:1",
        "attempt 1 (settled); attempt 1:0",
    )
    equal(contents(store), {"dog": 5}, "what is stored after the late task")
    known = {f"sum/{store.name}": TransactionAttempt(3, 0)}
    equal(
        run(store, subject.task("sum", known_stores=known), 4, 0, dog=1),
        {"dog": Update(5, 6, applied=True)},
        "the next update",
    )
