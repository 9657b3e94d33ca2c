"""Attempts: the identities and numbers of tries (R1).

Every layer names attempts, and no layer may extend them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INIT_TXID = 1
"""A topology's first transaction id. Ids grow by one, without gaps (Storm:
TransactionalSpoutCoordinator.INIT_TXID)."""

ATTEMPTS_PER_EPOCH = 1_000_000
"""How many attempts one txid may have in one epoch. Attempt ids of a later epoch are therefore
always larger (R1)."""


@dataclass(frozen=True, order=True, slots=True)
class TransactionAttempt:
    """One try at one transaction: ``txid`` names the batch for ever, ``attempt_id`` the try.

    Every tuple of a topology carries its attempt as value 0. A replay has the same ``txid`` and a
    larger ``attempt_id``, so of two attempts of one txid the larger is newer.
    """

    txid: int
    attempt_id: int

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt_id}"

    def __reduce__(self) -> tuple[Any, ...]:
        # A frozen dataclass with slots would look up its fields for each pickle.
        return type(self), (self.txid, self.attempt_id)


@dataclass(frozen=True, order=True, slots=True)
class RecordedAttempt(TransactionAttempt):
    """A recorded attempt, as a store knows it. ``count`` is how many store transactions the
    attempt's tasks committed there (R34)."""

    count: int

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.txid, self.attempt_id, self.count)


def count_of(attempt: TransactionAttempt) -> int | None:
    """How many store transactions were recorded with ``attempt``. None if they were not counted."""
    return attempt.count if isinstance(attempt, RecordedAttempt) else None


def try_of(attempt: TransactionAttempt) -> int:
    """The try's number (0, 1, 2 …) in its epoch."""
    return attempt.attempt_id % ATTEMPTS_PER_EPOCH


def is_first_try(attempt: TransactionAttempt) -> bool:
    """Whether ``attempt`` is the first in its epoch."""
    return try_of(attempt) == 0


def first_attempt_id(attempt: TransactionAttempt) -> int:
    """The id of the first try in the same epoch."""
    return attempt.attempt_id - try_of(attempt)


def attempt_id(epoch: int, n: int) -> int:
    """The id of the ``n``-th try (0, 1, 2 …) of a txid, if the coordinator holds ``epoch`` (1, 2, 3
    …)."""
    if not 0 <= n < ATTEMPTS_PER_EPOCH:
        raise OverflowError(
            f"a transaction may be tried {ATTEMPTS_PER_EPOCH} times in one epoch, and this would be try {n}"
        )
    return (epoch - 1) * ATTEMPTS_PER_EPOCH + n
