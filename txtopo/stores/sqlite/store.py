"""A store in one SQLite file, for local masters: nothing to install, and as safe as a server
against processes that die.

The file is in WAL mode with ``synchronous=FULL``: a commit that returned is on disk. Writers take
turns (``BEGIN IMMEDIATE``), also between processes. Readers never wait. A file may hold several
stores, and also tables from other programs, which are left alone.

Here are SQLite's statements for the rules in ``base``. ``layout`` has the tables, ``connection``
makes connections, ``bulk`` has the statements for many rows, ``errors`` explains errors. Standard
library only.

Invariants: a table that is not in ``txtopo_schema`` is never written.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.stores import backend, base, codecs, direct, sessions, stamps
from txtopo.stores import rows as layout
from txtopo.stores.sqlite import bulk
from txtopo.stores.sqlite import connection as connections
from txtopo.stores.sqlite import direct as sqlite_direct
from txtopo.stores.sqlite import errors as faults
from txtopo.stores.sqlite import layout as tables
from txtopo.topology import destination, merge

LOOKUP_KEYS_MAX = 500
"""How many keys a SELECT looks up. SQLite may be built to allow only 999 variables."""

_COLUMNS = ", ".join(layout.COLUMNS)
_IS_SAME = "counted.{0} = fence.{0}"
_TOTAL = "(SELECT sum(transactions) FROM txtopo_count AS counted WHERE {})".format(
    " AND ".join(
        map(_IS_SAME.format, ("store", "topology", "component", "generation", "txid", "attempt"))
    )
)
_FENCES = f"SELECT topology, component, generation, txid, attempt, counted, {_TOTAL} FROM txtopo_fence AS fence WHERE store = ?"
_COUNT = (
    "INSERT OR REPLACE INTO txtopo_count(store, topology, component, task, generation, txid, attempt, transactions)"
    " VALUES (:store, :topology, :component, :task, :generation, :txid, :attempt, ifnull((SELECT transactions + (transactions < :number)"
    " FROM txtopo_count WHERE store = :store AND topology = :topology AND component = :component AND task = :task"
    " AND generation = :generation AND txid = :txid AND attempt = :attempt), 1))"
)
_COUNT_ALONE = (
    "UPDATE txtopo_fence SET counted = counted + (counted < :number)"
    " WHERE store = :store AND topology = :topology AND component = :component"
)


class SqliteStore(backend.Backend):
    """Keeps results in table ``table`` in the SQLite file ``path``. The first write makes the file.

    :param path: made absolute here and now, links resolved, so that every process means the same
        file. The file's directory must exist.
    :param table: letters, digits and ``_``. Also the store's name (R27).
    :param opaque: True with an opaque spout (R30, R31).
    :param plain: True for values that are only set and deleted, and keep nothing but the last
        write.
    :param codec: turns values into texts and back. JSON by default.
    :param busy_timeout_s: how long a transaction waits for other writers, in seconds. After that
        the attempt fails and is replayed.
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
        path_text = os.fspath(path)
        if not path_text or path_text == ":memory:":
            raise errors.UsageError(
                f"results in SQLite need a file that outlives the process, not {path_text!r}\n  Give the path of a file."
            )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", table) or table.lower().startswith(
            ("sqlite_", "txtopo_")
        ):
            raise errors.UsageError(
                f"a store cannot name a table {table!r}\n  Use up to 63 letters, digits and _, not beginning with a digit, sqlite_ or txtopo_."
            )
        self.path = os.path.realpath(os.path.expanduser(path_text))
        """The file, absolute and without symbolic links: two spellings of a path name the same
        store."""
        self.busy_timeout_s = busy_timeout_s
        """Longest wait for other writers, in seconds."""
        self._access = {"url": self.path, "limits": {"busy_timeout_s": busy_timeout_s}}
        super().__init__(
            name=table, address=f"{self.path}#{table}", opaque=opaque, plain=plain, codec=codec
        )

    def simulated(self, world: destination.World) -> destination.Destination | None:
        substitute = super().simulated(world)
        if substitute is None:
            # A user's class keeps its code, and gets its own file.
            redirected = copy.copy(self)
            redirected.path = os.path.join(
                world.directory(), f"{hashlib.sha256(self.path.encode()).hexdigest()[:16]}.db"
            )
            redirected.address = f"{redirected.path}#{redirected.name}"
            redirected._access = {**self._access, "url": redirected.path}
            substitute = redirected
        return substitute

    def exists(self) -> bool:
        with self._reading() as connection:
            return connection is not None

    def stored_form(self) -> str | None:
        with self._reading(any_form=True) as connection:
            return None if connection is None else tables.form_of(connection, self.path, self.name)

    def fences(self) -> list[stamps.Fence]:
        with self._reading() as connection:
            if connection is None:
                return []
            rows = connection.execute(f"{_FENCES} ORDER BY topology, component", [self.name])
            return [layout.fence_of(*columns) for columns in rows]

    @contextlib.contextmanager
    def open_session(self, resources: base.Resources) -> Iterator[Any]:
        # Keyed by process: a connection that a fork carried along must not be touched
        # (https://sqlite.org/howtocorrupt.html, 2.6).
        connection: connections.Connection = resources(
            f"sqlite:{self.path}:{os.getpid()}", lambda: connections.Connection(self.path)
        )
        with connection.transaction(self._place) as raw:
            yield _Session(raw, self.path, self.name, self.opaque)

    open_maintenance = open_session

    def direct(self) -> direct.Direct:
        return sqlite_direct.Direct(self._place, self.exists)

    def read_row(self, text: str) -> stamps.Row | None:
        with self._reading() as connection:
            if connection is None:
                return None
            columns = connection.execute(
                f'SELECT {_COLUMNS} FROM "{self.name}" WHERE key = ?', [text]
            ).fetchone()
            return None if columns is None else layout.row_of(*columns)

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        with self._reading() as connection:
            if connection is not None:
                for columns in connection.execute(
                    f'SELECT {_COLUMNS} FROM "{self.name}" WHERE key >= ? ORDER BY key', [text]
                ):
                    yield layout.row_of(*columns)

    def read_under(self, itself: str, beginning: str) -> Generator[stamps.Row, None, None]:
        with self._reading() as connection:
            if connection is None:
                return
            connection.execute("BEGIN")  # both statements see one state
            for where, text in (("key = ?", itself), ("key >= ? ORDER BY key", beginning)):
                for columns in connection.execute(
                    f'SELECT {_COLUMNS} FROM "{self.name}" WHERE {where}', [text]
                ):
                    row = layout.row_of(*columns)
                    if text == beginning and not row.key.startswith(beginning):
                        return
                    if text == itself or row.key != itself:
                        yield row

    @contextlib.contextmanager
    def _reading(self, any_form: bool = False) -> Iterator[sqlite3.Connection | None]:
        """A connection that cannot write, for this reading only. None if the store does not exist:
        looking does not make a store."""
        if not os.path.exists(self.path):
            yield None
            return
        with self.looking() as connection:
            form = tables.form_of(connection, self.path, self.name)
            if form is not None and not any_form:
                layout.check_form(self.address, form, self.form)
            yield None if form is None else connection

    @contextlib.contextmanager
    def looking(self) -> Iterator[sqlite3.Connection]:
        """A new, read-only connection."""
        with faults.translating(self.path):
            address = f"file:{urllib.parse.quote(self.path)}?mode=ro"
            with contextlib.closing(
                sqlite3.connect(
                    address, uri=True, timeout=self.busy_timeout_s, isolation_level=None
                )
            ) as connection:
                yield connection


