"""The identity of a try at a transaction."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from txtopo import INIT_TXID, TransactionAttempt
from txtopo.topology import transaction
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH


@pytest.mark.rule(1)
def test_txids_begin_at_one() -> None:
    assert INIT_TXID == 1


@pytest.mark.rule(1)
def test_the_first_run_counts_attempts_from_zero() -> None:
    assert [transaction.attempt_id(1, n) for n in range(3)] == [0, 1, 2]


@pytest.mark.rule(1)
def test_a_later_epoch_has_larger_attempt_ids_than_every_try_of_an_earlier_one() -> None:
    assert transaction.attempt_id(2, 0) == 1_000_000
    assert transaction.attempt_id(3, 4) == 2_000_004
    assert transaction.attempt_id(2, 0) > transaction.attempt_id(1, ATTEMPTS_PER_EPOCH - 1)


@pytest.mark.rule(1)
@pytest.mark.parametrize("n", [-1, ATTEMPTS_PER_EPOCH])
def test_a_try_beyond_the_epoch_is_refused_instead_of_reusing_an_id(n: int) -> None:
    with pytest.raises(OverflowError, match=str(n)):
        transaction.attempt_id(1, n)


def test_an_attempt_prints_as_txid_and_attempt_id() -> None:
    assert str(TransactionAttempt(7, 1_000_002)) == "7:1000002"


def test_attempts_are_ordered_by_txid_and_then_by_age() -> None:
    attempts = [TransactionAttempt(2, 0), TransactionAttempt(1, 5), TransactionAttempt(1, 0)]
    assert sorted(attempts) == [
        TransactionAttempt(1, 0),
        TransactionAttempt(1, 5),
        TransactionAttempt(2, 0),
    ]


def test_equal_attempts_are_one_key_and_survive_pickling() -> None:
    attempt = TransactionAttempt(3, 1)
    assert {attempt: "a"}[TransactionAttempt(3, 1)] == "a"
    assert pickle.loads(pickle.dumps(attempt)) == attempt


def test_an_attempt_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransactionAttempt(1, 0).txid = 2  # type: ignore[misc]
