"""Under any failure and any late task: every txid takes effect exactly once, in order, in each
store.

A story is drawn: transactions, each with attempts that die half-way before the one that succeeds,
and late tasks of dead attempts in between. A component may have nothing to do in an attempt, and
then opens nothing. The story is told to a real store and to a plain dictionary.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from tests.conformance import test_store_contract as contract
from tests.examples import examples
from txtopo.errors import OutrunError, StaleAttemptError
from txtopo.stores import ADD, Store, StoreTransaction, VisibleTxid
from txtopo.testing.stores import MemoryStore
from txtopo.topology.transaction import TransactionAttempt

TASKS = (("count", 0), ("count", 1), ("sum", 0))
KEYS = 6


@dataclasses.dataclass(frozen=True)
class Operation:
    kind: Literal["update", "update_many", "merge", "merge_after_get", "delete", "get"]
    key: int
    delta: int


Block = list[Operation]
"""The operations of a task in one store transaction."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    blocks: list[tuple[int, Block]]
    """In order of execution: the task, and its store transaction."""
    dies_at: int
    """How many of the blocks commit before the attempt fails."""
    dies_inside: bool
    """Whether the next block then begins, and is rolled back."""
    visits: list[int]
    """After each block that commits: how many blocks of dead attempts are run by late tasks."""


KINDS = ("update", "update", "update_many", "merge", "merge", "merge_after_get", "delete", "get")


def operations(task: int, txid: int, shift: int) -> st.SearchStrategy[Operation]:
    """Operations on the keys that belong to ``task`` in this transaction: one writer per key, with
    new writers in the next transaction."""
    own = [key for key in range(KEYS) if (key + txid + shift) % len(TASKS) == task]
    return st.builds(Operation, st.sampled_from(KINDS), st.sampled_from(own), st.integers(1, 9))


@st.composite
def blocks(draw: st.DrawFn, txid: int, shift: int) -> list[tuple[int, Block]]:
    """One batch's work: every task opens the store at least once, but for a component that does
    not; the order of tasks is arbitrary, that of a task's blocks is its own."""
    idle = draw(st.sampled_from([None, None, None, "count", "sum"]))
    busy = [task for task, (component, _) in enumerate(TASKS) if component != idle]
    order = draw(st.permutations([task for task in busy for _ in range(draw(st.integers(1, 2)))]))
    return [(task, draw(st.lists(operations(task, txid, shift), max_size=4))) for task in order]


@st.composite
def stories(draw: st.DrawFn, opaque: bool) -> list[list[Attempt]]:
    story = []
    visits = st.lists(st.integers(0, 2), min_size=2 * len(TASKS), max_size=2 * len(TASKS))
    for txid in range(1, draw(st.integers(1, 4)) + 1):
        work = draw(blocks(txid, 0))
        attempts = []
        for shift in range(draw(st.integers(1, 4))):
            if opaque:  # the batch may differ, and with it the writer of each key
                work = draw(blocks(txid, draw(st.sampled_from([0, shift]))))
            dies_at = draw(st.integers(0, len(work)))
            attempts.append(Attempt(work, dies_at, draw(st.booleans()), draw(visits)))
        if opaque:
            work = draw(blocks(txid, 0))
        attempts.append(Attempt(work, len(work), False, draw(visits)))
        story.append(attempts)
    return story


class Death(Exception):
    """The task dies inside its store transaction."""