class _Session(sessions.Session, sessions.Maintenance):
    """A transaction's statements."""

    def __init__(self, connection: sqlite3.Connection, path: str, table: str, lists: bool) -> None:
        super().__init__(lists)
        self.connection = connection
        """The transaction's connection. Only the store may commit."""
        self._path, self._table = path, table
        self._owner: tuple[str, str] | None = None
        """The fence's topology and component."""
        self._is_counted = False
        self._absent: set[str] = set()
        """Keys that were looked for to change them, and have no row."""
        self._settled_txid = 0

    def translating(self) -> contextlib.AbstractContextManager[None]:
        """SQLite's errors as txtopo's errors, for a sink's statements in this transaction."""
        return faults.translating(self._path)

    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        condition = "store = ? AND topology = ? AND component = ?"
        select = f"SELECT generation, txid, attempt, counted, {_TOTAL}, listed FROM txtopo_fence AS fence WHERE {condition}"
        with faults.translating(self._path):
            row = self.connection.execute(select, [self._table, topology_id, component]).fetchone()
        self._owner = topology_id, component
        if row is None:
            return None
        *columns, self.is_listed = row
        return layout.fence_of(topology_id, component, *columns)

    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        with faults.translating(self._path):
            rows = self.connection.execute(
                f"{_FENCES} AND topology = ?", [self._table, topology_id]
            )
            return [layout.fence_of(*columns) for columns in rows]

    def write_fence(self, fence: stamps.Fence) -> None:
        self._is_counted = self.is_alone
        values = [
            self._table,
            fence.topology_id,
            fence.component,
            fence.generation,
            fence.txid,
            fence.attempt,
            self.lists,
            self.is_alone,
        ]
        columns = "store, topology, component, generation, txid, attempt, listed, counted"
        self._change(
            f"INSERT OR REPLACE INTO txtopo_fence({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )

    def count(self, stamp: stamps.Stamp, number: int) -> None:
        if self._is_counted:
            return
        owner = {
            "store": self._table,
            "topology": stamp.topology_id,
            "component": stamp.component,
            "task": stamp.task,
        }
        at = {"generation": stamp.generation, "txid": stamp.txid, "attempt": stamp.attempt}
        with faults.translating(self._path):
            self.connection.execute(
                _COUNT_ALONE if self.is_alone else _COUNT, {**owner, **at, "number": number}
            )

    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        rows: dict[str, stamps.Row] = {}
        with faults.translating(self._path):
            for start in range(0, len(texts), LOOKUP_KEYS_MAX):
                some = texts[start : start + LOOKUP_KEYS_MAX]
                select = f'SELECT {_COLUMNS} FROM "{self._table}" WHERE key IN ({", ".join("?" * len(some))})'
                rows.update(
                    (columns[0], layout.row_of(*columns))
                    for columns in self.connection.execute(select, some)
                )
        return rows

    def read_rows_to_change(
        self, texts: Sequence[str], stamp: stamps.Stamp, settled_txid: int
    ) -> dict[str, stamps.Row]:
        if not bulk.IS_POSSIBLE:
            return self.read_rows(texts)
        with faults.translating(self._path):
            ordinary, others = bulk.ordinary_values(
                self.connection, self._table, texts, stamp, settled_txid
            )
        self._settled_txid = settled_txid
        earlier = dataclasses.replace(stamp, txid=settled_txid, attempt=stamps.UNKNOWN_ATTEMPT)
        rows = {
            text: stamps.Row(text, earlier, None, stamps.KEPT, [curr])
            for text, curr in ordinary.items()
        }
        if others:
            rows |= self.read_rows(others)
        self._absent.difference_update(rows)
        self._absent.update(text for text in texts if text not in rows)
        return rows

    def merge_rows(
        self, deltas: Mapping[str, int], how: merge.Merge, stamp: stamps.Stamp, settled_txid: int
    ) -> Collection[str]:
        with faults.translating(self._path):
            refused = bulk.merged(self.connection, self._table, deltas, how, stamp, settled_txid)
        self.note(deltas.keys() if not refused else ())
        return refused

    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        light, long, whole = list[stamps.Row](), list[stamps.Row](), list[stamps.Row]()
        for row in rows:
            is_new = row.key in self._absent
            if is_new and len(row.curr or "") >= bulk.LONG:
                long.append(row)
            else:
                (light if row.prev_txid == stamps.KEPT or is_new else whole).append(row)
        with faults.translating(self._path):
            if light:
                bulk.replace(self.connection, self._table, light, self._settled_txid)
            bulk.insert(self.connection, self._table, long)
            marks = ", ".join("?" * len(layout.COLUMNS))
            parameters = map(layout.columns_of, whole)
            self.connection.executemany(
                f'INSERT OR REPLACE INTO "{self._table}"({_COLUMNS}) VALUES ({marks})', parameters
            )
        written = [row.key for row in (*light, *long, *whole)]
        self._absent.difference_update(written)
        self.note(written)

    def apply(self) -> None:
        if self.written and self._owner is not None:
            values = [*self._owner, "\n".join(self.written)]
            self._change(
                f'INSERT INTO "{self._table}_written"(topology, component, keys) VALUES (?, ?, ?)',
                values,
            )

    def take_back(self, void: stamps.Fence) -> None:
        undone = f"component = ? AND txid = ? AND topology = ? AND generation = ? AND attempt <= ? AND attempt <> {stamps.UNKNOWN_ATTEMPT}"
        parameters = [void.component, void.txid, void.topology_id, void.generation, void.attempt]
        restored = f"curr = prev, txid = prev_txid, attempt = {stamps.UNKNOWN_ATTEMPT}, prev = NULL, prev_txid = 0, steps = NULL"
        if not self.is_listed:
            # Every row is looked at. A transactional store comes here only when user code skipped
            # its writes on replay.
            self._change(f'DELETE FROM "{self._table}" WHERE {undone} AND prev IS NULL', parameters)
            self._change(f'UPDATE "{self._table}" SET {restored} WHERE {undone}', parameters)
            return
        select = f'SELECT keys FROM "{self._table}_written" WHERE topology = ? AND component = ?'
        with faults.translating(self._path):
            lists = [
                listed
                for (listed,) in self.connection.execute(select, [void.topology_id, void.component])
            ]
            each = [
                (text, *parameters)
                for text in dict.fromkeys(text for listed in lists for text in listed.split("\n"))
            ]
            self.connection.executemany(
                f'DELETE FROM "{self._table}" WHERE key = ? AND {undone} AND prev IS NULL', each
            )
            self.connection.executemany(
                f'UPDATE "{self._table}" SET {restored} WHERE key = ? AND {undone}', each
            )
        self._forget_written(void.topology_id, void.component)

    def _forget_written(self, topology_id: str, component: str) -> None:
        self._change(
            f'DELETE FROM "{self._table}_written" WHERE topology = ? AND component = ?',
            [topology_id, component],
        )

    def sweep(self, stamp: stamps.Stamp) -> None:
        settled = (
            "curr IS NULL AND topology = ? AND component = ? AND (txid < ? OR generation <> ?)"
        )
        self._change(
            f'DELETE FROM "{self._table}" WHERE {settled}',
            [stamp.topology_id, stamp.component, stamp.txid, stamp.generation],
        )
        if self.is_listed:
            self._forget_written(stamp.topology_id, stamp.component)

    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        settled = "topology = ?, generation = ?, txid = ?, attempt = ?, prev = NULL, prev_txid = 0, steps = NULL"
        values = [
            stamp.topology_id,
            stamp.generation,
            stamp.txid,
            stamp.attempt,
            topology_id,
            component,
        ]
        self._forget_written(topology_id, component)
        condition = "store = ? AND component = ? AND topology IN (?, ?)"
        self._change(
            f"DELETE FROM txtopo_count WHERE {condition}",
            [self._table, component, topology_id, stamp.topology_id],
        )
        return self._change(
            f'UPDATE "{self._table}" SET {settled} WHERE topology = ? AND component = ?', values
        )

    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        condition, values = "topology = ?", [topology_id]
        if component is not None:
            condition, values = f"{condition} AND component = ?", [topology_id, component]
        rows = self._change(f'DELETE FROM "{self._table}" WHERE {condition}', values)
        self._change(f'DELETE FROM "{self._table}_written" WHERE {condition}', values)
        self._change(
            f"DELETE FROM txtopo_count WHERE {condition} AND store = ?", [*values, self._table]
        )
        return rows, self._change(
            f"DELETE FROM txtopo_fence WHERE {condition} AND store = ?", [*values, self._table]
        )

    def _change(self, statement: str, values: Sequence[object]) -> int:
        with faults.translating(self._path):
            return self.connection.execute(statement, tuple(values)).rowcount
