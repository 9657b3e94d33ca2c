"""The life of an attempt, as a table."""

from __future__ import annotations

import itertools
import pickle

import pytest

from txtopo.coordinator import transitions
from txtopo.coordinator.transitions import (
    COMMIT_PHASE,
    TRANSITIONS,
    IllegalEventError,
    Status,
    Step,
)

ILLEGAL = [pair for pair in itertools.product(Status, Step) if pair not in TRANSITIONS]


def test_an_attempt_that_nothing_befalls_goes_from_emitting_to_committed() -> None:
    status = Status.EMITTING
    for step in (Step.EMITTED, Step.PROCESSED, Step.TURN, Step.SEALED, Step.APPLIED, Step.RECORDED):
        status = transitions.next_status("1:0", status, step)
    assert status is Status.COMMITTED


def test_an_attempt_whose_processing_is_deferred_goes_from_emitting_straight_to_its_turn() -> None:
    status = Status.EMITTING
    for step in (Step.DEFERRED, Step.TURN, Step.SEALED, Step.APPLIED, Step.RECORDED):
        status = transitions.next_status("1:0", status, step)
    assert status is Status.COMMITTED


@pytest.mark.rule(6)
def test_an_attempt_can_fail_until_its_effects_are_in_the_stores() -> None:
    can_fail = {status for status, step in TRANSITIONS if step is Step.FAILED}
    assert can_fail == {
        Status.EMITTING,
        Status.WAITING,
        Status.PROCESSING,
        Status.PROCESSED,
        Status.SEALING,
        Status.APPLYING,
    }
    assert {TRANSITIONS[status, Step.FAILED] for status in can_fail} == {Status.DISCARDED}


def test_nothing_follows_the_end() -> None:
    assert not any(status in (Status.COMMITTED, Status.DISCARDED) for status, _ in TRANSITIONS)


@pytest.mark.parametrize(("status", "step"), ILLEGAL, ids=lambda value: value.value)
def test_a_step_the_table_does_not_have_is_an_error_that_names_attempt_status_and_step(
    status: Status, step: Step
) -> None:
    with pytest.raises(IllegalEventError) as refused:
        transitions.next_status("3:1", status, step)
    assert str(refused.value) == f"attempt 3:1 is {status.value}, and cannot be {step.value} now"
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_the_docstring_draws_every_status_and_step() -> None:
    drawn = transitions.__doc__ or ""
    assert [status.name for status in Status if status.name not in drawn] == []
    assert [step.value for step in Step if step.value not in drawn] == []


def test_a_stop_waits_for_the_commit_phase() -> None:
    assert {Status.SEALING, Status.APPLYING, Status.RECORDING} == COMMIT_PHASE
