"""PostgreSQL behind :class:`~txtopo.stores.servers.store.SqlStore`: one connection per worker
process, and reading and writing in bulk over it.

Apart from ``servers``, which holds the statements for any SQL database; ``connection`` makes
connections, and ``errors`` gives errors their meaning. Needs SQLAlchemy and psycopg. Transactions
are READ COMMITTED, not the default of the server: a statement must see rows that other transactions
committed while the statement waited.

A row is read without locking it, and written only if it is still the version that was read
(``xmin``): of two writers of one key the second finds the first one's row in its place, and is told
whose it is. Rows are written in the order of their keys, so that two writers with several common
keys meet at the first common key. Where writers write in several portions and block each other, the
writer that the server ends reads the rows again.

Invariants:
    - After a statement failed its transaction ends; only a deadlock is looked into before.
    - Round trips of a transaction do not depend on how many keys one ``update_many`` of up to
      ``ROWS_HELD_MAX`` keys has.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from txtopo import errors
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores import sessions, stamps
from txtopo.stores.postgresql import connection as connections
from txtopo.stores.postgresql import errors as faults
from txtopo.stores.postgresql import merge as postgresql_merge
from txtopo.stores.servers import connection as relational_connection
from txtopo.stores.servers import layout as server_layout
from txtopo.stores.servers import session
from txtopo.topology import merge

KEY_BYTES_MAX = 2600
"""Of a key's text; an entry of PostgreSQL's index may not be larger than a third of a page."""

CURSOR_ROWS = 1000
"""How many rows ``items`` and ``scan`` fetch at a time."""

_LOCK = sa.text("SELECT pg_advisory_xact_lock(:number)")
# Not to_regclass: its answer may be older than the wait for the lock.
_HAS_TABLE = sa.text(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = :name AND pg_catalog.pg_table_is_visible(oid))"
)
_VERSION = "xmin::text"
_WHO = "store = :of_store AND topology = :of_topology AND component = :of_component"
_HERE = "(generation, txid, attempt) = (:of_generation, CAST(:of_txid AS bigint), CAST(:of_attempt AS bigint))"
# A row of each task, so that those of one attempt need not wait for each other's commit.
_COUNTED = (
    "INSERT INTO txtopo_count AS kept(store, topology, component, task, generation, txid, attempt, transactions)"
    " SELECT :of_store, :of_topology, :of_component, CAST(:of_task AS integer), :of_generation, CAST(:of_txid AS bigint),"
    " CAST(:of_attempt AS bigint), 1 {given}"
    " ON CONFLICT (store, topology, component, task) DO UPDATE SET generation = EXCLUDED.generation,"
    " txid = EXCLUDED.txid, attempt = EXCLUDED.attempt, transactions = CASE WHEN (kept.generation, kept.txid, kept.attempt) ="
    " (EXCLUDED.generation, EXCLUDED.txid, EXCLUDED.attempt)"
    " THEN kept.transactions + CAST(kept.transactions < CAST(:number AS bigint) AS integer) ELSE 1 END"
)
_STAND = sa.text(
    f"WITH standing AS (SELECT listed FROM txtopo_fence WHERE {_WHO} AND {_HERE} FOR SHARE),"
    f" counted AS ({_COUNTED.format(given='FROM standing')}) SELECT listed FROM standing"
)
_STAND_ALONE = sa.text(
    "UPDATE txtopo_fence SET counted = counted + CAST(counted < CAST(:number AS bigint) AS integer)"
    f" WHERE {_WHO} AND {_HERE} RETURNING listed"
)
# A new version of a row that finds room in the page of the old one needs no entry in any index;
# half of a page has room for one of each of its rows.
_ROOM = {"fillfactor": 50}
# Texts without a line feed travel as one: to make an array of Python's objects takes the driver
# longer. An empty one is NULL.
_IN_LINES = frozenset({"key", "version", "prev_txid"})
_GIVEN_KEYS = "string_to_array(CAST(:keys AS text), E'\\n')"
_TYPES = {"task": "integer", "txid": "bigint", "attempt": "bigint", "prev_txid": "bigint"}


class Connection(relational_connection.Connection):
    """One process's connection to one database."""

    faults = faults

    def _open(self, store: places.Place, statement_s: float) -> sa.Connection:
        return connections.open_connection(store, statement_s)

    def _descriptor(self, driver: Any) -> int:
        return -1 if driver.closed else int(driver.fileno())

    def _layout(self, store: places.Place) -> server_layout.Tables:
        return _tables(store)

    def _prepare(
        self, raw: sa.Connection, tables: server_layout.Tables, store: places.Place
    ) -> None:
        _prepare(raw, tables, store)

    def _session(
        self,
        raw: sa.Connection,
        tables: server_layout.Tables,
        store: places.Place,
        stamp: stamps.Stamp,
    ) -> Session:
        return Session(raw, tables, store, stamp)


