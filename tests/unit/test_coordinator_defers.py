"""Small transactions: processing that is left until the turn to commit has come."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coordinators import Played, attempt
from txtopo.coordinator.messages import (
    Applied,
    Apply,
    Cancel,
    Defer,
    Drain,
    Emit,
    Emitted,
    Failed,
    Forget,
    Open,
    Opened,
    Process,
    Processed,
    Record,
    Recorded,
    Resume,
    Seal,
    Sealed,
    Stop,
)


def deferring(**policy: Any) -> Played:
    played = Played(**policy)
    played(Defer(True))
    return played


@pytest.mark.rule(3, 23)
def test_a_deferred_transaction_is_sealed_before_anything_is_done_for_it() -> None:
    played = deferring()
    assert played.open(1) == [Seal(attempt(1))]
    assert played(Sealed(attempt(1))) == [Apply(attempt(1))]
    assert played(Applied(attempt(1))) == [Record(attempt(1), None)]
    assert played(Recorded(attempt(1))) == [Forget(attempt(1)), Open(2)]


@pytest.mark.rule(2, 3, 25)
def test_the_next_transaction_waits_and_its_seal_travels_with_the_record_before() -> None:
    played = deferring(max_spout_pending=3)
    assert played.open(1) == [Open(2), Seal(attempt(1))]
    assert played.open(2) == [Open(3)]
    assert played.statuses == {"1:0": "sealing", "2:0": "waiting"}
    played(Sealed(attempt(1)))
    assert played(Applied(attempt(1))) == [Record(attempt(1), attempt(2))]
    assert played(Recorded(attempt(1)))[:2] == [Forget(attempt(1)), Apply(attempt(2))]


@pytest.mark.rule(3)
def test_waiting_transactions_are_processed_side_by_side_once_nothing_is_deferred() -> None:
    played = deferring(max_spout_pending=3)
    played.open(1, 2, 3)
    assert played(Defer(False)) == [Process(attempt(2)), Process(attempt(3))], (
        "the first one has had its turn"
    )
    assert played.statuses == {"1:0": "sealing", "2:0": "processing", "3:0": "processing"}
    assert played(Defer(True)) == [], "what has begun goes on"
    assert played(Processed(attempt(2))) == []


@pytest.mark.rule(6, 7)
def test_a_failed_transaction_is_processed_by_itself_and_those_behind_begin_anew() -> None:
    played = deferring(max_spout_pending=2)
    played.open(1, 2)
    played(Sealed(attempt(1)))
    assert played(Failed(attempt(1), "failed"))[:2] == [Cancel(attempt(2)), Cancel(attempt(1))]
    assert played(Resume(1)) == [Process(attempt(1, 1)), Process(attempt(2, 1))]


@pytest.mark.rule(4)
def test_an_opaque_batch_is_planned_at_once_and_processed_in_its_turn() -> None:
    played = deferring(max_spout_pending=2, opaque=True)
    assert played.open(1) == [Emit(attempt(1))]
    assert played(Emitted(attempt(1))) == [Seal(attempt(1)), Open(2)]
    assert played(Opened(2)) == [Emit(attempt(2))]
    assert played(Emitted(attempt(2))) == []
    assert played.statuses == {"1:0": "sealing", "2:0": "waiting"}


@pytest.mark.rule(4)
def test_a_transaction_whose_metadata_comes_from_emitting_is_never_deferred() -> None:
    played = deferring(emits_metadata=True)
    assert played.open(1) == [Emit(attempt(1))]
    assert played(Emitted(attempt(1))) == [Process(attempt(1))]


def test_a_stop_abandons_waiting_transactions() -> None:
    played = deferring(max_spout_pending=2)
    played.open(1, 2)
    assert played(Drain()) == [Cancel(attempt(2))]
    assert played.commit(1)[-1] == Stop(None, "drained")


@pytest.mark.rule(6)
def test_a_late_answer_of_a_committed_emission_changes_nothing_although_processing_is_deferred() -> (
    None
):
    played = deferring(opaque=True)
    played.open(1)
    played(Emitted(attempt(1)))
    played.commit(1)
    assert played(Emitted(attempt(1))) == []
