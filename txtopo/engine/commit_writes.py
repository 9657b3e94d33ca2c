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
        txid = work.attempt.txid
        self._loop.surroundings.reach("seal.before", txid)
        try:
            self._state.require_recordable(txid, self._batches.moves(txid))
            self._state.seal(
                work.attempt,
                work.task_counts,
                self._batches.metadata(txid),
                self._batches.opened_at(txid),
            )
        except errors.BatchTooLargeError as error:
            return refused(work, error)
        self._loop.surroundings.reach("seal.after", txid)
        return messages.Sealed(work.attempt)

    def _record(self, work: Attempt, following: Attempt | None) -> None:
        """Make the commit durable, and with it the seal of ``following``."""
        txid = work.attempt.txid
        self._loop.surroundings.reach("record.before", txid)
        next_seal = None if following is None else self._seal_for(following)
        self._state.record(work.attempt, self._batches.moves(txid), work.stores, next_seal)
        self._loop.surroundings.reach("record.after", txid)
        if next_seal is not None:
            self._loop.surroundings.reach("seal.after", next_seal.attempt.txid)
        self._loop.post(messages.Recorded(work.attempt))

    def _seal_for(self, following: Attempt) -> Seal | None:
        """The next transaction's seal, for the same write. A transaction that could never be
        recorded fails here, before it can have effects."""
        txid = following.attempt.txid
        self._loop.surroundings.reach("seal.before", txid)
        seal = Seal(
            following.attempt,
            following.task_counts,
            self._batches.metadata(txid),
            self._batches.opened_at(txid),
        )
        try:
            self._state.require_recordable(txid, self._batches.moves(txid))
        except errors.BatchTooLargeError as error:
            self._loop.post(refused(following, error))
            return None
        return seal
