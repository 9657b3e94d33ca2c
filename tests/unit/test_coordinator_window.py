"""Active transactions: the window, the spout's readiness, and whose metadata is made
when."""

from __future__ import annotations

import pytest

from tests.coordinators import Played, attempt
from txtopo.coordinator.messages import (
    BackOff,
    Drain,
    Emit,
    Emitted,
    Failed,
    Forget,
    NotReady,
    Open,
    Opened,
    Poll,
    Process,
    Processed,
    Resume,
    Stop,
)


@pytest.mark.rule(2)
def test_the_default_window_holds_one_transaction() -> None:
    played = Played()
    assert played.commands == [Open(1)]
    assert played.open(1) == [Process(attempt(1))]


@pytest.mark.rule(2, 3)
def test_the_window_fills_in_txid_order_up_to_pending() -> None:
    played = Played(max_spout_pending=3)
    assert played.commands == [Open(1)]
    assert played.open(1) == [Process(attempt(1)), Open(2)]
    assert played.open(2) == [Process(attempt(2)), Open(3)]
    assert played.open(3) == [Process(attempt(3))]
    assert played.statuses == {"1:0": "processing", "2:0": "processing", "3:0": "processing"}


@pytest.mark.rule(2)
def test_the_window_moves_only_when_its_first_transaction_has_committed() -> None:
    played = Played(max_spout_pending=2)
    played.open(1, 2)
    assert played.process(2) == []
    assert played.coordinator.current == 1
    played.process(1)
    assert played.commit(1)[-1] == Open(3)
    assert played.coordinator.current == 2


@pytest.mark.rule(1)
def test_a_later_epoch_begins_with_its_own_attempt_ids() -> None:
    played = Played(epoch=3, current=5)
    assert played.commands == [Open(5)]
    assert played.open(5) == [Process(attempt(5, 2_000_000))]
    played.fail(5)
    assert played(Resume(5)) == [Process(attempt(5, 2_000_001))]


@pytest.mark.rule(1)
def test_attempts_are_counted_per_txid() -> None:
    played = Played(max_spout_pending=2)
    played.open(1, 2)
    played.fail(1)
    assert played(Resume(1)) == [Process(attempt(1, 1)), Process(attempt(2, 1))]
    played.fail(2)
    assert played(Resume(2)) == [Process(attempt(2, 2))]
    assert played.statuses == {"1:1": "processing", "2:2": "processing"}


@pytest.mark.rule(5)
def test_a_spout_that_is_not_ready_ends_the_scan_until_it_is_polled() -> None:
    played = Played(max_spout_pending=3)
    played.open(1)
    assert played(NotReady(2)) == []
    assert played.process(1)
    assert played.commit(1) == [Forget(attempt(1))], (
        "not even the freed place of the window makes it ask again"
    )
    assert played(Poll()) == [Open(2)]


@pytest.mark.rule(5, 20)
def test_an_opaque_spout_that_said_no_before_an_attempt_was_discarded_is_asked_again() -> None:
    played = Played(max_spout_pending=2, opaque=True)
    played.open(1)
    assert played(Emitted(attempt(1))) == [Process(attempt(1)), Open(2)]
    played.fail(1)
    assert played(NotReady(2)) == []
    played(Resume(1), Emitted(attempt(1, 1)))
    assert played.commands == [Process(attempt(1, 1)), Open(2)], (
        "the replay may end earlier, and leave a rest to transaction 2"
    )


@pytest.mark.rule(5)
def test_a_not_ready_about_metadata_of_every_replay_stands_after_a_discarded_attempt() -> None:
    played = Played(max_spout_pending=2)
    played.open(1)
    played.fail(1)
    assert played(NotReady(2)) == []
    assert played(Resume(1)) == [Process(attempt(1, 1))]


@pytest.mark.rule(5)
def test_a_poll_while_the_spout_is_being_asked_asks_nothing_more() -> None:
    played = Played(max_spout_pending=3)
    assert played(Poll()) == []
    assert played(NotReady(1)) == []
    assert played(Poll()) == [Open(1)]


@pytest.mark.rule(5)
def test_the_spout_is_never_asked_about_a_replay() -> None:
    played = Played(max_spout_pending=2)
    played.open(1, 2)
    played.fail(1)
    assert played(Resume(1)) == [Process(attempt(1, 1)), Process(attempt(2, 1))]


@pytest.mark.rule(5, 23)
def test_the_spout_is_never_asked_about_transactions_that_survived_a_restart() -> None:
    played = Played(epoch=2, current=4, known=(3, 4, 5), max_spout_pending=3)
    assert played.commands == [
        Process(attempt(4, 1_000_000)),
        Process(attempt(5, 1_000_000)),
        Open(6),
    ]


@pytest.mark.rule(2, 23)
def test_transactions_beyond_a_smaller_window_after_a_restart_wait_for_their_place() -> None:
    played = Played(current=4, known=(4, 5, 6), max_spout_pending=2)
    assert played.commands == [Process(attempt(4)), Process(attempt(5))]
    played.process(4)
    assert played.commit(4) == [Forget(attempt(4)), Process(attempt(6))]


@pytest.mark.rule(5)
def test_no_new_transaction_is_asked_for_while_an_earlier_one_backs_off() -> None:
    played = Played(max_spout_pending=3)
    played.open(1)
    played.fail(1)
    assert played(Opened(2)) == []
    assert played(Poll()) == []
    assert played(Resume(1)) == [Process(attempt(1, 1)), Process(attempt(2)), Open(3)]


