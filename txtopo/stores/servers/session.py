"""The statements on the tables of a store in a database server, as every SQL database understands
them: of a task, of maintenance, of a reading.

Apart from a database's own module because another database will need the same; it knows none of the
rules. The tables are in ``layout``. Needs SQLAlchemy.

Invariants:
    - A transaction that raises a fence holds the lock of its raisers, so no other transaction makes
      or raises the fence meanwhile.
"""

from __future__ import annotations

import abc
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores import sessions, stamps
from txtopo.stores.servers import layout as server_layout

LIST_CHARACTERS = 2_000_000
"""Of keys in one row of a list: four bytes each at most, and half of a packet of the size that
MySQL and MariaDB take by default."""


class Faults(Protocol):
    """The module of errors of one kind of server."""

    @property
    def DRIVER_ERROR(self) -> type[Exception]:
        """The errors that the driver raises."""

    def translating(
        self, address: str, connecting: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Errors of the database as errors of txtopo."""

    def was_reported(self, error: BaseException) -> bool:
        """Whether ``error`` is an error of txtopo that stands for an error of the database."""


class Statements:
    """The open transaction of one connection, and the statements of tasks and of maintenance."""

    def __init__(
        self, raw: sa.Connection, faults: Faults, tables: server_layout.Tables, store: places.Place
    ) -> None:
        self._raw, self._faults, self._tables, self._address = raw, faults, tables, store.address

    @property
    def connection(self) -> Any:
        """The connection of the driver, in the open transaction; only the store commits."""
        return self._raw.connection.dbapi_connection

    def translating(self) -> contextlib.AbstractContextManager[None]:
        """Errors of the database as errors of txtopo, for statements of a sink."""
        return self._faults.translating(self._address)

    def _run(self, statement: Any, parameters: dict[str, Any] | None = None) -> Any:
        with self._faults.translating(self._address):
            return self._raw.execute(statement, parameters or {})

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
        # Where the store was adopted meanwhile, this statement violates the primary key, and the
        # attempt fails.
        who = {
            "store": self._tables.name,
            "topology": fence.topology_id,
            "component": fence.component,
        }
        self._run(self._tables.statements.make_fence, {**who, **values})

    def _forget_written(self, topology_id: str, component: str) -> None:
        self._run(self._tables.statements.forget_lists, _of(topology_id, component))


class Maintenance(Statements, sessions.Maintenance):
    """The statements that adopt or clear a store."""

    def __init__(
        self, raw: sa.Connection, faults: Faults, tables: server_layout.Tables, store: places.Place
    ) -> None:
        super().__init__(raw, faults, tables, store)
        self._lists = store.opaque

    def lock_all_fences(self) -> None:
        """Wait until no task writes to this store, and let no task begin until this transaction
        ends."""
        fence = self._tables.fence.c
        locked = (
            sa.select(fence.txid)
            .where(fence.store == self._tables.name)
            .order_by(fence.topology, fence.component)
        )
        self._run(locked.with_for_update()).all()

    def write_fence(self, fence: stamps.Fence) -> None:
        self._raise_or_make(fence, self._lists, counted=0)

    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        row = self._tables.values.c
        who = {
            "topology": stamp.topology_id,
            "generation": stamp.generation,
            "txid": stamp.txid,
            "attempt": stamp.attempt,
        }
        settled = {**who, "prev": None, "prev_txid": 0, "steps": None}
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
    """The statements of one transaction of the task of ``stamp``."""

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
        """The fence, where this transaction has the fence for itself."""
        self._has_no_fence = False
        self._is_counted = False

    @abc.abstractmethod
    def lock_raisers(self, name: str) -> None:
        """Take the lock ``name``, after waiting for its holder, until this transaction ends."""

    @abc.abstractmethod
    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """See the base class; one statement for all keys."""

    @abc.abstractmethod
    def stands_at_fence(self, number: int, is_alone: bool) -> bool:
        """Whether the fence is this attempt's; if so, the fence stays until this transaction ends.
        The attempt's other tasks may ask side by side.

        The statement that looks at the fence also counts the transaction, which has this
        ``number``: in the fence itself if the task ``is_alone``.
        """

    def takes_fence(self) -> bool:
        """Whether there is a fence; then no other task reads the fence, raises it or stands at it
        until this transaction ends. For a task without siblings.

        The statement that raises the fence counts this transaction too.
        """
        stamp = self._mine
        row = self._run(
            self._tables.statements.taken_fence, _of(stamp.topology_id, stamp.component)
        ).first()
        if row is not None:
            generation, txid, attempt, self.is_listed, counted = row
            # An only task that counts in the fence does so alone; then there is no sum to be read.
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
        # Another task of this attempt may have raised the fence just now. Then the fence is not
        # locked here, so that this task does not wait for the rows of the other task.
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
        """See :meth:`count`; a statement for this alone, of a task that has taken the fence."""

    def apply(self) -> None:
        for keys in _lists_of(self.written):
            stamp = self._mine
            who = {
                "topology": stamp.topology_id,
                "component": stamp.component,
                "id": secrets.randbits(63),
            }
            self._run(self._tables.statements.add_list, {**who, "keys": keys})
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
            undone = sa.and_(undone, self._is_one_of(self._listed(void)))
        # Else every row is looked at. A transactional store comes here only when user code skipped
        # its writes on replay.
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

    def _is_one_of(self, texts: Sequence[str]) -> sa.ColumnElement[bool]:
        """Whether a row's key is among ``texts``, of which there may be very many."""
        raise NotImplementedError

    def _listed(self, fence: stamps.Fence) -> list[str]:
        """The keys that were written in the transaction of ``fence``, in order."""
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
        return stamps.Fence(
            topology_id, component, generation, txid, attempt, layout.count_of(counted, total)
        )

    def _here(self, number: int) -> dict[str, Any]:
        """The fence that a task stands at, and how it is counted there."""
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
    """The statements of one reading; all of them see the same state of the store."""

    def __init__(self, run: server_layout.Run, tables: server_layout.Tables, form: str) -> None:
        self._run, self._tables = run, tables
        self.form = form
        """The stored form."""

    def row(self, text: str) -> stamps.Row | None:
        """One committed row."""
        columns = self._run(
            sa.select(*self._tables.columns).where(self._tables.values.c.key == text)
        ).first()
        return None if columns is None else layout.row_of(*columns)

    def select_from(self, text: str) -> sa.Select[Any]:
        """Selects the rows whose key's text is not below ``text``, in order."""
        key = self._tables.values.c.key
        return sa.select(*self._tables.columns).where(key >= text).order_by(key)

    def fences(self) -> list[stamps.Fence]:
        """Every fence of the store, in order."""
        return _fences(self._run, self._tables)


def _lists_of(texts: Sequence[str]) -> Iterator[str]:
    """The keys ``texts``, one to a line, as many lists as there must be for none to be longer than
    :data:`LIST_CHARACTERS`."""
    begin, held = 0, 0
    for end, text in enumerate(texts):
        if held and held + len(text) > LIST_CHARACTERS:
            yield "\n".join(texts[begin:end])
            begin, held = end, 0
        held += len(text) + 1
    if texts:
        yield "\n".join(texts[begin:])


def _of(topology_id: str, component: str) -> dict[str, Any]:
    """Whose fence, lists and rows a statement is about."""
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
    return [
        stamps.Fence(
            topology, component, generation, txid, attempt, layout.count_of(counted, total)
        )
        for topology, component, generation, txid, attempt, counted, total in rows
    ]
