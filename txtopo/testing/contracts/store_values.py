"""Clauses about stamped values: replays and new attempts change them by the rules (R28, R30, R31)."""

from __future__ import annotations

import operator
from typing import Any

from txtopo import errors
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused
from txtopo.testing.contracts.store_subject import Subject, block, contents, never, plus, run
from txtopo.topology.context import TopologyContext

CONTRACT = clauses.Contract[Subject]("store")

_STAMP = "stamp == txid: return the applied update. stamp < txid: prev = curr, and apply."
_STEPS = "Keep each update's result in a transaction, and return the kept results on a replay."
_OPAQUE = "Lower txid: prev = curr, apply. Same txid and lower attempt: apply to prev. Same attempt: already applied."
_TAKE_BACK = "Before a new attempt raises the fence, restore the values that earlier attempts of the txid changed, and remove the keys they added."


@CONTRACT.clause(
    "transactional values follow the worked example in Storm's documentation",
    30,
    cure=_STAMP,
    only="transactional",
)
def _transactional_example(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, man=3, dog=3)
    run(store, subject.task(), 2, 0, apple=10)
    run(store, subject.task(), 3, 0, dog=1)  # the attempt dies here: "dog" is applied, "man" is not

    def replay(opened: Any) -> None:
        equal(
            opened.update("man", plus(2)),
            Update(3, 5, applied=True),
            "the update of 'man', not applied before",
        )
        equal(
            opened.update("dog", never),
            Update(3, 4, applied=False),
            "the update of 'dog', applied before",
        )

    block(store, subject.task(), 3, 1, replay)
    stamped = {
        key: (row.curr, row.txid) for key in ("man", "dog", "apple") if (row := store.inspect(key))
    }
    equal(stamped, {"man": (5, 3), "dog": (4, 3), "apple": (10, 2)}, "values and stamps")


@CONTRACT.clause(
    "a replay gets the first application's results", 28, 30, cure=_STAMP, only="transactional"
)
def _replay(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, dog=3)
    first = run(store, subject.task(), 2, 0, dog=2, cat=1)
    for attempt in (0, 1, 2, 1_000_000):
        expected = {
            key: Update(update.prev, update.curr, applied=False) for key, update in first.items()
        }
        equal(
            run(store, subject.task(), 2, attempt, dog=2, cat=1),
            expected,
            f"the updates of attempt 2:{attempt}",
        )
    equal(contents(store), {"cat": 1, "dog": 5}, "the contents")


@CONTRACT.clause(
    "a replay completes a half-applied sequence", 28, 32, cure=_STEPS, only="transactional"
)
def _half_applied(subject: Subject) -> None:
    store, first, replay = subject.store(), subject.task(), subject.task()
    run(store, subject.task(), 1, 0, dog=1)
    run(store, first, 2, 0, dog=1)
    block(store, first, 2, 0, lambda opened: opened.update("dog", plus(10)))

    def complete(opened: Any) -> None:
        equal(
            opened.get("dog"), 1, "the value that a replay reads first, as in the first application"
        )
        equal(opened.update("dog", never), Update(1, 2, applied=False), "the first update")
        equal(opened.get("dog"), 2, "the value after the update")
        equal(opened.update("dog", never), Update(2, 12, applied=False), "the second update")
        equal(opened.get("dog"), 12, "the value after the update")
        equal(
            opened.update("dog", plus(100)),
            Update(12, 112, applied=True),
            "the third update, which is new",
        )

    def go_on(opened: Any) -> None:
        equal(opened.delete("dog"), Update(112, None, applied=True), "a deletion in another block")
        equal(opened.update("dog", plus(7)), Update(None, 7, applied=True), "the next update")

    block(store, replay, 2, 1, complete)
    block(store, replay, 2, 1, go_on)
    equal(store.get("dog"), 7, "the value")

    def all_again(opened: Any) -> list[Update]:
        return [
            *(opened.update("dog", never) for _ in range(3)),
            opened.delete("dog"),
            opened.update("dog", never),
        ]

    seen = block(store, subject.task(), 2, 2, all_again)
    equal(
        [(update.prev, update.curr, update.applied) for update in seen],
        [(1, 2, False), (2, 12, False), (12, 112, False), (112, None, False), (None, 7, False)],
        "a second replay's updates",
    )


@CONTRACT.clause("deleting an absent key is a step too", 28, cure=_STEPS, only="transactional")
def _delete_absent(subject: Subject) -> None:
    store = subject.store()
    for attempt, applied in ((0, True), (1, False)):
        updates = block(
            store,
            subject.task(),
            1,
            attempt,
            lambda t: [t.delete("dog"), t.update("dog", plus(5)), t.delete("cat")],
        )
        equal(
            updates,
            [Update(None, None, applied), Update(None, 5, applied), Update(None, None, applied)],
            f"the steps of attempt 1:{attempt}",
        )
    equal(contents(store), {"dog": 5}, "the contents")


