"""A store in this process's memory, fast enough for thousands of simulated runs a minute.

``stores.base`` has the rules for every store. This module replaces the database: transactions are
all or nothing, and rows are in order. Copies of a store, also pickled copies, find the same
results, until the process ends or until :meth:`MemoryStore.forget`. Other processes do not see the
results, so never use the store for a topology that runs in Spark.

Invariants: a transaction works on a copy, which replaces the table at the commit. Threads take
turns on a database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txtopo import errors
from txtopo.stores import backend, base, codecs, direct, sessions, stamps
from txtopo.stores import rows as layout
from txtopo.topology import merge


@dataclass(slots=True)
class _Table:
    form: str
    rows: dict[str, stamps.Row] = field(default_factory=dict)
    fences: dict[tuple[str, str], stamps.Fence] = field(default_factory=dict)
    counts: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    """By fence: how many transactions each task has committed in the fence's attempt (R34)."""

    def copy(self) -> _Table:
        return _Table(
            self.form,
            dict(self.rows),
            dict(self.fences),
            {owner: dict(counts) for owner, counts in self.counts.items()},
        )

    def fence(self, owner: tuple[str, str]) -> stamps.Fence | None:
        fence = self.fences.get(owner)
        return (
            None
            if fence is None
            else dataclasses.replace(fence, count=sum(self.counts.get(owner, {}).values()))
        )


@dataclass(slots=True)
class _Database:
    """Several stores that one transaction at a time may change. ``commits`` counts commits."""

    tables: dict[str, _Table] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)
    owner: int | None = None
    """The thread that has the turn."""
    commits: int = 0
    sink_data: dict[Any, Any] = field(default_factory=dict)
    """A sink's data, kept beside a store's values."""


_databases: dict[str, _Database] = {}


def database_of(name: str) -> _Database:
    """The database ``name``, made if need be."""
    return _databases.setdefault(name, _Database())


class MemoryStore(backend.Backend):
    """Results in table ``name`` of the database ``database``, which is made when it is first
    written.

    :param database: any text. Stores in one database are written in turn, like tables in a file.
    :param opaque: True with an opaque spout (R30, R31).
    :param plain: True for values that are only set and deleted, and keep only the last write.
    :param codec: turns values into texts, by default JSON.
    """

    local_only_reason: str | None = "MemoryStore keeps its results in one process's memory"

    def __init__(
        self,
        name: str,
        database: str = "memory",
        *,
        opaque: bool = False,
        plain: bool = False,
        codec: codecs.Codec | None = None,
    ) -> None:
        super().__init__(
            name=name, address=f"{database}#{name}", opaque=opaque, plain=plain, codec=codec
        )
        self.database = database
        """The database's name."""

    def exists(self) -> bool:
        return self._table() is not None

    def fences(self) -> list[stamps.Fence]:
        table = self._table()
        return (
            []
            if table is None
            else [
                fence for owner in sorted(table.fences) if (fence := table.fence(owner)) is not None
            ]
        )

    @property
    def sink_data(self) -> dict[Any, Any]:
        """The data that sinks have written in this database's transactions."""
        return _databases[self.database].sink_data if self.database in _databases else {}

    @property
    def commits(self) -> int:
        """How many transactions the whole database has committed."""
        return _databases[self.database].commits if self.database in _databases else 0

    def forget(self) -> None:
        """Drop the whole database."""
        _databases.pop(self.database, None)

    @contextlib.contextmanager
    def open_session(self, resources: base.Resources) -> Iterator[Any]:
        database = database_of(self.database)
        if database.owner == threading.get_ident():
            raise errors.UsageError(
                f"a transaction on {self.database} is open already in this task\n"
                "  End the transaction first: write to the stores of one database in turn, or give each store its own database."
            )
        with database.turn:
            database.owner = threading.get_ident()
            try:
                table = database.tables.get(self.name, _Table(self.form)).copy()
                if table.rows:
                    layout.check_form(self.address, table.form, self.form)
                table.form = self.form
                session = _Session(table, dict(database.sink_data))
                yield session
                database.tables[self.name], database.sink_data = table, session.sink_data
                database.commits += 1
            finally:
                database.owner = None

    open_maintenance = open_session

    def direct(self) -> direct.Direct:
        return _Direct(self)

    def stored_form(self) -> str | None:
        table = self._table(any_form=True)
        return None if table is None else table.form

    def _table(self, any_form: bool = False) -> _Table | None:
        database = _databases.get(self.database)
        table = None if database is None else database.tables.get(self.name)
        if table is not None and not any_form:
            layout.check_form(self.address, table.form, self.form)
        return table

    def read_row(self, text: str) -> stamps.Row | None:
        table = self._table()
        return None if table is None or text not in table.rows else _copy_of(table.rows[text])

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        table = self._table()
        rows = {} if table is None else table.rows
        yield from (_copy_of(rows[key]) for key in sorted(rows) if key >= text)


