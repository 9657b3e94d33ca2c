"""What SQLite's errors mean: which pass by themselves, and what a person must mend.

Apart from ``sqlite`` because every statement on a file is under it. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator

from txtopo import errors

TRANSIENT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
"""Codes of what others do, and end."""
_SETUP = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_AUTH})


def code_of(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None if the error is Python's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def busy_message(path: str, why: str) -> str:
    """What to say where others hold the file."""
    return f"the store {path} is busy: {why}"


@contextlib.contextmanager
def translating(path: str) -> Iterator[None]:
    """SQLite's errors as ours: what passes by itself fails the attempt, what a person must mend
    names the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code, name = code_of(error), getattr(error, "sqlite_errorname", type(error).__name__)
        if code in TRANSIENT:
            raise errors.FailedException(busy_message(path, str(error))) from error
        if code in _SETUP:
            cure = f"Check that it is an SQLite file, and that it and {os.path.dirname(path)} can be written."
            raise errors.SetupError(f"the store {path} cannot be used: {error} ({name})\n  {cure}") from error
        if code == sqlite3.SQLITE_FULL:
            cure = "Nothing of this transaction is kept. Make room, and run again."
            raise errors.TxtopoError(f"the store {path} cannot grow: {error}\n  {cure}") from error
        cure = f"Check the file with `sqlite3 {path} 'PRAGMA integrity_check'`."
        raise errors.TxtopoError(f"the store {path} failed: {error} ({name})\n  {cure}") from error