@CONTRACT.clause(
    "opaque values follow the worked example in Storm's documentation",
    30,
    cure=_OPAQUE,
    only="opaque",
)
def _opaque_example(subject: Subject) -> None:
    for name, attempt, expected in (("next", (3, 0), (6, 4, 3)), ("same", (2, 1), (3, 1, 2))):
        store = subject.store(name)
        run(store, subject.task(), 1, 0, count=1)
        run(store, subject.task(), 2, 0, count=3)
        before = store.inspect("count")
        equal(
            before and (before.curr, before.prev, before.txid),
            (4, 1, 2),
            "curr, prev and txid before",
        )
        run(store, subject.task(), *attempt, count=2)
        after = store.inspect("count")
        equal(
            after and (after.curr, after.prev, after.txid),
            expected,
            f"curr, prev and txid after attempt {attempt[0]}:{attempt[1]}",
        )


@CONTRACT.clause(
    "a new attempt takes back an earlier attempt's writes that it does not repeat",
    31,
    cure=_TAKE_BACK,
    only="opaque",
)
def _take_back(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(task=0), 1, 0, dog=1)
    run(store, subject.task(task=1), 1, 0, cat=1)
    run(store, subject.task(task=0), 2, 0, dog=10, bird=10)
    run(store, subject.task(task=1), 2, 0, cat=10)
    run(store, subject.task(task=0), 2, 1)  # nothing to write this time
    equal(contents(store), {"cat": 1, "dog": 1}, "the contents")
    equal(store.inspect("bird"), None, "the row of a key that was new")
    equal(
        run(store, subject.task(task=1), 2, 1, bird=5),
        {"bird": Update(None, 5, applied=True)},
        "the new key's update",
    )
    run(store, subject.task(task=0), 3, 0, dog=1)
    equal(
        contents(store),
        {"bird": 5, "cat": 1, "dog": 2},
        "the contents after the next transaction",
    )


@CONTRACT.clause(
    "deleted and composed values are taken back whole", 31, cure=_TAKE_BACK, only="opaque"
)
def _take_back_whole(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, dog=3, cat=4)

    def steps(opened: Any) -> None:
        opened.delete("dog")
        opened.update("cat", plus(1))
        opened.update("cat", plus(1))
        opened.update("bird", plus(1))
        opened.delete("bird")

    block(store, subject.task(), 2, 0, steps)
    equal(contents(store), {"cat": 6}, "the contents after the first attempt")
    for attempt in (1, 2):
        run(store, subject.task(), 2, attempt)
        equal(contents(store), {"cat": 4, "dog": 3}, f"the contents after attempt 2:{attempt}")


@CONTRACT.clause(
    "taking back is limited to the component and the transaction",
    31,
    cure=_TAKE_BACK,
    only="opaque",
)
def _take_back_only(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task("count"), 1, 0, dog=1)
    run(store, subject.task("sum"), 2, 0, total=1)
    run(store, subject.task("count", topology_id="neighbour"), 2, 0, other=1)
    run(store, subject.task("count"), 2, 0, cat=1)
    run(store, subject.task("count"), 2, 1)
    equal(contents(store), {"dog": 1, "other": 1, "total": 1}, "the contents")


@CONTRACT.clause(
    "a new transaction forgets its own component's deletions only",
    31,
    cure="Remove tombstones with the stamp's topology and component only (stamps.is_swept).",
    only="opaque",
)
def _sweep_only(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 1, 0, dog=1)

    def other(key: str) -> TopologyContext:
        return subject.task("sum") if key == "cat" else subject.task(topology_id="neighbour")

    for key in ("cat", "owl"):
        run(store, other(key), 1, 0, **{key: 1})
        block(store, other(key), 2, 0, operator.methodcaller("delete", key))
    run(store, subject.task(), 3, 0, dog=1)
    for key in ("cat", "owl"):
        run(store, other(key), 2, 1)
    equal(contents(store), {"cat": 1, "dog": 2, "owl": 1}, "the contents after the others' replay")


@CONTRACT.clause(
    "another component's dead attempt does not count",
    30,
    31,
    cure=_OPAQUE,
    only="opaque",
)
def _other_components(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task("count"), 1, 0, dog=1)
    run(store, subject.task("count"), 2, 0, dog=10)

    def take_over(opened: Any) -> None:  # this attempt gives the key to "sum"
        equal(opened.get("dog"), 1, "the value that the second component reads")
        equal(
            opened.update("dog", plus(5)),
            Update(1, 6, applied=True),
            "the second component's update",
        )

    block(store, subject.task("sum"), 2, 1, take_over)
    refused(
        errors.StaleAttemptError,
        lambda: run(store, subject.task("count", task=1), 2, 0, dog=10),
        "the dead attempt",
    )
    run(store, subject.task("count"), 2, 1, cat=1)
    equal(contents(store), {"cat": 1, "dog": 6}, "the contents")
    run(store, subject.task("sum"), 2, 2)
    equal(contents(store), {"cat": 1, "dog": 1}, "the contents after the next attempt")
