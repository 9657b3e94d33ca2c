"""Clauses about steps, which txtopo takes for every store: keys and values that are refused, functions
that fail, updates in several blocks, and put (R28, R30, R32)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.stores import transaction
from txtopo.stores.conflicts import StoreConflict
from txtopo.stores.transaction import StoreTransaction
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_forms import ComplexCodec
from txtopo.testing.contracts.store_subject import (
    Subject,
    add,
    block,
    contents,
    failing_block,
    plus,
    put,
    run,
    set_to,
)
from txtopo.topology import merge

CONTRACT = clauses.Contract[Subject]("store")

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
_PUT = "Let put be an ordinary update: the stamp says whether the update was applied."
_STEPS = "Count a task's updates to a key in context.store_steps, once the database has committed."


class _Faulty(ComplexCodec):
    """Makes texts that a database cannot keep."""

    name = "contract-faulty"

    def dumps(self, value: Any) -> Any:
        return {"bytes": b"x", "nul": "a\0b", "half": "\ud800"}[value]


def swallowed(kind: type[Exception], action: Callable[[], Any]) -> None:
    """Do ``action()``, as user code that catches ``kind`` and goes on."""
    try:
        action()
    except kind:
        return
    raise clauses.BrokenClauseError(
        f"a refusal with {kind.__name__} was expected inside the transaction"
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


@CONTRACT.clause("several updates to a key compose, within and across blocks", 32, cure=_STEPS)
def _compose(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    run(store, subject.task(), 1, 0, dog=1)

    def first(opened: Any) -> None:
        equal(opened.update("dog", plus(1)), Update(1, 2, applied=True), "the first update")
        equal(
            opened.update_many({"dog": 1, "cat": 1}, add)["dog"],
            Update(2, 3, applied=True),
            "a bulk update",
        )
        equal(opened.get("dog"), 3, "the value that the task reads")

    def second(opened: Any) -> None:
        equal(opened.get("dog"), 3, "the value in the next block")
        equal(opened.delete("dog"), Update(3, None, applied=True), "a deletion")
        equal(opened.get("dog"), None, "the value that the task reads")
        equal(opened.update("dog", plus(8)), Update(None, 8, applied=True), "the next update")

    block(store, context, 2, 0, first)
    block(store, context, 2, 0, second)
    equal(contents(store), {"cat": 1, "dog": 8}, "the contents")


@CONTRACT.clause(
    "a key's updates compose across blocks, also with blocks for different keys between them",
    28,
    32,
    cure=_STEPS,
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
            f"the contents after attempt {attempt}",
        )


@CONTRACT.clause("a block that was rolled back is not counted as a step", 32, cure=_STEPS)
def _rolled_back(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    run(store, context, 1, 0, dog=1)

    failing_block(store, context, 1, 0, lambda opened: opened.update("dog", plus(50)))
    equal(run(store, context, 1, 0, dog=2), {"dog": Update(1, 3, applied=True)}, "the next update")


@CONTRACT.clause(
    "the first application returns values as a replay does",
    28,
    cure="Return the value that JSON gives back, also the first time.",
)
def _as_replayed(subject: Subject) -> None:
    def steps(opened: Any) -> None:
        equal(opened.update("dog", lambda old: (1, (2,))).curr, [1, [2]], "curr of a tuple")
        equal(opened.update("dog", lambda old: old).curr, [1, [2]], "curr of the old value")

    block(subject.store(), subject.task(), 1, 0, steps)


@CONTRACT.clause(
    "put sets a value over any old value, and a replay finds the value set", 28, 30, cure=_PUT
)
def _put(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, dog=1, cat={"legs": 4})
    equal(contents(store), {"cat": {"legs": 4}, "dog": 1}, "the contents")
    block(store, subject.task(), 2, 0, lambda t: t.put(("dog", 7), [2]))
    put(store, subject.task(), 2, 0, dog=5)
    put(store, subject.task(), 2, 1, dog=5)
    row = store.inspect("dog")
    equal(
        row and (row.curr, row.prev, row.txid),
        (5, 1, 2),
        "curr, prev and txid after put and its replay",
    )
    equal(
        run(store, subject.task(), 3, 0, dog=1),
        {"dog": Update(5, 6, applied=True)},
        "the next update",
    )
    refused(
        StoreConflict,
        lambda: put(store, subject.task(task=1), 3, 0, dog=9),
        "setting a key that another task updated",
    )
    equal(store.get("dog"), 6, "the value after the refusal")


@CONTRACT.clause("putting composes with updates, and is all or nothing", 28, 32, cure=_PUT)
def _put_composes(subject: Subject) -> None:
    store = subject.store()

    def steps(opened: Any) -> None:
        opened.put("dog", 10)
        equal(opened.update("dog", plus(1)), Update(10, 11, applied=True), "an update after put")
        opened.put("dog", 20)
        equal(opened.delete("dog"), Update(20, None, applied=True), "a deletion after put")
        opened.put("dog", 30)
        equal(opened.get("dog"), 30, "the value that the task reads")

    block(store, subject.task(), 1, 0, steps)
    equal(contents(store), {"dog": 30}, "the contents")
    not_json: dict[str, Any] = {"ant": 1, "dog": {1}}
    refused(
        errors.UsageError,
        lambda: put(store, subject.task(), 2, 0, **not_json),
        "a set among the values",
        "Store None, bool, int",
    )
    equal(contents(store), {"dog": 30}, "the contents after the refusal")
    many: dict[Any, int] = {number: number for number in range(transaction.ROWS_HELD_MAX + 7)}
    block(store, subject.task(), 2, 1, lambda t: t.put_many(many))
    equal(
        contents(store) == many | {"dog": 30},
        True,
        "whether all keys are stored, more than memory holds",
    )


@CONTRACT.clause(
    "a text that not every database keeps is refused, naming the codec",
    cure="Have codecs.encode check the codec's text.",
)
def _codec_faults(subject: Subject) -> None:
    store = subject.store(codec=_Faulty())
    for value in ("bytes", "nul", "half"):
        write = functools.partial(put, store, subject.task(), 1, 0, dog=value)
        refused(errors.UsageError, write, f"the text for {value}", "contract-faulty")
    equal(contents(store), {}, "the contents")


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
    "a task never reads another task's write in the same transaction",
    28,
    32,
    cure="Read prev if the stamp has the txid but names another writer.",
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
            "the value that task 0 reads " + ("after" if writes_first else "before"),
        )