class Session(session.Session):
    """Reading and writing in bulk in PostgreSQL; and the lock by which tasks that raise a fence
    take turns."""

    def __init__(
        self,
        raw: sa.Connection,
        tables: server_layout.Tables,
        store: places.Place,
        stamp: stamps.Stamp,
    ) -> None:
        super().__init__(raw, faults, tables, store, stamp)
        self._versions: dict[str, str | None] = {}
        """Of rows that are there, by key: the version that was read; None after this transaction
        has written the row."""

    def stands_at_fence(self, number: int, is_alone: bool) -> bool:
        row = self._run(_STAND_ALONE if is_alone else _STAND, self._here(number)).first()
        self.is_listed = row is not None and bool(row[0])
        return row is not None

    def _count(self, stamp: stamps.Stamp, number: int) -> None:
        self._run(_STAND_ALONE, self._here(number))

    def lock_raisers(self, name: str) -> None:
        self._run(_LOCK, {"number": _lock_number(name)})

    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        self._check_keys(texts)
        versioned = self._read(texts)
        self._versions.update((row.key, version) for row, version in versioned)
        return {row.key: row for row, _ in versioned}

    def merge_rows(
        self, deltas: Mapping[str, int], how: merge.Merge, stamp: stamps.Stamp, settled_txid: int
    ) -> Collection[str]:
        self._check_keys(deltas)
        try:
            refused = postgresql_merge.merged(
                self._run, self._tables.name, deltas, how, stamp, settled_txid
            )
        except errors.FailedException as deadlock:
            if not faults.is_deadlock(deadlock):
                raise
            raise sessions.RowsChangedError(self._after(deadlock, sorted(deltas))) from deadlock
        self.note(deltas.keys() - refused if refused else deltas)
        return refused

    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        ordered = sorted(rows, key=lambda row: row.key)
        existing = [row for row in ordered if row.key in self._versions]
        new = [row for row in ordered if row.key not in self._versions]
        try:
            written = (self._update(existing) if existing else 0) + (
                self._insert(new) if new else 0
            )
        except errors.FailedException as deadlock:
            if not faults.is_deadlock(deadlock):
                raise
            raise sessions.RowsChangedError(
                self._after(deadlock, [row.key for row in ordered])
            ) from deadlock
        if written != len(ordered):
            raise sessions.RowsChangedError(self._not_written(ordered))
        self._versions.update((row.key, None) for row in ordered)
        self.note(row.key for row in ordered)

    def _is_one_of(self, texts: Sequence[str]) -> sa.ColumnElement[bool]:
        return self._tables.values.c.key == sa.any_(
            sa.cast(sa.literal(list(texts), postgresql.ARRAY(sa.Text)), postgresql.ARRAY(sa.Text))
        )

    def _update(self, rows: Sequence[stamps.Row]) -> int:
        table = self._table
        others = [name for name in layout.COLUMNS if name != "key"]
        versions = {"version": _in_lines(self._versions[row.key] for row in rows)}
        parameters = _by_column(rows)
        # The arrays are joined with the table, and never with each other: the server takes arrays
        # for short, and would compare every pair of rows.
        statement = (
            f"WITH given AS ({_given(parameters | versions)}),"
            f" locked AS (SELECT given.* FROM {table} AS kept JOIN given ON kept.key = given.key"
            f" WHERE given.version IS NULL OR kept.{_VERSION} = given.version ORDER BY kept.key FOR UPDATE OF kept)"
            f" UPDATE {table} AS kept SET {', '.join(f'{name} = locked.{name}' for name in others)} FROM locked WHERE kept.key = locked.key"
        )
        return int(self._run(sa.text(statement), parameters | versions).rowcount)

    def _insert(self, rows: Sequence[stamps.Row]) -> int:
        parameters = _by_column(rows)
        statement = f"INSERT INTO {self._table}({', '.join(parameters)}) {_given(parameters)} ON CONFLICT (key) DO NOTHING"
        return int(self._run(sa.text(statement), parameters).rowcount)

    def _read(self, texts: Sequence[str]) -> list[tuple[stamps.Row, str]]:
        statement = f"SELECT {', '.join(layout.COLUMNS)}, {_VERSION} FROM {self._table} WHERE key = ANY({_GIVEN_KEYS})"
        return [
            (layout.row_of(*columns[:-1]), columns[-1])
            for columns in self._run(sa.text(statement), {"keys": "\n".join(texts)}).all()
        ]

    def _not_written(self, rows: Sequence[stamps.Row]) -> dict[str, stamps.Row | None]:
        """The rows that other transactions have put in the place of ``rows``; None where they
        removed a row."""
        own = str(self._run(sa.text("SELECT pg_current_xact_id()::xid::text")).scalar_one())
        kept = {row.key: (row, version) for row, version in self._read([row.key for row in rows])}
        changed: dict[str, stamps.Row | None] = {
            key: row for key, (row, version) in kept.items() if version != own
        }
        return changed | {row.key: None for row in rows if row.key not in kept}

    def _after(self, deadlock: Exception, texts: Sequence[str]) -> dict[str, stamps.Row | None]:
        """The rows after the other tasks of this attempt have ended: the blocking task has then
        committed."""
        stamp = self._mine
        self._raw.rollback()
        if self._read_fence(stamp.topology_id, stamp.component, lock=True) is None:
            raise deadlock
        rows = {row.key: row for row, _ in self._read(texts)}
        return {text: rows.get(text) for text in texts}

    def _check_keys(self, texts: Collection[str]) -> None:
        if max(map(len, texts), default=0) * 4 <= KEY_BYTES_MAX:
            return
        for text in texts:
            if len(text.encode()) > KEY_BYTES_MAX:
                raise errors.UsageError(
                    f"a key of {len(text.encode())} bytes is too long for the store {self._address}: {text[:60]}…\n"
                    f"  PostgreSQL indexes keys of up to {KEY_BYTES_MAX} bytes. Use a digest of it."
                )

    @property
    def _table(self) -> str:
        return f'"{self._tables.name}"'


