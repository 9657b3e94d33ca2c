"""Tells SQLite's errors apart: passing errors, and errors that a person must mend.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator

from txtopo.stores import failures

TRANSIENT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
"""Codes for errors that pass when other processes finish."""
_SETUP = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_AUTH,
    }
)


def code_of(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code. None if the error is Python's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


@contextlib.contextmanager
def translating(path: str) -> Iterator[None]:
    """Raises SQLite's errors as txtopo's: a passing error fails the attempt, an error for a person
    names the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code, name = code_of(error), getattr(error, "sqlite_errorname", type(error).__name__)
        if code in TRANSIENT:
            raise failures.busy(path, str(error)) from error
        if code in _SETUP:
            cure = f"Check that this is an SQLite file, and that the file and {os.path.dirname(path)} can be written."
            raise failures.unusable(path, f"{error} ({name})", cure) from error
        if code == sqlite3.SQLITE_FULL:
            raise failures.full(path, str(error)) from error
        cure = f"Check the file with `sqlite3 {path} 'PRAGMA integrity_check'`."
        raise failures.failed(path, f"{error} ({name})", cure) from error
