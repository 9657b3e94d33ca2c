"""The tables of a store in a database server, and the statements on them that every SQL database
understands alike.

Layout, version 4; NULL means "there is none", a stored JSON null is the text ``null``::

    txtopo_schema(store, version, form)                               one row per value table in this database; form: codec, plain or not
    txtopo_fence(store, topology, component, generation, txid, attempt, listed,
                 counted)                                             listed: whether <table>_written has what that attempt wrote;
                                                                      counted: store transactions of a component's only task (R34)
    txtopo_count(store, topology, component, task, generation, txid, attempt, transactions)
                                                                      how many store transactions a task committed in that attempt (R34)
    <table>(key, curr, prev,                                          JSON texts; curr NULL: deleted, prev NULL: was not there
            topology, generation, component, task, txid, attempt,     the stamp: who wrote curr
            prev_txid, steps,                                         who made prev; JSON list of texts if one transaction updated the key repeatedly
            deleted)                                                  curr IS NULL, kept by the database
    <table>_deleted                                                   index of the tombstones
    <table>_written(topology, component, id, keys)                    keys, one to a line, that a task wrote in the transaction of the fence; opaque
                                                                      stores only (R31); id: any number that no other has

Version 3 had no ``txtopo_count`` and no ``counted``; a store of version 3 is brought forward when
it is first written.

Apart from a database's own module because another database will need the same; it knows none of the
rules. ``deleted`` is a column, and not only the condition of an index, so that PostgreSQL can
update ``curr`` without touching an index. Needs SQLAlchemy.

Invariants:
    - A table that is not in ``txtopo_schema`` is never written.
    - A transaction that raises a fence holds the lock of its raisers, so no other transaction makes
      or raises the fence meanwhile.
"""

from __future__ import annotations

import abc
import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from txtopo import errors
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores import sessions, stamps
from txtopo.stores.servers import statements as relational_statements

LIST_CHARACTERS = 2_000_000
"""Of keys in one row of a list: four bytes each at most, and half of a packet of the size that
MySQL and MariaDB take by default."""

class Faults(Protocol):
    """The module of errors of one kind of server."""

    @property
    def DRIVER_ERROR(self) -> type[Exception]:
        """The errors that the driver raises."""

    def translating(self, address: str, connecting: bool = False) -> contextlib.AbstractContextManager[None]:
        """Errors of the database as errors of txtopo."""

    def was_reported(self, error: BaseException) -> bool:
        """Whether ``error`` is an error of txtopo that stands for an error of the database."""


Run = Callable[..., Any]
"""``(statement, parameters) -> sqlalchemy.CursorResult``: runs a statement in the open transaction,
and has the database's errors be ours."""


class Types(NamedTuple):
    """The types of a database that compare and order texts by code points."""

    name: sa.types.TypeEngine[str]
    """Of topologies, components, stores."""
    key: sa.types.TypeEngine[str]
    """Of a key's text."""
    value: sa.types.TypeEngine[str]
    """Of a value's text, however long."""


