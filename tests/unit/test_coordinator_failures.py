"""Failures: the discarded attempts, the surviving attempts, the counts, and late answers, which
change nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.coordinators import Played, attempt
from txtopo.coordinator.messages import (
    Applied,
    BackOff,
    Cancel,
    Emitted,
    Event,
    Failed,
    FailureKind,
    Forget,
    Process,
    Processed,
    Recorded,
    Resume,
    Sealed,
    Stop,
)
from txtopo.coordinator.transitions import IllegalEventError


def running(pending: int = 3, **policy: Any) -> Played:
    played = Played(max_spout_pending=pending, **policy)
    played.open(*range(1, pending + 1))
    return played


def inside(played: Played) -> Any:
    """Everything a coordinator knows, as a copy."""
    known = {name: value for name, value in vars(played.coordinator).items() if name != "_active"}
    return copy.deepcopy(known), played.statuses


@pytest.mark.rule(6)
def test_a_failure_discards_its_transaction_and_every_later_one_the_latest_first() -> None:
    played = running(4)
    assert played.fail(2) == [
        Cancel(attempt(4)),
        Cancel(attempt(3)),
        Cancel(attempt(2)),
        BackOff(2, 1),
    ]
    assert played.statuses == {"1:0": "processing"}


@pytest.mark.rule(6)
def test_every_discarded_transaction_is_replayed_with_a_new_attempt_and_earlier_ones_are_untouched() -> (
    None
):
    played = running(3)
    played.process(1)
    played.fail(2)
    assert played(Resume(2)) == [Process(attempt(2, 1)), Process(attempt(3, 1))]
    assert played.statuses == {"1:0": "sealing", "2:1": "processing", "3:1": "processing"}


@pytest.mark.rule(6)
@pytest.mark.parametrize(
    "events",
    [[], [Processed(attempt(1))], [Processed(attempt(1)), Sealed(attempt(1))]],
    ids=["processing", "sealing", "applying"],
)
def test_a_failure_in_either_phase_has_the_same_consequences(events: list[Event]) -> None:
    played = running(2)
    played.process(2)
    played(*events)
    assert played.fail(1) == [Cancel(attempt(2)), Cancel(attempt(1)), BackOff(1, 1)]


@pytest.mark.rule(6)
def test_a_processed_transaction_that_waits_for_its_turn_can_fail() -> None:
    played = running(2)
    played.process(2)
    assert played.fail(2) == [Cancel(attempt(2)), BackOff(2, 1)]


@pytest.mark.rule(6)
@pytest.mark.parametrize("kind", [Emitted, Processed, Sealed, Applied, Recorded])
def test_a_late_good_answer_of_a_discarded_attempt_changes_nothing(kind: Any) -> None:
    played = running(2)
    played.fail(1)
    played(Resume(1))
    before = inside(played)
    assert played(kind(attempt(1))) == []
    assert inside(played) == before


@pytest.mark.rule(6)
@pytest.mark.parametrize("kind", ["failed", "timeout", "crash", "outgrown", "fatal"])
def test_a_late_failure_of_a_discarded_attempt_changes_nothing(kind: FailureKind) -> None:
    played = running(2, max_attempts=2, max_crashes=2)
    played.fail(1)
    for late in (attempt(1), attempt(2)):
        before = inside(played)
        assert played(Failed(late, kind)) == []
        assert inside(played) == before


@pytest.mark.rule(6)
@pytest.mark.parametrize(
    "event",
    [
        Failed(attempt(1), "failed"),
        Recorded(attempt(1)),
        Applied(attempt(1)),
        Failed(attempt(1), "fatal"),
    ],
)
def test_an_answer_about_a_committed_transaction_changes_nothing(event: Event) -> None:
    played = running(2)
    played.process(1)
    played.commit(1)
    before = inside(played)
    assert played(event) == []
    assert inside(played) == before


@pytest.mark.rule(6)
def test_an_answer_of_an_attempt_that_never_was_changes_nothing() -> None:
    played = running(2)
    before = inside(played)
    for never in (attempt(1, 7), attempt(9)):
        assert played(Processed(never)) == []
        assert played(Failed(never, "fatal")) == []
    assert inside(played) == before


@pytest.mark.parametrize(
    "event", [Emitted(attempt(1)), Sealed(attempt(1)), Applied(attempt(1)), Recorded(attempt(1))]
)
def test_an_illegal_event_for_a_live_attempt_raises_and_changes_nothing(event: Event) -> None:
    played = running(2)
    before = inside(played)
    with pytest.raises(IllegalEventError, match="attempt 1:0 is processing"):
        played(event)
    assert inside(played) == before


def test_no_failure_can_hit_a_transaction_that_is_being_recorded() -> None:
    played = running(2)
    played.process(1)
    played(Sealed(attempt(1)), Applied(attempt(1)))
    before = inside(played)
    with pytest.raises(
        IllegalEventError, match="attempt 1:0 is recording, and cannot be failed now"
    ):
        played.fail(1)
    assert inside(played) == before
    assert played(Recorded(attempt(1)))[0] == Forget(attempt(1))


@pytest.mark.rule(8)
def test_a_timeout_fails_the_attempt_like_any_failure() -> None:
    played = running(2)
    assert played.fail(1, "timeout") == [Cancel(attempt(2)), Cancel(attempt(1)), BackOff(1, 1)]
    assert played(Processed(attempt(1))) == [], "the job that was too slow ended after all"
    assert played(Resume(1)) == [Process(attempt(1, 1)), Process(attempt(2, 1))]


@pytest.mark.rule(7)
def test_the_back_off_is_told_how_often_the_transaction_has_failed() -> None:
    played = running(1)
    for failures in (1, 2, 3):
        assert played.fail(1)[-1] == BackOff(1, failures)
        played(Resume(1))


@pytest.mark.rule(7)
def test_only_the_transaction_that_failed_is_counted_not_those_discarded_with_it() -> None:
    played = running(2, max_attempts=2)
    played.fail(1)
    played(Resume(1))
    assert played.fail(2) == [Cancel(attempt(2, 1)), BackOff(2, 1)]


@pytest.mark.rule(7)
def test_counts_begin_again_with_every_transaction() -> None:
    played = running(1, max_attempts=2)
    played.fail(1)
    played(Resume(1))
    played.process(1)
    played.commit(1)
    played.open(2)
    assert played.fail(2) == [Cancel(attempt(2)), BackOff(2, 1)]


@pytest.mark.rule(7)
@pytest.mark.parametrize("kind", ["failed", "timeout"])
def test_a_poison_batch_stops_the_run_after_max_attempts(kind: FailureKind) -> None:
    played = running(2, max_attempts=3)
    for _ in range(2):
        played.fail(1, kind)
        played(Resume(1))
    assert played.fail(1, kind) == [
        Cancel(attempt(2, 2)),
        Cancel(attempt(1, 2)),
        Stop(attempt(1, 2), "poison", 3),
    ]


@pytest.mark.rule(7)
def test_crashes_stop_the_run_after_max_crashes() -> None:
    played = running(1, max_crashes=2)
    played.fail(1, "crash")
    played(Resume(1))
    assert played.fail(1, "crash") == [Cancel(attempt(1, 1)), Stop(attempt(1, 1), "crashes", 2)]


@pytest.mark.rule(7)
def test_failures_of_user_code_are_no_crashes() -> None:
    played = running(1, max_crashes=2)
    for failures in range(1, 6):
        assert played.fail(1)[-1] == BackOff(1, failures)
        played(Resume(1))
    played.fail(1, "crash")
    played(Resume(1))
    assert played.fail(1, "crash")[-1] == Stop(attempt(1, 6), "crashes", 2)


@pytest.mark.rule(7)
def test_crashes_are_tries_too() -> None:
    played = running(1, max_attempts=2, max_crashes=8)
    played.fail(1, "crash")
    played(Resume(1))
    assert played.fail(1)[-1] == Stop(attempt(1, 1), "poison", 2)


@pytest.mark.rule(7)
def test_without_bounds_a_batch_is_tried_for_ever() -> None:
    played = running(1)
    for failures in range(1, 50):
        assert played.fail(1, "crash" if failures % 3 else "failed")[-1] == BackOff(1, failures)
        assert played(Resume(1)) == [Process(attempt(1, failures))]


@pytest.mark.rule(7)
def test_a_batch_that_outgrew_its_way_is_replayed_at_once_and_not_counted() -> None:
    played = running(1, max_attempts=1, max_crashes=1)
    for n in range(3):
        assert played.fail(1, "outgrown") == [Cancel(attempt(1, n)), BackOff(1, 0)]
        assert played(Resume(1)) == [Process(attempt(1, n + 1))]


@pytest.mark.rule(7)
def test_a_fatal_failure_stops_the_run() -> None:
    played = running(2)
    assert played.fail(1, "fatal") == [
        Cancel(attempt(2)),
        Cancel(attempt(1)),
        Stop(attempt(1), "fatal"),
    ]
    assert played.statuses == {}


@pytest.mark.rule(7)
def test_an_earlier_failure_backs_off_for_the_later_transaction_too() -> None:
    played = running(3)
    played.fail(2)
    played.fail(1)
    assert played(Resume(2)) == []
    assert played(Resume(1)) == [
        Process(attempt(1, 1)),
        Process(attempt(2, 1)),
        Process(attempt(3, 1)),
    ]
