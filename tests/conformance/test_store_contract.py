"""What every store promises, run over every backend. A new backend adds one line to ``FACTORIES``."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from txtopo.errors import FailedException, StaleAttemptError, StateMismatchError, UsageError
from txtopo.stores import Fence, SqliteStore, Store, StoreConflict, StoreTransaction, Update
from txtopo.topology.context import Phase, TopologyContext
from txtopo.topology.transaction import TransactionAttempt


class StoreFactory(Protocol):
    """Makes a store of results ``name`` in ``directory``; called again with the same arguments it finds the same results."""

    def __call__(self, directory: Path, name: str = "results", *, opaque: bool = False) -> Store: ...


def sqlite(directory: Path, name: str = "results", *, opaque: bool = False) -> Store:
    return SqliteStore(directory / "results.db", name, opaque=opaque, busy_timeout_s=5)


FACTORIES: dict[str, StoreFactory] = {"sqlite": sqlite}


class Process:
    """Stands for a worker process: it keeps resources, and makes the contexts of the tasks that run in it."""

    def __init__(self) -> None:
        self._resources: dict[str, Any] = {}

    def resource(self, name: str, factory: Callable[[], Any]) -> Any:
        if name not in self._resources:
            self._resources[name] = factory()
        return self._resources[name]

    def task(
        self,
        component: str = "count",
        task: int = 0,
        *,
        topology_id: str = "words",
        generation: str = "first",
        phase: Phase = "commit",
        local_master: bool = True,
        known_stores: frozenset[str] = frozenset(),
    ) -> TopologyContext:
        """The context of one task in one attempt."""
        return TopologyContext(topology_id, generation, component, task, {component: task + 1}, phase, self.resource, local_master, known_stores)

    def close(self) -> None:
        for made in self._resources.values():
            made.close()
        self._resources.clear()


@pytest.fixture(params=sorted(FACTORIES))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    factory = FACTORIES[request.param]
    return lambda name="results", **options: factory(tmp_path, name, **options)


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def either(request: pytest.FixtureRequest, make: Callable[..., Store]) -> Store:
    """A transactional and an opaque store in turn: what is asked of both."""
    return make(opaque=request.param)


def plus(n: int) -> Callable[[int | None], int]:
    return lambda old: (old or 0) + n


def add(old: int | None, delta: int) -> int:
    return (old or 0) + delta


def never(old: Any) -> Any:
    raise AssertionError(f"called although already applied, with {old!r}")


def run(store: Store, context: TopologyContext, txid: int, attempt: int = 0, **deltas: int) -> dict[str, Update]:
    """One store transaction that adds ``deltas``."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as t:
        return t.update_many(deltas, add)


def block(store: Store, context: TopologyContext, txid: int, attempt: int, action: Callable[[StoreTransaction], Any]) -> Any:
    """One store transaction that does ``action``."""
    with store.transaction(context, TransactionAttempt(txid, attempt)) as t:
        return action(t)


def set_to(value: Any) -> Callable[[Any], Any]:
    return lambda old: value


