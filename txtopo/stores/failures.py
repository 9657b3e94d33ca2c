"""The five errors for a database that fails, in the same words for every database.

Each database's own module knows its error codes. Runs on executors: standard library only.
"""

from __future__ import annotations

from txtopo import errors

_KEPT = "Nothing of the transaction is kept. See the server's log."
_ROOM = "Nothing of the transaction is kept. Make room, and run again."


def busy(address: str, why: str) -> errors.FailedException:
    """The database is in use. A replay may succeed."""
    return errors.FailedException(f"the store {address} is busy: {why}")


def unreachable(address: str, why: str) -> errors.FailedException:
    """The server does not answer. A replay may succeed."""
    return errors.FailedException(f"the store {address} is not there: {why}")


def unusable(address: str, why: str, cure: str) -> errors.SetupError:
    """A person must mend the setup."""
    return errors.SetupError(f"the store {address} cannot be used: {why}\n  {cure}")


def full(address: str, why: str) -> errors.TxtopoError:
    """The database has no room."""
    return errors.TxtopoError(f"the store {address} cannot grow: {why}\n  {_ROOM}")


def failed(address: str, why: str, cure: str = _KEPT) -> errors.TxtopoError:
    """A database error whose meaning txtopo does not know."""
    return errors.TxtopoError(f"the store {address} failed: {why}\n  {cure}")
