"""A copy of a store that lacks something of the newest recorded transaction is refused, wherever
between two commits it was taken (R34).

A lagging replica has such a copy, and so has a backup taken while a transaction committed. Run over
every backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conformance.test_store_contract import FACTORIES, Process, plus
from tests.processes.store_copies import COPIERS, PutBack
from txtopo.errors import FailedException, StateMismatchError
from txtopo.stores import Store, VisibleTxid
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import RecordedAttempt, TransactionAttempt

pytestmark = pytest.mark.in_gate("memory-*", "sqlite-*", "redis-opaque*")

TASKS, BLOCKS = 2, 2


class Topology:
    """Stands for the coordinator and for the tasks of component ``count``, each of which opens the
    store twice in a transaction."""

    def __init__(self, store: Store, backend: str, tasks: int = TASKS) -> None:
        self.tasks = tasks
        self.store, self.process, self._copier = store, Process(), COPIERS[backend]
        self.known: dict[str, TransactionAttempt] = {}
        self.copies: list[PutBack] = []

    def contexts(self) -> list[TopologyContext]:
        return [
            self.process.task("count", task, num_tasks=self.tasks, known_stores=dict(self.known))
            for task in range(self.tasks)
        ]

    def block(self, context: TopologyContext, txid: int, attempt: int, block: int) -> None:
        with self.store.transaction(context, TransactionAttempt(txid, attempt)) as opened:
            # Before this commit; but a fence may have been raised by one of its own.
            self.copies.append(self._copier(self.store))
            if self.store.plain:
                opened.put((context.task_index, block), txid)
            else:
                opened.update((context.task_index, block), plus(1))

    def attempt(
        self, txid: int, attempt: int, ends_after: int | None = None
    ) -> list[TopologyContext]:
        """So many blocks of an attempt; copies are taken inside and after each."""
        contexts = self.contexts()
        for number in range(self.tasks * BLOCKS if ends_after is None else ends_after):
            self.block(contexts[number % self.tasks], txid, attempt, number // self.tasks)
            self.copies.append(self._copier(self.store))
        return contexts

    def record(self, contexts: Sequence[TopologyContext], txid: int, attempt: int) -> None:
        counts: dict[str, int] = {}
        for context in contexts:
            for name, count in context.touched_stores.items():
                counts[name] = counts.get(name, 0) + count
        self.known |= {
            name: RecordedAttempt(txid, attempt, count) for name, count in counts.items()
        }

    def fail_over(self, put_back: PutBack) -> None:
        """The copy takes the place of the store; every process begins anew."""
        self.process.close()
        put_back()
        self.process = Process()

    def right(self, txid: int) -> dict[object, int]:
        return {(task, block): txid for task in range(self.tasks) for block in range(BLOCKS)}

    def shown(self, txid: int) -> dict[object, int]:
        return dict(self.store.items(as_of=VisibleTxid(txid, "words", "first", self.known)))


@pytest.fixture(
    params=[
        pytest.param((backend, kind), id=f"{backend}-{kind}")
        for backend in sorted(FACTORIES)
        for kind in ("transactional", "opaque", "plain")
    ]
)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    backend, kind = request.param
    return backend, kind


@pytest.fixture
def kind(place: tuple[str, str]) -> str:
    return place[1]


@pytest.fixture
def topology(place: tuple[str, str], kind: str, tmp_path: Path) -> Iterator[Topology]:
    store = FACTORIES[place[0]](tmp_path, opaque=kind == "opaque", plain=kind == "plain")
    topology = Topology(store, place[0])
    yield topology
    topology.process.close()


@pytest.fixture
def of_only_task(topology: Topology) -> Topology:
    topology.tasks = 1
    return topology


@pytest.mark.rule(27, 34)
def test_a_copy_taken_at_any_point_of_a_recorded_transaction_is_refused_unless_it_is_complete(
    topology: Topology, kind: str
) -> None:
    for txid in (1, 2):
        topology.copies.clear()
        topology.record(topology.attempt(txid, 0), txid, 0)
    *lagging, complete = topology.copies
    for put_back in lagging:
        topology.fail_over(put_back)
        before = dict(topology.store.items())
        for task in topology.contexts():
            with pytest.raises(
                StateMismatchError, match=r"is behind: .*, but ZooKeeper has recorded (4|2:0)"
            ) as caught:
                topology.block(task, 3, 0, 0)
            assert (caught.value.exit_code, "txtopo store adopt" in str(caught.value)) == (6, True)
        assert dict(topology.store.items()) == before, "nothing was written"
        if kind != "plain":
            with pytest.raises(
                StateMismatchError, match=r"holds .*, but ZooKeeper has recorded (4|2:0)"
            ):
                topology.shown(2)
    topology.fail_over(complete)
    if kind != "plain":
        assert topology.shown(2) == topology.right(2)
    topology.record(topology.attempt(3, 0), 3, 0)
    assert dict(topology.store.items()) == topology.right(3)


def check_that_only_the_last_copy_is_taken(topology: Topology, refusal: str) -> None:
    """After transaction 2: every copy but the last one is refused, and with the last one
    transaction 3 follows."""
    *lagging, complete = topology.copies
    for put_back in lagging:
        topology.fail_over(put_back)
        with pytest.raises(StateMismatchError, match=refusal):
            topology.attempt(3, 0)
    topology.fail_over(complete)
    topology.record(topology.attempt(3, 0), 3, 0)
    assert dict(topology.store.items()) == topology.right(3)


@pytest.mark.rule(27, 31, 34)
def test_a_copy_taken_during_a_failed_attempt_or_its_replay_is_refused(topology: Topology) -> None:
    topology.record(topology.attempt(1, 0), 1, 0)
    topology.copies.clear()
    topology.attempt(2, 0, ends_after=3)
    topology.record(topology.attempt(2, 1), 2, 1)
    check_that_only_the_last_copy_is_taken(topology, refusal=r"is behind: ")


@pytest.mark.rule(34)
def test_a_fail_over_in_the_middle_of_an_attempt_that_loses_a_task_is_noticed_by_the_next_transaction(
    topology: Topology,
) -> None:
    topology.record(topology.attempt(1, 0), 1, 0)
    contexts, before = topology.contexts(), topology.copies[-1]
    topology.block(contexts[0], 2, 0, 0)
    topology.fail_over(before)
    topology.block(
        topology.process.task("count", 1, num_tasks=TASKS, known_stores=dict(topology.known)),
        2,
        0,
        0,
    )
    contexts[1].touched_stores[f"count/{topology.store.name}"] = 1
    topology.record(contexts, 2, 0)
    with pytest.raises(
        StateMismatchError,
        match=r"holds 1 store transactions of attempt 2:0 .*, but ZooKeeper has recorded 2",
    ):
        topology.attempt(3, 0)


def goes_on(topology: Topology, contexts: Sequence[TopologyContext], committed: int) -> None:
    """The blocks of attempt 2:0 from number ``committed`` on, its record, and the next transaction."""
    for number in range(committed, topology.tasks * BLOCKS):
        topology.block(contexts[number % topology.tasks], 2, 0, number // topology.tasks)
    topology.record(contexts, 2, 0)
    topology.attempt(3, 0)


@pytest.mark.rule(27, 34)
@pytest.mark.parametrize("tasks", [1, TASKS])
def test_a_fail_over_between_two_blocks_of_an_attempt_never_passes_for_complete(
    topology: Topology, tasks: int
) -> None:
    topology.tasks = tasks
    topology.record(topology.attempt(1, 0), 1, 0)
    before, known = topology.copies[-1], dict(topology.known)
    for committed in range(1, tasks * BLOCKS):
        for lagging in range(2 * committed - 1):
            topology.fail_over(before)
            topology.copies.clear()
            topology.known = dict(known)
            contexts = topology.attempt(2, 0, committed)
            topology.fail_over(topology.copies[lagging])
            with pytest.raises((FailedException, StateMismatchError)):
                goes_on(topology, contexts, committed)


@pytest.mark.rule(7, 34)
@pytest.mark.parametrize("tasks", [1, TASKS])
def test_a_task_that_misses_its_own_commits_fails_its_attempt(
    topology: Topology, tasks: int
) -> None:
    topology.tasks = tasks
    topology.record(topology.attempt(1, 0), 1, 0)
    contexts, before = topology.contexts(), topology.copies[-1]
    topology.block(contexts[0], 2, 0, 0)
    topology.fail_over(before)
    with pytest.raises(
        FailedException,
        match=r"has lost writes that attempt 2:0 of component 'count' committed: the store is at attempt 1:0",
    ):
        topology.block(contexts[0], 2, 0, 1)
    topology.record(topology.attempt(2, 1), 2, 1)
    topology.record(topology.attempt(3, 0), 3, 0)
    assert dict(topology.store.items()) == topology.right(3)


@pytest.mark.rule(27, 34)
def test_an_incomplete_copy_that_was_adopted_goes_on_and_is_counted_again(
    topology: Topology,
) -> None:
    topology.record(topology.attempt(1, 0), 1, 0)
    topology.fail_over(topology.copies[1])
    topology.store.adopt("words", "first", 1, ["count"])
    topology.copies.clear()
    for txid in (2, 3):
        topology.record(topology.attempt(txid, 0), txid, 0)
    topology.fail_over(topology.copies[-2])
    with pytest.raises(
        StateMismatchError,
        match=r"is behind: it holds 3 store transactions of attempt 3:0 .*, but ZooKeeper has recorded 4",
    ):
        topology.attempt(4, 0)


@pytest.mark.rule(34)
def test_store_transactions_that_write_nothing_are_no_reason_to_refuse(topology: Topology) -> None:
    topology.record(topology.attempt(1, 0), 1, 0)
    contexts = topology.contexts()
    for context in (*contexts, contexts[0]):
        with topology.store.transaction(context, TransactionAttempt(2, 0)):
            pass
    topology.record(contexts, 2, 0)
    assert [fence.count for fence in topology.store.fences()] == [
        sum(sum(context.touched_stores.values()) for context in contexts)
    ]
    contexts = topology.attempt(3, 0, ends_after=1)
    with topology.store.transaction(contexts[1], TransactionAttempt(3, 0)):
        pass
    topology.record(contexts, 3, 0)
    topology.attempt(4, 0)
    assert topology.store.fences()[0].count == TASKS * BLOCKS


@pytest.mark.rule(34)
def test_an_attempt_whose_store_transactions_nobody_counted_is_compared_by_its_number(
    topology: Topology,
) -> None:
    topology.attempt(1, 0)
    topology.known[f"count/{topology.store.name}"] = TransactionAttempt(1, 0)
    topology.fail_over(topology.copies[1])
    topology.record(topology.attempt(2, 0), 2, 0)
    topology.attempt(3, 0)
    assert [fence.count for fence in topology.store.fences()] == [TASKS * BLOCKS]


@pytest.mark.rule(27, 34)
def test_a_copy_that_lacks_a_store_transaction_of_a_components_only_task_is_refused(
    of_only_task: Topology,
) -> None:
    topology = of_only_task
    for txid in (1, 2):
        topology.copies.clear()
        topology.record(topology.attempt(txid, 0), txid, 0)
        assert [fence.count for fence in topology.store.fences()] == [BLOCKS]
    check_that_only_the_last_copy_is_taken(
        topology, refusal=r"is behind: .*, but ZooKeeper has recorded (2|2:0)"
    )


@pytest.mark.rule(34)
def test_an_only_task_that_runs_again_in_one_attempt_is_counted_once(
    of_only_task: Topology,
) -> None:
    topology = of_only_task
    topology.record(topology.attempt(1, 0), 1, 0)
    for ends_after, counted in ((1, 1), (2, 2), (1, 2), (2, 2)):
        topology.process.close()
        contexts = topology.attempt(2, 0, ends_after)
        assert [fence.count for fence in topology.store.fences()] == [counted]
    topology.record(contexts, 2, 0)
    topology.record(topology.attempt(3, 0), 3, 0)
    assert dict(topology.store.items()) == topology.right(3)


@pytest.mark.rule(34)
@pytest.mark.parametrize("tasks", [1, TASKS])
def test_a_store_transaction_that_was_rolled_back_is_not_counted(
    topology: Topology, tasks: int
) -> None:
    topology.tasks = tasks
    for txid in (1, 2):
        context = topology.contexts()[0]
        with (
            contextlib.suppress(ZeroDivisionError),
            topology.store.transaction(context, TransactionAttempt(txid, 0)) as opened,
        ):
            opened.put("x", 1)
            raise ZeroDivisionError
        assert sum(fence.count or 0 for fence in topology.store.fences() if fence.txid == txid) == 0
        topology.record(topology.attempt(txid, 1), txid, 1)
    assert [fence.count for fence in topology.store.fences()] == [tasks * BLOCKS]


@pytest.mark.rule(27, 34)
def test_counts_of_several_tasks_are_compared_by_a_later_only_task(topology: Topology) -> None:
    topology.record(topology.attempt(1, 0), 1, 0)
    lagging = topology.copies[-2]
    topology.tasks = 1
    topology.record(topology.attempt(2, 0), 2, 0)
    assert [fence.count for fence in topology.store.fences()] == [BLOCKS]
    topology.fail_over(lagging)
    topology.known = {f"count/{topology.store.name}": RecordedAttempt(1, 0, TASKS * BLOCKS)}
    with pytest.raises(StateMismatchError, match=r"is behind: .*, but ZooKeeper has recorded 4"):
        topology.attempt(2, 1)
