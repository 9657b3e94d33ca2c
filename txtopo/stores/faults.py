"""The five sentences about a database that fails, as the errors of txtopo.

Apart from the modules of databases, which know the codes of their errors: a code differs from
database to database, the sentence does not. Runs on executors: standard library only.
"""

from __future__ import annotations

from txtopo import errors

_KEPT = "Nothing of this transaction is kept. See the server's log."
_ROOM = "Nothing of the transaction is kept. Make room; run again."


def busy(address: str, why: str) -> errors.FailedException:
    """The database is in use; a replay may succeed."""
    return errors.FailedException(f"the store {address} is busy: {why}")


def unreachable(address: str, why: str) -> errors.FailedException:
    """The server does not answer; a replay may succeed."""
    return errors.FailedException(f"the store {address} is not there: {why}")


def unusable(address: str, why: str, cure: str) -> errors.SetupError:
    """A person must mend the setup."""
    return errors.SetupError(f"the store {address} cannot be used: {why}\n  {cure}")


def full(address: str, why: str, cure: str = _ROOM) -> errors.TxtopoError:
    """The database has no room."""
    return errors.TxtopoError(f"the store {address} cannot grow: {why}\n  {cure}")


def failed(address: str, why: str, cure: str = _KEPT) -> errors.TxtopoError:
    """An error of the database without a meaning known to txtopo."""
    return errors.TxtopoError(f"the store {address} failed: {why}\n  {cure}")
