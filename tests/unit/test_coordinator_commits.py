"""Commits: one at a time, in txid order, the seal of the next one riding with the record of this
one."""

from __future__ import annotations

import pytest

from tests.coordinators import Played, attempt
from txtopo.coordinator.messages import (
    Applied,
    Apply,
    Forget,
    Open,
    Process,
    Record,
    Recorded,
    Resume,
    Seal,
    Sealed,
)
from txtopo.coordinator.transitions import IllegalEventError


def processed(*txids: int, pending: int = 3) -> Played:
    """A run in which ``pending`` transactions are open and ``txids`` are processed."""
    played = Played(max_spout_pending=pending)
    played.open(*range(1, pending + 1))
    played.process(*txids)
    return played


@pytest.mark.rule(3, 23, 25)
def test_a_commit_is_seal_apply_record_forget() -> None:
    played = processed()
    assert played.process(1) == [Seal(attempt(1))]
    assert played(Sealed(attempt(1))) == [Apply(attempt(1))]
    assert played(Applied(attempt(1))) == [Record(attempt(1), None)]
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Open(4)]


@pytest.mark.rule(3)
def test_a_transaction_waits_until_every_earlier_one_has_committed() -> None:
    played = processed(2, 3)
    assert played.statuses == {"1:0": "processing", "2:0": "processed", "3:0": "processed"}
    assert played.process(1) == [Seal(attempt(1))]
    assert played.statuses == {"1:0": "sealing", "2:0": "processed", "3:0": "processed"}


@pytest.mark.rule(3, 25)
def test_the_seal_of_the_next_transaction_rides_with_the_record_of_this_one() -> None:
    played = processed(2, 1)
    played(Sealed(attempt(1)))
    assert played(Applied(attempt(1))) == [Record(attempt(1), seal_next=attempt(2))]
    assert played.statuses == {"1:0": "recording", "2:0": "sealing", "3:0": "processing"}
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Apply(attempt(2)), Open(4)]
    assert played.statuses == {"2:0": "applying", "3:0": "processing"}


@pytest.mark.rule(3)
def test_a_transaction_processed_too_late_to_ride_along_is_sealed_by_itself() -> None:
    played = processed(1)
    played(Sealed(attempt(1)))
    assert played(Applied(attempt(1))) == [Record(attempt(1), None)]
    assert played.process(2) == []
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Seal(attempt(2)), Open(4)]


@pytest.mark.rule(3)
def test_only_the_very_next_transaction_rides_along() -> None:
    played = processed(3, 1)
    played(Sealed(attempt(1)))
    assert played(Applied(attempt(1))) == [Record(attempt(1), None)]


@pytest.mark.rule(3)
def test_one_event_may_start_a_commit_and_open_the_next_transaction() -> None:
    played = processed(1, 2, pending=2)
    played(Sealed(attempt(1)), Applied(attempt(1)))
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Apply(attempt(2)), Open(3)]


@pytest.mark.rule(3, 6)
def test_an_attempt_whose_seal_rides_along_may_fail_and_its_replay_is_sealed_anew() -> None:
    played = processed(1, 2)
    played(Sealed(attempt(1)), Applied(attempt(1)))
    played.fail(2)
    assert played(Recorded(attempt(1))) == [Forget(attempt(1))]
    assert played(Resume(2)) == [Process(attempt(2, 1)), Process(attempt(3, 1)), Open(4)]
    assert played.process(2) == [Seal(attempt(2, 1))]


@pytest.mark.rule(3, 6)
def test_a_replay_that_is_ready_before_the_record_of_its_predecessor_waits_for_it() -> None:
    played = processed(1, 2)
    played(Sealed(attempt(1)), Applied(attempt(1)))
    played.fail(2)
    played(Resume(2))
    assert played.process(2) == []
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Seal(attempt(2, 1)), Open(4)]


@pytest.mark.rule(3)
def test_a_seal_that_rides_along_is_not_answered_before_the_record_is() -> None:
    """Were it taken, two transactions would commit at once."""
    played = processed(1, 2)
    played(Sealed(attempt(1)), Applied(attempt(1)))
    before = played.statuses
    with pytest.raises(IllegalEventError, match="2:0"):
        played(Sealed(attempt(2)))
    assert played.statuses == before
    assert played(Recorded(attempt(1)))[:2] == [Forget(attempt(1)), Apply(attempt(2))]


@pytest.mark.rule(3)
def test_a_long_run_commits_every_txid_once_in_order() -> None:
    played = Played(max_spout_pending=3)
    committed: list[int] = []
    for txid in range(1, 40):
        while txid not in played.coordinator.active or len(played.coordinator.active) < 3:
            played.open(played.coordinator.current + len(played.coordinator.active))
        for open_txid in sorted(played.coordinator.active, reverse=True):
            if played.status(open_txid).value == "processing":
                played.process(open_txid)
        commands = played.commit(txid)
        committed += [command.attempt.txid for command in commands if isinstance(command, Forget)]
    assert committed == list(range(1, 40))
