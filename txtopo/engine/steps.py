"""Runs an attempt's steps in user code. Each step ends in an event for the coordinator, even if the
step fails.

Runs on: driver, on the threads for the spout, for processing and for commits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from txtopo import errors
from txtopo.coordinator import messages
from txtopo.coordinator.messages import Event
from txtopo.engine.attempts import Attempt, AttemptFailedError, AttemptRunner
from txtopo.engine.loop import Loop
from txtopo.state.topology import TopologyState


class Steps:
    """The steps of attempts in one run."""

    def __init__(self, loop: Loop, runner: AttemptRunner, state: TopologyState) -> None:
        self._loop, self._runner, self._state = loop, runner, state

    def plan(self, work: Attempt) -> Event:
        """Plan the batch, for an opaque spout in every attempt."""
        self._runner.plan(work)
        return messages.Emitted(work.attempt)

    def emit(self, work: Attempt) -> Event:
        """Let the spout emit, and learn the batch's metadata."""
        self._runner.emit(work)
        return messages.Emitted(work.attempt)

    def process(self, work: Attempt) -> Event:
        self._runner.process(work)
        return messages.Processed(work.attempt)

    def apply(self, work: Attempt) -> Event:
        self._loop.surroundings.reach("apply.before", work.attempt.txid)
        self._runner.apply(work, self._loop.conf.zombie_wait_s)
        self._loop.surroundings.reach("apply.after", work.attempt.txid)
        return messages.Applied(work.attempt)

    def run(
        self, step: Callable[[Attempt], Event], work: Attempt, done: Callable[[Event], None]
    ) -> None:
        """Run ``step``, and let the loop call ``done`` with its event."""
        event = self.event_of(step, work)
        self._loop.surroundings.post(functools.partial(done, event))

    def event_of(self, step: Callable[[Attempt], Event], work: Attempt) -> Event:
        """Run ``step``, and return its event. If the step raises, the attempt has failed. An
        unexpected error also ends the run."""
        if work.discarded:
            return messages.Failed(work.attempt, "failed")
        try:
            return step(work)
        except AttemptFailedError as failure:
            work.failure = self.explained(failure)
            return messages.Failed(work.attempt, failure.kind)
        except errors.FailedException as error:
            work.failure = AttemptFailedError("failed", str(error))
            return messages.Failed(work.attempt, "failed")
        except errors.TxtopoError as error:
            if isinstance(error, errors.UserCodeError) and self._loop.conf.on_error == "replay":
                work.failure = AttemptFailedError("failed", str(error))
                return messages.Failed(work.attempt, "failed")
            return refused(work, error)
        except BaseException as error:
            self._loop.surroundings.post(functools.partial(self._loop.stop, error))
            return messages.Failed(work.attempt, "failed")

    def explained(self, failure: AttemptFailedError) -> AttemptFailedError:
        """``failure``, or a lease error if a store refused the attempt because another coordinator
        has taken the topology (R26)."""
        if isinstance(failure.error, errors.StateMismatchError):
            try:
                self._state.require_held()
            except errors.FencedError as error:
                return AttemptFailedError(failure.kind, str(error), error, failure.failure)
            except errors.TxtopoError:
                pass  # ZooKeeper cannot tell now, so the store's error stands.
        return failure


def refused(work: Attempt, error: errors.TxtopoError) -> Event:
    """The event by which ``work`` ends the run with ``error``."""
    work.failure = AttemptFailedError("fatal", str(error), error)
    return messages.Failed(work.attempt, "fatal")
