"""Clauses about writing, where txtopo decides for every store: phases, blocks, and which stores a
component may write (R27, R29, R31, R32, R34, R35)."""

from __future__ import annotations

import functools
from typing import Any

from tests.conformance.store_steps import swallowed
from txtopo import errors
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused, true
from txtopo.testing.contracts.store_subject import (
    Subject,
    add,
    block,
    contents,
    mismatched,
    plus,
    put,
    recorded,
    run,
)
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_GENERATION = "If a known component has no fence, the store was emptied."
_SEALED = "Refuse the transaction's fence if its attempt is below context.first_attempt, unless values can be taken back."


@CONTRACT.clause(
    "the processing phase may not write",
    32,
    cure="Call Store.transaction's own checks before the database is asked.",
)
def _phase(subject: Subject) -> None:
    store = subject.store()
    case = "a transaction in the processing phase"
    refused(
        errors.UsageError,
        lambda: run(store, subject.task(phase="processing"), 1, 0, dog=1),
        case,
        "'count'",
        "processing phase",
        "ICommitter",
    )
    true(not store.exists(), "the refused block has made the store")


@CONTRACT.clause(
    "a store on one machine is refused on a cluster, with the reason",
    32,
    cure="Set local_only_reason, or make the store reachable from everywhere.",
)
def _local_only(subject: Subject) -> None:
    store = subject.store()
    if store.local_only_reason is None:
        run(store, subject.task(local_master=False), 1, 0, dog=1)
        equal(store.get("dog"), 1, "the remote executor's value")
    else:
        refused(
            errors.UsageError,
            lambda: run(store, subject.task(local_master=False), 1, 0, dog=1),
            "a remote executor",
            store.local_only_reason,
        )


@CONTRACT.clause(
    "a transaction refuses every call after its block",
    29,
    cure="End the transaction with the block, and refuse every later call.",
)
def _ended(subject: Subject) -> None:
    store = subject.store()
    with store.transaction(subject.task(), TransactionAttempt(1, 0)) as opened:
        pass
    for action in (*subject.touches, lambda opened: opened.update_many({"dog": 1}, add)):
        call, case = functools.partial(action, opened), "a call after the block"
        refused(errors.UsageError, call, case, "this store transaction has ended")


@CONTRACT.clause(
    "a refusal that user code swallows still ends the attempt",
    7,
    29,
    cure="Remember the refusal, and raise it again when the block ends.",
)
def _swallowed(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task("sum"), 9, 0, dog=1)

    def swallow(opened: Any) -> None:
        opened.update("cat", plus(1))
        for _ in range(2):
            swallowed(errors.StaleAttemptError, lambda: opened.update("dog", plus(1)))

    refused(
        errors.StaleAttemptError,
        lambda: block(store, subject.task("count"), 8, 0, swallow),
        "committing after a refusal",
    )
    equal(contents(store), {"dog": 1}, "the contents")


@CONTRACT.clause(
    "a task opens no block inside another block of the same store",
    34,
    32,
    cure="Leave Store.transaction as it is.",
)
def _nested_block(subject: Subject) -> None:
    store, task = subject.store(), subject.task()
    with store.transaction(task, TransactionAttempt(1, 0)) as opened:
        opened.put("dog", 1)
        inside = functools.partial(put, store, task, 1, 0, cat=1)
        refused(
            errors.UsageError,
            inside,
            "a block inside another block",
            "is open already in this task",
        )
    put(store, task, 1, 0, cat=1)
    equal(
        (
            contents(store),
            [fence.count for fence in store.fences()],
            [*task.touched_stores.values()],
        ),
        ({"cat": 1, "dog": 1}, [2], [2]),
        "contents and count",
    )


@CONTRACT.clause(
    "another generation is refused, with both generations and the commands to type",
    27,
    cure="Keep the generation with the fence, and compare it first.",
    also="plain",
)
def _generation(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 7, 0, dog=1)
    named = (
        "first",
        "second",
        "txtopo state show",
        "txtopo state reset words",
        "txtopo store adopt",
        "txtopo store clear",
    )
    write = functools.partial(put, store, subject.task(generation="second"), 8, 0, dog=1)
    mismatched(write, "generation 'second'", *named)
    equal(contents(store), {"dog": 1}, "the contents")


