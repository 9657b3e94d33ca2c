"""The two writes of a commit: the seal before its effects, the record after them.

Apart from the engine because a restart relies on these writes, and none of them depends on the
moment at which it is done.

Runs on: driver, on the commit thread.

Invariants: no seal is written for a transaction that could not be recorded.
"""

from __future__ import annotations

from collections.abc import Callable

from txtopo import errors
from txtopo.coordinator import messages
from txtopo.coordinator.messages import Event
from txtopo.engine.attempts import Attempt, AttemptFailedError
from txtopo.engine.batches import Batches
from txtopo.engine.surroundings import Surroundings
from txtopo.state.topology import Seal, TopologyState


class CommitWrites:
    """Those of one run."""

    def __init__(self, state: TopologyState, batches: Batches, surroundings: Surroundings) -> None:
        self._state, self._batches, self._surroundings = state, batches, surroundings

    def seal(self, work: Attempt) -> Event:
        """ "Effects may exist" becomes durable, unless the attempt could never be recorded."""
        txid = work.attempt.txid
        self._surroundings.reach("seal.before", txid)
        try:
            self._state.require_recordable(txid, self._batches.moved(txid))
            self._state.seal(
                work.attempt,
                work.task_counts,
                self._batches.metadata(txid),
                self._batches.opened_at(txid),
            )
        except errors.BatchTooLargeError as error:
            return refused(work, error)
        self._surroundings.reach("seal.after", txid)
        return messages.Sealed(work.attempt)

    def record(
        self, work: Attempt, following: Attempt | None, tell: Callable[[Event], None]
    ) -> Event:
        """The commit becomes durable, and with it the seal of ``following``; ``tell`` hears if that
        is refused."""
        txid = work.attempt.txid
        self._surroundings.reach("record.before", txid)
        next_seal = None if following is None else self._seal_for(following, tell)
        self._state.record(work.attempt, self._batches.moved(txid), work.stores, next_seal)
        self._surroundings.reach("record.after", txid)
        if next_seal is not None:
            self._surroundings.reach("seal.after", next_seal.attempt.txid)
        return messages.Recorded(work.attempt)

    def _seal_for(self, following: Attempt, tell: Callable[[Event], None]) -> Seal | None:
        """The seal of the next transaction, for the same write; if it could never be recorded, it
        fails before effects of it can exist."""
        txid = following.attempt.txid
        self._surroundings.reach("seal.before", txid)
        seal = Seal(
            following.attempt,
            following.task_counts,
            self._batches.metadata(txid),
            self._batches.opened_at(txid),
        )
        try:
            self._state.require_recordable(txid, self._batches.moved(txid))
        except errors.BatchTooLargeError as error:
            tell(refused(following, error))
            return None
        return seal


def refused(work: Attempt, error: errors.TxtopoError) -> Event:
    """``work`` ends the run with ``error``."""
    work.failure = AttemptFailedError("fatal", str(error), error)
    return messages.Failed(work.attempt, "fatal")
