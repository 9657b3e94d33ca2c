"""Clauses about reading: keys and values come back, to readers of committed results."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

from txtopo import errors
from txtopo.stores.keys import Key
from txtopo.stores.transaction import StoreTransaction
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused, true
from txtopo.testing.contracts.store_subject import (
    Subject,
    add,
    block,
    contents,
    plus,
    put,
    run,
    set_to,
)
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_VALUES: dict[Any, Any] = {
    "dog": {"legs": 4, "names": ["Rex", None, True, 1.5, "žluťoučký 🐴"]},
    "Dog": "of another case",
    "\u00e9": "a letter",
    "e\u0301": "the letter in two parts",
    "": 0,
    'quote " and \\ and \n and \0': "",
    7: 2**200,
    -(2**80): -0.5,
    "7": None,
    ("user", 7, None, ("nested",)): [[]],
    (): {},
}


@CONTRACT.clause(
    "a store never written reads as empty, and readers do not make the store",
    cure="Let readers make no table, and take an absent table as empty.",
)
def _never_written(subject: Subject) -> None:
    store = subject.store()
    read = (
        store.get("dog"),
        list(store.items()),
        list(store.scan("d")),
        store.fences(),
        store.inspect("dog"),
    )
    equal(read, (None, [], [], [], None), "every reading")
    true(not store.exists(), "exists() is true without any write")


@CONTRACT.clause(
    "readers see committed results only",
    28,
    cure="Write in a database transaction, and read outside it.",
)
def _committed_only(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, dog=1)
    with store.transaction(subject.task(), TransactionAttempt(2, 0)) as opened:
        opened.update("dog", plus(1))
        opened.update("cat", plus(1))
        equal(contents(store), {"dog": 1}, "the contents while a transaction is open")
    equal(contents(store), {"cat": 1, "dog": 2}, "the contents after the commit")


@CONTRACT.clause(
    "keys and values come back unchanged",
    28,
    cure="Keep texts from txtopo.stores.keys byte for byte.",
)
def _come_back(subject: Subject) -> None:
    store = subject.store()
    with store.transaction(subject.task(), TransactionAttempt(1, 0)) as opened:
        for key, value in _VALUES.items():
            equal(
                opened.update(key, set_to(value)),
                Update(None, value, applied=True),
                f"the update of {key!r}",
            )
    equal(contents(store), _VALUES, "items()")
    equal({key: store.get(key) for key in _VALUES}, _VALUES, "get()")


@CONTRACT.clause(
    "scan finds strings by their beginning and tuples by their first elements",
    cure="Return rows ordered by the code points in their keys' texts.",
)
def _scan(subject: Subject) -> None:
    store = subject.store()
    keys: list[Any] = [
        "a",
        "ab",
        'a"c',
        "b",
        1,
        ("a",),
        ("a", 1),
        ("a", 1, "x"),
        ("a", 10),
        ("ab", 1),
        (),
    ]
    block(
        store, subject.task(), 1, 0, lambda opened: opened.update_many(dict.fromkeys(keys, 1), add)
    )
    equal({key for key, _ in store.scan("a")}, {"a", "ab", 'a"c'}, "scan('a')")
    equal({key for key, _ in store.scan("")}, {"a", "ab", 'a"c', "b"}, "scan('')")
    equal([key for key, _ in store.scan(("a", 1))], [("a", 1), ("a", 1, "x")], "scan(('a', 1))")
    equal(
        {key for key, _ in store.scan(("a",))},
        {("a",), ("a", 1), ("a", 1, "x"), ("a", 10)},
        "scan(('a',))",
    )
    equal(
        {key for key, _ in store.scan(())},
        {key for key in keys if isinstance(key, tuple)},
        "scan(())",
    )
    counts = [store.count(prefix) for prefix in (None, "a", "", ("a", 1), ("a",), (), "c")]
    equal(counts, [len(keys), 3, 4, 2, 4, 6, 0], "count()")
    refused(
        errors.UsageError,
        lambda: store.scan(7),  # type: ignore[arg-type]
        "scanning by a number",
        "scanned by a str or by a tuple",
    )


@CONTRACT.clause(
    "a scan shows one state, also for the key that equals the prefix",
    3,
    cure="Read the prefix's own key and all longer keys in one transaction (Store.read_under).",
)
def _scan_of_one_state(subject: Subject) -> None:
    for prefix in ((), ("a",), (1,)):
        store, context = subject.store(f"scan{len(prefix)}{prefix == (1,)}"), subject.task()
        keys = [prefix, (*prefix, 1), (*prefix, 2)]
        block(store, context, 1, 0, functools.partial(_put_all, keys, 1))
        before, begun = store.scan(prefix), store.scan(prefix)
        first = next(begun)
        block(store, subject.task(), 2, 0, functools.partial(_put_all, keys, 2))
        for moment, items in (("made", dict(before)), ("begun", dict([first, *begun]))):
            equal(
                sorted(items, key=repr),
                sorted(keys, key=repr),
                f"the keys in a scan that was {moment} before a transaction",
            )
            equal(
                len(set(items.values())),
                1,
                f"how many states a scan shows if it was {moment} before a transaction",
            )


def _put_all(keys: Sequence[Key], value: int, opened: StoreTransaction) -> None:
    opened.put_many(dict.fromkeys(keys, value))


@CONTRACT.clause(
    "a store is configuration only, and pickles even while in use",
    12,
    cure="Keep connections in context.resource, never in the store.",
    also="plain",
)
def _pickles(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, dog=3)
    copied = pickling.loads(pickling.dumps(store))
    equal(copied.get("dog"), 3, "a pickled copy's value")
    subject.write(copied, subject.task(), 2, 0, dog=1)
    expected = 1 if subject.kind == "plain" else 4
    equal(copy.deepcopy(store).get("dog"), expected, "a deep copy's value")


@CONTRACT.clause(
    "several stores share a place without mixing",
    27,
    cure="Keep rows and fences by the store's name.",
)
def _sharing(subject: Subject) -> None:
    words, letters = subject.store("words", opaque=False), subject.store("letters", opaque=True)
    context = subject.task()
    run(words, context, 1, 0, a=1)
    run(letters, context, 1, 0, a=5)
    equal((contents(words), contents(letters)), ({"a": 1}, {"a": 5}), "both stores' contents")
    equal(words.clear("words").rows, 1, "the rows that clearing a store removes")
    equal(
        (words.fences(), len(letters.fences()), letters.get("a")),
        ([], 1, 5),
        "fences and value after clearing a store",
    )


@CONTRACT.clause(
    "a FailedException in the block passes as it is",
    7,
    cure="Roll back, and let the exception through.",
)
def _failed(subject: Subject) -> None:
    store, thrown = subject.store(), errors.FailedException("again, please")

    def fail(opened: Any) -> None:
        raise thrown

    error = refused(
        errors.FailedException, lambda: block(store, subject.task(), 1, 0, fail), "a failing block"
    )
    true(error is thrown, "the block raises a different FailedException than its user code")
