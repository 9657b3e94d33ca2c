"""Commits attempts: first the seal, then the effects, then the record.

Runs on: driver, on the commit thread, in the order of the calls. If a seal or a record fails, the
commit thread stops and the run is killed. Then the state is lost or belongs to another coordinator,
so no more writes are allowed, and nothing is drained.

Invariants: a transaction that could not be recorded gets no seal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from txtopo import errors
from txtopo.coordinator import messages
from txtopo.coordinator.messages import Event
from txtopo.engine.attempts import Attempt
from txtopo.engine.batches import Batches
from txtopo.engine.loop import Loop
from txtopo.engine.steps import Steps, refused
from txtopo.engine.surroundings import Threads
from txtopo.state.topology import Seal, TopologyState


@dataclass(eq=False)
class Commits:
    """One run's commits."""

    _loop: Loop
    _thread: Threads
    _state: TopologyState
    _batches: Batches
    _steps: Steps
    _applied: Callable[[Event], None]
    """The loop calls it when effects are written or have failed."""

    def seal(self, work: Attempt) -> None:
        """Write the seal of ``work``, unless ``work`` is discarded meanwhile."""
        self._thread.submit(functools.partial(self._seal, work))

    def apply(self, work: Attempt) -> None:
        """Let ``work``'s committers write."""
        self._thread.submit(functools.partial(self._apply, work))

    def record(self, work: Attempt, following: Attempt | None) -> None:
        """Record ``work`` and, in the same write, seal ``following``."""
        self._thread.submit(functools.partial(self._record, work, following))

    def _seal(self, work: Attempt) -> None:
        if not work.discarded:
            self._loop.post(self._write_seal(work))

    def _apply(self, work: Attempt) -> None:
        event = self._steps.event_of(self._steps.apply, work)
        self._loop.surroundings.post(functools.partial(self._applied, event))

    def _write_seal(self, work: Attempt) -> Event:
        """Make durable that effects may exist, unless the attempt could never be recorded."""
        try:
            seal = self._seal_of(work)
            self._state.seal(seal.attempt, seal.tasks, seal.metadata, seal.opened_at)
        except errors.BatchTooLargeError as error:
            return refused(work, error)
        self._loop.surroundings.reach("seal.after", work.attempt.txid)
        return messages.Sealed(work.attempt)

    def _record(self, work: Attempt, following: Attempt | None) -> None:
        """Make the commit durable, and with it the seal of ``following``."""
        txid = work.attempt.txid
        self._loop.surroundings.reach("record.before", txid)
        next_seal = None
        if following is not None:
            try:
                next_seal = self._seal_of(following)
            except errors.BatchTooLargeError as error:
                self._loop.post(refused(following, error))
        self._state.record(work.attempt, self._batches.moves(txid), work.stores, next_seal)
        self._loop.surroundings.reach("record.after", txid)
        if next_seal is not None:
            self._loop.surroundings.reach("seal.after", next_seal.attempt.txid)
        self._loop.post(messages.Recorded(work.attempt))

    def _seal_of(self, work: Attempt) -> Seal:
        """The seal of ``work``.

        :raises errors.BatchTooLargeError: the attempt could never be recorded. It has no effects
            yet.
        """
        txid = work.attempt.txid
        self._loop.surroundings.reach("seal.before", txid)
        self._state.require_recordable(txid, self._batches.moves(txid))
        return Seal(
            work.attempt,
            work.task_counts,
            self._batches.metadata(txid),
            self._batches.opened_at(txid),
        )
