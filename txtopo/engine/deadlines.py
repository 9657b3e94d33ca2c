"""Watches attempts from the moment that a job goes to Spark: a time-out fails the attempt (R8), and a
job too long for a small transaction ends the savings of small transactions.

Runs on: driver, the engine's loop.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from txtopo.coordinator import messages
from txtopo.coordinator.coordinator import TransactionCoordinator
from txtopo.coordinator.transitions import Status
from txtopo.engine.attempts import Attempt, AttemptFailedError
from txtopo.engine.jobs import Jobs
from txtopo.engine.loop import Loop
from txtopo.engine.pace import Pace
from txtopo.topology.transaction import TransactionAttempt

LATE_S = 0.25
"""A longer job belongs to no small transaction, even if its tasks report short times."""


@dataclass(eq=False)
class Deadlines:
    """Deadlines for one run's attempts."""

    _loop: Loop
    _coordinator: TransactionCoordinator
    _pace: Pace
    _attempts: Mapping[TransactionAttempt, Attempt]
    _jobs: Jobs
    _defers: bool = False

    def start(self, attempt: TransactionAttempt) -> None:
        """From any thread: a job of ``attempt`` goes to Spark now. The attempt fails if it is still
        in its present status ``message_timeout_s`` later."""
        surroundings = self._loop.surroundings
        deadline = surroundings.now() + self._loop.conf.message_timeout_s
        surroundings.post(functools.partial(self._watch, attempt, deadline))

    def _watch(self, attempt: TransactionAttempt, deadline: float) -> None:
        live, surroundings = self._coordinator.active.get(attempt.txid), self._loop.surroundings
        if live is not None and live[0] == attempt:
            if self._pace.is_small:
                # Other transactions need not wait for the delayed transaction.
                surroundings.after(LATE_S, functools.partial(self._late, attempt, live[1]))
            surroundings.after(
                deadline - surroundings.now(), functools.partial(self._time_out, attempt, live[1])
            )

    def _late(self, attempt: TransactionAttempt, status: Status) -> None:
        """Begin deferred jobs, because a job takes too long for a small transaction."""
        if self._coordinator.active.get(attempt.txid) == (attempt, status):
            self._pace.late()
            self.set_pace()

    def set_pace(self) -> None:
        """Tell the coordinator when processing begins or ceases to be deferred."""
        if self._pace.defers != self._defers:
            self._defers = self._pace.defers
            self._loop.handle(messages.Defer(self._defers))

    def _time_out(self, attempt: TransactionAttempt, status: Status) -> None:
        if self._coordinator.active.get(attempt.txid) == (attempt, status):
            timeout_s, work = self._loop.conf.message_timeout_s, self._attempts[attempt]
            text = f"attempt {attempt} was {status.value} for longer than message_timeout_s = {timeout_s}"
            text += self._jobs.places(list(work.groups)[-1])
            work.failure = AttemptFailedError("timeout", text)
            self._loop.handle(messages.Failed(attempt, "timeout"))