@CONTRACT.clause("a store cleared between a task's two blocks is noticed", 27, cure=_GENERATION)
def _cleared_between(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    run(store, context, 1, 0, dog=1)
    store.clear("words")
    write = functools.partial(run, store, context, 1, 0, dog=1)
    case = "a store cleared under a running task"
    mismatched(write, case, "holds nothing of component 'count'")


@CONTRACT.clause(
    "a store that was written before but is empty is refused", 27, cure=_GENERATION, also="plain"
)
def _emptied(subject: Subject) -> None:
    store = subject.store()
    known = recorded(store, 2)
    named = ("holds nothing of component 'count'", "txtopo store adopt", "txtopo state reset words")
    write = functools.partial(put, store, subject.task(known_stores=known), 3, 0, dog=1)
    mismatched(write, "an emptied store", *named)
    equal((contents(store), store.fences()), ({}, []), "the contents")
    put(store, subject.task("sum", known_stores=known), 3, 0, dog=1)
    equal(store.get("dog"), 1, "the value from a component that is new to the store")


@CONTRACT.clause(
    "a store is reported as touched after its commit",
    27,
    cure="Count component/name in context.touched_stores after the commit.",
)
def _touch(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    with store.transaction(context, TransactionAttempt(1, 0)):
        equal(context.touched_stores, {}, "touched_stores inside the block")
    equal(list(context.touched_stores), [f"count/{store.name}"], "touched_stores after the block")
    run(store, subject.task(known_stores=recorded(store, 1)), 2, 0, dog=1)
    equal(store.get("dog"), 1, "the contents")


@CONTRACT.clause(
    "a component with results in older stores is refused a new store, unless the store is expected",
    35,
    cure="If the component has no fence, compare the store's name with context.expected_stores.",
)
def _unexpected(subject: Subject) -> None:
    store, known = subject.store(), {"count/others": TransactionAttempt(2, 0)}
    for names in ([], ["others_too", "x*"]):
        write = functools.partial(
            run, store, subject.task(known_stores=known, expected_stores=names), 3, 0, dog=1
        )
        named = (
            "is new to component 'count'",
            "are in others",
            f"txtopo state accept words --store count/{store.name}",
            "txtopo store adopt",
        )
        mismatched(write, f"a store when {names} are expected", *named)
        equal((contents(store), store.fences()), ({}, []), "the contents")
    for name, ending in (("late", "late"), ("day_7", "day_*")):
        begun = subject.store(name)
        expected = ["others_too", begun.name.removesuffix(name) + ending]
        run(begun, subject.task(known_stores=known, expected_stores=expected), 3, 0, dog=1)
        run(begun, subject.task(known_stores=known, expected_stores=[]), 3, 1, dog=1)
        equal(
            contents(begun),
            {"dog": 1},
            f"the contents when {expected} are expected, after a replay, which finds a fence",
        )


@CONTRACT.clause(
    "a store older or newer than the recorded attempt is refused",
    27,
    29,
    cure="Compare the fence with context.known_stores.",
    also="plain",
)
def _other_age(subject: Subject) -> None:
    for held, newest, word in (
        ((3, 0), (7, 2), "behind"),
        ((7, 1), (7, 2), "behind"),
        ((2, 1), (2, 0), "ahead"),
    ):
        store = subject.store(f"at_{held[0]}_{held[1]}")
        put(store, subject.task(), *held, x=1)
        known = recorded(store, *newest)
        named = (
            f"is {word}",
            f"{held[0]}:{held[1]}",
            f"{newest[0]}:{newest[1]}",
            "txtopo store adopt",
            "txtopo state reset words",
        )
        write = functools.partial(put, store, subject.task(known_stores=known), 8, 0, x=1)
        mismatched(write, f"a store at attempt {held}, when {newest} is recorded", *named)
        equal(contents(store), {"x": 1}, "the contents")


@CONTRACT.clause(
    "a store with an attempt that was never sealed is refused: the state was rewound",
    23,
    27,
    cure=_SEALED,
    only="transactional",
    also="plain",
)
def _never_sealed(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, x=1)
    known = recorded(store, 1)
    subject.write(store, subject.task(known_stores=known), 2, 0, x=10)
    results = contents(store)
    rewound = subject.task(known_stores=known, first_attempt=1_000_000)
    named = ("is ahead", "2:0", "never sealed", "txtopo store adopt", "txtopo state reset words")
    write = functools.partial(subject.write, store, rewound, 2, 1_000_000, x=5)
    mismatched(write, "a different batch in a committed transaction", *named)
    equal(contents(store), results, "the contents")
    for first, attempt in ((0, 1_000_000), (1_000_000, 1_000_001)):
        replay = subject.task(known_stores=known, first_attempt=first)
        subject.write(store, replay, 2, attempt, x=10)
    equal(contents(store), results, "the contents after a second replay in the run")


@CONTRACT.clause(
    "an opaque store undoes an attempt that was never sealed",
    27,
    31,
    cure="Take back one transaction.",
    only="opaque",
)
def _rewound(subject: Subject) -> None:
    store = subject.store()
    known = recorded(store, 1)
    run(store, subject.task(known_stores={}), 1, 0, x=1)
    run(store, subject.task(known_stores=known), 2, 0, x=10, y=10)
    rewound = subject.task(known_stores=known, first_attempt=1_000_000)
    equal(
        run(store, rewound, 2, 1_000_000, x=5),
        {"x": Update(1, 6, applied=True)},
        "a different batch's update",
    )
    equal(contents(store), {"x": 6}, "the contents")