class TestReading:
    def test_a_store_never_written_reads_as_empty_and_is_not_made_by_looking(self, make: Callable[..., Store], tmp_path: Path) -> None:
        store = make()
        assert (store.get("dog"), list(store.items()), list(store.scan("d")), store.fences(), store.inspect("dog")) == (None, [], [], [], None)
        assert not store.exists()
        assert list(tmp_path.iterdir()) == []

    def test_readers_see_committed_results_only(self, either: Store, process: Process) -> None:
        run(either, process.task(), 1, dog=1)
        with either.transaction(process.task(), TransactionAttempt(2, 0)) as t:
            t.update("dog", plus(1))
            t.update("cat", plus(1))
            assert dict(either.items()) == {"dog": 1}
        assert dict(either.items()) == {"cat": 1, "dog": 2}

    def test_keys_and_values_come_back_as_they_were(self, either: Store, process: Process) -> None:
        stored: dict[Any, Any] = {
            "dog": {"legs": 4, "names": ["Rex", None, True, 1.5, "žluťoučký 🐴"]},
            "": 0,
            'quote " and \\ and \n and \0': "",
            7: 2**200,
            -(2**80): -0.5,
            "7": None,
            ("user", 7, None, ("nested",)): [[]],
            (): {},
        }
        with either.transaction(process.task(), TransactionAttempt(1, 0)) as t:
            for key, value in stored.items():
                assert t.update(key, set_to(value)) == Update(None, value, applied=True)
        assert dict(either.items()) == stored
        assert {key: either.get(key) for key in stored} == stored

    def test_scan_finds_strings_by_their_beginning_and_tuples_by_their_first_elements(self, either: Store, process: Process) -> None:
        found: list[Any] = ["a", "ab", 'a"c', "b", 1, ("a",), ("a", 1), ("a", 1, "x"), ("a", 10), ("ab", 1), ()]
        with either.transaction(process.task(), TransactionAttempt(1, 0)) as t:
            t.update_many(dict.fromkeys(found, 1), add)
        assert {key for key, _ in either.scan("a")} == {"a", "ab", 'a"c'}
        assert {key for key, _ in either.scan("")} == {"a", "ab", 'a"c', "b"}
        assert [key for key, _ in either.scan(("a", 1))] == [("a", 1), ("a", 1, "x")]
        assert {key for key, _ in either.scan(("a",))} == {("a",), ("a", 1), ("a", 1, "x"), ("a", 10)}
        assert {key for key, _ in either.scan(())} == {("a",), ("a", 1), ("a", 1, "x"), ("a", 10), ("ab", 1), ()}
        with pytest.raises(UsageError, match="scanned by a str or by a tuple"):
            either.scan(7)  # type: ignore[arg-type]

    def test_a_store_is_configuration_only_and_pickles_even_while_in_use(self, either: Store, process: Process) -> None:
        run(either, process.task(), 1, dog=3)
        copied = pickle.loads(pickle.dumps(either))
        assert copied.get("dog") == 3
        assert run(copied, process.task(), 2, dog=1) == {"dog": Update(3, 4, applied=True)}
        assert copy.deepcopy(either).get("dog") == 4

    def test_several_stores_share_a_place_without_mixing(self, make: Callable[..., Store], process: Process) -> None:
        words, letters = make("words"), make("letters", opaque=True)
        context = process.task()
        run(words, context, 1, a=1)
        run(letters, context, 1, a=5)
        assert (dict(words.items()), dict(letters.items())) == ({"a": 1}, {"a": 5})
        assert words.clear("words").rows == 1
        assert (words.fences(), len(letters.fences()), letters.get("a")) == ([], 1, 5)


class TestPhase:
    @pytest.mark.rule(32)
    def test_the_processing_phase_may_not_write(self, either: Store, process: Process) -> None:
        with pytest.raises(UsageError, match=r"'count' opened a transaction in the processing phase\n.*ICommitter"):
            run(either, process.task(phase="processing"), 1, dog=1)
        assert not either.exists()

    def test_a_store_of_this_machine_is_refused_on_a_cluster(self, either: Store, process: Process) -> None:
        if either.local_only_reason is None:
            run(either, process.task(local_master=False), 1, dog=1)
            assert either.get("dog") == 1
        else:
            with pytest.raises(UsageError, match=either.local_only_reason):
                run(either, process.task(local_master=False), 1, dog=1)

    def test_a_transaction_is_of_no_use_after_its_block(self, either: Store, process: Process) -> None:
        with either.transaction(process.task(), TransactionAttempt(1, 0)) as t:
            pass
        for call in (lambda: t.update("dog", plus(1)), lambda: t.get("dog"), lambda: t.delete("dog"), lambda: t.update_many({"dog": 1}, add)):
            with pytest.raises(UsageError, match="this store transaction has ended"):
                call()


