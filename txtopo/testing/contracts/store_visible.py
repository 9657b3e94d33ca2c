"""Clauses about readers: a reader sees only whole transactions, up to the last recorded transaction
(R3, R30)."""

from __future__ import annotations

import pickle
from typing import Any

from txtopo.stores.base import Store
from txtopo.stores.visible import VisibleTxid
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal
from txtopo.testing.contracts.store_subject import Subject, block, plus, put, recorded, visible_at

CONTRACT = clauses.Contract[Subject]("store")


def contents_as_of(store: Store, visible: VisibleTxid) -> dict[Any, Any]:
    """The visible contents. All ways to read must agree."""
    items = dict(store.items(as_of=visible))
    for key in ("ant", "bird", "cat", "dog"):
        equal(store.get(key, as_of=visible), items.get(key), f"get({key!r}) beside items()")
        equal(
            dict(store.scan(key, as_of=visible)),
            {key: items[key]} if key in items else {},
            f"scan({key!r}) beside items()",
        )
        equal(store.count(key, as_of=visible), int(key in items), f"count({key!r}) beside items()")
    return items


def change_keys(opened: Any) -> None:
    """Changes, deletes and adds keys, some repeatedly."""
    opened.update("dog", plus(1))
    opened.update("dog", plus(1))
    opened.delete("cat")
    opened.put("bird", 7)
    opened.delete("ant")
    opened.put("ant", 8)
    opened.delete("never there")


@CONTRACT.clause(
    "a reader as of the recorded transaction never sees a transaction under way, however often it is tried",
    3,
    30,
    cure="If the transaction in a row's stamp is not recorded, show the row's prev (visible.text_of).",
)
def _under_way(subject: Subject) -> None:
    store = subject.store()
    equal(contents_as_of(store, visible_at(0, {})), {}, "the contents of a new store")
    put(store, subject.task(), 1, 0, ant=1, cat=1, dog=1)
    equal(
        contents_as_of(store, visible_at(0, {})),
        {},
        "the contents seen before transaction 1 is recorded",
    )
    before = visible_at(1, recorded(store, 1))
    for attempt in (0, 1, 2):
        block(store, subject.task(known_stores=dict(before.stores)), 2, attempt, change_keys)
        equal(
            contents_as_of(store, pickle.loads(pickle.dumps(before))),
            {"ant": 1, "cat": 1, "dog": 1},
            f"the contents seen while 2:{attempt} is under way",
        )
    equal(
        contents_as_of(store, visible_at(2, recorded(store, 2, 2))),
        {"ant": 8, "bird": 7, "dog": 3},
        "the contents seen once transaction 2 is recorded",
    )


def _overwrite(opened: Any) -> None:
    opened.put_many({"ant": 9, "dog": 9})
    opened.delete("cat")


@CONTRACT.clause(
    "a read shows the state when it was asked for, however long the reading takes",
    3,
    cure="Read the fences after the first row, and refuse if a fence is beyond the next transaction (visible.check_reaches).",
)
def _fixed(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 1, 0, ant=1, bird=1, cat=1)
    reading = store.items(as_of=visible_at(1, recorded(store, 1)))
    for txid in (2, 3):
        known = recorded(store, txid - 1)
        block(store, subject.task(known_stores=known), txid, 0, _overwrite)
    equal(
        dict(reading),
        {"ant": 1, "bird": 1, "cat": 1},
        "the contents as of 1, asked for at 1 and read after 3",
    )
