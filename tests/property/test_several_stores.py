"""Two stores in one transaction: for any death between their commits, and any slow reader, a reader
sees whole transactions, or is told.

A story is drawn: transactions, each with attempts that die after some of their store transactions
before the one that is recorded. Readers come at every moment; each reads one store at once, and the
other one some moments later.
"""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.conformance import test_store_contract as contract
from tests.examples import examples
from txtopo.errors import OutrunError
from txtopo.stores import Store, StoreTransaction, VisibleTxid
from txtopo.topology.transaction import TransactionAttempt

TASKS = 2
READERS_KEPT = 8
"""How many of the last readers still have to read their other store."""
EXAMPLES = {"memory": 100, "sqlite": 15}


@dataclasses.dataclass(frozen=True)
class Attempt:
    amounts: list[int]
    """What each task moves; 0 if it has nothing to do, and opens no store."""
    order: list[int]
    """Which task goes on: each writes to the first store, and when its turn comes again to the
    second."""
    dies_at: int
    """After how many store transactions."""


@st.composite
def stories(draw: st.DrawFn, opaque: bool) -> list[list[Attempt]]:
    story = []
    for _ in range(draw(st.integers(1, 5))):
        amounts = st.lists(st.sampled_from([0, 1, 10]), min_size=TASKS, max_size=TASKS)
        batch, attempts = draw(amounts), []
        for is_last in [*(False for _ in range(draw(st.integers(0, 2)))), True]:
            if opaque:
                batch = draw(amounts)
            order = draw(
                st.permutations([task for task in range(TASKS) if batch[task] for _ in range(2)])
            )
            attempts.append(
                Attempt(batch, order, len(order) if is_last else draw(st.integers(0, len(order))))
            )
        story.append(attempts)
    return story


Contents = tuple[dict[Any, int], dict[Any, int]]


class Teller:
    """Acts a story, and says after each of its moments that one has passed."""

    def __init__(self, stores: tuple[Store, Store], process: contract.Process) -> None:
        self.stores, self.process = stores, process
        self.visible = VisibleTxid(0, "words", "first", {})
        self.contents: Contents = ({}, {})
        """Of the two stores, when the visible transaction had committed."""

    def moments(self, story: list[list[Attempt]]) -> Iterator[None]:
        for txid, attempts in enumerate(story, start=1):
            for number, attempt in enumerate(attempts):
                contexts = [
                    self.process.task("move", task, known_stores=dict(self.visible.stores))
                    for task in range(TASKS)
                ]
                begun: set[int] = set()
                for task in attempt.order[: attempt.dies_at]:
                    index = int(task in begun)
                    begun.add(task)
                    with self.stores[index].transaction(
                        contexts[task], TransactionAttempt(txid, number)
                    ) as opened:
                        self.move(opened, txid, task, attempt.amounts[task] * (1 if index else -1))
                    yield
            self.contents = self.after(txid, attempts[-1].amounts)
            touched = set().union(*(context.touched_stores for context in contexts))
            known = {
                **self.visible.stores,
                **dict.fromkeys(touched, TransactionAttempt(txid, len(attempts) - 1)),
            }
            self.visible = VisibleTxid(txid, "words", "first", known)
            yield

    def move(self, opened: StoreTransaction, txid: int, task: int, amount: int) -> None:
        opened.update(task, contract.plus(amount))
        opened.put((task, txid % 3), txid)
        opened.delete((task, (txid + 1) % 3))

    def after(self, txid: int, amounts: list[int]) -> Contents:
        debits, credits = (dict(contents) for contents in self.contents)
        for task, amount in enumerate(amounts):
            for contents, sign in ((debits, -1), (credits, 1)):
                if amount:
                    contents[task] = contents.get(task, 0) + sign * amount
                    contents[task, txid % 3] = txid
                    contents.pop((task, (txid + 1) % 3), None)
        return debits, credits


@pytest.mark.in_gate("memory-opaque", "sqlite-transactional")
@pytest.mark.rule(3, 28, 31)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
@pytest.mark.parametrize("backend", sorted(EXAMPLES))
def test_a_reader_never_sees_a_mixture_of_two_stores(backend: str, opaque: bool) -> None:
    mixtures: list[Contents] = []

    @examples(EXAMPLES[backend])
    @given(stories(opaque))
    def check(story: list[list[Attempt]]) -> None:
        process = contract.Process()
        with tempfile.TemporaryDirectory() as directory:
            debits, credits = (
                contract.FACTORIES[backend](Path(directory) / name, name, opaque=opaque)
                for name in made(directory)
            )
            teller = Teller((debits, credits), process)
            late: collections.deque[tuple[VisibleTxid, Contents]] = collections.deque(
                maxlen=READERS_KEPT
            )
            for _ in teller.moments(story):
                as_of, contents = teller.visible, teller.contents
                assert (
                    dict(debits.items(as_of=as_of)),
                    dict(credits.items(as_of=as_of)),
                ) == contents, "the newest txid is never too late"
                for before, expected in late:
                    try:
                        assert dict(credits.items(as_of=before)) == expected[1], (
                            "who reads on later sees the transaction he began with"
                        )
                    except OutrunError:
                        event("a reader was outrun")
                late.append((as_of, contents))
                now = (dict(debits.items()), dict(credits.items()))
                if now != contents:
                    mixtures.append(now)
            assert (
                dict(debits.items()),
                dict(credits.items()),
            ) == teller.contents or opaque_leftovers(story)
            process.close()

    check()
    assert mixtures, "without as_of, a mixture is seen"


def made(directory: str) -> Iterator[str]:
    """The names of the two stores, each with a directory of its own."""
    for name in ("debits", "credits"):
        (Path(directory) / name).mkdir()
        yield name


def opaque_leftovers(story: list[list[Attempt]]) -> bool:
    """Whether the recorded attempt of the last transactions may have opened nothing, so that a
    failed one's writes wait to be taken back."""
    return any(len(attempts) > 1 and not all(attempts[-1].amounts) for attempts in story)
