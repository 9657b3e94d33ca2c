"""A process's connection to one SQLite file, kept across transactions. Threads take turns, a
replaced file is opened again, and a fork closes idle connections.

Standard library only.

Invariants: only the process that opened a connection uses it, and only on the file that now has the
store's path.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator

from txtopo import errors
from txtopo.stores import failures
from txtopo.stores import place as places
from txtopo.stores.sqlite import errors as faults
from txtopo.stores.sqlite import layout

WAL_RETRY_S = 0.01
"""Pause between tries to switch a new file to WAL while another process does the same."""


class Connection:
    """A process's connection to one file. Threads take turns on the connection, as they would have
    to on the file."""

    def __init__(self, path: str, synchronous: str = "FULL") -> None:
        self._path, self._synchronous = path, synchronous
        self._raw: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._prepared: set[tuple[str, str]] = set()
        self._turn = threading.Lock()
        self._owner: int | None = None
        _connections.add(self)

    def is_ready(self, store: places.Place) -> bool:
        """Whether an earlier transaction found or made ``store``'s table in the present file."""
        is_same = self._file is not None and self._file == _identity(self._path)
        return is_same and (store.name, store.form) in self._prepared

    @contextlib.contextmanager
    def transaction(
        self, store: places.Place, begin: str = "BEGIN IMMEDIATE"
    ) -> Iterator[sqlite3.Connection]:
        """Opens a database transaction with ``store``'s table ready: committed on normal exit,
        rolled back when the block raises."""
        busy_timeout_s = store.limits["busy_timeout_s"]
        if self._owner == threading.get_ident():
            raise errors.UsageError(
                f"a transaction on {self._path} is open already in this task\n"
                "  End the open transaction first: write to a file's stores one after the other, or give each store its own file."
            )
        if not self._turn.acquire(timeout=busy_timeout_s):
            raise failures.busy(
                self._path, f"another thread held the file for {busy_timeout_s:g} s"
            )
        try:
            self._owner = threading.get_ident()
            with faults.translating(self._path):
                raw = self._connect(busy_timeout_s)
                raw.execute(begin)
            try:
                needed = (store.name, store.form)
                if needed not in self._prepared:
                    layout.prepare(raw, store)
                yield raw
                with faults.translating(self._path):
                    raw.execute("COMMIT")
            except BaseException:
                self._roll_back(raw)
                raise
            self._prepared.add(needed)
        finally:
            self._owner = None
            self._turn.release()

    def close(self) -> None:
        """Close the connection. The next transaction opens it again."""
        if self._raw is not None:
            with contextlib.suppress(sqlite3.Error):
                self._raw.close()
        self._raw, self._file = None, None
        self._prepared.clear()

    def close_if_idle(self) -> None:
        """Close the connection unless a transaction is open."""
        if self._turn.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._turn.release()

    def _connect(self, busy_timeout_s: float) -> sqlite3.Connection:
        # A removed or replaced file lives on, unseen, while the file is open: writes to a removed
        # file would be lost.
        if self._raw is not None and self._file != _identity(self._path):
            self.close()
        if self._raw is None:
            self._raw = _open(self._path, busy_timeout_s, self._synchronous)
            self._file = _identity(self._path)
        self._raw.execute(f"PRAGMA busy_timeout = {int(busy_timeout_s * 1000)}")
        return self._raw

    def _roll_back(self, raw: sqlite3.Connection) -> None:
        try:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_idle_connections() -> None:
    for connection in list(_connections):
        connection.close_if_idle()


# File locks belong to a process, but a child inherits SQLite's own record of locks: the child would
# believe in locks that only its parent holds.
os.register_at_fork(before=_close_idle_connections)


def _open(path: str, busy_timeout_s: float, synchronous: str) -> sqlite3.Connection:
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise errors.SetupError(
            f"the store {path} cannot be made: there is no directory {directory}\n  Make the directory, or choose another path."
        )
    connection = sqlite3.connect(
        path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        mode = _switch_to_wal(connection, busy_timeout_s)
        if mode != "wal":
            raise errors.SetupError(
                f"the store {path} cannot use a write-ahead log there (SQLite says {mode!r})\n  Put the store on a local file system."
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> str:
    # When two processes open a new file at the same moment, SQLite does not wait here, despite its
    # busy time-out.
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if faults.code_of(error) not in faults.TRANSIENT or time.monotonic() >= deadline:
                raise
        time.sleep(WAL_RETRY_S)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
