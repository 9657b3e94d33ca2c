"""Clauses about forms: values are kept by any codec, and a store refuses another form's values (R27,
R28)."""

from __future__ import annotations

import functools
import operator
from typing import Any

from txtopo import errors
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import Subject, block, contents, put
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_FORM = "Keep Store.form beside the results, and compare it (rows.check_form) before every read and write. An empty store takes a new form."
_CODEC = "Turn values into texts and back with the store's codec, everywhere."


class ComplexCodec:
    """Keeps complex numbers, which JSON does not know, for the clauses."""

    name = "contract-complex"

    def dumps(self, value: complex) -> str:
        return f"{value.real!r} {value.imag!r}"

    def loads(self, text: str) -> complex:
        real, imag = text.split(" ")
        return complex(float(real), float(imag))


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
