"""The table of attempts: each status, and the steps to the next.

Theory of operation. A transaction in the window has exactly one live attempt, and an attempt has
exactly one status::

        ┌──deferred──► WAITING ─────────────turn─────────────────┐
        │                  │ started                             ▼
    EMITTING ──emitted──► PROCESSING ──processed──► PROCESSED ──turn──► SEALING ──sealed──► APPLYING ──applied──► RECORDING ──recorded──► COMMITTED
        │                     │                         │                  │                   │
        └──────failed─────────┴─────────failed──────────┴──────failed──────┴──────failed───────┴────► DISCARDED

*EMITTING* exists only for spouts that learn (or plan) their metadata per attempt. In *WAITING*
nothing has been done yet: the transaction is small, and its commit job will also process it. If the
commit is put off, the attempt is *started* as usual. *turn* is the coordinator's own doing: every
earlier transaction has committed. Between *SEALING* and *COMMITTED* lies the commit phase, in which
at most one attempt applies or records at any time. In *RECORDING* the effects are in the stores, so
nothing can fail the attempt any more: only the state can be lost, which ends the run.

Each txid has one live attempt. An event for any other attempt is *stale*, and changes nothing (R6).
If a live attempt's event has no line in the table, the engine is at fault: ``next_status`` raises,
and changes nothing either.
"""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Where an attempt is."""

    EMITTING = "emitting"
    WAITING = "waiting"
    PROCESSING = "processing"
    PROCESSED = "processed"
    SEALING = "sealing"
    APPLYING = "applying"
    RECORDING = "recording"
    COMMITTED = "committed"
    DISCARDED = "discarded"


class Step(Enum):
    """Triggers that move an attempt from one status to the next."""

    EMITTED = "emitted"
    DEFERRED = "deferred"
    STARTED = "started"
    PROCESSED = "processed"
    TURN = "turn"
    SEALED = "sealed"
    APPLIED = "applied"
    RECORDED = "recorded"
    FAILED = "failed"


TRANSITIONS: dict[tuple[Status, Step], Status] = {
    (Status.EMITTING, Step.EMITTED): Status.PROCESSING,
    (Status.EMITTING, Step.DEFERRED): Status.WAITING,
    (Status.WAITING, Step.STARTED): Status.PROCESSING,
    (Status.WAITING, Step.TURN): Status.SEALING,
    (Status.PROCESSING, Step.PROCESSED): Status.PROCESSED,
    (Status.PROCESSED, Step.TURN): Status.SEALING,
    (Status.SEALING, Step.SEALED): Status.APPLYING,
    (Status.APPLYING, Step.APPLIED): Status.RECORDING,
    (Status.RECORDING, Step.RECORDED): Status.COMMITTED,
    (Status.EMITTING, Step.FAILED): Status.DISCARDED,
    (Status.WAITING, Step.FAILED): Status.DISCARDED,
    (Status.PROCESSING, Step.FAILED): Status.DISCARDED,
    (Status.PROCESSED, Step.FAILED): Status.DISCARDED,
    (Status.SEALING, Step.FAILED): Status.DISCARDED,
    (Status.APPLYING, Step.FAILED): Status.DISCARDED,
}

TURN_MAY_COME = frozenset({Status.WAITING, Status.PROCESSED})
"""An attempt with such a status commits as soon as every earlier attempt has."""

COMMIT_PHASE = frozenset({Status.SEALING, Status.APPLYING, Status.RECORDING})
"""An attempt with such a status has begun to commit: a stop waits for the attempt."""


class IllegalEventError(RuntimeError):
    """An event came for a live attempt whose status does not allow it: the engine's fault, never
    the user's."""

    def __init__(self, attempt: str, status: Status, step: Step) -> None:
        super().__init__(attempt, status, step)
        self.attempt, self.status, self.step = attempt, status, step

    def __str__(self) -> str:
        return f"attempt {self.attempt} is {self.status.value}, and cannot be {self.step.value} now"


def next_status(attempt: str, status: Status, step: Step) -> Status:
    """The status after ``step``. Raises :class:`IllegalEventError` if the table has none."""
    try:
        return TRANSITIONS[status, step]
    except KeyError:
        raise IllegalEventError(attempt, status, step) from None
