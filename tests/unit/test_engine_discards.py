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
from txtopo.engine.commit_writes import Commits
from txtopo.engine.engine import Engine
from txtopo.engine.steps import Steps

OLD, LIVE = TransactionAttempt(2, 0), TransactionAttempt(2, 1)


class Noted:
    """Stands for everything the engine tells: keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def learnt(self, attempt: TransactionAttempt, metadata: Any) -> None:
        self.told.append((attempt, metadata))


def attempts() -> dict[TransactionAttempt, Any]:
    """The work of ``LIVE``, and the work of ``OLD``, which still runs though it is discarded."""
    return {
        attempt: SimpleNamespace(
            attempt=attempt, discarded=attempt == OLD, metadata=f"of {attempt}"
        )
        for attempt in (OLD, LIVE)
    }


def engine(status: Status, noted: Noted) -> Any:
    """An engine whose live attempt of transaction 2 is ``LIVE``."""
    bare: Any = object.__new__(Engine)
    bare._coordinator = SimpleNamespace(active={2: (LIVE, status)})
    bare._attempts, bare._batches = attempts(), noted
    bare._handle = lambda event: None
    return bare


@pytest.mark.rule(4, 6)
def test_a_plan_of_a_discarded_attempt_does_not_decide_the_batch() -> None:
    noted = Noted()
    subject = engine(Status.EMITTING, noted)
    subject._emitted(messages.Emitted(OLD))
    assert noted.told == []
    subject._emitted(messages.Emitted(LIVE))
    assert noted.told == [(LIVE, f"of {LIVE}")]
    engine(Status.PROCESSING, noted)._emitted(messages.Emitted(LIVE))
    assert len(noted.told) == 1, "learnt twice"


@pytest.mark.rule(6)
def test_a_discarded_attempt_that_waits_for_its_thread_is_not_worked_on() -> None:
    steps: Any = object.__new__(Steps)
    ran = list[TransactionAttempt]()

    def step(work: Any) -> Event:
        ran.append(work.attempt)
        return messages.Processed(work.attempt)

    assert steps.event_of(step, attempts()[OLD]) == messages.Failed(OLD, "failed")
    assert steps.event_of(step, attempts()[LIVE]) == messages.Processed(LIVE)
    assert ran == [LIVE]


@pytest.mark.rule(6, 23)
def test_a_discarded_attempt_is_not_sealed() -> None:
    posted = list[Event]()
    commits: Any = object.__new__(Commits)
    commits._loop = SimpleNamespace(post=posted.append)
    commits._write_seal = lambda work: messages.Sealed(work.attempt)
    commits.seal(attempts()[OLD])
    commits.seal(attempts()[LIVE])
    assert posted == [messages.Sealed(LIVE)]


@pytest.mark.rule(6)
def test_a_cancelled_attempt_is_discarded_before_its_end_is_told() -> None:
    """Its thread may begin the next step at any moment."""
    subject, noted = engine(Status.PROCESSING, Noted()), list[bool]()
    work = subject._attempts[LIVE]
    work.failure = None
    subject._coordinator = SimpleNamespace(doomed=None, stopping=False)
    subject._loop = SimpleNamespace(
        tell=lambda fact: noted.append(work.discarded), observers=[None]
    )
    subject._timelines = SimpleNamespace(ended=lambda *arguments, **flags: None)
    subject._surroundings = SimpleNamespace(now=lambda: 0.0)
    subject._failing = None
    subject._batches = SimpleNamespace(discard=lambda attempt: noted.append(work.discarded))
    subject._runner = SimpleNamespace(cancel=lambda work: None)
    subject._cancel(LIVE)
    assert noted == [True, True]
