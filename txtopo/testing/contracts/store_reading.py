"""Clauses about reading: keys and values come back, or are refused when written."""

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
    swallowed,
)
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_VALUES: dict[Any, Any] = {
    "dog": {"legs": 4, "names": ["Rex", None, True, 1.5, "žluťoučký 🐴"]},
    "": 0,
    'quote " and \\ and \n and \0': "",
    7: 2**200,
    -(2**80): -0.5,
    "7": None,
    ("user", 7, None, ("nested",)): [[]],
    (): {},
}
_NOT_KEYS: list[Any] = [True, 1.5, None, b"dog", ("a", False), ("a", 2.0), ["a"], "\ud800"]
_NOT_VALUES: list[Any] = [
    {1},
    object(),
    b"x",
    {1: "a"},
    [{"a": {True: 1}}],
    float("nan"),
    float("inf"),
    "\udfff",
    1j,
]


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


def _update(key: Any, value: Any, opened: StoreTransaction) -> Update:
    return opened.update(key, set_to(value))


@CONTRACT.clause(
    "a key that has no text is refused", cure="Use txtopo.stores.keys.encode_key for every key."
)
def _bad_keys(subject: Subject) -> None:
    store = subject.store()
    for key in _NOT_KEYS:
        update = functools.partial(
            block, store, subject.task(), 1, 0, functools.partial(_update, key, 1)
        )
        refused(errors.UsageError, update, f"updating {key!r}", "store key")
        refused(
            errors.UsageError, functools.partial(store.get, key), f"getting {key!r}", "store key"
        )


@CONTRACT.clause(
    "a value that JSON would not give back is refused",
    cure="Use txtopo.stores.keys.encode_value for every value.",
)
def _bad_values(subject: Subject) -> None:
    store = subject.store()
    for value in _NOT_VALUES:
        case = f"the value {value!r}"
        update = functools.partial(
            block, store, subject.task(), 1, 0, functools.partial(_update, "dog", value)
        )
        refused(errors.UsageError, update, case, "Store None, bool, int")
        equal(store.get("dog"), None, f"the value after {case} was refused")


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


@CONTRACT.clause(
    "an exception in the function given to update changes nothing and may be handled",
    cure="Call the function before you change the row.",
)
def _failing_function(subject: Subject) -> None:
    store = subject.store()

    def steps(opened: Any) -> None:
        opened.update("dog", plus(1))
        swallowed(ZeroDivisionError, lambda: opened.update("dog", lambda old: old // 0))
        equal(opened.update("dog", plus(1)), Update(1, 2, applied=True), "the next update")

    block(store, subject.task(), 1, 0, steps)
    equal(store.get("dog"), 2, "the value in the end")


@CONTRACT.clause(
    "a function that changes the old value in place does not change prev",
    cure="Give out decoded copies, never the stored object.",
)
def _in_place(subject: Subject) -> None:
    store = subject.store()

    def append(old: list[int] | None) -> list[int]:
        old = [] if old is None else old
        old.append(len(old))
        return old

    for txid in (1, 2):
        update = block(
            store,
            subject.task(),
            txid,
            0,
            lambda opened: (opened.update("dog", append), opened.update("dog", append))[1],
        )
    equal((update.prev, update.curr), ([0, 1, 2], [0, 1, 2, 3]), "the last update's prev and curr")


@CONTRACT.clause(
    "update_many is all or nothing", 28, cure="When combine raises, the whole transaction is lost."
)
def _all_or_nothing(subject: Subject) -> None:
    store = subject.store()

    def fail_at_cat(old: int | None, delta: str) -> int:
        return 1 // (delta != "cat")

    def swallow(opened: Any) -> None:
        swallowed(
            ZeroDivisionError,
            lambda: opened.update_many({"ant": "ant", "cat": "cat", "dog": "dog"}, fail_at_cat),
        )

    refused(
        ZeroDivisionError,
        lambda: block(store, subject.task(), 1, 0, swallow),
        "committing after a failed update_many",
    )
    equal(contents(store), {}, "the contents")


@CONTRACT.clause(
    "reading inside the function given to update is allowed, updating is not",
    cure="Guard update, update_many and delete while the function runs.",
)
def _nested(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, cat=4)

    def steps(opened: Any) -> None:
        equal(
            opened.update("dog", lambda old: opened.get("cat")).curr,
            4,
            "the value that the function reads",
        )
        nested = "cannot be updated inside the function given to update"
        refused(
            errors.UsageError,
            lambda: opened.update("dog", lambda old: opened.delete("cat")),
            "updating inside the function",
            nested,
        )

    block(store, subject.task(), 2, 0, steps)
    equal(contents(store), {"cat": 4, "dog": 4}, "the contents")
