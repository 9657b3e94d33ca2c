"""``check_bolt_idempotence`` finds the classic mistakes, and names component, difference and rule."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.wrong import bolts
from tests.wrong.bolts import BATCHES, FIELDS, ledger
from txtopo import (
    BaseBasicBolt,
    FailedException,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    UsageError,
)
from txtopo.testing import (
    BoltReport,
    ContractError,
    MemoryTransactionalSpout,
    check_bolt_idempotence,
)


def check(make: Any, **options: Any) -> BoltReport:
    return check_bolt_idempotence(make, **{"batches": BATCHES, "fields": FIELDS, **options})


def broken(make: Any, rule: int | None, *naming: str, **options: Any) -> ContractError:
    """The violation that the check must find."""
    with pytest.raises(ContractError) as caught:
        check(make, **options)
    error = caught.value
    assert (error.contract, error.rule) == ("bolt", rule), str(error)
    for part in naming:
        assert part in str(error)
    assert error.cure
    return error


# -- the six classic mistakes --------------------------------------------------------------------


@pytest.mark.rule(29)
def test_the_classic_comparison_with_the_stored_txid_is_found() -> None:
    naming = (
        "component 'bolt'",
        "a late task of attempt 1:0 ran",
        "'dog' is 5, it should be 3",
        "stored.txid != txid",
    )
    broken(bolts.ClassicNotEqual, 29, *naming, effects=ledger)


def test_the_check_of_late_tasks_can_be_left_out() -> None:
    assert (
        check(
            bolts.ClassicNotEqual, effects=ledger, late_tasks=False, other_processes=False
        ).transactions
        == 4
    )


@pytest.mark.rule(28)
def test_an_unconditional_increment() -> None:
    naming = (
        "component 'bolt'",
        "after attempt 1:0 was committed and replayed as 1:1",
        "'cat' is 8, it should be 4",
    )
    broken(bolts.UnconditionalIncrement, 28, *naming, effects=ledger)


@pytest.mark.rule(28)
def test_a_write_outside_the_transaction() -> None:
    naming = (
        "failed (told to fail after a transaction of the store 'bolt/counts'",
        "'cat' is missing, it should be 4",
    )
    broken(bolts.OutsideTheTransaction, 28, *naming, effects=ledger)


@pytest.mark.rule(10)
def test_state_in_a_module_global() -> None:
    naming = (
        "store 'counts' (bolt)",
        "a second time in one process",
        "'cat' is 9, it should be 4",
        "module globals",
    )
    bolts.forget()
    broken(bolts.StateInAGlobal, 10, *naming)


@pytest.mark.rule(28)
def test_a_module_global_that_another_process_does_not_have() -> None:
    naming = (
        "was committed in one process and replayed as 1:1 in another",
        "'cat' is 8, it should be 4",
    )
    broken(bolts.AppliedInAGlobal, 28, *naming, effects=ledger)
    assert check(bolts.AppliedInAGlobal, effects=ledger, other_processes=False).transactions == 4


@pytest.mark.rule(32)
def test_a_write_in_the_processing_phase() -> None:
    broken(
        bolts.WritesWhileProcessing,
        32,
        "in the processing phase of attempt 1:0",
        "'cat' is 4, it should not be there",
        effects=ledger,
    )
    broken(
        bolts.StoreWhileProcessing,
        32,
        "execute of attempt 1:0 in the processing phase",
        "Make the bolt an ICommitter",
    )


@pytest.mark.in_gate("RoutesByHash")
@pytest.mark.rule(16, 17)
@pytest.mark.parametrize("bolt", [bolts.RoutesByHash, bolts.RoutesColumnsByHash])
def test_routing_by_hash(bolt: type[bolts.Right]) -> None:
    naming = (
        "component 'bolt' emits other tuples",
        "in another process",
        "('direct for task ",
        "hash()",
    )
    broken(bolt, 17, *naming, task_counts={"sink": 7})


# -- more mistakes -------------------------------------------------------------------------------


@pytest.mark.rule(28)
def test_emitting_only_what_was_applied_now() -> None:
    broken(
        bolts.EmitsWhatItApplied,
        28,
        "emits other tuples",
        "2 missing, namely ('default', ('cat', 4))",
    )


@pytest.mark.rule(28)
def test_an_answer_that_names_the_attempt() -> None:
    broken(bolts.AnswersByAttempt, 28, "emits other tuples", "('default', ('attempt', 1))")


@pytest.mark.rule(12)
def test_a_member_that_cannot_be_held() -> None:
    broken(
        bolts.CannotBeHeld,
        12,
        "component 'bolt'",
        "its attribute 'kept' cannot be pickled",
        "context.resource",
    )


@pytest.mark.rule(32)
def test_two_tasks_that_write_one_key() -> None:
    broken(
        bolts.Right, 32, "fields_grouping on the key", batches=[[("cat", 1), ("cat", 2)]], tasks=2
    )


def test_a_bug_is_shown_with_its_traceback() -> None:
    where = "component 'bolt', task 0, finish_batch of attempt 1:0 in the commit phase"
    broken(bolts.Raises, None, where, "ZeroDivisionError: a bug", "Traceback")


@pytest.mark.rule(7)
def test_an_unplanned_failure_is_shown() -> None:
    class Failing(bolts.Right):
        def finish_batch(self) -> None:
            raise FailedException("not today")

    broken(Failing, None, "not today", other_processes=False)


def test_a_topology_names_the_component_that_is_wrong() -> None:
    def make(directory: Path) -> Any:
        builder = TransactionalTopologyBuilder(
            "counts", "spout", MemoryTransactionalSpout({0: [("cat", 1), ("dog", 2)]}, FIELDS, 2)
        )
        builder.set_bolt("right", bolts.Right(directory)).global_grouping("spout")
        builder.set_bolt("wrong", bolts.EmitsWhatItApplied(directory / "wrong")).global_grouping(
            "right"
        )
        (directory / "wrong").mkdir()
        return builder.build_topology()

    broken(make, 28, "component 'wrong' emits other tuples", batches=(), fields=())


class Numbers(BaseBasicBolt):
    """Numbers its tuples in a module global."""

    def execute(self, tup: Any, collector: Any) -> None:
        numbered.append(1)
        collector.emit([tup[0], tup["word"], len(numbered)])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "number"))


numbered: list[int] = []


@pytest.mark.rule(15, 28)
def test_a_basic_bolt_downstream_of_a_committer_is_checked_too() -> None:
    def make(directory: Path) -> Any:
        builder = TransactionalTopologyBuilder(
            "counts", "spout", MemoryTransactionalSpout({0: [("cat", 1), ("dog", 2)]}, FIELDS, 2)
        )
        builder.set_bolt("right", bolts.Right(directory)).global_grouping("spout")
        builder.set_bolt("wrong", Numbers()).global_grouping("right")
        return builder.build_topology()

    numbered.clear()
    broken(make, 10, "component 'wrong' emits other tuples", batches=(), fields=())


class AnswersWhileExecuting(bolts.Right):
    """Emits its attempt before the commit phase."""

    def execute(self, tup: Any) -> None:
        super().execute(tup)
        self.collector.emit([self.attempt, "attempt", self.attempt.attempt_id])


class Swallows(BaseBasicBolt):
    """Emits nothing."""

    def execute(self, tup: Any, collector: Any) -> None:
        pass


@pytest.mark.rule(14, 28)
def test_tuples_that_a_committer_emits_while_executing_are_compared_too() -> None:
    def make(directory: Path) -> Any:
        builder = TransactionalTopologyBuilder(
            "counts", "spout", MemoryTransactionalSpout({0: [("cat", 1), ("dog", 2)]}, FIELDS, 2)
        )
        builder.set_bolt("wrong", AnswersWhileExecuting(directory)).global_grouping("spout")
        builder.set_bolt("end", Swallows()).global_grouping("wrong")
        return builder.build_topology()

    broken(make, 28, "component 'wrong' emits other tuples", batches=(), fields=())


# -- what cannot be checked ----------------------------------------------------------------------


class Basic(BaseBasicBolt):
    def execute(self, tup: Any, collector: Any) -> None: ...


def test_a_bolt_that_cannot_be_checked_is_refused_with_the_cure() -> None:
    refusals: list[tuple[Any, dict[str, Any], str]] = [
        (lambda directory: Basic(), {}, "Return a batch bolt, a topology, or its builder"),
        (bolts.Right, {"batches": ()}, "Give batches="),
        (bolts.Right, {"fields": ()}, "and fields="),
        (lambda directory: _without_store(directory), {}, "Give effects=function"),
        (lambda directory: _without_committer(), {}, "has no committer"),
    ]
    for make, options, cure in refusals:
        with pytest.raises(UsageError, match=cure):
            check(make, **options)


def _without_store(directory: Path) -> Any:
    bolt = bolts.UnconditionalIncrement(directory)
    del bolt.store
    return bolt


def _without_committer() -> Any:
    builder = TransactionalTopologyBuilder(
        "basic", "spout", MemoryTransactionalSpout({}, ["word"], 1)
    )
    builder.set_bolt("basic", Basic()).global_grouping("spout")
    return builder


def test_a_bolt_that_cannot_be_made_in_another_process_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here_only = types.ModuleType("here_only")
    exec("def help(): pass", vars(here_only))
    monkeypatch.setitem(sys.modules, "here_only", here_only)

    def make(directory: Path) -> Any:
        bolt: Any = bolts.Right(directory)
        bolt.helper = vars(here_only)["help"]
        return bolt

    with pytest.raises(UsageError, match=r"No module named 'here_only'\n.*other_processes=False"):
        check(make)
