"""Runs :class:`~txtopo.stores.servers.store.SqlStore` in PostgreSQL: one connection per worker
process, which reads and writes rows in bulk.

Statements for any SQL database are in ``servers``. Needs SQLAlchemy and psycopg. Transactions are
READ COMMITTED, not the server's default: a statement must see rows that other transactions
committed while the statement waited.

A task reads rows without locking them, and writes a row only if its version (``xmin``) is still the
version read. If two tasks write a key, the second task finds the first task's row, and learns whose
row it is. Rows are written in key order, so that two writers with several common keys meet at the
first common key. If writers with several portions block each other, the server ends one writer, and
this writer reads the rows again.

Invariants:
    - After a statement failed, its transaction ends. Only a deadlock is looked into before.
    - The round trips in a transaction do not depend on how many keys ``update_many`` gets, up to
      ``ROWS_HELD_MAX`` keys.
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
from txtopo.stores import direct, sessions, stamps
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores.postgresql import connection as connections
from txtopo.stores.postgresql import errors as faults
from txtopo.stores.postgresql import merge as postgresql_merge
from txtopo.stores.servers import connection as relational_connection
from txtopo.stores.servers import layout as server_layout
from txtopo.stores.servers import session
from txtopo.topology import merge

KEY_BYTES_MAX = 2600
"""The longest key text: an index entry may fill a third of a page at most."""

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
# Each task has its own row, so that an attempt's tasks need not wait for each other's commit.
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
# A new row version needs no index entry if it fits into the old version's page. With pages half
# full, each row has room for a new version.
_ROOM = {"fillfactor": 50}
# Texts without a line feed travel as one text: making an array from Python objects takes the driver
# longer. An empty text is NULL.
_IN_LINES = frozenset({"key", "version", "prev_txid"})
_GIVEN_KEYS = "string_to_array(CAST(:keys AS text), E'\\n')"
_LOCKING = " ORDER BY key FOR UPDATE"
_TYPES = {"task": "integer", "txid": "bigint", "attempt": "bigint", "prev_txid": "bigint"}


class Session(session.Session):
    """Reads and writes rows in bulk. Tasks that raise a fence take turns by a lock."""

    def __init__(
        self,
        raw: sa.Connection,
        tables: server_layout.Tables,
        store: places.Place,
        stamp: stamps.Stamp,
    ) -> None:
        super().__init__(raw, faults, tables, store, stamp)
        self._versions: dict[str, str | None] = {}
        """The version read, by key, for every row that exists. None after this transaction has
        written the row."""

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
        with self._translating_deadlock(deltas):
            refused = postgresql_merge.merged(
                self._run, self._tables.name, deltas, how, stamp, settled_txid
            )
        self.note(deltas.keys() - refused if refused else deltas)
        return refused

    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        ordered = sorted(rows, key=lambda row: row.key)
        with self._translating_deadlock([row.key for row in ordered]):
            written = self._write(ordered)
        if written != len(ordered):
            raise sessions.RowsChangedError(self._changed_rows(ordered))
        self._versions.update((row.key, None) for row in ordered)
        self.note(row.key for row in ordered)

    def exchange(self, change: direct.Change) -> bool:
        self._check_keys(change.expected)
        locked = {row.key: row for row, _ in self._read(list(change.expected), _LOCKING)}
        if not direct.are_as_expected(locked, change.expected):
            return False
        self._versions = dict.fromkeys(locked)
        if self._write(sorted(change.rows, key=lambda row: row.key)) != len(change.rows):
            raise sessions.RowsChangedError({})
        selected = f"SELECT key FROM {self._table} WHERE key = ANY({_GIVEN_KEYS}){_LOCKING}"
        delete = f"DELETE FROM {self._table} AS kept USING ({selected}) AS locked WHERE kept.key = locked.key"
        if change.removed:
            self._run(sa.text(delete), {"keys": "\n".join(change.removed)})
        return True

    def _write(self, rows: Sequence[stamps.Row]) -> int:
        """Update or insert ``rows``, in their order. Returns how many rows were as read."""
        existing = [row for row in rows if row.key in self._versions]
        new = [row for row in rows if row.key not in self._versions]
        return (self._update(existing) if existing else 0) + (self._insert(new) if new else 0)

    def _is_one_of(self, texts: Sequence[str]) -> sa.ColumnElement[bool]:
        return self._tables.values.c.key == sa.any_(
            sa.cast(sa.literal(list(texts), postgresql.ARRAY(sa.Text)), postgresql.ARRAY(sa.Text))
        )

    def _update(self, rows: Sequence[stamps.Row]) -> int:
        table = self._table
        others = [name for name in layout.COLUMNS if name != "key"]
        versions = {"version": _in_lines(self._versions[row.key] for row in rows)}
        parameters = _by_column(rows)
        # The arrays are joined with the table, and never with each other: the server expects arrays
        # to be short, and would compare every pair of rows.
        statement = (
            f"WITH given AS ({_selected_parameters(parameters | versions)}),"
            f" locked AS (SELECT given.* FROM {table} AS kept JOIN given ON kept.key = given.key"
            f" WHERE given.version IS NULL OR kept.{_VERSION} = given.version ORDER BY kept.key FOR UPDATE OF kept)"
            f" UPDATE {table} AS kept SET {', '.join(f'{name} = locked.{name}' for name in others)} FROM locked WHERE kept.key = locked.key"
        )
        return int(self._run(sa.text(statement), parameters | versions).rowcount)

    def _insert(self, rows: Sequence[stamps.Row]) -> int:
        parameters = _by_column(rows)
        statement = f"INSERT INTO {self._table}({', '.join(parameters)}) {_selected_parameters(parameters)} ON CONFLICT (key) DO NOTHING"
        return int(self._run(sa.text(statement), parameters).rowcount)

    def _read(self, texts: Sequence[str], lock: str = "") -> list[tuple[stamps.Row, str]]:
        statement = f"SELECT {', '.join(layout.COLUMNS)}, {_VERSION} FROM {self._table} WHERE key = ANY({_GIVEN_KEYS}){lock}"
        return [
            (layout.row_of(*columns[:-1]), columns[-1])
            for columns in self._run(sa.text(statement), {"keys": "\n".join(texts)}).all()
        ]

    def _changed_rows(self, rows: Sequence[stamps.Row]) -> dict[str, stamps.Row | None]:
        """The rows that other transactions have put in place of ``rows``, by key. None for a row
        that another transaction removed."""
        own = str(self._run(sa.text("SELECT pg_current_xact_id()::xid::text")).scalar_one())
        kept = {row.key: (row, version) for row, version in self._read([row.key for row in rows])}
        changed: dict[str, stamps.Row | None] = {
            key: row for key, (row, version) in kept.items() if version != own
        }
        return changed | {row.key: None for row in rows if row.key not in kept}

    def _look_at(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        return {row.key: row for row, _ in self._read(texts)}

    def _check_keys(self, texts: Collection[str]) -> None:
        if max(map(len, texts), default=0) * 4 <= KEY_BYTES_MAX:
            return
        for text in texts:
            if len(text.encode()) > KEY_BYTES_MAX:
                raise errors.UsageError(
                    f"a key of {len(text.encode())} bytes is too long for the store {self._address}: {text[:60]}…\n"
                    f"  PostgreSQL indexes keys with up to {KEY_BYTES_MAX} bytes. Use a digest as the key."
                )

    @property
    def _table(self) -> str:
        return f'"{self._tables.name}"'


class Reader(session.Reader):
    """Reads a store, with a cursor that stays on the server."""

    def rows_from(self, text: str) -> Iterator[stamps.Row]:
        """The rows whose key's text is not below ``text``, in order, a portion at a time."""
        # The cursor then stays on the server.
        result = self._run(self.select_from(text).execution_options(yield_per=CURSOR_ROWS))
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
            # Also when the reader has seen enough. A lost connection has lost its cursor, too.
            with contextlib.suppress(sa.exc.SQLAlchemyError, psycopg.Error):
                result.close()