class TestFence:
    @pytest.mark.rule(29)
    def test_an_attempt_raises_the_fence_and_its_other_tasks_pass_it(self, either: Store, process: Process) -> None:
        run(either, process.task(task=0), 1, 3, dog=1)
        run(either, process.task(task=1), 1, 3, cat=1)
        assert either.fences() == [Fence("words", "count", "first", 1, 3)]
        run(either, process.task(task=1), 2, 0, cat=1)
        assert either.fences() == [Fence("words", "count", "first", 2, 0)]

    @pytest.mark.rule(29)
    @pytest.mark.parametrize("late", [(3, 1), (2, 9), (1, 0)], ids=["same txid", "earlier txid", "much earlier"])
    def test_a_late_task_of_an_older_attempt_is_refused_and_changes_nothing(self, either: Store, process: Process, late: tuple[int, int]) -> None:
        run(either, process.task(), 3, 2, dog=1)
        with pytest.raises(StaleAttemptError, match=f"fenced at attempt 3:2; attempt {late[0]}:{late[1]} may not write"):
            run(either, process.task(task=1), *late, dog=5, cat=5)
        assert dict(either.items()) == {"dog": 1}
        assert either.fences() == [Fence("words", "count", "first", 3, 2)]

    @pytest.mark.rule(29)
    def test_components_and_topologies_have_fences_of_their_own(self, either: Store, process: Process) -> None:
        run(either, process.task("count"), 5, dog=1)
        run(either, process.task("sum"), 4, cat=1)
        run(either, process.task("count", topology_id="letters"), 1, a=1)
        assert [(fence.topology_id, fence.component, fence.txid) for fence in either.fences()] == [
            ("letters", "count", 1),
            ("words", "count", 5),
            ("words", "sum", 4),
        ]

    @pytest.mark.rule(29)
    def test_a_block_that_raises_leaves_no_trace_not_even_its_fence(self, either: Store, process: Process) -> None:
        run(either, process.task(), 1, dog=1)
        context = process.task()

        def die(t: StoreTransaction) -> None:
            t.update("dog", plus(1))
            t.delete("dog")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            block(either, context, 2, 0, die)
        assert dict(either.items()) == {"dog": 1}
        assert either.fences() == [Fence("words", "count", "first", 1, 0)]
        assert (context.store_steps, context.touched_stores) == ({}, set())

    @pytest.mark.rule(7, 29)
    def test_a_refusal_that_user_code_swallows_still_ends_the_attempt(self, either: Store, process: Process) -> None:
        run(either, process.task("sum"), 9, dog=1)

        def swallow(t: StoreTransaction) -> None:
            t.update("cat", plus(1))
            for _ in range(2):
                with pytest.raises(StaleAttemptError):
                    t.update("dog", plus(1))

        with pytest.raises(StaleAttemptError):
            block(either, process.task("count"), 8, 0, swallow)
        assert dict(either.items()) == {"dog": 1}

    @pytest.mark.rule(30)
    def test_a_value_of_a_later_transaction_is_refused_also_when_another_component_wrote_it(self, either: Store, process: Process) -> None:
        run(either, process.task("sum"), 9, 4, dog=1)
        actions: list[Callable[[StoreTransaction], Any]] = [lambda t: t.update("dog", plus(1)), lambda t: t.delete("dog"), lambda t: t.get("dog")]
        for action in actions:
            with pytest.raises(StaleAttemptError, match="fenced at attempt 9:4; attempt 8:0"):
                block(either, process.task("count"), 8, 0, action)


