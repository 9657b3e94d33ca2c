"""Keeps a process's connection to a database server across transactions: threads take turns, a lost
connection is opened again, a transaction commits or rolls back.

Needs SQLAlchemy.

Invariants:
    - Only the process that opened a connection uses the connection, for one transaction at a time.
    - A connection on which a statement failed is closed with its transaction.
    - A forked child sends nothing over its parent's connections, not even goodbye.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from txtopo import errors
from txtopo.stores import direct, failures, rows, stamps
from txtopo.stores import place as places
from txtopo.stores.servers import layout as server_layout
from txtopo.stores.servers import session as relational


class Connection:
    """The connection that a process keeps to a database. Threads take turns."""

    faults: relational.Faults
    """Translates this server kind's errors."""
    _open: Callable[..., sa.Connection]
    """Opens a connection to a store: ``(store, statement_s, for_reading=False)``. ``statement_s``
    bounds a statement, in seconds, and 0 is no limit."""
    _descriptor: Callable[[Any], int]
    """The socket number of a driver's connection, negative after the connection was closed."""
    _layout: Callable[[str], server_layout.Tables]
    """The tables of the store with this name."""
    _has_table: Callable[[server_layout.Run, str], bool]
    """Whether the database has a table with this name."""
    _prepare: Callable[[sa.Connection, server_layout.Tables, places.Place], None]
    """Makes the missing tables. If no table is missing, the user needs no right to make tables."""
    _session: Callable[[sa.Connection, server_layout.Tables, places.Place, stamps.Stamp], Any]
    """Makes the statements for a transaction by the task in the stamp."""
    _reader: type[relational.Reader]
    """Reads a store."""

    def __init__(self) -> None:
        self._raw: sa.Connection | None = None
        self._tables: dict[str, server_layout.Tables] = {}
        self._prepared: set[tuple[str, str]] = set()
        self._turn = threading.Lock()
        self._owner: int | None = None

    @contextlib.contextmanager
    def transaction(self, store: places.Place, stamp: stamps.Stamp) -> Iterator[Any]:
        """Open a transaction for a task, with the store's tables ready. Committed on normal exit,
        rolled back when the block raises."""
        with self._turn_of(store):
            raw = self._ready(store, store.limits["statement_timeout_s"])
            with self._ending(raw, store):
                yield self._session(raw, self._tables[store.name], store, stamp)

    @contextlib.contextmanager
    def direct(self, store: places.Place) -> Iterator[Any]:
        """Open a transaction that stands at no fence. Yields None if the store does not exist, and
        does not make the store."""
        with self._turn_of(store):
            raw = self._connect(store, store.limits["statement_timeout_s"])
            with self._ending(raw, store):
                if self._exists(raw, store):
                    yield self._session(raw, self._tables_of(store), store, direct.NO_WRITER)
                else:
                    yield None

    @contextlib.contextmanager
    def maintenance(self, store: places.Place) -> Iterator[relational.Maintenance]:
        """Open a transaction during which no task writes to the store. Statements have no time
        limit."""
        with self._turn_of(store):
            raw = self._ready(store, 0)
            with self._ending(raw, store):
                session = relational.Maintenance(raw, self.faults, self._tables[store.name], store)
                session.lock_all_fences()
                yield session

    @classmethod
    @contextlib.contextmanager
    def reading(
        cls, store: places.Place, any_form: bool = False
    ) -> Iterator[relational.Reader | None]:
        """Open a reader over a new connection, which sees one state of the store. Yields None if
        the store does not exist."""
        raw = cls._open(store, store.limits["statement_timeout_s"], for_reading=True)
        try:
            run, tables = relational.run_in(raw, cls.faults, store.address), cls._layout(store.name)
            form = cls._form_of(run, tables, store.address)
            if form is not None and not any_form:
                rows.check_form(store.address, form, store.form)
            yield None if form is None else cls._reader(run, tables, store.address, form)
        finally:
            with contextlib.suppress(sa.exc.SQLAlchemyError, cls.faults.DRIVER_ERROR):
                raw.close()

    def close(self) -> None:
        """Close the connection. The next transaction opens it again."""
        if self._raw is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError, self.faults.DRIVER_ERROR):
                self._raw.invalidate()
                self._raw.close()
        self._raw = None
        self._prepared.clear()

    @contextlib.contextmanager
    def _turn_of(self, store: places.Place) -> Iterator[None]:
        if self._owner == threading.get_ident():
            raise errors.UsageError(
                f"a transaction on the database of {store.address} is open already in this task\n"
                "  End the first transaction: write to a database's stores one after the other."
            )
        wait_s = store.limits["lock_timeout_s"]
        if not self._turn.acquire(timeout=wait_s):
            raise failures.busy(
                store.address, f"another thread held the connection for {wait_s:g} s"
            )
        try:
            self._owner = threading.get_ident()
            yield
        finally:
            self._owner = None
            self._turn.release()

    @contextlib.contextmanager
    def _ending(self, raw: sa.Connection, store: places.Place) -> Iterator[None]:
        try:
            yield
            with self.faults.translating(store.address):
                raw.commit()
        except BaseException as error:
            # After a database error, a new connection is simpler than a check of the old one.
            is_reported = isinstance(error.__cause__, self.faults.DRIVER_ERROR)
            if is_reported or raw.invalidated or not self._roll_back(raw):
                self.close()
            raise

    def _roll_back(self, raw: sa.Connection) -> bool:
        try:
            raw.rollback()
        except (sa.exc.SQLAlchemyError, self.faults.DRIVER_ERROR):
            return False
        return True

    def _ready(self, store: places.Place, statement_s: float) -> sa.Connection:
        raw = self._connect(store, statement_s)
        if (store.name, store.form) not in self._prepared:
            with self._ending(raw, store):
                self._prepare(raw, self._tables_of(store), store)
            self._prepared.add((store.name, store.form))
        return raw

    def _connect(self, store: places.Place, statement_s: float) -> sa.Connection:
        if self._raw is not None and self._has_news(self._raw):
            self.close()
        if self._raw is None:
            self._raw = self._open(store, statement_s)
            _opened[self._raw] = self._descriptor
        return self._raw

    def _tables_of(self, store: places.Place) -> server_layout.Tables:
        if store.name not in self._tables:
            self._tables[store.name] = self._layout(store.name)
        return self._tables[store.name]

    def _exists(self, raw: sa.Connection, store: places.Place) -> bool:
        """Whether the store exists. Asks the server only until the answer is yes."""
        if (store.name, store.form) not in self._prepared:
            run = relational.run_in(raw, self.faults, store.address)
            form = self._form_of(run, self._tables_of(store), store.address)
            if form is None:
                return False
            rows.check_form(store.address, form, store.form)
            self._prepared.add((store.name, store.form))
        return True

    @classmethod
    def _form_of(
        cls, run: server_layout.Run, tables: server_layout.Tables, address: str
    ) -> str | None:
        return server_layout.form_of(run, tables, address, functools.partial(cls._has_table, run))

    def _has_news(self, raw: sa.Connection) -> bool:
        """Whether an idle connection has bytes to read: the server's goodbye. The server is not
        asked."""
        driver = raw.connection.dbapi_connection
        descriptor = -1 if driver is None else self._descriptor(driver)
        if descriptor < 0:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))


_opened: weakref.WeakKeyDictionary[sa.Connection, Callable[[Any], int]] = (
    weakref.WeakKeyDictionary()
)


def _leave_to_parent() -> None:
    """Cut a forked child off from the parent's connections: no byte from the child may reach the
    server, not even a goodbye."""
    for raw, descriptor_of in list(_opened.items()):
        # To the child, a driver error about a closed connection means nothing.
        with contextlib.suppress(Exception):
            nowhere = os.open(os.devnull, os.O_RDWR)
            try:
                os.dup2(nowhere, descriptor_of(raw.connection.dbapi_connection), inheritable=False)
            finally:
                os.close(nowhere)
            raw.invalidate()


os.register_at_fork(after_in_child=_leave_to_parent)