@pytest.mark.rule(5)
def test_a_slow_answer_of_the_spout_delays_opening_and_never_a_commit() -> None:
    played = Played(max_spout_pending=2)
    played.open(1)
    played.process(1)
    assert played.commit(1) == [Forget(attempt(1))]
    assert played.open(2) == [Process(attempt(2)), Open(3)]


@pytest.mark.rule(5, 6)
@pytest.mark.parametrize(
    "late", [Opened(1), Opened(3), NotReady(1), NotReady(3), Resume(1), Resume(2)]
)
def test_an_answer_about_a_txid_that_is_not_being_asked_about_changes_nothing(
    late: Opened | NotReady | Resume,
) -> None:
    played = Played(max_spout_pending=2)
    played.open(1)
    before = played.statuses
    assert played(late) == []
    assert played.statuses == before
    assert played.open(2) == [Process(attempt(2))]


@pytest.mark.rule(4)
def test_a_spout_that_learns_by_emitting_emits_one_transaction_at_a_time_in_order() -> None:
    played = Played(max_spout_pending=3, emits_metadata=True)
    assert played.open(1) == [Emit(attempt(1))]
    assert played(Emitted(attempt(1))) == [Process(attempt(1)), Open(2)]
    assert played.open(2) == [Emit(attempt(2))]
    assert played.process(1)
    assert played.commit(1) == [Forget(attempt(1))], (
        "where transaction 3 begins is not known before 2 is emitted"
    )
    assert played(Emitted(attempt(2))) == [Process(attempt(2)), Open(3)]


@pytest.mark.rule(4)
def test_metadata_learnt_once_is_used_by_every_replay() -> None:
    played = Played(emits_metadata=True)
    played.open(1)
    played.fail(1)
    assert played(Resume(1)) == [Emit(attempt(1, 1))], (
        "this attempt died before it had learnt anything"
    )
    played(Emitted(attempt(1, 1)))
    played.fail(1)
    assert played(Resume(1)) == [Process(attempt(1, 2))]


@pytest.mark.rule(4)
def test_a_failed_emission_lets_nothing_later_emit_before_it_is_repeated() -> None:
    played = Played(max_spout_pending=3, emits_metadata=True)
    played.open(1)
    played(Emitted(attempt(1)))
    played.open(2)
    played.fail(2)
    assert played.statuses == {"1:0": "processing"}
    assert played(Resume(2)) == [Emit(attempt(2, 1))]
    assert played(Emitted(attempt(2, 1))) == [Process(attempt(2, 1)), Open(3)]


@pytest.mark.rule(4, 23)
def test_after_a_restart_stored_metadata_is_processed_and_the_rest_is_emitted() -> None:
    played = Played(current=2, known=(2,), max_spout_pending=2, emits_metadata=True)
    assert played.commands == [Process(attempt(2)), Open(3)]
    assert played.open(3) == [Emit(attempt(3))]


@pytest.mark.rule(4)
def test_opaque_metadata_is_made_anew_for_every_attempt_in_order() -> None:
    played = Played(max_spout_pending=2, opaque=True)
    assert played.open(1) == [Emit(attempt(1))]
    assert played(Emitted(attempt(1))) == [Process(attempt(1)), Open(2)]
    assert played.open(2) == [Emit(attempt(2))]
    played(Emitted(attempt(2)))
    assert played.fail(1)[-1] == BackOff(1, 1)
    assert played(Resume(1)) == [Emit(attempt(1, 1))], (
        "2 begins where the attempt of 1 now in use ended"
    )
    assert played(Emitted(attempt(1, 1))) == [Process(attempt(1, 1)), Emit(attempt(2, 1))]


@pytest.mark.rule(9)
def test_a_batch_of_any_content_is_a_transaction() -> None:
    """The coordinator knows nothing of tuples: every opened transaction gets committed."""
    played = Played()
    played.open(1)
    assert played(Processed(attempt(1)))
    assert played.commit(1) == [Forget(attempt(1)), Open(2)]


def test_idle_is_nothing_in_flight_and_a_spout_that_said_no() -> None:
    played = Played()
    idle = [played.coordinator.idle]
    for event in (NotReady(1), Poll(), Opened(1), Failed(attempt(1), "failed"), Resume(1)):
        played(event)
        idle.append(played.coordinator.idle)
    assert idle == [False, True, False, False, False, False], (
        "being asked, idle, asked again, processing, backing off, processing again"
    )


def test_the_last_transaction_of_a_run_is_the_last_to_be_opened() -> None:
    played = Played(max_spout_pending=5, last_txid=2)
    played.open(1)
    assert played.open(2) == [Process(attempt(2))]
    played.process(1, 2)
    played.commit(1)
    assert played.commit(2) == [Forget(attempt(2)), Stop(None, "done")]


def test_a_run_that_is_done_before_it_starts_stops_at_once() -> None:
    assert Played(current=3, last_txid=2).commands == [Stop(None, "done")]


def test_a_drained_run_with_nothing_in_flight_stops_at_once() -> None:
    played = Played()
    assert played(Drain()) == [Stop(None, "drained")]
    assert played.open(1) == []