class TestGeneration:
    @pytest.mark.rule(27)
    def test_another_generation_is_refused_and_both_are_named_with_the_commands_to_type(self, either: Store, process: Process) -> None:
        run(either, process.task(), 7, dog=1)
        with pytest.raises(StateMismatchError) as caught:
            run(either, process.task(generation="second"), 8, dog=1)
        for part in ("first", "second", "txtopo state show", "txtopo state reset words", "txtopo store adopt", "txtopo store clear"):
            assert part in str(caught.value)
        assert caught.value.exit_code == 6
        assert dict(either.items()) == {"dog": 1}

    @pytest.mark.rule(27)
    def test_a_store_that_is_empty_although_it_was_written_before_is_refused(self, either: Store, process: Process) -> None:
        known = frozenset({f"count/{either.name}"})
        message = r"(?s)holds nothing of component 'count'.*txtopo store adopt.*txtopo state reset words"
        with pytest.raises(StateMismatchError, match=message) as caught:
            run(either, process.task(known_stores=known), 3, dog=1)
        assert caught.value.exit_code == 6
        assert list(either.items()) == []
        assert either.fences() == []
        run(either, process.task("sum", known_stores=known), 3, dog=1)
        assert either.get("dog") == 1, "a component that is new to the store is welcome"

    @pytest.mark.rule(27)
    def test_a_store_cleared_between_two_blocks_of_one_task_is_noticed(self, either: Store, process: Process) -> None:
        context = process.task()
        run(either, context, 1, dog=1)
        either.clear("words")
        with pytest.raises(StateMismatchError, match="holds nothing of component 'count'"):
            run(either, context, 1, dog=1)

    @pytest.mark.rule(27)
    def test_a_store_is_reported_as_touched_once_it_has_committed(self, either: Store, process: Process) -> None:
        context = process.task()
        with either.transaction(context, TransactionAttempt(1, 0)):
            assert context.touched_stores == set()
        assert context.touched_stores == {f"count/{either.name}"}
        run(either, process.task(known_stores=frozenset(context.touched_stores)), 2, dog=1)
        assert either.get("dog") == 1

    @pytest.mark.rule(27)
    def test_an_adopted_store_goes_on_from_what_it_holds(self, either: Store, process: Process) -> None:
        run(either, process.task(), 40, 6, dog=5, cat=2)
        assert either.adopt("words", "second", 0, ["count"], dry_run=True).rows == 2
        assert either.fences()[0].generation == "first"
        assert either.adopt("words", "second", 0, ["count"]).rows == 2
        assert run(either, process.task(generation="second"), 1, dog=1) == {"dog": Update(5, 6, applied=True)}
        assert dict(either.items()) == {"cat": 2, "dog": 6}

    @pytest.mark.rule(27, 31)
    def test_what_a_failed_attempt_made_of_an_adopted_value_is_taken_back(self, make: Callable[..., Store], process: Process) -> None:
        store = make(opaque=True)
        run(store, process.task(), 40, dog=5)
        store.adopt("words", "second", 0, ["count"])
        run(store, process.task(generation="second"), 1, 0, dog=1)
        run(store, process.task(generation="second"), 1, 1, cat=1)
        assert dict(store.items()) == {"cat": 1, "dog": 5}

    @pytest.mark.rule(27, 30, 31)
    def test_values_of_a_generation_that_is_over_count_as_earlier_whatever_their_txid(self, make: Callable[..., Store], process: Process) -> None:
        store = make(opaque=True)
        run(store, process.task("sum"), 40, dog=5)
        assert run(store, process.task("count", generation="second"), 1, 0, dog=1) == {"dog": Update(5, 6, applied=True)}
        run(store, process.task("count", generation="second"), 1, 1)
        assert run(store, process.task("count", generation="second"), 1, 2, dog=2) == {"dog": Update(5, 7, applied=True)}

    @pytest.mark.rule(27, 29)
    def test_a_store_newer_than_its_state_can_be_adopted_as_it_is(self, either: Store, process: Process) -> None:
        run(either, process.task(), 7, dog=3)
        either.adopt("words", "first", 4, ["count"])
        with pytest.raises(StaleAttemptError):
            run(either, process.task(), 4, 99, dog=1)
        assert run(either, process.task(), 5, dog=1) == {"dog": Update(3, 4, applied=True)}

    @pytest.mark.rule(27)
    def test_an_emptied_store_can_be_adopted_too(self, either: Store, process: Process) -> None:
        assert either.adopt("words", "first", 6, ["count"], dry_run=True).fences == 1
        assert not either.exists()
        either.adopt("words", "first", 6, ["count"])
        run(either, process.task(known_stores=frozenset({f"count/{either.name}"})), 7, dog=1)
        assert either.get("dog") == 1

    @pytest.mark.rule(27)
    def test_the_results_of_a_renamed_topology_can_be_adopted(self, either: Store, process: Process) -> None:
        run(either, process.task(topology_id="old name"), 7, dog=3)
        run(either, process.task(topology_id="neighbour"), 7, cat=1)
        assert either.adopt("words", "second", 0, ["count"], from_topology="old name").rows == 1
        run(either, process.task(generation="second"), 1, dog=1)
        assert dict(either.items()) == {"cat": 1, "dog": 4}
        assert [fence.topology_id for fence in either.fences()] == ["neighbour", "words"]

    @pytest.mark.rule(27)
    def test_clear_removes_one_topology_or_one_component_and_can_be_tried_dry(self, either: Store, process: Process) -> None:
        assert either.clear("words").rows == 0
        assert not either.exists()
        run(either, process.task("count"), 1, dog=1, cat=1)
        run(either, process.task("sum"), 1, total=2)
        run(either, process.task(topology_id="neighbour"), 1, other=1)
        assert (either.clear("words", dry_run=True).rows, len(list(either.items()))) == (3, 4)
        change = either.clear("words", ["sum"])
        assert (change.rows, change.fences) == (1, 1)
        change = either.clear("words")
        assert (change.rows, change.fences) == (2, 1)
        assert dict(either.items()) == {"other": 1}