class Tables:
    """The five tables of the store ``name``; an index on ``tombstones`` finds those, ``options``
    are the database's own for every table."""

    def __init__(
        self, name: str, types: Types, tombstones: Sequence[str], *, values_options: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        metadata = sa.MetaData()

        def column(name: str, kind: Any = types.name, **options: Any) -> sa.Column[Any]:
            return sa.Column(name, kind, **{"nullable": False, **options})

        def text(name: str) -> sa.Column[Any]:
            return column(name, types.value, nullable=True)

        self.name = name
        self.schema = sa.Table(
            "txtopo_schema", metadata, column("store", primary_key=True), column("version", sa.Integer), column("form"), **options
        )
        self.fence = sa.Table(
            "txtopo_fence", metadata, *(column(part, primary_key=True) for part in ("store", "topology", "component")),
            column("generation"), column("txid", sa.BigInteger), column("attempt", sa.BigInteger), column("listed", sa.Boolean),
            column("counted", sa.BigInteger, server_default=str(layout.UNCOUNTED)), **options,
        )  # fmt: skip
        self.count = sa.Table(
            "txtopo_count", metadata, *(column(part, primary_key=True) for part in ("store", "topology", "component")),
            column("task", sa.Integer, primary_key=True, autoincrement=False), column("generation"), column("txid", sa.BigInteger),
            column("attempt", sa.BigInteger), column("transactions", sa.BigInteger), **options,
        )  # fmt: skip
        self.written = sa.Table(
            f"{name}_written", metadata, column("topology", primary_key=True), column("component", primary_key=True),
            column("id", sa.BigInteger, primary_key=True, autoincrement=False), column("keys", types.value), quote=True, **options,
        )  # fmt: skip
        self.values = sa.Table(
            name, metadata, column("key", types.key, primary_key=True), text("curr"), text("prev"),
            column("topology"), column("generation"), column("component"), column("task", sa.Integer), column("txid", sa.BigInteger),
            column("attempt", sa.BigInteger), column("prev_txid", sa.BigInteger), text("steps"),
            sa.Column("deleted", sa.Boolean, sa.Computed("curr IS NULL", persisted=True)),
            quote=True, **options, **(values_options or {}),
        )  # fmt: skip
        values = self.values.c
        self.statements = relational_statements.statements_of(name, self.fence, self.count, self.written, self.values)
        self.deleted_index = sa.Index(f"{name}_deleted", *(values[column] for column in tombstones), postgresql_where=values.deleted)
        self.columns = [values[name] for name in layout.COLUMNS]


class Statements:
    """The open transaction of one connection, and the statements of tasks and of maintenance."""

    def __init__(self, raw: sa.Connection, faults: Faults, tables: Tables, store: places.Place) -> None:
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

    def _raise_or_make(self, fence: stamps.Fence, listed: bool, counted: int, is_there: bool = True) -> None:
        values = {"generation": fence.generation, "txid": fence.txid, "attempt": fence.attempt, "listed": listed, "counted": counted}
        of_fence = _of(fence.topology_id, fence.component)
        if is_there and self._run(self._tables.statements.raise_fence, {**values, **of_fence}).rowcount:
            return
        # Where the store was adopted meanwhile, this statement violates the primary key, and the
        # attempt fails.
        who = {"store": self._tables.name, "topology": fence.topology_id, "component": fence.component}
        self._run(self._tables.statements.make_fence, {**who, **values})

    def _forget_written(self, topology_id: str, component: str) -> None:
        self._run(self._tables.statements.forget_lists, _of(topology_id, component))


class Maintenance(Statements, sessions.Maintenance):
    """The statements that adopt or clear a store."""

    def __init__(self, raw: sa.Connection, faults: Faults, tables: Tables, store: places.Place) -> None:
        super().__init__(raw, faults, tables, store)
        self._lists = store.opaque

    def lock_all_fences(self) -> None:
        """Wait until no task writes to this store, and let no task begin until this transaction
        ends."""
        fence = self._tables.fence.c
        locked = sa.select(fence.txid).where(fence.store == self._tables.name).order_by(fence.topology, fence.component)
        self._run(locked.with_for_update()).all()

    def write_fence(self, fence: stamps.Fence) -> None:
        self._raise_or_make(fence, self._lists, counted=0)

    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        row = self._tables.values.c
        who = {"topology": stamp.topology_id, "generation": stamp.generation, "txid": stamp.txid, "attempt": stamp.attempt}
        settled = {**who, "prev": None, "prev_txid": 0, "steps": None}
        is_chosen = sa.and_(row.topology == topology_id, row.component == component)
        self._forget_written(topology_id, component)
        kept = self._tables.count.c
        counted = sa.and_(kept.store == self._tables.name, kept.component == component, kept.topology.in_([topology_id, stamp.topology_id]))
        self._run(sa.delete(self._tables.count).where(counted))
        return int(self._run(sa.update(self._tables.values).where(is_chosen).values(settled)).rowcount)

    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        removed = []
        shared = (self._tables.count, self._tables.fence)
        for table in (self._tables.written, self._tables.values, *shared):
            conditions = [table.c.topology == topology_id, *([] if component is None else [table.c.component == component])]
            whose = [table.c.store == self._tables.name] if table in shared else []
            removed.append(self._run(sa.delete(table).where(*conditions, *whose)).rowcount)
        return removed[1], removed[3]

class Session(Statements, sessions.Session):
    """The statements of one transaction of the task of ``stamp``."""

    def __init__(self, raw: sa.Connection, faults: Faults, tables: Tables, store: places.Place, stamp: stamps.Stamp) -> None:
        Statements.__init__(self, raw, faults, tables, store)
        sessions.Session.__init__(self, lists=store.opaque)
        self._mine = stamp
        self._taken: stamps.Fence | None = None
        """The fence, where this transaction has the fence for itself."""
        self._has_no_fence = False
        self._is_counted = False

    @abc.abstractmethod
    def lock_raisers(self, name: str) -> None:
        """Take the lock ``name``, after waiting for its holder, until this transaction ends.
        """

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
        row = self._run(self._tables.statements.taken_fence, _of(stamp.topology_id, stamp.component)).first()
        if row is not None:
            generation, txid, attempt, self.is_listed, counted = row
            # An only task that counts in the fence does so alone; then there is no sum to be read.
            whole = stamps.Fence(stamp.topology_id, stamp.component, generation, txid, attempt, counted)
            self._taken = whole if counted > 0 else self._read_fence(stamp.topology_id, stamp.component, lock=True)
        return self._taken is not None

    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        if self._taken is not None:
            return self._taken
        stamp = self._mine
        self.lock_raisers(f"{self._tables.name}\0{topology_id}\0{component}")
        # Another task of this attempt may have raised the fence just now. Then the fence is not
        # locked here, so that this task does not wait for the rows of the other task.
        fence = self._read_fence(topology_id, component)
        if fence is not None and (fence.generation, fence.txid, fence.attempt) != (stamp.generation, stamp.txid, stamp.attempt):
            fence = self._read_fence(topology_id, component, lock=True)
        self._has_no_fence = fence is None
        return fence

    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        return _fences(self._run, self._tables, self._tables.fence.c.topology == topology_id)

    def write_fence(self, fence: stamps.Fence) -> None:
        # A task that has the fence for itself counts there. Siblings count in separate rows, so
        # that no task waits for a commit.
        self._is_counted = self._taken is not None
        self._raise_or_make(fence, self.lists, int(self._is_counted), is_there=not self._has_no_fence)

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
            who = {"topology": stamp.topology_id, "component": stamp.component, "id": secrets.randbits(63)}
            self._run(self._tables.statements.add_list, {**who, "keys": keys})
        self.written.clear()

    def take_back(self, void: stamps.Fence) -> None:
        table, row = self._tables.values, self._tables.values.c
        undone = sa.and_(
            row.component == void.component, row.txid == void.txid, row.topology == void.topology_id, row.generation == void.generation,
            row.attempt <= void.attempt, row.attempt != stamps.UNKNOWN_ATTEMPT,
        )  # fmt: skip
        if self.is_listed:
            undone = sa.and_(undone, self._is_one_of(self._listed(void)))
        # Else every row is looked at. A transactional store comes here only when user code skipped
        # its writes on replay.
        self._run(sa.delete(table).where(undone, row.prev.is_(None)))
        restored = {"curr": row.prev, "txid": row.prev_txid, "attempt": stamps.UNKNOWN_ATTEMPT, "prev": None, "prev_txid": 0, "steps": None}
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
        settled = {**_of(stamp.topology_id, stamp.component), "of_generation": stamp.generation, "of_txid": stamp.txid}
        self._run(self._tables.statements.sweep, settled)
        if self.is_listed:
            self._forget_written(stamp.topology_id, stamp.component)

    def _read_fence(self, topology_id: str, component: str, lock: bool = False) -> stamps.Fence | None:
        statements = self._tables.statements
        row = self._run(statements.locked_fence if lock else statements.fence, _of(topology_id, component)).first()
        if row is None:
            return None
        generation, txid, attempt, self.is_listed, counted, total = row
        return stamps.Fence(topology_id, component, generation, txid, attempt, layout.count_of(counted, total))

    def _here(self, number: int) -> dict[str, Any]:
        """The fence that a task stands at, and how it is counted there."""
        stamp = self._mine
        return {
            **_of(stamp.topology_id, stamp.component), "of_store": self._tables.name, "of_task": stamp.task, "of_generation": stamp.generation,
            "of_txid": stamp.txid, "of_attempt": stamp.attempt, "number": number,
        }  # fmt: skip


class Reader:
    """The statements of one reading; all of them see the same state of the store."""

    def __init__(self, run: Run, tables: Tables, version: int) -> None:
        self._run, self._tables, self._version = run, tables, version

    def row(self, text: str) -> stamps.Row | None:
        """One committed row."""
        columns = self._run(sa.select(*self._tables.columns).where(self._tables.values.c.key == text)).first()
        return None if columns is None else layout.row_of(*columns)

    def select_from(self, text: str) -> sa.Select[Any]:
        """Selects the rows whose key's text is not below ``text``, in order."""
        key = self._tables.values.c.key
        return sa.select(*self._tables.columns).where(key >= text).order_by(key)

    def fences(self) -> list[stamps.Fence]:
        """Every fence of the store, in order."""
        return _fences(self._run, self._tables, is_counting=self._version != layout.EARLIER_VERSION)


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


def _fences(run: Run, tables: Tables, *conditions: sa.ColumnElement[bool], is_counting: bool = True) -> list[stamps.Fence]:
    fence = tables.fence.c
    counts = (fence.counted, tables.statements.total) if is_counting else (sa.literal(layout.UNCOUNTED), sa.null())
    columns = (fence.topology, fence.component, fence.generation, fence.txid, fence.attempt, *counts)
    rows = run(sa.select(*columns).where(fence.store == tables.name, *conditions).order_by(fence.topology, fence.component))
    return [
        stamps.Fence(topology, component, generation, txid, attempt, layout.count_of(counted, total))
        for topology, component, generation, txid, attempt, counted, total in rows
    ]


class Made(NamedTuple):
    """The stored version and form of a store."""

    version: int
    form: str


def made(run: Run, tables: Tables, address: str, has_table: Callable[[str], bool]) -> Made | None:
    """The stored version and form of the store, None if there is no store. Raises if the store is
    of another version of txtopo; neighbours may be of any version."""
    if not has_table(tables.schema.name):
        return None
    schema = tables.schema.c
    row = run(sa.select(schema.version, schema.form).where(schema.store == tables.name)).one_or_none()
    if row is None or row.version == layout.BEING_MADE:
        return None
    layout.check_version(address, tables.name, row.version)
    return Made(int(row.version), str(row.form))


def add_counts(run: Run, tables: Tables, has_column: Callable[[str, str], bool]) -> None:
    """Make the tables and columns that a store of the earlier version lacks. Until the new version
    is written, nothing looks at it. Not to be done by two at once."""
    run(sa.schema.CreateTable(tables.count, if_not_exists=True))
    add_counted(run, tables, has_column)


def bring_forward(run: Run, tables: Tables) -> None:
    """Register a completed store of the earlier version as a store of this version."""
    schema = tables.schema
    run(sa.update(schema).where(schema.c.store == tables.name).values(version=layout.LAYOUT_VERSION))


def add_counted(run: Run, tables: Tables, has_column: Callable[[str, str], bool]) -> None:
    """Give the table of fences its column ``counted`` if a store of the earlier version has made
    it.

    Existing fences, and fences that the earlier version makes for neighbours, are uncounted by
    default.
    """
    if not has_column(tables.fence.name, "counted"):
        run(sa.text(f"ALTER TABLE txtopo_fence ADD COLUMN counted BIGINT NOT NULL DEFAULT {layout.UNCOUNTED}"))


def check_neighbours(run: Run, tables: Tables, address: str, has_table: Callable[[str], bool]) -> None:
    """Refuse to make a store among stores that are all of another version, since the tables it
    would share with them are theirs."""
    if has_table(tables.schema.name):
        schema = tables.schema.c
        layout.check_neighbours(address, {str(store): int(version) for store, version in run(sa.select(schema.store, schema.version))})


def make(
    run: Run, tables: Tables, address: str, form: str, has_table: Callable[[str], bool], has_column: Callable[[str, str], bool]
) -> None:
    """Make the tables of a store, beside those of others; not to be done by two at once."""
    check_names_are_free(tables, address, has_table)
    check_neighbours(run, tables, address, has_table)
    for table in (tables.schema, tables.fence, tables.count, tables.values, tables.written):
        if not has_table(table.name):
            run(sa.schema.CreateTable(table))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                run(sa.schema.CreateIndex(index))
    add_counted(run, tables, has_column)
    run(sa.insert(tables.schema).values(store=tables.name, version=layout.LAYOUT_VERSION, form=form))


def check_names_are_free(tables: Tables, address: str, has_table: Callable[[str], bool]) -> None:
    """Refuse to make a store where a foreign table has the name of the store, or of its lists.
    """
    for table in (tables.values, tables.written):
        if has_table(table.name):
            fact = f"the database of {address} has a table {table.name!r} that is not a store of txtopo"
            raise errors.SetupError(f"{fact}\n  Choose another table name.")


def change_form(run: Run, tables: Tables, address: str, stored: str, form: str) -> None:
    """Have an empty store take ``form``; refuse if it is not empty. Not to be done by two at once.
    """
    if run(sa.select(tables.values.c.txid).limit(1)).first() is not None:
        layout.check_form(address, stored, form)
    run(sa.update(tables.schema).where(tables.schema.c.store == tables.name).values(form=form))
