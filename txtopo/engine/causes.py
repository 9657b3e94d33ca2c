"""Remembers why attempts failed, until their transactions commit, and makes the error that ends a
run.

Runs on: driver, the engine's loop.
"""

from __future__ import annotations

from txtopo import errors
from txtopo.engine.attempts import AttemptFailedError
from txtopo.topology.transaction import TransactionAttempt


class Causes:
    """Failures by attempt, for transactions that are not committed."""

    def __init__(self) -> None:
        self._failures: dict[TransactionAttempt, AttemptFailedError] = {}
        self.unopenable: BaseException | None = None
        """Why a transaction could not be opened."""

    def add(self, attempt: TransactionAttempt, failure: AttemptFailedError) -> None:
        self._failures[attempt] = failure

    def forget(self, txid: int) -> None:
        """Forget failures up to ``txid``, which has committed."""
        self._failures = {
            attempt: failure for attempt, failure in self._failures.items() if attempt.txid > txid
        }

    def error(
        self, cause: TransactionAttempt | None, reason: str, count: int
    ) -> BaseException | None:
        """The error for a run that the coordinator stops because of ``cause``. None for a regular
        end. Arguments as in ``messages.Stop``."""
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
