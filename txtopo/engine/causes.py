"""Causes of failed attempts, until their transactions commit; and the message of a run that stops
because of a cause.

Apart from the engine because this module decides nothing.

Runs on: driver, the engine's loop.
"""

from __future__ import annotations

from txtopo import errors
from txtopo.engine.attempts import AttemptFailedError
from txtopo.topology.transaction import TransactionAttempt


class Causes:
    """The failure of each attempt of the transactions that are not committed."""

    def __init__(self) -> None:
        self._failures: dict[TransactionAttempt, AttemptFailedError] = {}
        self.unopenable: BaseException | None = None
        """Why a transaction could not be opened."""

    def add(self, attempt: TransactionAttempt, failure: AttemptFailedError) -> None:
        """Remember why ``attempt`` failed."""
        self._failures[attempt] = failure

    def forget(self, txid: int) -> None:
        """``txid``, and all before it, have committed."""
        self._failures = {
            attempt: failure for attempt, failure in self._failures.items() if attempt.txid > txid
        }

    def error(
        self, cause: TransactionAttempt | None, reason: str, count: int
    ) -> BaseException | None:
        """The error that ends a run which the coordinator stops because of ``cause``; None for a
        regular end. Arguments as in ``messages.Stop``."""
        if reason == "unopenable":
            return self.unopenable
        if cause is None:
            return None
        failure = self._failures.get(cause)
        text = failure.text if failure is not None else "unknown"
        if reason == "poison":
            return errors.PoisonBatchError(cause.txid, count, text)
        if reason == "crashes":
            return errors.WorkerCrashError(cause.txid, count, text)
        return (
            failure.error
            if failure is not None and failure.error is not None
            else errors.TxtopoError(text)
        )
