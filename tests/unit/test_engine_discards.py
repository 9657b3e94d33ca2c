"""Work begun for an attempt that is discarded meanwhile has no further effect, and its metadata
decides nothing (R6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from txtopo import TransactionAttempt
from txtopo.coordinator import messages
from txtopo.coordinator.messages import Event
from txtopo.coordinator.transitions import Status
from txtopo.engine.engine import Engine

OLD, LIVE = TransactionAttempt(2, 0), TransactionAttempt(2, 1)


class Noted:
    """Stands for everything the engine tells: keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def learnt(self, attempt: TransactionAttempt, metadata: Any) -> None:
        self.told.append((attempt, metadata))

    def seal(self, work: Any) -> Event:
        self.told.append(work.attempt)
        return messages.Sealed(work.attempt)


def engine(status: Status, noted: Noted) -> Any:
    """An engine whose live attempt of transaction 2 is ``LIVE``, while the work of ``OLD`` still
    runs."""
    bare: Any = object.__new__(Engine)
    bare._coordinator = SimpleNamespace(active={2: (LIVE, status)})
    bare._attempts = {
        attempt: SimpleNamespace(
            attempt=attempt, discarded=attempt == OLD, metadata=f"of {attempt}"
        )
        for attempt in (OLD, LIVE)
    }
    bare._batches = bare._writes = noted
    bare._post = lambda event: None
    return bare


@pytest.mark.rule(4, 6)
def test_a_plan_of_a_discarded_attempt_does_not_decide_the_batch() -> None:
    noted = Noted()
    subject = engine(Status.EMITTING, noted)
    subject._learn(messages.Emitted(OLD))
    assert noted.told == []
    subject._learn(messages.Emitted(LIVE))
    assert noted.told == [(LIVE, f"of {LIVE}")]
    engine(Status.PROCESSING, noted)._learn(messages.Emitted(LIVE))
    assert len(noted.told) == 1, "learnt twice"


@pytest.mark.rule(6)
def test_a_discarded_attempt_that_waits_for_its_thread_is_not_worked_on() -> None:
    subject, ran = engine(Status.PROCESSING, Noted()), list[TransactionAttempt]()

    def job(attempt: TransactionAttempt) -> Event:
        ran.append(attempt)
        return messages.Processed(attempt)

    assert subject._event_of(OLD, lambda: job(OLD)) == messages.Failed(OLD, "failed")
    assert subject._event_of(TransactionAttempt(1, 0), lambda: job(OLD)) == messages.Failed(
        TransactionAttempt(1, 0), "failed"
    )
    assert subject._event_of(LIVE, lambda: job(LIVE)) == messages.Processed(LIVE)
    assert ran == [LIVE]


@pytest.mark.rule(6, 23)
def test_a_discarded_attempt_is_not_sealed() -> None:
    noted = Noted()
    subject = engine(Status.SEALING, noted)
    subject._seal(subject._attempts[OLD])
    subject._seal(subject._attempts[LIVE])
    assert noted.told == [LIVE]