class TestTransactionalValues:
    @pytest.mark.rule(30)
    def test_the_worked_example_of_storms_documentation(self, make: Callable[..., Store], process: Process) -> None:
        store = make()
        run(store, process.task(), 1, man=3, dog=3)
        run(store, process.task(), 2, apple=10)
        run(store, process.task(), 3, 0, dog=1)  # the attempt dies here: "dog" is applied, "man" is not

        with store.transaction(process.task(), TransactionAttempt(3, 1)) as t:
            assert t.update("man", plus(2)) == Update(3, 5, applied=True)
            assert t.update("dog", never) == Update(3, 4, applied=False)

        stamped = {key: store.inspect(key) for key in ("man", "dog", "apple")}
        assert {key: (found.curr, found.txid) for key, found in stamped.items() if found} == {"man": (5, 3), "dog": (4, 3), "apple": (10, 2)}

    @pytest.mark.rule(28, 30)
    def test_a_replay_gets_what_the_first_application_returned(self, make: Callable[..., Store], process: Process) -> None:
        store = make()
        run(store, process.task(), 1, dog=3)
        first = run(store, process.task(), 2, 0, dog=2, cat=1)
        for attempt in (0, 1, 2, 1_000_000):
            replayed = run(store, process.task(), 2, attempt, dog=2, cat=1)
            assert replayed == {key: Update(update.prev, update.curr, applied=False) for key, update in first.items()}
        assert dict(store.items()) == {"cat": 1, "dog": 5}

    @pytest.mark.rule(28, 32)
    def test_a_half_applied_sequence_is_completed_by_its_replay(self, make: Callable[..., Store], process: Process) -> None:
        store = make()
        run(store, process.task(), 1, dog=1)
        first = process.task()
        run(store, first, 2, 0, dog=1)
        with store.transaction(first, TransactionAttempt(2, 0)) as t:
            t.update("dog", plus(10))

        replay = process.task()
        with store.transaction(replay, TransactionAttempt(2, 1)) as t:
            assert t.get("dog") == 1, "a replay reads what the first application read"
            assert t.update("dog", never) == Update(1, 2, applied=False)
            assert t.get("dog") == 2
            assert t.update("dog", never) == Update(2, 12, applied=False)
            assert t.get("dog") == 12
            assert t.update("dog", plus(100)) == Update(12, 112, applied=True)
        with store.transaction(replay, TransactionAttempt(2, 1)) as t:
            assert t.delete("dog") == Update(112, None, applied=True)
            assert t.update("dog", plus(7)) == Update(None, 7, applied=True)
        assert store.get("dog") == 7

        last = process.task()
        with store.transaction(last, TransactionAttempt(2, 2)) as t:
            seen = [t.update("dog", never) for _ in range(3)] + [t.delete("dog"), t.update("dog", never)]
        assert [(update.prev, update.curr) for update in seen] == [(1, 2), (2, 12), (12, 112), (112, None), (None, 7)]
        assert not any(update.applied for update in seen)

    @pytest.mark.rule(28)
    def test_deleting_what_is_not_there_is_a_step_like_another(self, make: Callable[..., Store], process: Process) -> None:
        store = make()
        for attempt, applied in ((0, True), (1, False)):
            with store.transaction(process.task(), TransactionAttempt(1, attempt)) as t:
                assert t.delete("dog") == Update(None, None, applied)
                assert t.update("dog", plus(5)) == Update(None, 5, applied)
                assert t.delete("cat") == Update(None, None, applied)
        assert dict(store.items()) == {"dog": 5}