class Run:
    """One attempt's tasks, as they act on the store; knows the right result of each update."""

    def __init__(
        self,
        store: Store,
        process: contract.Process,
        attempt: TransactionAttempt,
        before: dict[int, Any],
        work: list[tuple[int, Block]],
        recorded: dict[str, TransactionAttempt],
    ) -> None:
        self.store, self.attempt, self.work = store, attempt, work
        self.contexts = {
            task: process.task(*TASKS[task], known_stores=dict(recorded))
            for task in range(len(TASKS))
        }
        self.view: dict[int, Any] = dict(before)
        self.is_dead = False

    @property
    def touched_stores(self) -> set[str]:
        """The report to the coordinator when the attempt is recorded."""
        return set().union(*(context.touched_stores for context in self.contexts.values()))

    def block(self, index: int, dies: bool = False) -> None:
        task, block = self.work[index]
        view = dict(self.view)
        with self.store.transaction(self.contexts[task], self.attempt) as t:
            for operation in block:
                self.act(t, operation, view)
            if dies:
                raise Death
        self.view = view

    def act(self, t: StoreTransaction, operation: Operation, view: dict[int, Any]) -> None:
        key, before = operation.key, view.get(operation.key)
        assert operation.kind == "merge" or self.is_dead or t.get(key) == before
        if operation.kind == "get":
            return
        if operation.kind in ("merge", "merge_after_get"):
            t.merge_many({key: operation.delta}, ADD)
            view[key] = (before or 0) + operation.delta
            return
        if operation.kind == "delete":
            update = t.delete(key)
            view.pop(key, None)
        else:
            view[key] = (before or 0) + operation.delta
            delta = operation.delta
            update = (
                t.update(key, contract.plus(delta))
                if operation.kind == "update"
                else t.update_many({key: delta}, contract.add)[key]
            )
        assert self.is_dead or (update.prev, update.curr) == (before, view.get(key)), (
            "a replay gets what the first application returned"
        )


@dataclasses.dataclass(frozen=True)
class Late:
    """A block of a dead attempt that its unaware task has yet to run."""

    run: Run
    index: int

    @property
    def component(self) -> str:
        return TASKS[self.run.work[self.index][0]][0]


class Narrator:
    """Acts a story on a store, and knows the results of transactions applied exactly once, in
    order."""

    def __init__(self, store: Store, process: contract.Process) -> None:
        self.store, self.process = store, process
        self.truth: dict[int, Any] = {}
        self.late: list[Late] = []
        self.newest: dict[str, TransactionAttempt] = {}
        self.recorded: dict[str, TransactionAttempt] = {}
        self.is_slow = not isinstance(store, MemoryStore)
        """Whether a look is worth sparing: it makes connections."""
        self.visible = self.visible_before = VisibleTxid(0, "words", "first", {})
        self.truth_before: dict[int, Any] = {}

    def look(self) -> None:
        """A reader sees recorded transactions, whole, at any moment: while attempts write, die and
        come late, and before any of their writes are undone. A reader who asked a transaction ago
        sees that transaction, or is told to be late."""
        assert dict(self.store.items(as_of=self.visible)) == self.truth
        try:
            late = dict(self.store.items(as_of=self.visible_before))
        except OutrunError:
            event("a reader was outrun")
        else:
            assert late == self.truth_before

    def begin(self, txid: int, number: int, work: list[tuple[int, Block]]) -> Run:
        return Run(
            self.store,
            self.process,
            TransactionAttempt(txid, number),
            self.truth,
            work,
            self.recorded,
        )

    def tell(self, story: list[list[Attempt]]) -> None:
        for txid, attempts in enumerate(story, start=1):
            for number, attempt in enumerate(attempts):
                run = self.begin(txid, number, attempt.blocks)
                for index in range(min(attempt.dies_at, len(attempt.blocks))):
                    run.block(index)
                    self.newest[Late(run, index).component] = run.attempt
                    for _ in range(attempt.visits[index]):
                        self.visit()
                    if not self.is_slow or index + 1 == attempt.dies_at:
                        self.look()
                if attempt.dies_at < len(attempt.blocks) and attempt.dies_inside:
                    with pytest.raises(Death):
                        run.block(attempt.dies_at, dies=True)
                    # A store may raise the fence before the transaction that is rolled back.
                    dead = Late(run, attempt.dies_at)
                    if (dead.component, txid, number) in [
                        (fence.component, fence.txid, fence.attempt)
                        for fence in self.store.fences()
                    ]:
                        self.newest[dead.component] = run.attempt
                self.late.extend(
                    Late(run, index) for index in range(attempt.dies_at, len(attempt.blocks))
                )
            self.truth_before, self.visible_before = self.truth, self.visible
            self.truth = run.view
            self.recorded |= dict.fromkeys(run.touched_stores, run.attempt)
            self.visible = VisibleTxid(txid, "words", "first", self.recorded)
            self.look()
        last = self.begin(len(story) + 1, 0, [(task, []) for task in range(len(TASKS))])
        for index in range(len(TASKS)):
            last.block(index)

    def visit(self) -> None:
        """Let a late task run its block. It must be refused if a newer attempt has written for its
        component; if not, it does no harm."""
        if not self.late:
            return
        late = self.late.pop(0)
        late.run.is_dead = True
        if self.newest.get(late.component, late.run.attempt) > late.run.attempt:
            with pytest.raises(StaleAttemptError):
                late.run.block(late.index)
            event("a late task was refused by the fence")
            return
        try:
            late.run.block(late.index)
        except StaleAttemptError:
            assert self.store.opaque, (
                "only a key that changed its writer between attempts is refused by its stamp"
            )
            event("a late task was refused by a stamp")
        else:
            self.newest[late.component] = late.run.attempt
            event("a late task came in time")