class _Direct(direct.Direct):
    """Direct access to the rows in ``store``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def read_ranges(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        table = self._store._table()
        rows = {} if table is None else table.rows
        return [
            [_copy_of(rows[key]) for key in sorted(rows) if low <= key < high][:limit]
            for low, high in ranges
        ]

    def _exchange(self, change: direct.Change) -> bool:
        if not self._store.exists():
            raise direct.missing(self._store.address)
        with self._store.open_session(lambda name, make: make()) as session:
            rows = session.read_rows(list(change.expected))
            if not direct.are_as_expected(rows, change.expected):
                raise sessions.RowsChangedError({})
            session.write_rows(change.rows)
            for key in change.removed:
                session._table.rows.pop(key, None)
        return True

    def close(self) -> None:
        """There is no connection."""


class _Session(sessions.Session, sessions.Maintenance):
    """One transaction, on the copy ``table``. ``sink_data`` is written by a sink in the same
    transaction."""

    def __init__(self, table: _Table, sink_data: dict[Any, Any] | None = None) -> None:
        super().__init__()
        self._table, self.sink_data = table, sink_data or {}

    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        return self._table.fence((topology_id, component))

    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        return [fence for fence in self._table.fences.values() if fence.topology_id == topology_id]

    def write_fence(self, fence: stamps.Fence) -> None:
        self._table.fences[fence.topology_id, fence.component] = fence
        self._table.counts.pop((fence.topology_id, fence.component), None)

    def count(self, stamp: stamps.Stamp, number: int) -> None:
        counts = self._table.counts.setdefault((stamp.topology_id, stamp.component), {})
        counted = counts.get(stamp.task, 0)
        counts[stamp.task] = counted + (counted < number)

    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        return {
            text: _copy_of(self._table.rows[text]) for text in texts if text in self._table.rows
        }

    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        self._table.rows.update((row.key, _copy_of(row)) for row in rows)

    def merge_rows(
        self, deltas: Mapping[str, int], how: merge.Merge, stamp: stamps.Stamp, settled_txid: int
    ) -> Collection[str]:
        refused = [
            key
            for key in deltas
            if not _is_ordinary(self._table.rows.get(key), stamp, settled_txid)
        ]
        for key in deltas.keys() - refused:
            row = self._table.rows.get(key)
            curr = str(how(None if row is None or row.curr is None else int(row.curr), deltas[key]))
            self._table.rows[key] = stamps.advanced(
                None if row is None else _copy_of(row), key, "past", stamp, curr
            )
        return refused

    def take_back(self, void: stamps.Fence) -> None:
        for row in self._rows_where(lambda stamp: stamps.is_undone_by(stamp, void)):
            before = row.taken_back()
            if before is None:
                del self._table.rows[row.key]
            else:
                self._table.rows[row.key] = before

    def sweep(self, stamp: stamps.Stamp) -> None:
        for row in list(self._table.rows.values()):
            if stamps.is_swept(row, stamp):
                del self._table.rows[row.key]

    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        rows = self._rows_where(
            lambda of_row: (of_row.topology_id, of_row.component) == (topology_id, component)
        )
        for row in rows:
            renewed = dataclasses.replace(stamp, task=row.stamp.task)
            self._table.rows[row.key] = stamps.Row(row.key, renewed, None, 0, [row.curr])
        return len(rows)

    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        rows = self._rows_where(
            lambda stamp: stamp.topology_id == topology_id and component in (None, stamp.component)
        )
        fences = [
            key
            for key in self._table.fences
            if key[0] == topology_id and component in (None, key[1])
        ]
        for row in rows:
            del self._table.rows[row.key]
        for key in fences:
            del self._table.fences[key]
            self._table.counts.pop(key, None)
        return len(rows), len(fences)

    def _rows_where(self, is_it: Callable[[stamps.Stamp], bool]) -> list[stamps.Row]:
        return [row for row in self._table.rows.values() if is_it(row.stamp)]


def _is_ordinary(row: stamps.Row | None, stamp: stamps.Stamp, settled_txid: int) -> bool:
    """Whether a database would combine ``row`` with an integer by itself (see
    ``sessions.Session.merge_rows``)."""
    if row is None:
        return True
    same = (row.stamp.topology_id, row.stamp.generation, row.stamp.component) == (
        stamp.topology_id,
        stamp.generation,
        stamp.component,
    )
    is_integer = (
        row.curr is not None and re.fullmatch(r"0|-?[1-9][0-9]{0,14}", row.curr) is not None
    )
    return same and row.stamp.txid <= settled_txid and is_integer


def _copy_of(row: stamps.Row) -> stamps.Row:
    """A copy of ``row``: only its own transaction may change a row."""
    return stamps.Row(row.key, row.stamp, row.prev, row.prev_txid, list(row.steps))
