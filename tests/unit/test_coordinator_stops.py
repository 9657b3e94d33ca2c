"""Stopping: commits in flight are finished, the rest is abandoned, and the first cause is told."""

from __future__ import annotations

import pytest

from tests.coordinators import Played, attempt
from txtopo.coordinator.messages import (
    Applied,
    Apply,
    Cancel,
    Drain,
    Event,
    Failed,
    Forget,
    Opened,
    Poll,
    Processed,
    Record,
    Recorded,
    Resume,
    Sealed,
    Stop,
)


def running(pending: int = 3) -> Played:
    played = Played(max_spout_pending=pending)
    played.open(*range(1, pending + 1))
    return played


def test_a_drain_abandons_what_has_not_begun_to_commit() -> None:
    played = running()
    played.process(2)
    assert played(Drain()) == [Cancel(attempt(3)), Cancel(attempt(2)), Cancel(attempt(1)), Stop(None, "drained")]


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
def test_a_fatal_failure_during_a_drain_is_what_the_run_ends_with() -> None:
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
def test_the_first_cause_of_a_stop_is_the_one_that_is_told() -> None:
    played = running()
    played.process(1)
    played.fail(2, "fatal")
    assert played.fail(1, "fatal") == [Cancel(attempt(1)), Stop(attempt(2), "fatal")]


def test_a_stopped_run_answers_nothing() -> None:
    played = running()
    played(Drain())
    late: list[Event] = [Drain(), Poll(), Opened(1), Processed(attempt(1)), Failed(attempt(1), "fatal"), Recorded(attempt(1))]
    for event in late:
        assert played(event) == []
    assert not played.coordinator.active
