"""Translates PostgreSQL's errors: a passing error fails the attempt, an error for a person names
the cure.

The table goes by SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html). While
connecting, libpq gives no SQLSTATE, and the server's message decides. An unknown message counts as
passing: a waiting run shows the reason, and a person can stop the run.

Invariants:
    - Every error raised is from ``txtopo.errors``: a process that unpickles an error needs no
      driver.
    - A message quotes the server or libpq, which repeat no password. A message never holds a
      statement or its parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import sqlalchemy as sa

from txtopo.stores import failures

_BUSY = {
    "40001": "transactions got in each other's way",
    "53200": "the server is out of memory",
    "53300": "the server has too many connections: raise max_connections, or use fewer executor cores",
    "53400": "the server has reached a configured limit",
    "55P03": "it waited for a lock longer than lock_timeout_s",
    "57014": "a statement took longer than statement_timeout_s, or was cancelled",
    "25P04": "the transaction took longer than the server allows",
    "23505": "another transaction has made the row first",
    "42P01": "a table was removed",
    "25006": "the server is a replica, or read-only: give all hosts and target_session_attrs=read-write",
}
_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03")

_GRANT = "Grant the role CONNECT on the database, SELECT, INSERT, UPDATE and DELETE on the tables, and for the first use CREATE on the schema."
_PASSWORD = "Check the user in the URL, and the password: PGPASSWORD, ~/.pgpass, a service file, password_env= or password_file=."
_DATABASE = "Type: createdb NAME. Or mend the URL."
_CURES = {
    "28": _PASSWORD,
    "3D": _DATABASE,
    "42501": _GRANT,
    "3F": "Make the schema, or mend search_path. The tables go into its first schema.",
}

_CONNECTING = {
    "password authentication failed": _PASSWORD,
    "no password supplied": _PASSWORD,
    "no pg_hba.conf entry": "The server does not let this user in from this machine. Add a line to its pg_hba.conf.",
    "authentication failed": _PASSWORD,
    "is not permitted to log in": "Give the role LOGIN: ALTER ROLE name LOGIN.",
    "permission denied for database": _GRANT,
    "invalid connection option": "Mend the options in the URL, after the ?.",
    "unrecognized configuration parameter": "Mend the options in the URL, after the ?.",
    "definition of service": "The service file must be on every machine that connects (~/.pg_service.conf or PGSERVICEFILE).",
    "server does not support SSL": "Remove sslmode from the URL, or have the server use SSL.",
    "certificate": "Check sslmode, sslrootcert and the other SSL options in the URL.",
}


DRIVER_ERROR: type[Exception] = psycopg.Error
"""The base class for all errors that the driver raises."""


def is_deadlock(error: BaseException) -> bool:
    """Whether the server has ended the transaction because two transactions waited for each
    other."""
    return isinstance(error.__cause__, psycopg.errors.DeadlockDetected)


@contextlib.contextmanager
def translating(address: str, connecting: bool = False) -> Iterator[None]:
    """Translate the database's errors into errors from ``txtopo.errors``."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        # SQLAlchemy would add the statement.
        raise meaning(
            address, error.orig or error, connecting, bool(error.connection_invalidated)
        ) from error.orig
    except psycopg.Error as error:
        raise meaning(address, error, connecting, False) from error


def meaning(address: str, error: BaseException, connecting: bool, lost: bool) -> Exception:
    """The txtopo error that stands for ``error``. ``lost``: the connection is known to be gone."""
    state = str(getattr(error, "sqlstate", None) or "")
    said = message(error)
    if connecting and not state:
        return _while_connecting(address, said)
    if state == "40P01":
        return failures.busy(address, f"two transactions waited for each other ({said})")
    for class_, cure in _CURES.items():
        if state.startswith(class_):
            return failures.unusable(address, f"{said} ({state})", cure)
    if state in _BUSY:
        return failures.busy(address, f"{_BUSY[state]} ({said})")
    if (
        lost
        or connecting
        or state.startswith(_LOST)
        or (not state and isinstance(error, psycopg.OperationalError))
    ):
        return failures.unreachable(address, f"the connection is lost ({said})")
    if state in ("53100", "58030"):
        return failures.full(address, f"{said} ({state})")
    reason = f"{said} ({state or type(error).__name__})"
    return failures.failed(address, reason)


def _while_connecting(address: str, said: str) -> Exception:
    if "does not exist" in said and "FATAL" in said:
        return failures.unusable(address, said, _DATABASE if "database" in said else _PASSWORD)
    for words, cure in _CONNECTING.items():
        if words in said:
            return failures.unusable(address, said, cure)
    return failures.unreachable(address, f"it cannot be connected to ({said})")


def message(error: BaseException) -> str:
    """The server's or libpq's message, on one line."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((primary or str(error)).split())
