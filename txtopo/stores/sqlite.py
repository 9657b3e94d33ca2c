"""A store in one SQLite file, for local masters: nothing to install, and as safe as a server against processes that die.

The file is in WAL mode with ``synchronous=FULL``: a commit that returned is on disk. Writers take turns (``BEGIN IMMEDIATE``), also
between processes; readers never wait. A file may hold several stores, and tables of others, which are left alone.

Layout, version 3; NULL means "there is none", a stored JSON null is the text ``null``::

    txtopo_schema(store, version, form)                               one row per value table in this file; form: codec, plain or not
    txtopo_fence(store, topology, component, generation, txid, attempt, listed)    listed: whether <table>_written has what that attempt wrote
    <table>(key, curr, prev,                                          JSON texts; curr NULL: deleted, prev NULL: was not there
            topology, generation, component, task, txid, attempt,     the stamp: who wrote curr
            prev_txid, steps)                                         who made prev; JSON list of texts if one transaction updated the key repeatedly
    <table>_deleted                                                   index of the tombstones
    <table>_written(topology, component, keys)                        keys, one to a line, that a task wrote in the transaction of the fence; opaque
                                                                      stores only (R31)

Apart from ``base`` because it is the only place here that knows SQL; it knows none of the rules. Standard library only.

Invariants:
    - A connection is used by the process that opened it alone, and only on the file that now has the store's path.
    - A table that is not in ``txtopo_schema`` is never written.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
import urllib.parse
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence

from txtopo import errors
from txtopo.stores import base, codecs, sessions, sqlite_merge, stamps
from txtopo.stores import rows as layout
from txtopo.topology import merge

LOOKUP_KEYS_MAX = 500
"""How many keys one SELECT looks up; SQLite may be built to allow no more than 999 variables."""

WAL_RETRY_S = 0.01
"""Pause between tries to switch a new file to WAL while another process does the same."""

_COLUMNS = ", ".join(layout.COLUMNS)
_FENCES = "SELECT topology, component, generation, txid, attempt FROM txtopo_fence WHERE store = ?"
_TRANSIENT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_SETUP = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_AUTH})


class SqliteStore(base.Store):
    """Results in table ``table`` of the SQLite file ``path``, which is made when it is first written.

    :param path: made absolute here and now, so that every process means the same file; its directory must exist.
    :param table: letters, digits and ``_``; also the store's name (R27).
    :param opaque: True with an opaque spout (R30, R31).
    :param plain: True for values that are only set and deleted, and keep nothing but the last write.
    :param codec: what makes texts of values; JSON by default.
    :param busy_timeout_s: how long a transaction waits for other writers before its attempt fails and is replayed, in seconds.
    """

    local_only_reason = "SqliteStore writes a file on this machine"

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        *,
        opaque: bool = False,
        plain: bool = False,
        codec: codecs.Codec | None = None,
        busy_timeout_s: float = 30.0,
    ) -> None:
        given = os.fspath(path)
        if not given or given == ":memory:":
            raise errors.UsageError(f"SqliteStore needs a file that outlives the process, not {given!r}\n  Give the path of a file.")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", table) or table.lower().startswith(("sqlite_", "txtopo_")):
            raise errors.UsageError(
                f"SqliteStore cannot name a table {table!r}\n  Use up to 63 letters, digits and _, not beginning with a digit, sqlite_ or txtopo_."
            )
        self.path = os.path.abspath(os.path.expanduser(given))
        """The file, absolute."""
        self.busy_timeout_s = busy_timeout_s
        """Longest wait for other writers, in seconds."""
        super().__init__(name=table, address=f"{self.path}#{table}", opaque=opaque, plain=plain, codec=codec)

    def exists(self) -> bool:
        with self._reading() as connection:
            return connection is not None

    def stored_form(self) -> str | None:
        with self._reading(any_form=True) as connection:
            return None if connection is None else _form(connection, self.path, self.name)

    def fences(self) -> list[stamps.Fence]:
        with self._reading() as connection:
            if connection is None:
                return []
            return [stamps.Fence(*row) for row in connection.execute(f"{_FENCES} ORDER BY topology, component", [self.name])]

    @contextlib.contextmanager
    def _session(self, resources: base.Resources) -> Iterator[sessions.Session]:
        # Keyed by process: a connection that a fork carried along must not be touched (https://sqlite.org/howtocorrupt.html, 2.6).
        connection: _Connection = resources(f"sqlite:{self.path}:{os.getpid()}", lambda: _Connection(self.path))
        with connection.transaction(self, self.busy_timeout_s) as raw:
            yield _Session(raw, self.path, self.name, self.opaque)

    def _read_row(self, text: str) -> stamps.Row | None:
        with self._reading() as connection:
            if connection is None:
                return None
            found = connection.execute(f'SELECT {_COLUMNS} FROM "{self.name}" WHERE key = ?', [text]).fetchone()
            return None if found is None else layout.row_of(*found)

    def _read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        with self._reading() as connection:
            if connection is not None:
                for found in connection.execute(f'SELECT {_COLUMNS} FROM "{self.name}" WHERE key >= ? ORDER BY key', [text]):
                    yield layout.row_of(*found)

    @contextlib.contextmanager
    def _reading(self, any_form: bool = False) -> Iterator[sqlite3.Connection | None]:
        """A connection that cannot write, for this reading only; None if the store does not exist, which is not changed by looking."""
        if not os.path.exists(self.path):
            yield None
            return
        with _translating(self.path):
            address = f"file:{urllib.parse.quote(self.path)}?mode=ro"
            with contextlib.closing(sqlite3.connect(address, uri=True, timeout=self.busy_timeout_s, isolation_level=None)) as connection:
                form = _form(connection, self.path, self.name)
                if form is not None and not any_form:
                    layout.check_form(self.address, form, self.form)
                yield None if form is None else connection


class _Session(sessions.Session):
    """The statements of one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: str, table: str, lists: bool) -> None:
        self._connection, self._path, self._table, self._lists = connection, path, table, lists
        self._who: tuple[str, str] | None = None
        """Topology and component of the fence."""
        self._is_listed = False
        """Whether what the attempt of the fence wrote is listed."""
        self._written: list[str] = []

    @property
    def connection(self) -> sqlite3.Connection:
        """Where the transaction is open; to commit it is the store's alone."""
        return self._connection

    def translating(self) -> contextlib.AbstractContextManager[None]:
        """SQLite's errors as ours, for statements of somebody else in this transaction."""
        return _translating(self._path)

    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        select = "SELECT generation, txid, attempt, listed FROM txtopo_fence WHERE store = ? AND topology = ? AND component = ?"
        with _translating(self._path):
            found = self._connection.execute(select, [self._table, topology_id, component]).fetchone()
        self._who = topology_id, component
        if found is None:
            return None
        *position, self._is_listed = found
        return stamps.Fence(topology_id, component, *position)

    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        with _translating(self._path):
            return [stamps.Fence(*row) for row in self._connection.execute(f"{_FENCES} AND topology = ?", [self._table, topology_id])]

    def write_fence(self, fence: stamps.Fence) -> None:
        values = [self._table, fence.topology_id, fence.component, fence.generation, fence.txid, fence.attempt, self._lists]
        columns = "store, topology, component, generation, txid, attempt, listed"
        self._change(f"INSERT OR REPLACE INTO txtopo_fence({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        rows: dict[str, stamps.Row] = {}
        with _translating(self._path):
            for start in range(0, len(texts), LOOKUP_KEYS_MAX):
                some = texts[start : start + LOOKUP_KEYS_MAX]
                select = f'SELECT {_COLUMNS} FROM "{self._table}" WHERE key IN ({", ".join("?" * len(some))})'
                rows.update((found[0], layout.row_of(*found)) for found in self._connection.execute(select, some))
        return rows

    def merge_rows(self, deltas: Mapping[str, int], how: merge.Merge, mine: stamps.Stamp, settled_txid: int) -> Collection[str]:
        with _translating(self._path):
            refused = sqlite_merge.merged(self._connection, self._table, deltas, how, mine, settled_txid)
        self._note(deltas.keys() if not refused else ())
        return refused

    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        given = list(map(layout.columns_of, rows))
        with _translating(self._path):
            marks = ", ".join("?" * len(layout.COLUMNS))
            self._connection.executemany(f'INSERT OR REPLACE INTO "{self._table}"({_COLUMNS}) VALUES ({marks})', given)
        self._note(str(columns[0]) for columns in given)

    def apply(self) -> None:
        if self._written and self._who is not None:
            values = [*self._who, "\n".join(self._written)]
            self._change(f'INSERT INTO "{self._table}_written"(topology, component, keys) VALUES (?, ?, ?)', values)

    def _note(self, texts: Iterable[str]) -> None:
        if self._lists:
            self._written.extend(texts)

    def take_back(self, void: stamps.Fence) -> None:
        undone = f"component = ? AND txid = ? AND topology = ? AND generation = ? AND attempt <= ? AND attempt <> {stamps.UNKNOWN_ATTEMPT}"
        which = [void.component, void.txid, void.topology_id, void.generation, void.attempt]
        restored = f"curr = prev, txid = prev_txid, attempt = {stamps.UNKNOWN_ATTEMPT}, prev = NULL, prev_txid = 0, steps = NULL"
        if not self._is_listed:
            # Every row is looked at. A transactional store comes here only when user code, changed or not, skipped on replay what it did before.
            self._change(f'DELETE FROM "{self._table}" WHERE {undone} AND prev IS NULL', which)
            self._change(f'UPDATE "{self._table}" SET {restored} WHERE {undone}', which)
            return
        select = f'SELECT keys FROM "{self._table}_written" WHERE topology = ? AND component = ?'
        with _translating(self._path):
            lists = [found for (found,) in self._connection.execute(select, [void.topology_id, void.component])]
            each = [(text, *which) for text in dict.fromkeys(text for found in lists for text in found.split("\n"))]
            self._connection.executemany(f'DELETE FROM "{self._table}" WHERE key = ? AND {undone} AND prev IS NULL', each)
            self._connection.executemany(f'UPDATE "{self._table}" SET {restored} WHERE key = ? AND {undone}', each)
        self._forget_written(void.topology_id, void.component)

    def _forget_written(self, topology_id: str, component: str) -> None:
        self._change(f'DELETE FROM "{self._table}_written" WHERE topology = ? AND component = ?', [topology_id, component])

    def sweep(self, mine: stamps.Stamp) -> None:
        settled = "curr IS NULL AND topology = ? AND component = ? AND (txid < ? OR generation <> ?)"
        self._change(f'DELETE FROM "{self._table}" WHERE {settled}', [mine.topology_id, mine.component, mine.txid, mine.generation])
        if self._is_listed:
            self._forget_written(mine.topology_id, mine.component)

    def restamp(self, topology_id: str, component: str, mine: stamps.Stamp) -> int:
        settled = "topology = ?, generation = ?, txid = ?, attempt = ?, prev = NULL, prev_txid = 0, steps = NULL"
        values = [mine.topology_id, mine.generation, mine.txid, mine.attempt, topology_id, component]
        self._forget_written(topology_id, component)
        return self._change(f'UPDATE "{self._table}" SET {settled} WHERE topology = ? AND component = ?', values)

    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        which, values = "topology = ?", [topology_id]
        if component is not None:
            which, values = f"{which} AND component = ?", [topology_id, component]
        rows = self._change(f'DELETE FROM "{self._table}" WHERE {which}', values)
        self._change(f'DELETE FROM "{self._table}_written" WHERE {which}', values)
        return rows, self._change(f"DELETE FROM txtopo_fence WHERE {which} AND store = ?", [*values, self._table])

    def _change(self, statement: str, values: Sequence[object]) -> int:
        with _translating(self._path):
            return self._connection.execute(statement, tuple(values)).rowcount


class _Connection:
    """One process's connection to one file. Threads take turns on it, as they would have to on the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._raw: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._prepared: set[tuple[str, str]] = set()
        self._turn = threading.Lock()
        self._owner: int | None = None
        _connections.add(self)

    @contextlib.contextmanager
    def transaction(self, store: SqliteStore, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
        """A database transaction with the table of ``store`` ready in it: committed on normal exit, rolled back when the block raises."""
        if self._owner == threading.get_ident():
            raise errors.UsageError(
                f"a transaction on {self._path} is open already in this task\n"
                "  End it first: write to one store of a file after the other, or give each its own file."
            )
        if not self._turn.acquire(timeout=busy_timeout_s):
            raise errors.FailedException(_busy_message(self._path, f"another thread held it for {busy_timeout_s:g} s"))
        try:
            self._owner = threading.get_ident()
            with _translating(self._path):
                raw = self._opened(busy_timeout_s)
                raw.execute("BEGIN IMMEDIATE")
            try:
                needed = (store.name, store.form)
                if needed not in self._prepared:
                    _prepare(raw, store)
                yield raw
                with _translating(self._path):
                    raw.execute("COMMIT")
            except BaseException:
                self._roll_back(raw)
                raise
            self._prepared.add(needed)
        finally:
            self._owner = None
            self._turn.release()

    def close(self) -> None:
        """Close it; the next transaction opens it again."""
        if self._raw is not None:
            with contextlib.suppress(sqlite3.Error):
                self._raw.close()
        self._raw, self._file = None, None
        self._prepared.clear()

    def close_if_idle(self) -> None:
        """Close it unless a transaction is open."""
        if self._turn.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._turn.release()

    def _opened(self, busy_timeout_s: float) -> sqlite3.Connection:
        # A file that was removed or replaced lives on, unseen, for as long as it is open: what is written to it would be lost.
        if self._raw is not None and self._file != _identity(self._path):
            self.close()
        if self._raw is None:
            self._raw = _open(self._path, busy_timeout_s)
            self._file = _identity(self._path)
        self._raw.execute(f"PRAGMA busy_timeout = {int(busy_timeout_s * 1000)}")
        return self._raw

    def _roll_back(self, raw: sqlite3.Connection) -> None:
        try:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()


_connections: weakref.WeakSet[_Connection] = weakref.WeakSet()


def _close_idle_connections() -> None:
    for connection in list(_connections):
        connection.close_if_idle()


# Locks on a file belong to a process, but SQLite's own record of them is inherited: a child would believe that it holds its parent's.
os.register_at_fork(before=_close_idle_connections)


def _open(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise errors.SetupError(f"the store {path} cannot be made: there is no directory {directory}\n  Make it, or choose another path.")
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        mode = _switch_to_wal(connection, busy_timeout_s)
        if mode != "wal":
            raise errors.SetupError(f"the store {path} cannot use a write-ahead log there (SQLite says {mode!r})\n  Put it on a local file system.")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> str:
    # SQLite does not wait here by itself, whatever its busy time-out, when two processes find a new file at the same moment.
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if _code(error) not in _TRANSIENT or time.monotonic() >= deadline:
                raise
        time.sleep(WAL_RETRY_S)


def _prepare(connection: sqlite3.Connection, store: SqliteStore) -> None:
    """Make what is missing of the layout, inside the open transaction."""
    path, table = store.path, store.name
    with _translating(path):
        form = _form(connection, path, table)
        if form is None:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE", [table]).fetchone():
                raise errors.SetupError(f"{path} has a table {table!r} that is not a store of txtopo\n  Choose another table name, or another file.")
            layout.check_neighbours(path, _versions(connection))
            for statement in _LAYOUT:
                connection.execute(statement.format(table=table))
            connection.execute("INSERT INTO txtopo_schema(store, version, form) VALUES (?, ?, ?)", [table, layout.LAYOUT_VERSION, store.form])
        elif form != store.form:
            if connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone():
                layout.check_form(store.address, form, store.form)
            connection.execute("UPDATE txtopo_schema SET form = ? WHERE store = ?", [store.form, table])


_LAYOUT = (
    "CREATE TABLE IF NOT EXISTS txtopo_schema(store TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, form TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS txtopo_fence(store TEXT NOT NULL, topology TEXT NOT NULL, component TEXT NOT NULL, generation TEXT NOT NULL,"
    " txid INTEGER NOT NULL, attempt INTEGER NOT NULL, listed INTEGER NOT NULL, PRIMARY KEY (store, topology, component)) WITHOUT ROWID",
    'CREATE TABLE "{table}"(key TEXT NOT NULL PRIMARY KEY, curr TEXT, prev TEXT, topology TEXT NOT NULL, generation TEXT NOT NULL,'
    " component TEXT NOT NULL, task INTEGER NOT NULL, txid INTEGER NOT NULL, attempt INTEGER NOT NULL, prev_txid INTEGER NOT NULL, steps TEXT)"
    " WITHOUT ROWID",
    'CREATE INDEX "{table}_deleted" ON "{table}"(topology) WHERE curr IS NULL',
    'CREATE TABLE "{table}_written"(topology TEXT NOT NULL, component TEXT NOT NULL, keys TEXT NOT NULL)',
)


def _form(connection: sqlite3.Connection, path: str, table: str) -> str | None:
    """The form of ``table``, None if it is no store in this file; raises if it is of another version of txtopo. Others beside it may be of any."""
    versions = _versions(connection)
    if table not in versions:
        return None
    layout.check_version(path, table, versions[table])
    return str(connection.execute("SELECT form FROM txtopo_schema WHERE store = ?", [table]).fetchone()[0])


def _versions(connection: sqlite3.Connection) -> dict[str, int]:
    """Of the stores in this file."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'txtopo_schema'").fetchone():
        return {}
    return dict(connection.execute("SELECT store, version FROM txtopo_schema"))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None if the error is Python's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _busy_message(path: str, why: str) -> str:
    return f"the store {path} is busy: {why}"


@contextlib.contextmanager
def _translating(path: str) -> Iterator[None]:
    """SQLite's errors as ours: what passes by itself fails the attempt, what a person must mend names the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code, name = _code(error), getattr(error, "sqlite_errorname", type(error).__name__)
        if code in _TRANSIENT:
            raise errors.FailedException(_busy_message(path, str(error))) from error
        if code in _SETUP:
            cure = f"Check that it is an SQLite file, and that it and {os.path.dirname(path)} can be written."
            raise errors.SetupError(f"the store {path} cannot be used: {error} ({name})\n  {cure}") from error
        if code == sqlite3.SQLITE_FULL:
            cure = "Nothing of this transaction is kept. Make room, and run again."
            raise errors.TxtopoError(f"the store {path} cannot grow: {error}\n  {cure}") from error
        cure = f"Check the file with `sqlite3 {path} 'PRAGMA integrity_check'`."
        raise errors.TxtopoError(f"the store {path} failed: {error} ({name})\n  {cure}") from error