def _make_missing(raw: sa.Connection, tables: server_layout.Tables, store: places.Place) -> None:
    """Make the missing tables, one process at a time. If no table is missing, the user needs no
    right to make tables."""
    run = session.run_in(raw, faults, store.address)
    has_table = functools.partial(_has_table, run)
    if server_layout.form_of(run, tables, store.address, has_table) == store.form:
        return
    run(_LOCK, {"number": _lock_number("schema")})
    form = server_layout.form_of(run, tables, store.address, has_table)
    if form is None:
        server_layout.make(run, tables, store.address, store.form, has_table)
    elif form != store.form:
        server_layout.change_form(run, tables, store.address, form, store.form)


def _has_table(run: server_layout.Run, name: str) -> bool:
    return bool(run(_HAS_TABLE, {"name": name}).scalar_one())


def _tables(name: str) -> server_layout.Tables:
    # Ordered by code points, not by the database's own rules: Python and all other stores order
    # texts by code points.
    text = sa.Text(collation="C")
    return server_layout.Tables(
        name,
        server_layout.Types(text, text, text),
        ("topology",),
        values_options={"postgresql_with": _ROOM},
    )


def _selected_parameters(parameters: Mapping[str, Any]) -> str:
    """A SELECT that returns the parameters as rows. A column with different values is an array, a
    column with a common value is the value itself."""
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
    """The values of ``rows``, by column: a list, or one value if all rows have the same value. So
    the writer's stamp is sent once."""
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
    """The advisory lock for ``name``: a signed number of 64 bits, for the whole database."""
    return int.from_bytes(
        hashlib.blake2b(f"txtopo {name}".encode(), digest_size=8).digest(), "big", signed=True
    )


class Connection(relational_connection.Connection):
    """The connection that a process keeps to a PostgreSQL database."""

    faults = faults
    _open = staticmethod(connections.open_connection)
    _descriptor = staticmethod(connections.descriptor)
    _layout = staticmethod(_tables)
    _has_table = staticmethod(_has_table)
    _prepare = staticmethod(_make_missing)
    _session = Session
    _reader = Reader
