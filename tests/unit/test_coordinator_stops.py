"""Stopping: commits in flight are finished, the rest is abandoned, and the first cause is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coordinators import Played, attempt
from txtopo.coordinator.messages import (
    Applied,
    Apply,
    BackOff,
    Cancel,
    Drain,
    Event,
    Failed,
    FailureKind,
    Forget,
    Open,
    Opened,
    Poll,
    Process,
    Processed,
    Record,
    Recorded,
    Resume,
    Sealed,
    Stop,
    Unopenable,
)


def running(pending: int = 3, **policy: Any) -> Played:
    played = Played(max_spout_pending=pending, **policy)
    played.open(*range(1, pending + 1))
    return played


def test_a_drain_abandons_transactions_that_have_not_begun_to_commit() -> None:
    played = running()
    played.process(2)
    assert played(Drain()) == [
        Cancel(attempt(3)),
        Cancel(attempt(2)),
        Cancel(attempt(1)),
        Stop(None, "drained"),
    ]


@pytest.mark.parametrize("reached", range(3), ids=["sealing", "applying", "recording"])
def test_a_drain_finishes_the_commit_in_flight(reached: int) -> None:
    played = running()
    played.process(1, 2)
    steps: list[Event] = [Sealed(attempt(1)), Applied(attempt(1)), Recorded(attempt(1))]
    if reached == 2:
        played.fail(2)
    played(*steps[:reached])
    assert played(Drain()) == [Cancel(attempt(3)), Cancel(attempt(2))][2 * (reached == 2) :]
    assert played.coordinator.stopping
    commands = [command for step in steps[reached:] for command in played(step)]
    assert commands[-2:] == [Forget(attempt(1)), Stop(None, "drained")]
    assert played.coordinator.current == 2


@pytest.mark.rule(3)
def test_a_drain_finishes_also_the_commit_whose_seal_is_being_written() -> None:
    played = running()
    played.process(1, 2)
    played(Sealed(attempt(1)), Applied(attempt(1)))
    assert played(Drain()) == [Cancel(attempt(3))]
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Apply(attempt(2))]
    assert played(Applied(attempt(2))) == [Record(attempt(2), None)]
    assert played(Recorded(attempt(2))) == [Forget(attempt(2)), Stop(None, "drained")]


def test_a_stopping_run_starts_nothing() -> None:
    played = running()
    played.process(1)
    played(Drain())
    nothing_new: list[Event] = [Poll(), Opened(4), Resume(2), Processed(attempt(2)), Drain()]
    for event in nothing_new:
        assert played(event) == []
    assert played(Sealed(attempt(1))) == [Apply(attempt(1))]


def test_a_commit_in_flight_that_fails_during_a_drain_is_not_replayed() -> None:
    played = running()
    played.process(1)
    played(Drain())
    assert played.fail(1) == [Cancel(attempt(1)), Stop(None, "drained")]


@pytest.mark.rule(7)
def test_a_run_ends_with_a_fatal_failure_during_its_drain() -> None:
    played = running()
    played.process(1)
    played(Sealed(attempt(1)), Drain())
    assert played.fail(1, "fatal") == [Cancel(attempt(1)), Stop(attempt(1), "fatal")]


@pytest.mark.rule(7)
def test_a_fatal_failure_lets_earlier_commits_in_flight_finish() -> None:
    played = running()
    played.process(1)
    assert played.fail(2, "fatal") == [Cancel(attempt(3)), Cancel(attempt(2))]
    played(Sealed(attempt(1)), Applied(attempt(1)))
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Stop(attempt(2), "fatal")]


@pytest.mark.rule(7)
@pytest.mark.parametrize(
    ("kind", "reason", "count"),
    [("fatal", "fatal", 0), ("failed", "poison", 1), ("crash", "crashes", 1)],
)
def test_a_stop_because_of_a_transaction_comes_when_all_before_it_have_committed(
    kind: FailureKind, reason: Any, count: int
) -> None:
    """However far the earlier ones have come by then: the fastest machine and the slowest one stop
    at the same transaction."""
    played = running(4, max_attempts=1, max_crashes=1)
    assert played.fail(3, kind) == [Cancel(attempt(4)), Cancel(attempt(3))]
    assert played.statuses == {"1:0": "processing", "2:0": "processing"}
    played.process(2, 1)
    assert played.commit(1) == [Forget(attempt(1)), Apply(attempt(2))]
    assert played.commit(2) == [Forget(attempt(2)), Stop(attempt(3), reason, count)]
    assert played.coordinator.current == 3


@pytest.mark.rule(7)
def test_a_planned_stop_begins_no_later_transaction_and_replays_earlier_ones() -> None:
    played = running(3)
    played.fail(3, "fatal")
    assert played(Opened(4), Poll()) == []
    assert played.fail(1) == [Cancel(attempt(2)), Cancel(attempt(1)), BackOff(1, 1)]
    assert played(Resume(1)) == [Process(attempt(1, 1)), Process(attempt(2, 1))]
    assert not played.coordinator.idle
    played.process(1, 2)
    played.commit(1)
    assert played.commit(2)[-1] == Stop(attempt(3), "fatal")


@pytest.mark.rule(7)
def test_of_several_causes_of_a_stop_the_earliest_transaction_is_told() -> None:
    played = running(4)
    played.process(1)
    played.fail(4, "fatal")
    played.fail(2, "fatal")
    assert played.commit(1) == [Forget(attempt(1)), Stop(attempt(2), "fatal")]
    played = running(3)
    played.fail(2, "fatal")
    assert played.fail(1, "fatal") == [Cancel(attempt(1)), Stop(attempt(1), "fatal")]
    played = Played(max_spout_pending=3)
    played.open(1, 2)
    played.fail(2, "fatal")
    assert played(Unopenable(3)) == []
    played.process(1)
    assert played.commit(1) == [Forget(attempt(1)), Stop(attempt(2), "fatal")]


@pytest.mark.rule(7)
def test_a_drain_does_not_wait_for_a_stop_that_is_to_come_and_the_run_ends_with_its_cause() -> None:
    played = running(3)
    played.process(1)
    played.fail(3, "fatal")
    assert played(Drain()) == [Cancel(attempt(2))]
    assert played.commit(1) == [Forget(attempt(1)), Stop(attempt(3), "fatal")]


@pytest.mark.rule(5, 7)
def test_a_transaction_that_cannot_be_opened_stops_the_run_when_all_before_it_have_committed() -> (
    None
):
    played = Played(max_spout_pending=3)
    played.open(1)
    assert played(Unopenable(2)) == []
    assert played(Poll()) == [], "the spout is asked again"
    played.process(1)
    assert played.commit(1) == [Forget(attempt(1)), Stop(None, "unopenable")]
    assert played(Unopenable(2)) == []


def test_an_answer_without_a_question_about_opening_changes_nothing() -> None:
    played = Played(max_spout_pending=3)
    assert played(Unopenable(7)) == []
    assert played.open(1) == [Process(attempt(1)), Open(2)]


def test_a_stopped_run_answers_nothing() -> None:
    played = running()
    played(Drain())
    late: list[Event] = [
        Drain(),
        Poll(),
        Opened(1),
        Processed(attempt(1)),
        Failed(attempt(1), "fatal"),
        Recorded(attempt(1)),
    ]
    for event in late:
        assert played(event) == []
    assert not played.coordinator.active
