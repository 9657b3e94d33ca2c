"""Writes an attempt's seal before its effects, and its record after them.

Runs on: driver, on the commit thread, in the order of the calls. If a seal or a record fails, the
commit thread stops and the run is killed. Then the state is lost or belongs to another coordinator,
so no more writes are allowed, and nothing is drained.

Invariants: a transaction that could not be recorded gets no seal.
"""

from __future__ import annotations

from dataclasses import dataclass

from txtopo import errors
from txtopo.coordinator import messages
from txtopo.coordinator.messages import Event
from txtopo.engine.attempts import Attempt
from txtopo.engine.batches import Batches
from txtopo.engine.loop import Loop
from txtopo.engine.steps import refused
from txtopo.state.topology import Seal, TopologyState


@dataclass(eq=False)
class Commits:
    """One run's seals and records."""

    _loop: Loop
    _state: TopologyState
    _batches: Batches

    def seal(self, work: Attempt) -> None:
        """Write the seal of ``work``, unless ``work`` is discarded meanwhile."""
        if not work.discarded:
            self._loop.post(self._write_seal(work))

    def _write_seal(self, work: Attempt) -> Event:
        """Make durable that effects may exist, unless the attempt could never be recorded."""
        try:
            seal = self._seal_of(work)
            self._state.seal(seal.attempt, seal.tasks, seal.metadata, seal.opened_at)
        except errors.BatchTooLargeError as error:
            return refused(work, error)
        self._loop.surroundings.reach("seal.after", work.attempt.txid)
        return messages.Sealed(work.attempt)

    def record(self, work: Attempt, following: Attempt | None) -> None:
        """Record ``work`` and, in the same write, seal ``following``."""
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
