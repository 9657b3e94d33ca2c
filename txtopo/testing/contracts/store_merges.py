"""Clauses about merges: a database that combines values by itself keeps the rules, with any old value
(R28, R30-R32).

The promises are as in ``store_values``, but the store keeps them without reading the old value.
"""

from __future__ import annotations

from typing import Any

from txtopo import errors
from txtopo.stores import base, conflicts
from txtopo.stores.keys import Key
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import (
    Subject,
    add,
    block,
    contents,
    failing_block,
    plus,
    recorded,
    run,
)
from txtopo.topology import merge
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_ORDINARY = "In merge_rows, combine only settled integers in rows of the same topology, generation and component. Return all other keys."
_FIRST = "Have merge_many's integers combined before the transaction's next read or write."

_VALUES: dict[str, Any] = {
    "none": None,
    "zero": 0,
    "one": 1,
    "negative": -3,
    "largest": 10**15 - 1,
    "least": 1 - 10**15,
    "too large": 10**15,
    "huge": 10**30,
    "float": 2.5,
    "true": True,
}
_DELTAS: dict[str, Any] = {
    "plus": 7,
    "minus": -7,
    "nothing": 0,
    "large": 10**15 - 1,
    "too large": 10**15,
    "huge": -(10**30),
    "float": 0.25,
}
_NEAR_BOUNDS = (10**15 - 1, 10**16 - 1, 5 * 10**17, 2**53, 2**63 - 8, 2**63 - 1, 2**64 - 1)
"""Bounds of databases' integers, and of integers that databases keep as floats."""