class Reader(session.Reader):
    """One reading, with a cursor that stays on the server."""

    def __init__(
        self, raw: sa.Connection, tables: server_layout.Tables, address: str, form: str
    ) -> None:
        super().__init__(functools.partial(_run, raw, address), tables, form)
        self._raw, self._address = raw, address

    def rows_from(self, text: str) -> Iterator[stamps.Row]:
        """The rows whose key's text is not below ``text``, in order, a portion at a time."""
        options = {"yield_per": CURSOR_ROWS}  # which has the cursor stay on the server
        with faults.translating(self._address):
            result = self._raw.execute(self.select_from(text), execution_options=options)
        portions = result.partitions()
        try:
            while True:
                with faults.translating(self._address):
                    portion = next(portions, None)
                if portion is None:
                    return
                for columns in portion:
                    yield layout.row_of(*columns)
        finally:
            # Also when the reader has seen enough. Where the connection is lost, so is its cursor.
            with contextlib.suppress(sa.exc.SQLAlchemyError, psycopg.Error):
                result.close()


@contextlib.contextmanager
def reading(store: places.Place, any_form: bool = False) -> Iterator[Reader | None]:
    """A reader of one state of the store, over a new connection; None if there is no such store."""
    raw = connections.open_connection(
        store, store.limits["statement_timeout_s"], is_idle_bounded=False
    )
    try:
        raw.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        tables, run = _tables(store), functools.partial(_run, raw, store.address)
        form = server_layout.form_of(run, tables, store.address, functools.partial(_has_table, run))
        if form is not None and not any_form:
            layout.check_form(store.address, form, store.form)
        yield None if form is None else Reader(raw, tables, store.address, form)
    finally:
        with contextlib.suppress(sa.exc.SQLAlchemyError, psycopg.Error):
            raw.close()