class TestOpaqueValues:
    @pytest.mark.rule(30)
    @pytest.mark.parametrize(("attempt", "expected"), [((3, 0), (6, 4, 3)), ((2, 1), (3, 1, 2))], ids=["next txid", "same txid"])
    def test_the_worked_example_of_storms_documentation(
        self, make: Callable[..., Store], process: Process, attempt: tuple[int, int], expected: tuple[int, int, int]
    ) -> None:
        store = make(opaque=True)
        run(store, process.task(), 1, count=1)
        run(store, process.task(), 2, 0, count=3)
        before = store.inspect("count")
        assert before is not None
        assert (before.curr, before.prev, before.txid) == (4, 1, 2)

        run(store, process.task(), *attempt, count=2)

        after = store.inspect("count")
        assert after is not None
        assert (after.curr, after.prev, after.txid) == expected

    @pytest.mark.rule(31)
    def test_a_new_attempt_takes_back_what_an_earlier_one_wrote_and_it_does_not(self, make: Callable[..., Store], process: Process) -> None:
        store = make(opaque=True)
        run(store, process.task(task=0), 1, dog=1)
        run(store, process.task(task=1), 1, cat=1)
        run(store, process.task(task=0), 2, 0, dog=10, bird=10)
        run(store, process.task(task=1), 2, 0, cat=10)
        run(store, process.task(task=0), 2, 1)  # nothing to write this time
        assert dict(store.items()) == {"cat": 1, "dog": 1}
        assert store.inspect("bird") is None, "a key that was not there is removed, not emptied"
        assert run(store, process.task(task=1), 2, 1, bird=5) == {"bird": Update(None, 5, applied=True)}
        run(store, process.task(task=0), 3, 0, dog=1)
        assert dict(store.items()) == {"bird": 5, "cat": 1, "dog": 2}

    @pytest.mark.rule(31)
    def test_deleted_and_composed_values_are_taken_back_whole(self, make: Callable[..., Store], process: Process) -> None:
        store = make(opaque=True)
        run(store, process.task(), 1, dog=3, cat=4)
        with store.transaction(process.task(), TransactionAttempt(2, 0)) as t:
            t.delete("dog")
            t.update("cat", plus(1))
            t.update("cat", plus(1))
            t.update("bird", plus(1))
            t.delete("bird")
        assert dict(store.items()) == {"cat": 6}
        for attempt in (1, 2):
            run(store, process.task(), 2, attempt)
            assert dict(store.items()) == {"cat": 4, "dog": 3}

    @pytest.mark.rule(31)
    def test_only_this_component_and_this_transaction_are_taken_back(self, make: Callable[..., Store], process: Process) -> None:
        store = make(opaque=True)
        run(store, process.task("count"), 1, dog=1)
        run(store, process.task("sum"), 2, 0, total=1)
        run(store, process.task("count", topology_id="neighbour"), 2, 0, other=1)
        run(store, process.task("count"), 2, 0, cat=1)
        run(store, process.task("count"), 2, 1)
        assert dict(store.items()) == {"dog": 1, "other": 1, "total": 1}

    @pytest.mark.rule(30, 31)
    def test_what_a_dead_attempt_of_another_component_left_does_not_count(self, make: Callable[..., Store], process: Process) -> None:
        store = make(opaque=True)
        run(store, process.task("count"), 1, dog=1)
        run(store, process.task("count"), 2, 0, dog=10)
        with store.transaction(process.task("sum"), TransactionAttempt(2, 1)) as t:  # this attempt gives the key to another component
            assert t.get("dog") == 1
            assert t.update("dog", plus(5)) == Update(1, 6, applied=True)
        with pytest.raises(StaleAttemptError):
            run(store, process.task("count", task=1), 2, 0, dog=10)
        run(store, process.task("count"), 2, 1, cat=1)
        assert dict(store.items()) == {"cat": 1, "dog": 6}
        run(store, process.task("sum"), 2, 2)
        assert dict(store.items()) == {"cat": 1, "dog": 1}

    @pytest.mark.rule(30, 32)
    def test_within_an_attempt_a_repeated_run_of_a_task_is_already_applied(self, make: Callable[..., Store], process: Process) -> None:
        store = make(opaque=True)
        run(store, process.task(), 1, dog=1)
        assert run(store, process.task(), 2, 4, dog=2) == {"dog": Update(1, 3, applied=True)}
        assert run(store, process.task(), 2, 4, dog=2) == {"dog": Update(1, 3, applied=False)}