def quiet(
    blocks: list[tuple[int, Block]], dies_at: int, visits: dict[int, int] | None = None
) -> Attempt:
    """An attempt that does not die inside a block; ``visits`` by block."""
    return Attempt(
        blocks, dies_at, False, [(visits or {}).get(index, 0) for index in range(2 * len(TASKS))]
    )


_UPDATE = [Operation("update", 3, 1)]
TAKEN_OVER_AND_TAKEN_BACK = [
    [
        quiet([(1, _UPDATE), (0, []), (0, []), (2, []), (2, []), (1, _UPDATE)], dies_at=0),
        quiet([(2, []), (2, _UPDATE)], dies_at=2, visits={0: 2, 1: 2}),
        quiet([(0, []), (1, []), (2, [])], dies_at=0),
        quiet([(2, []), (2, [])], dies_at=2, visits={1: 2}),
    ]
]
"""A late task writes, a newer attempt of another component takes the key over, a third takes it
back, and the late task goes on."""
TAKEN_BACK_TO = [
    [quiet([(1, _UPDATE)], dies_at=0), quiet([(2, _UPDATE)], dies_at=1)],
    [quiet([(2, _UPDATE), (2, [])], dies_at=1), quiet([(2, [])], dies_at=1, visits={0: 1})],
]
"""A late task comes when another component's attempt of the same transaction has just written its
key."""
FOUND: dict[bool, list[list[list[Attempt]]]] = {
    False: [],
    True: [TAKEN_OVER_AND_TAKEN_BACK, TAKEN_BACK_TO],
}
"""Stories that went wrong once, by whether they are of an opaque store."""

EXAMPLES = {"mariadb": 6, "memory": 60, "postgresql": 10, "redis": 30, "sqlite": 60}
"""A story in a database server takes a hundred times as long as in memory."""
PLACES = [
    pytest.param(backend, opaque, id=f"{backend}-{kind}")
    for backend in sorted(contract.FACTORIES)
    for kind, opaque in (("transactional", False), ("opaque", True))
]


@pytest.mark.in_gate("memory-opaque", "sqlite-transactional")
@pytest.mark.rule(3, 28, 29, 30, 31, 32)
@pytest.mark.parametrize(("backend", "opaque"), PLACES)
def test_every_transaction_takes_effect_exactly_once_under_any_failure(
    backend: str, opaque: bool
) -> None:
    @examples(EXAMPLES[backend])
    @given(stories(opaque))
    def check(story: list[list[Attempt]]) -> None:
        process = contract.Process()
        with tempfile.TemporaryDirectory() as directory:
            narrator = Narrator(
                contract.FACTORIES[backend](Path(directory), opaque=opaque), process
            )
            narrator.tell(story)
            assert dict(narrator.store.items()) == narrator.truth
            process.close()

    for story in FOUND[opaque]:
        check = example(story)(check)
    check()
