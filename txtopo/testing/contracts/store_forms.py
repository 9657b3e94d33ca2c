"""Clauses about forms: values are set as well as updated, by any codec, and a store refuses another
form's values (R27, R28)."""

from __future__ import annotations

import functools
import operator
from typing import Any

from txtopo import errors
from txtopo.stores import transaction
from txtopo.stores.conflicts import StoreConflict
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import Subject, block, contents, plus, put, run
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_FORM = "Keep Store.form beside the results, and compare it (rows.check_form) before every read and write. An empty store takes a new form."
_CODEC = "Turn values into texts and back with the store's codec, everywhere."
_PUT = "Let put be an ordinary update: the stamp says whether the update was applied."


class ComplexCodec:
    """Keeps complex numbers, which JSON does not know, for the clauses."""

    name = "contract-complex"

    def dumps(self, value: complex) -> str:
        return f"{value.real!r} {value.imag!r}"

    def loads(self, text: str) -> complex:
        real, imag = text.split(" ")
        return complex(float(real), float(imag))


class _Faulty(ComplexCodec):
    """Makes texts that a database cannot keep."""

    name = "contract-faulty"

    def dumps(self, value: Any) -> Any:
        return {"bytes": b"x", "nul": "a\0b", "half": "\ud800"}[value]


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


@CONTRACT.clause("values are kept by the store's codec", 28, cure=_CODEC)
def _codec(subject: Subject) -> None:
    store = subject.store(codec=ComplexCodec())
    with store.transaction(subject.task(), TransactionAttempt(1, 0)) as opened:
        opened.put("i", 1j)
        opened.update_many({"j": 2j, "k": 0j}, lambda old, new: new)
        opened.delete("k")
        equal((opened.get("i"), opened.get("k")), (1j, None), "the values that the task reads")
        equal(
            opened.update("i", lambda old: old + 1), Update(1j, 1 + 1j, applied=True), "an update"
        )
    copied = pickling.loads(pickling.dumps(store))
    equal(contents(copied), {"i": 1 + 1j, "j": 2j}, "items() of a pickled copy")
    equal((copied.get("j"), dict(copied.scan("i"))), (2j, {"i": 1 + 1j}), "get() and scan()")
    updates = block(copied, subject.task(), 2, 0, lambda t: t.update_many({"i": 1j}, operator.add))
    equal(
        updates, {"i": Update(1 + 1j, 1 + 2j, applied=True)}, "the updates of the next transaction"
    )
    row = copied.inspect("i")
    equal(row and (row.curr, row.prev), (1 + 2j, 1 + 1j), "curr and prev")


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
    "a store written in another form is refused, and takes a new form only while empty",
    27,
    cure=_FORM,
)
def _other_form(subject: Subject) -> None:
    forms: list[dict[str, Any]] = [{}, {"codec": ComplexCodec()}, {"plain": True, "opaque": False}]
    for number, held in enumerate(forms):
        store = subject.store(f"of_form_{number}", **held)
        put(store, subject.task(), 1, 0, dog=1)
        equal(store.stored_form(), store.form, "the stored form")
        for other in (
            subject.store(f"of_form_{number}", **form) for form in forms if form is not held
        ):
            case = f"a store of form {store.form!r}, opened as {other.form!r}"
            equal(
                other.stored_form(),
                store.form,
                "the stored form, read by a store with another form",
            )
            refused(
                errors.StateMismatchError,
                functools.partial(put, other, subject.task(), 2, 0, cat=1),
                case,
                other.address,
            )
            for read in (functools.partial(other.get, "dog"), functools.partial(contents, other)):
                refused(errors.StateMismatchError, read, f"reading {case}", "codec")
        equal(contents(store), {"dog": 1}, "the contents")
    store.clear("words")
    emptied = subject.store(f"of_form_{number}")
    put(emptied, subject.task(), 1, 0, dog=1)
    equal(
        (emptied.stored_form(), contents(emptied)),
        (emptied.form, {"dog": 1}),
        "an emptied store's form and contents after a write in another form",
    )
