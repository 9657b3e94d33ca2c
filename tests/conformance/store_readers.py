"""Clauses about readers as of a transaction, where txtopo decides for every store what to show (R3,
R27, R31, R34)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from txtopo import errors
from txtopo.stores.base import Store
from txtopo.stores.visible import VisibleTxid
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import (
    Subject,
    block,
    contents,
    mismatched,
    put,
    recorded,
    run,
    visible_at,
)
from txtopo.testing.contracts.store_visible import change_keys, contents_as_of
from txtopo.topology.transaction import RecordedAttempt

CONTRACT = clauses.Contract[Subject]("store")

_REACHES = "Read the fences after the first row, and refuse if a fence is beyond the next transaction (visible.check_reaches)."
_GENERATION = "Compare generation and recorded attempts with the fences before you return rows."


def _reads(store: Store, as_of: Any) -> list[Callable[[], Any]]:
    """All ways to read."""
    return [
        functools.partial(read, as_of=as_of)
        for read in (
            functools.partial(store.get, "cat"),
            store.items,
            functools.partial(store.scan, "c"),
        )
    ]


@CONTRACT.clause(
    "an incomplete store is not read as of the recorded transaction",
    34,
    3,
    cure="Compare the count in the fences with the record.",
    only="transactional",
)
def _not_shown(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(num_tasks=2), 1, 0, dog=1)
    name = f"count/{store.name}"
    equal(
        store.get("dog", as_of=visible_at(1, {name: RecordedAttempt(1, 0, 1)})),
        1,
        "the value in a complete store",
    )
    as_of = visible_at(1, {name: RecordedAttempt(1, 0, 2)})
    for look in (lambda: store.get("dog", as_of=as_of), lambda: list(store.items(as_of=as_of))):
        case = "a read as of an incomplete transaction"
        mismatched(look, case, "holds 1 store transactions", "recorded 2")


@CONTRACT.clause(
    "a read as of a transaction shows one state, also if a writer comes after the look at the fences",
    3,
    30,
    cure=_REACHES,
)
def _overtaken(subject: Subject) -> None:
    ways: dict[str, Callable[[Store, VisibleTxid], Any]] = {
        "items": lambda store, visible: dict(store.items(as_of=visible)),
        "scan": lambda store, visible: dict(store.scan("", as_of=visible)),
        "get": lambda store, visible: store.get("dog", as_of=visible),
        "count": lambda store, visible: store.count(as_of=visible),
    }
    for way, read in ways.items():
        store, writer = subject.store(way), subject.store(way)
        put(store, subject.task(), 1, 0, ant=1, dog=1)
        visible = visible_at(1, recorded(store, 1))
        look, later = store.fences, iter((2, 3))

        def look_and_be_overtaken(
            look: Any = look, writer: Store = writer, later: Iterator[int] = later
        ) -> Any:
            fences = look()
            for txid in later:
                put(
                    writer,
                    subject.task(known_stores=recorded(writer, txid - 1)),
                    txid,
                    0,
                    ant=txid,
                    dog=txid,
                    owl=txid,
                )
            return fences

        expected: Any = {"count": 2, "get": 1}.get(way, {"ant": 1, "dog": 1})
        with mock.patch.object(store, "fences", look_and_be_overtaken):
            equal(read(store, visible), expected, f"the result of {way}")


@CONTRACT.clause("a reader that comes too late is refused, and gets no mixture", 3, cure=_REACHES)
def _outrun(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, dog=1, cat=1)
    block(store, subject.task(known_stores=recorded(store, 1)), 2, 0, lambda t: t.delete("cat"))
    put(store, subject.task("sum", known_stores=recorded(store, 2)), 3, 0, bird=1)
    early = visible_at(1, recorded(store, 1))
    for read in _reads(store, early):
        error = refused(
            errors.OutrunError,
            read,
            "a read as of 1 when 3 has begun",
            "as of transaction 1",
            "transaction 3 has begun",
        )
        equal((error.asked, error.found), (1, 3), "the error's txids")
    equal(
        dict(store.items(as_of=visible_at(2, recorded(store, 2)))),
        {"dog": 1},
        "the contents seen as of 2",
    )


@CONTRACT.clause(
    "a store of another generation, or older than the record, is not read as of a transaction",
    27,
    cure=_GENERATION,
)
def _mismatch(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 3, 1, dog=1)
    cases = {
        "another generation": (visible_at(3, {}, "second"), "belongs to generation first"),
        "a store that is behind": (visible_at(4, recorded(store, 4)), "holds attempt 3:1"),
        "a store that is behind by an attempt": (
            visible_at(3, recorded(store, 3, 2)),
            "holds attempt 3:1",
        ),
        "another component's results": (
            visible_at(3, recorded(store, 3, 1, "sum")),
            "holds nothing of component 'sum'",
        ),
    }
    for case, (visible, named) in cases.items():
        for read in _reads(store, visible):
            mismatched(read, case, named)
    empty = subject.store("empty")
    for read in _reads(empty, visible_at(1, recorded(empty, 1))):
        mismatched(read, "an emptied store", "holds nothing")


@CONTRACT.clause(
    "a read as of a bare number is refused",
    cure="Take only a VisibleTxid: it names the recorded attempts.",
)
def _number(subject: Subject) -> None:
    store: Any = subject.store()
    put(store, subject.task(), 1, 0, dog=1)
    for read in _reads(store, 1):
        refused(errors.UsageError, read, "reading as of a number", "visible_txid")


@CONTRACT.clause(
    "a plain store cannot be read as of a transaction, and says so",
    3,
    cure="Refuse: a plain store does not keep old values.",
    only="plain",
)
def _plain(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, dog=1)
    for read in _reads(store, visible_at(1, recorded(store, 1))):
        refused(
            errors.UsageError,
            read,
            "reading a plain store as of a transaction",
            "is plain",
            "plain=True",
        )


@CONTRACT.clause(
    "a dead attempt's writes are not seen, also before they are taken back",
    31,
    cure="If the transaction in a row's stamp is not recorded, show the row's prev (visible.text_of).",
)
def _void(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, ant=1, cat=1, dog=1)
    block(store, subject.task(known_stores=recorded(store, 1)), 2, 0, change_keys)
    for txid in (2, 5):
        # The recorded attempts from 2 on opened no store.
        equal(
            contents_as_of(store, visible_at(txid, recorded(store, 1))),
            {"ant": 1, "cat": 1, "dog": 1},
            f"the contents seen as of {txid}",
        )
    known = {**recorded(store, 1), **recorded(store, 6, 0, "sum")}
    put(store, subject.task("sum", known_stores=recorded(store, 1)), 6, 0, dog=6)
    equal(
        contents_as_of(store, visible_at(6, known)),
        {"ant": 1, "cat": 1, "dog": 6},
        "the contents seen once another component has written",
    )


@CONTRACT.clause(
    "a read as of a topology's transaction shows only the topology's own writes",
    3,
    cure="Leave out other topologies' rows.",
)
def _others(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(topology_id="neighbour"), 1, 0, cat=1)
    put(store, subject.task(), 1, 0, dog=1)
    equal(contents_as_of(store, visible_at(1, recorded(store, 1))), {"dog": 1}, "the contents seen")
    equal(contents(store), {"cat": 1, "dog": 1}, "the contents seen without as_of")


@CONTRACT.clause(
    "an adopted store is seen as of the transaction it was adopted at",
    27,
    cure="Take restamped rows as settled.",
)
def _adopted(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 40, 0, dog=1, cat=1)
    store.adopt("words", "second", 2, ["count"])
    adopted = visible_at(2, {}, "second")
    equal(contents_as_of(store, adopted), {"cat": 1, "dog": 1}, "the contents seen")
    run(store, subject.task(generation="second", known_stores={}), 3, 0, dog=1)
    equal(
        contents_as_of(store, adopted),
        {"cat": 1, "dog": 1},
        "the contents seen while the next transaction is under way",
    )