class TestComposition:
    @pytest.mark.rule(32)
    def test_several_updates_of_a_key_compose_within_and_across_blocks(self, either: Store, process: Process) -> None:
        run(either, process.task(), 1, dog=1)
        context = process.task()
        with either.transaction(context, TransactionAttempt(2, 0)) as t:
            assert t.update("dog", plus(1)) == Update(1, 2, applied=True)
            assert t.update_many({"dog": 1, "cat": 1}, add)["dog"] == Update(2, 3, applied=True)
            assert t.get("dog") == 3
        with either.transaction(context, TransactionAttempt(2, 0)) as t:
            assert t.get("dog") == 3
            assert t.delete("dog") == Update(3, None, applied=True)
            assert t.get("dog") is None
            assert t.update("dog", plus(8)) == Update(None, 8, applied=True)
        assert dict(either.items()) == {"cat": 1, "dog": 8}

    @pytest.mark.rule(32)
    def test_a_block_rolled_back_is_not_counted_as_a_step(self, either: Store, process: Process) -> None:
        context = process.task()
        run(either, context, 1, dog=1)

        def die(t: StoreTransaction) -> None:
            t.update("dog", plus(50))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            block(either, context, 1, 0, die)
        assert run(either, context, 1, dog=2) == {"dog": Update(1, 3, applied=True)}

    def test_what_fn_does_to_the_old_value_does_not_change_prev(self, either: Store, process: Process) -> None:
        def append(old: list[int] | None) -> list[int]:
            old = [] if old is None else old
            old.append(len(old))
            return old

        for txid in (1, 2):
            with either.transaction(process.task(), TransactionAttempt(txid, 0)) as t:
                t.update("dog", append)
                update = t.update("dog", append)
        assert (update.prev, update.curr) == ([0, 1, 2], [0, 1, 2, 3])

    @pytest.mark.rule(28)
    def test_the_first_application_returns_values_as_a_replay_will(self, either: Store, process: Process) -> None:
        with either.transaction(process.task(), TransactionAttempt(1, 0)) as t:
            assert t.update("dog", lambda old: (1, (2,))).curr == [1, [2]]
            assert t.update("dog", lambda old: old).curr == [1, [2]]

    def test_an_exception_in_fn_changes_nothing_and_may_be_handled(self, either: Store, process: Process) -> None:
        with either.transaction(process.task(), TransactionAttempt(1, 0)) as t:
            t.update("dog", plus(1))
            with pytest.raises(AssertionError):
                t.update("dog", never)
            assert t.update("dog", plus(1)) == Update(1, 2, applied=True)
        assert either.get("dog") == 2

    def test_update_many_is_all_or_nothing(self, either: Store, process: Process) -> None:
        def fail_at_cat(old: int | None, delta: str) -> int:
            return 1 // (delta != "cat")

        def swallow(t: StoreTransaction) -> None:
            with pytest.raises(ZeroDivisionError):
                t.update_many({"ant": "ant", "cat": "cat", "dog": "dog"}, fail_at_cat)

        with pytest.raises(ZeroDivisionError):
            block(either, process.task(), 1, 0, swallow)
        assert list(either.items()) == []

    def test_updating_inside_fn_is_refused_and_reading_there_is_not(self, either: Store, process: Process) -> None:
        run(either, process.task(), 1, cat=4)
        with either.transaction(process.task(), TransactionAttempt(2, 0)) as t:
            assert t.update("dog", lambda old: t.get("cat")).curr == 4
            with pytest.raises(UsageError, match="cannot be updated inside the function given to update"):
                t.update("dog", lambda old: t.delete("cat"))
        assert dict(either.items()) == {"cat": 4, "dog": 4}

    def test_more_keys_than_are_held_in_memory_are_updated_and_replayed(
        self, either: Store, process: Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.transaction.ROWS_HELD_MAX", 7)
        deltas = {number: number for number in range(40)}
        for attempt, applied in ((0, True), (0, False)):
            with either.transaction(process.task(), TransactionAttempt(1, attempt)) as t:
                assert t.update_many(deltas, add) == {number: Update(None, number, applied) for number in range(40)}
                assert t.update_many(deltas, add) == {number: Update(number, 2 * number, applied) for number in range(40)}
        assert dict(either.items()) == {number: 2 * number for number in range(40)}


class TestOneWriter:
    @pytest.mark.rule(32)
    @pytest.mark.parametrize("other", [("count", 1), ("sum", 0)], ids=["another task", "another component"])
    def test_a_second_writer_of_a_key_in_one_transaction_is_refused(self, either: Store, process: Process, other: tuple[str, int]) -> None:
        run(either, process.task("count", 0), 1, dog=1)
        with pytest.raises(StoreConflict, match="fields_grouping on the key") as caught:
            run(either, process.task(*other), 1, dog=1)
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.key, error.txid) == ('"dog"', 1)
        assert "'count' task 0" in error.first_writer
        assert f"{other[0]!r} task {other[1]}" in error.second_writer
        assert dict(either.items()) == {"dog": 1}
        run(either, process.task(*other), 2, dog=1)
        assert either.get("dog") == 2, "in another transaction the key may have another writer"

    @pytest.mark.rule(32)
    def test_deleting_counts_as_writing(self, either: Store, process: Process) -> None:
        run(either, process.task(), 1, dog=1)
        with pytest.raises(StoreConflict):
            with either.transaction(process.task(task=1), TransactionAttempt(1, 0)) as t:
                t.delete("dog")
        with either.transaction(process.task(), TransactionAttempt(2, 0)) as t:
            t.delete("dog")
        with pytest.raises(StoreConflict):
            run(either, process.task(task=1), 2, dog=1)

    @pytest.mark.rule(32)
    def test_a_key_of_another_topology_is_refused_whatever_its_txid(self, either: Store, process: Process) -> None:
        run(either, process.task(topology_id="neighbour"), 1, dog=1)
        with pytest.raises(StoreConflict, match=r"topology 'neighbour'.* topology 'words'"):
            run(either, process.task(), 9, dog=1)

    @pytest.mark.rule(28, 32)
    def test_what_another_task_writes_in_the_same_transaction_is_never_read(self, either: Store, process: Process) -> None:
        run(either, process.task(task=1), 1, dog=1)
        for writes_first in (False, True):
            if writes_first:
                run(either, process.task(task=1), 2, dog=5)
            with either.transaction(process.task(task=0), TransactionAttempt(2, 0)) as t:
                assert t.get("dog") == 1


