"""Makes a store's tables in MySQL or MariaDB: one by one, since in MySQL each CREATE statement
commits.

The tables are those in ``servers.layout``, and one table more::

    txtopo_lock(name)    one row per component; a task locks the row to raise the component's fence

Every table uses InnoDB, the only engine with transactions, and orders texts by code points
(``utf8mb4_bin``), even if the server or the database have different defaults. ``utf8mb4_bin``
ignores trailing spaces, but no key ends with a space: its text is JSON. Needs SQLAlchemy.

Invariants:
    - A store is registered as ``BEING_MADE`` before its table is made, and with its version when
      all tables exist. If a process dies in between, the next process goes on. No process takes a
      foreign table for a begun store.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from txtopo import errors
from txtopo.stores import failures
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores.mysql import connection as connections
from txtopo.stores.servers import layout as server_layout

KEY_CHARACTERS_MAX = 768
"""The longest key text: InnoDB indexes up to 3072 bytes, and reserves four bytes per character."""

NAME_CHARACTERS_MAX = 255
"""The longest name for a topology or a component: the fence table's key holds three names."""

_COLLATION = "utf8mb4_bin"
_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": _COLLATION,
    "mysql_row_format": "DYNAMIC",
}
# The catalogue compares names without case, even on a system whose table names have case.
_HAS_TABLE = sa.text(
    "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
    " AND (@@lower_case_table_names > 0 OR BINARY table_name = :name)"
)
_HAS_INDEX = sa.text(
    "SELECT count(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = :table AND index_name = :name"
)
_ENGINES = sa.text(
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN :names AND engine <> 'InnoDB'"
).bindparams(sa.bindparam("names", expanding=True))
_GET_LOCK = sa.text("SELECT GET_LOCK(CONCAT('txtopo ', MD5(DATABASE())), :seconds)")
_RELEASE_LOCK = sa.text("SELECT RELEASE_LOCK(CONCAT('txtopo ', MD5(DATABASE())))")
_REGISTER = sa.text(
    "INSERT INTO txtopo_schema(store, version, form) VALUES (:store, :version, :form) ON DUPLICATE KEY UPDATE store = store"
)
_LOCKS = sa.Table(
    "txtopo_lock",
    sa.MetaData(),
    sa.Column("name", mysql.CHAR(32, charset="ascii"), primary_key=True),
    **_OPTIONS,
)


class _LongText(sa.types.TypeDecorator[str]):
    """Texts without a bound on their length, which are never compared."""

    impl = mysql.LONGTEXT
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else connections.sent(value)


@functools.cache
def tables_of(name: str) -> server_layout.Tables:
    """The tables of the store ``name``."""
    names = mysql.VARCHAR(NAME_CHARACTERS_MAX, charset="utf8mb4", collation=_COLLATION)
    keys = mysql.VARCHAR(KEY_CHARACTERS_MAX, charset="utf8mb4", collation=_COLLATION)
    values = _LongText(charset="utf8mb4", collation=_COLLATION)
    # MySQL cannot index some rows only: the index has the component, which separates the wanted
    # tombstones from other components' tombstones.
    return server_layout.Tables(
        name, server_layout.Types(names, keys, values), ("deleted", "component"), **_OPTIONS
    )


def has_table(run: server_layout.Run, name: str) -> bool:
    """Whether the database has a table called ``name``, even a foreign table."""
    return bool(run(_HAS_TABLE, {"name": name}).scalar_one())


def prepare(
    run: server_layout.Run,
    tables: server_layout.Tables,
    store: places.Place,
    lock: Callable[[str], None],
) -> None:
    """Make the missing tables. If no table is missing, the user needs no right to make tables.
    ``lock`` has processes take turns."""
    exists = functools.partial(has_table, run)
    if server_layout.form_of(run, tables, store.address, exists) != store.form:
        with _alone(run, store):
            form = server_layout.form_of(run, tables, store.address, exists)
            if form is None:
                _make(run, tables, store)
                form = server_layout.form_of(run, tables, store.address, exists)
            if form is not None and form != store.form:
                lock(f"schema\0{tables.name}")
                server_layout.change_form(run, tables, store.address, form, store.form)
    _check_engines(run, tables, store.address)


@contextlib.contextmanager
def _alone(run: server_layout.Run, store: places.Place) -> Iterator[None]:
    """Run the block while no other process makes tables in this database: a process that made an
    index late would wait for every open transaction. If the process dies, its lock ends."""
    if run(_GET_LOCK, {"seconds": store.limits["lock_timeout_s"]}).scalar_one() != 1:
        raise failures.busy(
            store.address,
            f"another process made tables there for {store.limits['lock_timeout_s']:g} s",
        )
    try:
        yield
    finally:
        # A lost connection has lost the lock, too. The first error matters.
        with contextlib.suppress(errors.TxtopoError, errors.FailedException):
            run(_RELEASE_LOCK)


def _make(run: server_layout.Run, tables: server_layout.Tables, store: places.Place) -> None:
    """Make the tables. After a process died here, the next process skips the existing tables."""
    exists = functools.partial(has_table, run)
    server_layout.check_neighbours(run, tables, store.address, exists)
    if not _is_being_made(run, tables):
        server_layout.check_names_are_free(tables, store.address, exists)
    for table in (tables.schema, tables.fence, tables.count, _LOCKS):
        run(sa.schema.CreateTable(table, if_not_exists=True))
    run(_REGISTER, {"store": tables.name, "version": layout.BEING_MADE, "form": store.form})
    run(sa.schema.CreateTable(tables.values, if_not_exists=True))
    run(sa.schema.CreateTable(tables.written, if_not_exists=True))
    _make_index(run, tables, tables.deleted_index)
    schema = tables.schema
    finished = sa.update(schema).where(
        schema.c.store == tables.name, schema.c.version == layout.BEING_MADE
    )
    run(finished.values(version=layout.LAYOUT_VERSION))


def _is_being_made(run: server_layout.Run, tables: server_layout.Tables) -> bool:
    schema = tables.schema.c
    return (
        has_table(run, tables.schema.name)
        and run(sa.select(schema.version).where(schema.store == tables.name)).first() is not None
    )


def _make_index(run: server_layout.Run, tables: server_layout.Tables, index: sa.Index) -> None:
    if not run(_HAS_INDEX, {"table": tables.name, "name": index.name}).scalar_one():
        run(sa.schema.CreateIndex(index))


def _check_engines(run: server_layout.Run, tables: server_layout.Tables, address: str) -> None:
    names = [
        tables.name,
        tables.written.name,
        tables.schema.name,
        tables.fence.name,
        tables.count.name,
        _LOCKS.name,
    ]
    for name, engine in run(_ENGINES, {"names": names}):
        raise errors.SetupError(
            f"table {name} in the store {address} uses the engine {engine}, which has no transactions\n"
            f"  Stop the topology and type, in the database: ALTER TABLE `{name}` ENGINE=InnoDB"
        )
