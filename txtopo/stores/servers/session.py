"""Runs a store's statements for tasks, maintenance and readers, in SQL that every database server
understands.

A backend adds its own statements. No rule about stores is here. The tables are in ``layout``. Needs
SQLAlchemy.

Invariants:
    - A transaction that raises a fence holds the raisers' lock, so no other transaction makes or
      raises the fence meanwhile.
"""

from __future__ import annotations

import abc
import contextlib
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from txtopo import errors
from txtopo.stores import direct, sessions, stamps
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores.servers import layout as server_layout
from txtopo.stores.servers import statements

LIST_CHARACTERS = 2_000_000
"""How many characters of keys a list row holds: with four bytes each at most, they fill half a
packet of the default size in MySQL and MariaDB."""


class Faults(Protocol):
    """A server kind's ``errors`` module."""

    @property
    def DRIVER_ERROR(self) -> type[Exception]:
        """The base class for all errors that the driver raises."""

    def translating(
        self, address: str, connecting: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Translate the database's errors into errors from ``txtopo.errors``."""

    def is_deadlock(self, error: BaseException) -> bool:
        """Whether the server has ended the transaction because two transactions waited for each
        other."""


def run_in(raw: sa.Connection, faults: Faults, address: str) -> server_layout.Run:
    """Make the function that runs a statement in the open transaction on ``raw``."""

    def run(statement: Any, parameters: dict[str, Any] | None = None) -> Any:
        with faults.translating(address):
            return raw.execute(statement, parameters or {})

    return run


class Statements:
    """A connection's open transaction, and the statements common to tasks and maintenance."""

    def __init__(
        self, raw: sa.Connection, faults: Faults, tables: server_layout.Tables, store: places.Place
    ) -> None:
        self._raw, self._faults, self._tables = raw, faults, tables
        self._store, self._address = store, store.address
        self._run = run_in(raw, faults, store.address)

    @property
    def connection(self) -> Any:
        """The driver's connection, in the open transaction. Only the store commits."""
        return self._raw.connection.dbapi_connection

    def translating(self) -> contextlib.AbstractContextManager[None]:
        """Translate the database's errors, for a sink's statements."""
        return self._faults.translating(self._address)

    def _raise_or_make(
        self, fence: stamps.Fence, listed: bool, counted: int, is_there: bool = True
    ) -> None:
        values = {
            "generation": fence.generation,
            "txid": fence.txid,
            "attempt": fence.attempt,
            "listed": listed,
            "counted": counted,
        }
        of_fence = _of(fence.topology_id, fence.component)
        if (
            is_there
            and self._run(self._tables.statements.raise_fence, {**values, **of_fence}).rowcount
        ):
            return
        # If the store was adopted meanwhile, this statement violates the primary key, and the
        # attempt fails.
        owner = {
            "store": self._tables.name,
            "topology": fence.topology_id,
            "component": fence.component,
        }
        self._run(self._tables.statements.make_fence, {**owner, **values})

    def _forget_written(self, topology_id: str, component: str) -> None:
        self._run(self._tables.statements.forget_lists, _of(topology_id, component))


class Maintenance(Statements, sessions.Maintenance):
    """Adopts or clears a store."""

    def lock_all_fences(self) -> None:
        """Wait until no task writes to this store. No task begins to write until this transaction
        ends."""
        fence = self._tables.fence.c
        locked = (
            sa.select(fence.txid)
            .where(fence.store == self._tables.name)
            .order_by(fence.topology, fence.component)
        )
        self._run(locked.with_for_update()).all()

    def write_fence(self, fence: stamps.Fence) -> None:
        self._raise_or_make(fence, self._store.opaque, counted=0)

    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        row = self._tables.values.c
        owner = {
            "topology": stamp.topology_id,
            "generation": stamp.generation,
            "txid": stamp.txid,
            "attempt": stamp.attempt,
        }
        settled = {**owner, "prev": None, "prev_txid": 0, "steps": None}
        is_chosen = sa.and_(row.topology == topology_id, row.component == component)
        self._forget_written(topology_id, component)
        kept = self._tables.count.c
        counted = sa.and_(
            kept.store == self._tables.name,
            kept.component == component,
            kept.topology.in_([topology_id, stamp.topology_id]),
        )
        self._run(sa.delete(self._tables.count).where(counted))
        return int(
            self._run(sa.update(self._tables.values).where(is_chosen).values(settled)).rowcount
        )

    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        removed = []
        shared = (self._tables.count, self._tables.fence)
        for table in (self._tables.written, self._tables.values, *shared):
            conditions = [
                table.c.topology == topology_id,
                *([] if component is None else [table.c.component == component]),
            ]
            whose = [table.c.store == self._tables.name] if table in shared else []
            removed.append(self._run(sa.delete(table).where(*conditions, *whose)).rowcount)
        return removed[1], removed[3]


class Session(Statements, sessions.Session):
    """The statements for a transaction by the task in ``stamp``."""

    def __init__(
        self,
        raw: sa.Connection,
        faults: Faults,
        tables: server_layout.Tables,
        store: places.Place,
        stamp: stamps.Stamp,
    ) -> None:
        Statements.__init__(self, raw, faults, tables, store)
        sessions.Session.__init__(self, lists=store.opaque)
        self._mine = stamp
        self._taken: stamps.Fence | None = None
        """The fence, if this transaction has the fence for itself."""
        self._has_no_fence = False
        self._is_counted = False

    def first_rows(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        """The first rows in each range, all from one statement. See
        :meth:`txtopo.stores.direct.Direct.read_ranges`."""
        rows: list[list[stamps.Row]] = [[] for _ in ranges]
        if ranges:
            bounds = {
                f"{side}{number}": text
                for number, pair in enumerate(ranges)
                for side, text in zip(("low", "high"), pair, strict=True)
            }
            select = statements.first_rows(self._tables.values, len(ranges))
            for number, *columns in self._run(select, {**bounds, "most": limit}):
                rows[number].append(layout.row_of(*columns))
        return [sorted(some, key=lambda row: row.key) for some in rows]

    @abc.abstractmethod
    def exchange(self, change: direct.Change) -> bool:
        """See :meth:`txtopo.stores.direct.Direct.exchange`. Locks the rows with these keys only.

        :raises sessions.RowsChangedError: another transaction has made a row first. This
            transaction must be rolled back.
        """

    @abc.abstractmethod
    def lock_raisers(self, name: str) -> None:
        """Take the lock ``name``, after waiting for its holder, until this transaction ends."""

    @abc.abstractmethod
    def stands_at_fence(self, number: int, is_alone: bool) -> bool:
        """Whether the fence is this attempt's. If so, the fence stays unchanged until this
        transaction ends. The attempt's tasks do not block each other here.

        The statement that looks at the fence also counts transaction ``number``: in the fence
        itself if the task ``is_alone``.
        """

    def takes_fence(self) -> bool:
        """Whether a fence exists. If so, no other task reads the fence, raises it or stands at it
        until this transaction ends. For a task without siblings.

        The statement that raises the fence counts this transaction too.
        """
        stamp = self._mine
        row = self._run(
            self._tables.statements.taken_fence, _of(stamp.topology_id, stamp.component)
        ).first()
        if row is not None:
            generation, txid, attempt, self.is_listed, counted = row
            # A count in the fence means an only task: then no sum over tasks needs to be read.
            whole = stamps.Fence(
                stamp.topology_id, stamp.component, generation, txid, attempt, counted
            )
            self._taken = (
                whole
                if counted > 0
                else self._read_fence(stamp.topology_id, stamp.component, lock=True)
            )
        return self._taken is not None

    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        if self._taken is not None:
            return self._taken
        stamp = self._mine
        self.lock_raisers(f"{self._tables.name}\0{topology_id}\0{component}")
        # A sibling may have raised the fence just now. Then this task does not lock the fence, so
        # that it does not wait for the sibling's rows.
        fence = self._read_fence(topology_id, component)
        if fence is not None and (fence.generation, fence.txid, fence.attempt) != (
            stamp.generation,
            stamp.txid,
            stamp.attempt,
        ):
            fence = self._read_fence(topology_id, component, lock=True)
        self._has_no_fence = fence is None
        return fence

    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        return _fences(self._run, self._tables, self._tables.fence.c.topology == topology_id)

    def write_fence(self, fence: stamps.Fence) -> None:
        # A task that has the fence for itself counts there. Siblings count in separate rows, so
        # that no task waits for a commit.
        self._is_counted = self._taken is not None
        self._raise_or_make(
            fence, self.lists, int(self._is_counted), is_there=not self._has_no_fence
        )

    def count(self, stamp: stamps.Stamp, number: int) -> None:
        if not self._is_counted:
            self._count(stamp, number)
            self._is_counted = True

    @abc.abstractmethod
    def _count(self, stamp: stamps.Stamp, number: int) -> None:
        """Count the transaction by a separate statement, for a task that has taken the fence. See
        :meth:`count`."""

    def apply(self) -> None:
        for keys in _lists_of(self.written):
            stamp = self._mine
            owner = {
                "topology": stamp.topology_id,
                "component": stamp.component,
                "id": secrets.randbits(63),
            }
            self._run(self._tables.statements.add_list, {**owner, "keys": keys})
        self.written.clear()

    def take_back(self, void: stamps.Fence) -> None:
        table, row = self._tables.values, self._tables.values.c
        undone = sa.and_(
            row.component == void.component,
            row.txid == void.txid,
            row.topology == void.topology_id,
            row.generation == void.generation,
            row.attempt <= void.attempt,
            row.attempt != stamps.UNKNOWN_ATTEMPT,
        )
        if self.is_listed:
            undone = sa.and_(undone, self._is_one_of(self._listed_keys(void)))
        # Without a list, the statements look at every row. A transactional store comes here only if
        # user code skipped its writes on replay.
        self._run(sa.delete(table).where(undone, row.prev.is_(None)))
        restored = {
            "curr": row.prev,
            "txid": row.prev_txid,
            "attempt": stamps.UNKNOWN_ATTEMPT,
            "prev": None,
            "prev_txid": 0,
            "steps": None,
        }
        self._run(sa.update(table).where(undone).values(restored))
        self._forget_written(void.topology_id, void.component)

    @contextlib.contextmanager
    def _translating_deadlock(self, texts: Collection[str]) -> Iterator[None]:
        """Raise RowsChangedError instead of a deadlock, with the rows whose keys are ``texts``.

        The rows are read once this attempt's fence is locked again: the blocking task has then
        committed.
        """
        try:
            yield
        except errors.FailedException as deadlock:
            if not self._faults.is_deadlock(deadlock):
                raise
            stamp = self._mine
            self._raw.rollback()
            if self._read_fence(stamp.topology_id, stamp.component, lock=True) is None:
                raise
            rows = self._look_at(list(texts))
            raise sessions.RowsChangedError({text: rows.get(text) for text in texts}) from deadlock

    def _look_at(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """Read rows as :meth:`read_rows` does, for a writer that must not replace them yet."""
        return self.read_rows(texts)

    def _is_one_of(self, texts: Sequence[str]) -> sa.ColumnElement[bool]:
        """Whether a row's key is among ``texts``, which may be very many."""
        raise NotImplementedError

    def _listed_keys(self, fence: stamps.Fence) -> list[str]:
        """The keys written in the transaction in ``fence``, in order."""
        lists = self._run(self._tables.statements.lists, _of(fence.topology_id, fence.component))
        return sorted({text for (listed,) in lists for text in listed.split("\n")})

    def sweep(self, stamp: stamps.Stamp) -> None:
        settled = {
            **_of(stamp.topology_id, stamp.component),
            "of_generation": stamp.generation,
            "of_txid": stamp.txid,
        }
        self._run(self._tables.statements.sweep, settled)
        if self.is_listed:
            self._forget_written(stamp.topology_id, stamp.component)

    def _read_fence(
        self, topology_id: str, component: str, lock: bool = False
    ) -> stamps.Fence | None:
        statements = self._tables.statements
        row = self._run(
            statements.locked_fence if lock else statements.fence, _of(topology_id, component)
        ).first()
        if row is None:
            return None
        generation, txid, attempt, self.is_listed, counted, total = row
        return layout.fence_of(topology_id, component, generation, txid, attempt, counted, total)

    def _here(self, number: int) -> dict[str, Any]:
        """The parameters that name this attempt's fence and count transaction ``number`` there."""
        stamp = self._mine
        return {
            **_of(stamp.topology_id, stamp.component),
            "of_store": self._tables.name,
            "of_task": stamp.task,
            "of_generation": stamp.generation,
            "of_txid": stamp.txid,
            "of_attempt": stamp.attempt,
            "number": number,
        }


class Reader:
    """Reads a store: all statements see one state."""

    def __init__(
        self, run: server_layout.Run, tables: server_layout.Tables, address: str, form: str
    ) -> None:
        self._run, self._tables, self._address = run, tables, address
        self.form = form
        """The stored form."""

    def row(self, text: str) -> stamps.Row | None:
        """The committed row with key ``text``."""
        columns = self._run(
            sa.select(*self._tables.columns).where(self._tables.values.c.key == text)
        ).first()
        return None if columns is None else layout.row_of(*columns)

    def select_from(self, text: str) -> sa.Select[Any]:
        """Selects the rows whose key's text is not below ``text``, in order."""
        key = self._tables.values.c.key
        return sa.select(*self._tables.columns).where(key >= text).order_by(key)

    def fences(self) -> list[stamps.Fence]:
        """The store's fences, in order."""
        return _fences(self._run, self._tables)


def _lists_of(texts: Sequence[str]) -> Iterator[str]:
    """The keys ``texts``, one per line, in as few lists as :data:`LIST_CHARACTERS` allows."""
    begin, held = 0, 0
    for end, text in enumerate(texts):
        if held and held + len(text) > LIST_CHARACTERS:
            yield "\n".join(texts[begin:end])
            begin, held = end, 0
        held += len(text) + 1
    if texts:
        yield "\n".join(texts[begin:])


def _of(topology_id: str, component: str) -> dict[str, Any]:
    """The parameters that select a component's fence, lists and rows."""
    return {"of_topology": topology_id, "of_component": component}


def _fences(
    run: server_layout.Run, tables: server_layout.Tables, *conditions: sa.ColumnElement[bool]
) -> list[stamps.Fence]:
    fence = tables.fence.c
    columns = (
        fence.topology,
        fence.component,
        fence.generation,
        fence.txid,
        fence.attempt,
        fence.counted,
        tables.statements.total,
    )
    rows = run(
        sa.select(*columns)
        .where(fence.store == tables.name, *conditions)
        .order_by(fence.topology, fence.component)
    )
    return [layout.fence_of(*row) for row in rows]