class TestRefusedInput:
    @pytest.mark.parametrize("key", [True, 1.5, None, b"dog", ("a", False), ("a", 2.0), ["a"], "\ud800"], ids=repr)
    def test_a_key_that_has_no_text_is_refused(self, either: Store, process: Process, key: Any) -> None:
        with pytest.raises(UsageError, match="store key"):
            with either.transaction(process.task(), TransactionAttempt(1, 0)) as t:
                t.update(key, plus(1))
        with pytest.raises(UsageError, match="store key"):
            either.get(key)

    @pytest.mark.parametrize("value", [{1}, object(), b"x", {1: "a"}, [{"a": {True: 1}}], float("nan"), float("inf"), "\udfff", 1j], ids=repr)
    def test_a_value_that_json_would_not_give_back_is_refused(self, either: Store, process: Process, value: Any) -> None:
        with pytest.raises(UsageError, match=r"(?s)the value .*Store None, bool, int"):
            with either.transaction(process.task(), TransactionAttempt(1, 0)) as t:
                t.update("dog", lambda old: value)
        assert either.get("dog") is None

    def test_a_failed_exception_in_the_block_passes_as_it_is(self, either: Store, process: Process) -> None:
        with pytest.raises(FailedException, match="again, please"):
            with either.transaction(process.task(), TransactionAttempt(1, 0)):
                raise FailedException("again, please")
