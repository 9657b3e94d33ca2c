"""A store compared with the last recorded attempts: whether the store is still the same, and
whether its content counts. Run over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_store_contract import FACTORIES, Process, add, never, plus, run
from txtopo.errors import StaleAttemptError, StateMismatchError
from txtopo.stores import Fence, Store, Update, VisibleTxid
from txtopo.stores.stamps import CLOSED_ATTEMPT
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import TransactionAttempt

pytestmark = pytest.mark.in_gate("*memory*", "*sqlite*")

A = TransactionAttempt


class Recording:
    """Stands for the coordinator: knows which attempt of which component opened the store last and
    was recorded."""

    def __init__(self, store: Store) -> None:
        self.store, self.process = store, Process()
        self.known: dict[str, TransactionAttempt] = {}

    def task(self, component: str = "count", task: int = 0) -> TopologyContext:
        """The context of a task that begins now."""
        return self.process.task(component, task, known_stores=dict(self.known))

    def fail(self, txid: int, attempt: int, component: str = "count", /, **deltas: int) -> None:
        """An attempt that writes and is not recorded."""
        run(self.store, self.task(component), txid, attempt, **deltas)

    def commit(
        self, txid: int, attempt: int, component: str = "count", /, **deltas: int
    ) -> dict[str, Update]:
        """An attempt that writes and is recorded."""
        context = self.task(component)
        updates = run(self.store, context, txid, attempt, **deltas)
        self.known |= dict.fromkeys(context.touched_stores, A(txid, attempt))
        return updates

    @property
    def items(self) -> dict[Any, Any]:
        return dict(self.store.items())

    @property
    def fence(self) -> Fence:
        [fence] = self.store.fences()
        return fence


@pytest.fixture(params=sorted(FACTORIES))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Recording]]:
    stores = []

    def recording(opaque: bool) -> Recording:
        stores.append(Recording(FACTORIES[request.param](tmp_path, opaque=opaque)))
        return stores[-1]

    yield recording
    for each in stores:
        each.process.close()


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def either(request: pytest.FixtureRequest, make: Callable[..., Recording]) -> Recording:
    """Over a transactional and an opaque store in turn: what is asked of both."""
    return make(opaque=request.param)


class TestVoidAttempts:
    @pytest.mark.rule(31)
    def test_writes_of_an_attempt_do_not_count_if_the_recorded_attempt_opened_no_store(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, x=1)
        either.fail(2, 0, x=100, y=100)
        # The replay of 2 has no tuple for the component, whose tasks open no store.
        assert either.commit(3, 0, x=5) == {"x": Update(1, 6, applied=True)}
        assert either.items == {"x": 6}
        assert either.commit(4, 0, y=2) == {"y": Update(None, 2, applied=True)}

    @pytest.mark.rule(31)
    def test_a_void_attempt_is_taken_back_even_if_its_component_had_never_written_before(
        self, either: Recording
    ) -> None:
        either.fail(1, 0, x=100)
        either.commit(2, 0, y=1)
        assert either.items == {"y": 1}

    @pytest.mark.rule(31)
    def test_a_void_attempt_is_taken_back_in_the_database_transaction_that_raises_the_fence(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, x=1)
        either.fail(2, 0, x=100, y=100)
        with pytest.raises(ZeroDivisionError), either.store.transaction(either.task(), A(3, 0)):
            raise ZeroDivisionError
        # With the block, or before it in a transaction of its own.
        assert (either.items, either.fence.txid) in [({"x": 101, "y": 100}, 2), ({"x": 1}, 3)]
        either.commit(3, 0)
        assert (either.items, either.fence.txid) == ({"x": 1}, 3)

    @pytest.mark.rule(31)
    def test_several_void_attempts_in_a_row_leave_nothing(self, either: Recording) -> None:
        either.commit(1, 0, x=1)
        either.fail(2, 0, x=10, y=10)
        either.fail(2, 1, x=10, z=10)
        either.fail(3, 0, x=100)
        either.fail(5, 0, y=1000)
        either.commit(9, 0, w=1)
        assert either.items == {"x": 1, "w": 1}

    @pytest.mark.rule(31)
    def test_deletions_and_composed_updates_of_a_void_attempt_are_taken_back_whole(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, x=1, y=2)
        context = either.task()
        with either.store.transaction(context, A(2, 0)) as t:
            t.delete("x")
            t.update("y", plus(1))
        with either.store.transaction(context, A(2, 0)) as t:
            t.update("y", plus(1))
            t.update("z", plus(1))
            t.delete("z")
        assert either.items == {"y": 4}
        either.commit(3, 0)
        assert either.items == {"x": 1, "y": 2}
        assert either.store.inspect("z") is None

    @pytest.mark.rule(31)
    def test_writes_of_recorded_attempts_stay_for_any_time(self, either: Recording) -> None:
        either.commit(1, 0, a=1, b=1)
        either.commit(2, 0, b=1)
        either.fail(3, 0, a=100, b=100)
        either.commit(3, 1, a=100, b=100)
        either.fail(5, 0, a=100)
        either.commit(9, 0, c=3)
        assert either.items == {"a": 101, "b": 102, "c": 3}

    @pytest.mark.rule(28, 31)
    def test_a_recorded_transaction_whose_rows_an_earlier_attempt_applied_is_not_void(
        self, make: Callable[..., Recording]
    ) -> None:
        recording = make(opaque=False)
        recording.fail(1, 0, x=1)
        with recording.store.transaction(recording.task(), A(1, 1)) as t:
            assert t.update("x", never) == Update(None, 1, applied=False)
        recording.known["count/results"] = A(1, 1)
        recording.commit(2, 0, x=1)
        assert recording.items == {"x": 2}

    @pytest.mark.rule(31)
    def test_further_tasks_of_an_attempt_do_not_take_a_void_attempt_back_again(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, x=1)
        either.fail(2, 0, x=100, y=100)
        late, other = either.task(task=0), either.task(task=1)
        run(either.store, late, 3, 0, x=1)
        run(either.store, other, 3, 0, y=1)
        run(either.store, other, 3, 0, y=1)
        assert either.items == {"x": 2, "y": 2}

    @pytest.mark.rule(29, 31)
    def test_a_late_task_of_the_void_attempt_may_still_write_until_the_fence_is_raised_and_does_not_count_either(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, x=1)
        late = either.task()
        run(either.store, late, 2, 0, x=100)
        run(either.store, late, 2, 0, y=100)
        either.commit(3, 0, z=1)
        with pytest.raises(StaleAttemptError):
            run(either.store, late, 2, 0, y=100)
        assert either.items == {"x": 1, "z": 1}

    @pytest.mark.rule(31)
    def test_without_a_record_the_store_goes_by_its_fence(self, either: Recording) -> None:
        run(either.store, either.process.task(), 1, 0, x=1)
        run(either.store, either.process.task(), 3, 0, x=1)
        assert either.items == {"x": 2}


class TestOtherComponents:
    @pytest.mark.rule(30, 31)
    def test_another_component_reads_and_updates_the_value_before_a_void_value(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, x=1)
        either.fail(2, 0, x=100, y=100)
        with either.store.transaction(either.task("sum"), A(3, 0)) as t:
            assert (t.get("x"), t.get("y")) == (1, None)
            assert t.update_many({"x": 5, "y": 5}, add) == {
                "x": Update(1, 6, applied=True),
                "y": Update(None, 5, applied=True),
            }
            assert t.get("x") == 6
        either.known["sum/results"] = A(3, 0)
        either.commit(4, 0, z=1)
        assert either.items == {"x": 6, "y": 5, "z": 1}, (
            "what another component has taken over is not taken back"
        )

    @pytest.mark.rule(31)
    def test_a_void_deletion_is_taken_back_although_another_component_wrote_meanwhile(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, x=1)
        either.commit(1, 0, "sum", y=1)
        with either.store.transaction(either.task(), A(2, 0)) as transaction:
            transaction.delete("x")
        either.commit(3, 0, "sum", y=1)
        either.commit(4, 0)
        assert either.items == {"x": 1, "y": 2}

    @pytest.mark.rule(31)
    def test_a_value_that_is_restored_for_another_component_counts(self, either: Recording) -> None:
        either.commit(1, 0, "sum", x=1)
        either.commit(1, 0, "count", y=1)
        either.fail(2, 0, "count", x=100)
        either.commit(3, 0, "count", y=1)
        either.commit(4, 0, "sum", x=1)
        assert either.items == {"x": 2, "y": 2}

    @pytest.mark.rule(31)
    def test_a_store_of_another_name_in_the_same_place_is_judged_by_its_own_record(
        self, either: Recording
    ) -> None:
        either.known["count/other"] = A(7, 0)
        either.commit(1, 0, x=1)
        either.commit(2, 0, x=1)
        assert either.items == {"x": 2}


class TestOlderCopies:
    @pytest.mark.rule(27, 29)
    @pytest.mark.parametrize(
        "held", [(3, 0), (7, 1)], ids=["an earlier transaction", "an earlier attempt"]
    )
    def test_a_store_that_is_behind_is_refused_naming_both_and_the_commands(
        self, either: Recording, held: tuple[int, int]
    ) -> None:
        either.commit(*held, x=1)
        either.known["count/results"] = A(7, 2)
        with pytest.raises(StateMismatchError) as caught:
            either.commit(8, 0, x=1)
        assert f"at attempt {held[0]}:{held[1]} there, but ZooKeeper has recorded 7:2" in str(
            caught.value
        )
        for command in ("txtopo state show", "txtopo store adopt", "txtopo state reset words"):
            assert command in str(caught.value)
        assert caught.value.exit_code == 6
        assert (either.items, either.fence.txid) == ({"x": 1}, held[0])

    @pytest.mark.rule(27)
    def test_a_store_that_is_behind_can_be_adopted_as_it_is(self, either: Recording) -> None:
        either.commit(3, 0, x=1)
        either.known["count/results"] = A(7, 2)
        either.store.adopt("words", "first", 7, ["count"])
        either.commit(8, 0, x=1)
        assert either.items == {"x": 2}

    @pytest.mark.rule(27, 31)
    def test_adopted_content_counts_for_every_component_and_is_never_taken_back(
        self, either: Recording
    ) -> None:
        either.commit(3, 0, x=1)
        either.fail(4, 0, x=10, y=10)
        either.store.adopt("words", "first", 7, ["count"])
        assert either.fence == Fence("words", "count", "first", 7, CLOSED_ATTEMPT)
        with either.store.transaction(either.task("sum"), A(8, 0)) as t:
            assert t.get("x") == 11
        either.fail(8, 0, x=100)
        either.commit(9, 0, z=1)
        assert either.items == {"x": 11, "y": 10, "z": 1}

    @pytest.mark.rule(27)
    def test_an_older_copy_of_an_adopted_store_is_refused_too(self, either: Recording) -> None:
        either.commit(3, 0, x=1)
        either.store.adopt("words", "first", 5, ["count"])
        either.known["count/results"] = A(7, 0)
        with pytest.raises(
            StateMismatchError,
            match=r"at attempt 5 \(adopted\) there, but ZooKeeper has recorded 7:0",
        ):
            either.commit(8, 0, x=1)

    @pytest.mark.rule(27)
    def test_a_cleared_store_is_refused_until_it_is_adopted(self, either: Recording) -> None:
        either.commit(3, 0, x=1)
        either.store.clear("words")
        with pytest.raises(StateMismatchError, match="holds nothing of component 'count'"):
            either.commit(4, 0, x=1)
        either.store.adopt("words", "first", 3, ["count"])
        either.commit(4, 0, x=1)
        assert either.items == {"x": 1}

    @pytest.mark.rule(29)
    def test_a_store_that_knows_a_later_attempt_than_the_recorded_one_is_refused(
        self, either: Recording
    ) -> None:
        either.commit(2, 0, x=1)
        either.fail(2, 1, x=5)
        with pytest.raises(
            StateMismatchError,
            match=r"is ahead: .* is at attempt 2:1 there, but ZooKeeper has recorded 2:0",
        ) as caught:
            either.commit(3, 0, x=1)
        assert caught.value.exit_code == 6
        assert either.fence.attempt == 1


class TestReadersAsOfATransaction:
    @pytest.mark.parametrize("prefix", ["a", ("a",), ()], ids=repr)
    def test_the_content_of_a_scan_is_fixed_at_its_call(
        self, either: Recording, prefix: Any
    ) -> None:
        names: list[Any] = ["a", "ab", ("a",), ("a", 1), ("a", 2)]

        def commit(txid: int) -> None:
            context = either.task()
            with either.store.transaction(context, A(txid, 0)) as transaction:
                transaction.put_many(dict.fromkeys(names, txid))
            either.known |= dict.fromkeys(context.touched_stores, A(txid, 0))

        commit(1)
        reading = either.store.scan(prefix, as_of=VisibleTxid(1, "words", "first", either.known))
        commit(2)
        commit(3)
        items = list(reading)
        assert len(items) in (2, 3)
        assert {value for _, value in items} == {1}

    def test_where_a_component_writes_a_store_of_the_same_name_elsewhere_the_refusal_says_so(
        self, either: Recording
    ) -> None:
        either.commit(1, 0, "count", dog=1)
        known = {**either.known, f"sum/{either.store.name}": A(1, 0)}
        with pytest.raises(
            StateMismatchError,
            match=r"(?s)holds nothing of component 'sum'.*writes a store '\w+' elsewhere, give one of them",
        ):
            either.store.get("dog", as_of=VisibleTxid(1, "words", "first", known))