def merged(
    store: base.Store, context: TopologyContext, txid: int, attempt: int = 0, /, **deltas: int
) -> None:
    """Have the database add ``deltas`` in one store transaction."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
        opened.merge_many(deltas, merge.ADD)


@CONTRACT.clause(
    "merging and updating make the same values and the same rows",
    28,
    30,
    cure=_ORDINARY,
)
def _same(subject: Subject) -> None:
    keys = [(value, delta) for value in [*_VALUES, "absent"] for delta in _DELTAS]
    values = {key: _VALUES[key[0]] for key in keys if key[0] != "absent"}
    deltas = {key: _DELTAS[key[1]] for key in keys}
    for how in (merge.ADD, merge.MIN, merge.MAX):
        by_database = subject.store(f"merged_{how.operator}")
        by_function = subject.store(f"updated_{how.operator}")
        for store in (by_database, by_function):
            with store.transaction(subject.task(), TransactionAttempt(1, 0)) as opened:
                opened.put_many(values)
        for txid in (2, 3):
            with by_database.transaction(subject.task(), TransactionAttempt(txid, 0)) as opened:
                opened.merge_many(deltas, how)
            with by_function.transaction(subject.task(), TransactionAttempt(txid, 0)) as opened:
                opened.update_many(deltas, how)
        equal(contents(by_database), contents(by_function), f"the contents after {how!r}")
        for value, delta in keys:
            if delta in ("plus", "large"):  # a look at a row is a connection
                key = (value, delta)
                equal(
                    by_database.inspect(key),
                    by_function.inspect(key),
                    f"the row of {key} after {how!r}",
                )


@CONTRACT.clause("merging is exact where a database's integers end", 28, 30, cure=_ORDINARY)
def _near_bounds(subject: Subject) -> None:
    store = subject.store()
    expected = {f"{sign * bound}": sign * bound for bound in _NEAR_BOUNDS for sign in (1, -1)}
    block(store, subject.task(), 1, 0, lambda opened: opened.put_many(expected))
    # One key per transaction: one refused value makes the whole merge go the longer way.
    for txid, key in enumerate(list(expected), 2):
        delta = 10 if expected[key] > 0 else -10
        merged(store, subject.task(), txid, 0, **{key: delta})
        expected[key] += delta
    equal(contents(store), expected, "the contents")


@CONTRACT.clause("merging takes every key that has a text", 30, cure=_ORDINARY)
def _keys(subject: Subject) -> None:
    store = subject.store()
    keys: list[Key] = [
        "plain",
        'quo"ted',
        "back\\slash",
        "käse 🧀",
        "",
        "a\nb",
        7,
        ("a", 1),
        ("a", (1, None)),
        "tab\t",
        "it's",
    ]
    twos = dict.fromkeys(keys, 2)
    for txid in (1, 2):
        block(store, subject.task(), txid, 0, lambda opened: opened.merge_many(twos, merge.ADD))
    equal(contents(store), dict.fromkeys(keys, 4), "the contents")


@CONTRACT.clause(
    "a merge is applied once, however often its transaction is replayed",
    28,
    only="transactional",
    cure=_ORDINARY,
)
def _once(subject: Subject) -> None:
    store = subject.store()
    merged(store, subject.task(), 1, 0, dog=1)
    merged(store, subject.task(), 2, 0, dog=2, cat=3)
    merged(store, subject.task(), 2, 1, dog=2, cat=3, owl=4)
    merged(store, subject.task(), 2, 1, dog=2, cat=3, owl=4)
    equal(contents(store), {"cat": 3, "dog": 3, "owl": 4}, "the contents")
    equal(
        run(store, subject.task(), 2, 2, dog=2),
        {"dog": Update(1, 3, applied=False)},
        "a replay's update",
    )


@CONTRACT.clause(
    "an attempt's merges are taken back when the next attempt begins",
    31,
    only="opaque",
    cure=_ORDINARY,
)
def _taken_back(subject: Subject) -> None:
    store = subject.store()
    known = recorded(store, 1)
    merged(store, subject.task(known_stores={}), 1, 0, dog=1, cat=1)
    merged(store, subject.task(known_stores=known), 2, 0, dog=10, owl=10)
    merged(store, subject.task(known_stores=known), 2, 1, dog=5, cat=5)
    equal(contents(store), {"cat": 6, "dog": 6}, "the contents after the replay")
    merged(store, subject.task(known_stores=known), 3, 0, dog=1)
    equal(
        contents(store),
        {"cat": 1, "dog": 2},
        "the contents if the recorded attempt opened no store",
    )


@CONTRACT.clause(
    "values from another component's dead attempt are not merged with", 31, cure=_ORDINARY
)
def _void(subject: Subject) -> None:
    store = subject.store()
    merged(store, subject.task("other", known_stores={}), 1, 0, dog=1)
    first = recorded(store, 1, 0, "other")
    merged(store, subject.task("other", known_stores=first), 2, 0, dog=100)
    merged(store, subject.task(known_stores=first), 2, 1, cat=1)
    second = first | recorded(store, 2, 1)
    merged(store, subject.task(known_stores=second), 3, 0, dog=5)
    equal(contents(store), {"cat": 1, "dog": 6}, "the contents")
    equal(
        run(store, subject.task(known_stores=second), 3, 0, dog=5),
        {"dog": Update(1, 6, applied=False)},
        "the update in the task's second run",
    )


@CONTRACT.clause(
    "values adopted before the first transaction are merged with and updated",
    27,
    30,
    cure=_ORDINARY,
)
def _adopted(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(generation="old"), 5, 0, dog=10, cat=10)
    store.adopt("words", "first", 0, ["count"])
    merged(store, subject.task(known_stores={}), 1, 0, dog=1)
    equal(
        run(store, subject.task(task=1, known_stores={}), 1, 0, cat=1),
        {"cat": Update(10, 11, applied=True)},
        "an update",
    )
    equal(contents(store), {"cat": 11, "dog": 11}, "the contents")


@CONTRACT.clause(
    "a merge too is refused a key of another topology, another writer or a later transaction",
    29,
    32,
    cure=_ORDINARY,
)
def _refused(subject: Subject) -> None:
    store = subject.store()
    merged(store, subject.task(), 2, 0, dog=1)
    merged(store, subject.task("other"), 2, 0, cat=1)
    refused(
        conflicts.StoreConflict,
        lambda: merged(store, subject.task(task=1), 2, 0, owl=1, dog=1),
        "a second writer",
    )
    refused(
        conflicts.StoreConflict,
        lambda: merged(store, subject.task("other"), 2, 0, owl=1, dog=1),
        "a second component",
    )
    refused(
        errors.StaleAttemptError,
        lambda: merged(store, subject.task("late"), 1, 0, owl=1, dog=1),
        "an earlier transaction",
    )
    refused(
        conflicts.StoreConflict,
        lambda: merged(store, subject.task(topology_id="neighbour"), 9, 0, owl=1, dog=1),
        "another topology",
    )
    equal(contents(store), {"cat": 1, "dog": 1}, "the contents")


@CONTRACT.clause(
    "merges compose with updates, deletions and readings, within and across blocks", 32, cure=_FIRST
)
def _compose(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, dog=1, cat=1, owl=1, fox=1)

    def twice(attempt: int, applied: bool) -> None:
        context = subject.task()
        with store.transaction(context, TransactionAttempt(2, attempt)) as opened:
            opened.merge_many({"dog": 1, "cat": 1, "elk": 1}, merge.ADD)
            equal(
                (opened.get("dog"), opened.get_many(["cat", "elk"])),
                (2, {"cat": 2, "elk": 1}),
                "the values read after a merge",
            )
            opened.merge_many({"dog": 2, "fox": 9}, merge.ADD)
            equal(
                opened.update("dog", plus(1)), Update(4, 5, applied), "an update after two merges"
            )
            opened.merge_many({"dog": 3, "owl": 5}, merge.MIN)
            opened.merge_many({"owl": 8}, merge.MAX)
            equal(opened.delete("fox"), Update(10, None, applied), "a deletion after a merge")
        with store.transaction(context, TransactionAttempt(2, attempt)) as opened:
            opened.merge_many({"dog": 1, "owl": 1, "fox": 1, "elk": 1, "bee": 1}, merge.ADD)
            equal(
                opened.update_many({"dog": 1}, add)["dog"],
                Update(4, 5, applied),
                "an update after a merge in the next block",
            )
        equal(
            contents(store),
            {"bee": 1, "cat": 2, "dog": 5, "elk": 2, "fox": 1, "owl": 9},
            f"the contents after attempt {attempt}",
        )

    twice(0, applied=True)
    twice(1, applied=subject.kind == "opaque")


@CONTRACT.clause(
    "a merge is all or nothing, and leaves nothing when its block raises",
    30,
    cure="Combine in the database transaction.",
)
def _whole(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    run(store, context, 1, 0, dog=1)

    def steps(opened: Any) -> None:
        opened.merge_many({"dog": 1, "cat": 1}, merge.ADD)
        opened.flush()

    failing_block(store, subject.task(), 2, 0, steps)
    block(store, subject.task(), 3, 0, lambda opened: opened.put("text", "a"))
    mixed = {"dog": 5, "text": 1}
    refused(
        TypeError,
        lambda: block(
            store, subject.task(), 4, 0, lambda opened: opened.merge_many(mixed, merge.ADD)
        ),
        "a text plus a number",
    )
    equal(contents(store), {"dog": 1, "text": "a"}, "the contents")