def _prepare(raw: sa.Connection, tables: server_layout.Tables, store: places.Place) -> None:
    """Make the missing parts of the layout, one process at a time. Where no part is missing, no
    right to make tables is needed."""
    run = functools.partial(_run, raw, store.address)
    has_table = functools.partial(_has_table, run)
    if server_layout.form_of(run, tables, store.address, has_table) == store.form:
        return
    run(_LOCK, {"number": _lock_number("schema")})
    form = server_layout.form_of(run, tables, store.address, has_table)
    if form is None:
        server_layout.make(run, tables, store.address, store.form, has_table)
    elif form != store.form:
        server_layout.change_form(run, tables, store.address, form, store.form)


def _run(
    raw: sa.Connection, address: str, statement: Any, parameters: dict[str, Any] | None = None
) -> Any:
    with faults.translating(address):
        return raw.execute(statement, parameters or {})


def _has_table(run: server_layout.Run, name: str) -> bool:
    return bool(run(_HAS_TABLE, {"name": name}).scalar_one())


def _tables(store: places.Place) -> server_layout.Tables:
    # In order of code points, not in the order of the database: Python and all other stores order
    # texts by code points.
    text = sa.Text(collation="C")
    return server_layout.Tables(
        store.name,
        server_layout.Types(text, text, text),
        ("topology",),
        values_options={"postgresql_with": _ROOM},
    )


def _given(parameters: Mapping[str, Any]) -> str:
    """A SELECT of rows that are parameters: an array for each column with different values, and the
    values common to all rows."""
    arrays = [name for name, value in parameters.items() if isinstance(value, list)]
    sent = [name for name in parameters if name in arrays or name in _IN_LINES]
    columns = ", ".join(
        name if name in sent else f"CAST(:{name} AS {_TYPES.get(name, 'text')}) AS {name}"
        for name in parameters
    )
    values = ", ".join(f"CAST({_lines(name)} AS {_TYPES.get(name, 'text')}[])" for name in sent)
    return f"SELECT {columns} FROM unnest({values}) AS given({', '.join(sent)})"


def _lines(name: str) -> str:
    return (
        f"string_to_array(CAST(:{name} AS text), E'\\n', '')" if name in _IN_LINES else f":{name}"
    )


def _by_column(rows: Sequence[stamps.Row]) -> dict[str, Any]:
    """The values of each column; one value, and no list, where all rows have the same value: the
    writer is sent once."""
    columns = zip(layout.COLUMNS, zip(*map(layout.columns_of, rows), strict=True), strict=True)
    return {
        name: _in_lines(values)
        if name in _IN_LINES
        else list(values)
        if values.count(values[0]) < len(values)
        else values[0]
        for name, values in columns
    }


def _in_lines(values: Iterable[object]) -> str:
    return "\n".join(["" if value is None else str(value) for value in values])


def _lock_number(name: str) -> int:
    """Advisory locks are numbers, of 64 bits, shared by the whole database."""
    return int.from_bytes(
        hashlib.blake2b(f"txtopo {name}".encode(), digest_size=8).digest(), "big", signed=True
    )
