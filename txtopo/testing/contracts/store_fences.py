"""Clauses about fences: a store lets only the newest attempt write, in the commit phase, to its own
generation's results (R27, R29, R32)."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

from txtopo import errors
from txtopo.stores.base import Store
from txtopo.stores.stamps import Fence
from txtopo.stores.transaction import ROWS_HELD_MAX
from txtopo.stores.updates import Update
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused, true
from txtopo.testing.contracts.store_subject import (
    Subject,
    add,
    block,
    contents,
    failing_block,
    plus,
    put,
    recorded,
    retry,
    run,
)
from txtopo.topology.transaction import TransactionAttempt

CONTRACT = clauses.Contract[Subject]("store")

_FENCE = "Read the fence under a lock that lasts until the commit, compare (txid, attempt), and raise the fence in the same database transaction."
_GENERATION = "Keep the generation with the fence, and compare it first. If a known component has no fence, the store was emptied."
_WAIT_S = 60.0
_CHANCE_S = 0.2
"""How long a transaction stays open, so that a wrong store lets a replay pass it."""


@CONTRACT.clause("an attempt's first task raises the fence, and later tasks pass", 29, cure=_FENCE)
def _raises(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(task=0), 1, 3, dog=1)
    run(store, subject.task(task=1), 1, 3, cat=1)
    equal(store.fences(), [Fence("words", "count", "first", 1, 3)], "the fences after attempt 1:3")
    run(store, subject.task(task=1), 2, 0, cat=1)
    equal(store.fences(), [Fence("words", "count", "first", 2, 0)], "the fences after attempt 2:0")


@CONTRACT.clause(
    "a late task of an older attempt is refused and changes nothing", 29, cure=_FENCE, also="plain"
)
def _late(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 3, 2, dog=1)
    for txid, attempt in ((3, 1), (2, 9), (1, 0)):
        late = f"{txid}:{attempt}"
        # A newer attempt has written "dog". No attempt has written "cat".
        for key in ("dog", "cat"):
            write = functools.partial(put, store, subject.task(task=1), txid, attempt, **{key: 5})
            refused(
                errors.StaleAttemptError,
                write,
                f"attempt {late} below the fence 3:2",
                f"fenced at attempt 3:2; attempt {late}",
            )
        equal(contents(store), {"dog": 1}, f"the contents after attempt {late} came late")
        equal(
            store.fences(),
            [Fence("words", "count", "first", 3, 2)],
            f"the fences after attempt {late} came late",
        )


@CONTRACT.clause(
    "a replay and a late task that write at the same moment do not pass each other",
    29,
    cure=_FENCE,
    only="concurrent",
)
def _racing(subject: Subject) -> None:
    store, is_open, is_done = subject.store(), threading.Event(), threading.Event()
    run(store, subject.task(), 1, 0, dog=1)
    seen: list[Any] = []

    def replay() -> None:
        is_open.wait(_WAIT_S)
        try:
            seen.append(retry(lambda: run(store, subject.task(), 2, 1, dog=10))["dog"].curr)
        except Exception as error:
            seen.append(error)
        is_done.set()

    thread = threading.Thread(target=replay)
    thread.start()
    # Either the replay waits for the late task, or the late task is refused.
    with (
        contextlib.suppress(errors.StaleAttemptError),
        store.transaction(subject.task(), TransactionAttempt(2, 0)) as late,
    ):
        is_open.set()
        is_done.wait(_CHANCE_S)
        late.update("dog", plus(10))
    thread.join(_WAIT_S)
    equal(seen, [11], "the replay's value")
    equal(contents(store), {"dog": 11}, "the contents")
    refused(
        errors.StaleAttemptError,
        lambda: run(store, subject.task(), 2, 0, dog=10),
        "the late task, once the replay has written",
    )


@CONTRACT.clause(
    "each topology's components have their own fences",
    29,
    cure="Keep a fence for each topology id and component.",
)
def _own_fences(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task("count"), 5, 0, dog=1)
    run(store, subject.task("sum"), 4, 0, cat=1)
    run(store, subject.task("count", topology_id="letters"), 1, 0, a=1)
    fences = [(fence.topology_id, fence.component, fence.txid) for fence in store.fences()]
    equal(fences, [("letters", "count", 1), ("words", "count", 5), ("words", "sum", 4)], "fences()")


@CONTRACT.clause(
    "a block that raises leaves none of its writes",
    29,
    cure="Write fence and rows in one database transaction, and roll it back.",
    also="plain",
)
def _no_trace(subject: Subject) -> None:
    store, context = subject.store(), subject.task()
    put(store, subject.task(), 1, 0, dog=1)

    def steps(opened: Any) -> None:
        opened.delete("dog")
        # More than is held in memory, so that a part is written before the end.
        ones = dict.fromkeys(range(ROWS_HELD_MAX + 1), 1)
        opened.put_many(ones) if subject.kind == "plain" else opened.update_many(ones, add)

    failing_block(store, context, 2, 0, steps)
    equal(contents(store), {"dog": 1}, "the contents")
    # The fence may stay raised, if the store raises it in a transaction of its own: the only effect
    # is that older attempts are refused.
    true(
        store.fences() in ([Fence("words", "count", "first", txid, 0)] for txid in (1, 2)),
        f"the fences are {store.fences()}",
    )
    equal((context.store_steps, context.touched_stores), ({}, {}), "the context's records")


@CONTRACT.clause(
    "a later transaction's value is refused, also from another component",
    30,
    29,
    cure="Compare txid and attempt in the row's stamp, and only then the writers.",
    also="plain",
)
def _ahead(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task("sum"), 9, 4, dog=1)
    for txid, attempt in ((8, 0), (9, 3)):
        late = f"{txid}:{attempt}"
        for action in subject.touches:
            call = functools.partial(block, store, subject.task("count"), txid, attempt, action)
            case = f"attempt {late} at a value from attempt 9:4"
            refused(errors.StaleAttemptError, call, case, f"attempt 9:4; attempt {late}")
    equal(contents(store), {"dog": 1}, "the contents")


def _commit(
    store: Store,
    subject: Subject,
    known: dict[str, TransactionAttempt],
    txid: int,
    attempt: int,
    /,
    **deltas: int,
) -> dict[str, Update]:
    """Run an attempt and record it in ``known``, for the next attempts."""
    context = subject.task(known_stores=dict(known))
    updates = run(store, context, txid, attempt, **deltas)
    known |= dict.fromkeys(context.touched_stores, TransactionAttempt(txid, attempt))
    return updates


@CONTRACT.clause(
    "an attempt's writes are void if the recorded attempt opened nothing",
    31,
    cure="Take back the writes of the fence's attempt if the attempt is not recorded.",
)
def _void(subject: Subject) -> None:
    store, known = subject.store(), dict[str, TransactionAttempt]()
    _commit(store, subject, known, 1, 0, x=1)
    run(store, subject.task(known_stores=dict(known)), 2, 0, x=100, y=100)
    equal(
        _commit(store, subject, known, 3, 0, x=5),
        {"x": Update(1, 6, applied=True)},
        "the next transaction's update",
    )
    equal(contents(store), {"x": 6}, "the contents")
    equal(
        _commit(store, subject, known, 4, 0, y=2),
        {"y": Update(None, 2, applied=True)},
        "a later transaction's update",
    )


@CONTRACT.clause(
    "an adopted store goes on from its contents",
    27,
    cure="Let adopt set the fence and restamp the rows. A dry run changes nothing.",
    also="plain",
)
def _adopt(subject: Subject) -> None:
    store = subject.store()
    put(store, subject.task(), 40, 6, dog=5, cat=2)
    equal(
        store.adopt("words", "second", 0, ["count"], dry_run=True).rows, 2, "the rows of a dry run"
    )
    equal(store.fences()[0].generation, "first", "the generation after a dry run")
    equal(store.adopt("words", "second", 0, ["count"]).rows, 2, "the rows that are adopted")
    subject.write(store, subject.task(generation="second"), 1, 0, dog=1)
    expected = {"cat": 2, "dog": 1 if subject.kind == "plain" else 6}
    equal(contents(store), expected, "the contents")


@CONTRACT.clause(
    "a failed attempt's change to an adopted value is taken back",
    27,
    31,
    cure="Let adopt restamp rows as settled values.",
    only="opaque",
)
def _adopt_take_back(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 40, 0, dog=5)
    store.adopt("words", "second", 0, ["count"])
    run(store, subject.task(generation="second"), 1, 0, dog=1)
    run(store, subject.task(generation="second"), 1, 1, cat=1)
    equal(contents(store), {"cat": 1, "dog": 5}, "the contents")


@CONTRACT.clause(
    "values from an ended generation count as earlier, under any txid",
    27,
    30,
    31,
    cure=_GENERATION,
    only="opaque",
)
def _older_generation(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task("sum"), 40, 0, dog=5)
    equal(
        run(store, subject.task(generation="second"), 1, 0, dog=1),
        {"dog": Update(5, 6, applied=True)},
        "the first update",
    )
    run(store, subject.task(generation="second"), 1, 1)
    equal(
        run(store, subject.task(generation="second"), 1, 2, dog=2),
        {"dog": Update(5, 7, applied=True)},
        "the update of a later attempt",
    )


@CONTRACT.clause(
    "a store newer than its state can be adopted as it is",
    27,
    29,
    cure="Let adopt lower the fence to the given txid, and close the txid.",
)
def _adopt_newer(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(), 7, 0, dog=3)
    store.adopt("words", "first", 4, ["count"])
    refused(
        errors.StaleAttemptError,
        lambda: run(store, subject.task(), 4, 99, cat=1),
        "an attempt of the adopted txid",
    )
    equal(
        run(store, subject.task(), 5, 0, dog=1),
        {"dog": Update(3, 4, applied=True)},
        "the next transaction",
    )


@CONTRACT.clause(
    "an emptied store can be adopted too",
    27,
    cure="Let adopt make a missing store and a missing fence.",
)
def _adopt_empty(subject: Subject) -> None:
    store = subject.store()
    equal(
        store.adopt("words", "first", 6, ["count"], dry_run=True).fences,
        1,
        "the fences of a dry run",
    )
    true(not store.exists(), "a dry run has made the store")
    store.adopt("words", "first", 6, ["count"])
    run(store, subject.task(known_stores=recorded(store, 6)), 7, 0, dog=1)
    equal(store.get("dog"), 1, "the contents")


@CONTRACT.clause(
    "a renamed topology's results can be adopted",
    27,
    cure="Let adopt with from_topology move rows and fences.",
)
def _adopt_renamed(subject: Subject) -> None:
    store = subject.store()
    run(store, subject.task(topology_id="old name"), 7, 0, dog=3)
    run(store, subject.task("sum", topology_id="old name"), 7, 0, owl=2)
    run(store, subject.task(topology_id="neighbour"), 7, 0, cat=1)
    equal(
        store.adopt("words", "second", 0, ["count", "sum"], from_topology="old name").rows,
        2,
        "the rows that are adopted",
    )
    run(store, subject.task(generation="second"), 1, 0, dog=1)
    equal(contents(store), {"cat": 1, "dog": 4, "owl": 2}, "the contents")
    equal(
        [fence.topology_id for fence in store.fences()],
        ["neighbour", "words", "words"],
        "the fences' topologies",
    )
    rows = store.clear("words", ["sum"], dry_run=True).rows
    equal(rows, 1, "the rows of component 'sum'")


@CONTRACT.clause(
    "clear removes a topology or a component, and has a dry run",
    27,
    cure="Remove by topology id, and by component if given.",
    also="plain",
)
def _clear(subject: Subject) -> None:
    store = subject.store()
    equal(store.clear("words").rows, 0, "a missing store's rows")
    true(not store.exists(), "clearing has made the store")
    put(store, subject.task("count"), 1, 0, dog=1, cat=1)
    put(store, subject.task("sum"), 1, 0, total=2)
    put(store, subject.task(topology_id="neighbour"), 1, 0, other=1)
    equal(
        (store.clear("words", dry_run=True).rows, len(contents(store))),
        (3, 4),
        "the rows that a dry run counts and leaves",
    )
    change = store.clear("words", ["sum"])
    equal(
        (change.rows, change.fences),
        (1, 1),
        "the rows and fences that clearing a component removes",
    )
    change = store.clear("words")
    equal(
        (change.rows, change.fences),
        (2, 1),
        "the rows and fences that clearing the topology removes",
    )
    equal(contents(store), {"other": 1}, "the contents")
