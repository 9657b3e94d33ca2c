"""A copy of a store in one state of the past, and how it takes the place of a store: each store of
a trial by itself.

Apart from the nemesis that fails over because every kind of store is copied in a way of its own. A
copy has whole store transactions, the oldest ones, as a replica that lags has; SQLite, which has no
replicas, fails over to one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa

from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store

PutBack = Callable[[], None]
"""Has the copy take the place of the store; nothing may have the store open."""

_KEYS = "local found = {} for _, key in ipairs(redis.call('KEYS', ARGV[1])) do found[#found + 1] = {key, redis.call('DUMP', key)} end return found"


def copy_of(store: Store, kept: Path, place: Store | None = None) -> PutBack:
    """A copy of ``store`` as it is now, also during writes; ``kept`` is a file for the copy, if
    needed. The copy takes the place of ``place``, the same store in another server, or of the store
    itself."""
    if isinstance(store, SqliteStore):
        return _file(Path(store.path), kept)
    if isinstance(store, RedisStore):
        return _keys(store, place or store)
    assert isinstance(store, SqlStore)
    return _rows(store, place or store)


def _file(path: Path, kept: Path) -> PutBack:
    if not path.exists():
        return lambda: _remove(path)
    with (
        contextlib.closing(sqlite3.connect(path, timeout=60)) as source,
        contextlib.closing(sqlite3.connect(kept)) as copied,
    ):
        source.backup(copied)

    def put_back() -> None:
        # Beside the old file first: a reader of the path finds the old file or the new file.
        beside = path.with_name(f"{path.name}.new")
        beside.write_bytes(kept.read_bytes())
        _remove(path)
        os.replace(beside, path)

    return put_back


def _remove(path: Path) -> None:
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        file.unlink(missing_ok=True)


def _keys(store: RedisStore, place: Store) -> PutBack:
    assert isinstance(place, RedisStore)
    pattern = f"txtopo:{{{store.name}}}:*"
    with contextlib.closing(redis.Redis.from_url(store.url)) as client:
        kept: Any = client.eval(_KEYS, 0, pattern)

    def put_back() -> None:
        with (
            contextlib.closing(redis.Redis.from_url(place.url)) as client,
            client.pipeline(transaction=True) as together,
        ):
            for key in client.scan_iter(pattern):
                together.delete(key)
            for key, data in kept:
                together.restore(key, 0, data)
            together.execute()

    return put_back


def _rows(store: SqlStore, place: Store) -> PutBack:
    assert isinstance(place, SqlStore)
    kept: dict[sa.Table, list[Mapping[str, Any]]] = {}
    with _connected(store) as connection:
        connection.execution_options(isolation_level="REPEATABLE READ")
        metadata = sa.MetaData()
        existing = set(sa.inspect(connection).get_table_names())
        for name in sorted(
            {"txtopo_schema", "txtopo_fence", "txtopo_count", store.name, f"{store.name}_written"}
            & existing
        ):
            table = sa.Table(name, metadata, autoload_with=connection)
            columns = [column for column in table.columns if column.computed is None]
            kept[table] = [
                dict(row)
                for row in connection.execute(
                    sa.select(*columns).where(_is_of(table, store))
                ).mappings()
            ]

    def put_back() -> None:
        with _connected(place) as connection:
            for table, rows in kept.items():
                connection.execute(sa.delete(table).where(_is_of(table, store)))
                if rows:
                    connection.execute(sa.insert(table), rows)
            connection.commit()

    return put_back


def _is_of(table: sa.Table, store: Store) -> sa.ColumnElement[bool]:
    return table.c.store == store.name if table.name.startswith("txtopo_") else sa.true()


@contextlib.contextmanager
def _connected(store: SqlStore) -> Iterator[sa.Connection]:
    engine = sa.create_engine(store.url, poolclass=sa.NullPool)
    with contextlib.closing(engine.connect()) as connection:
        yield connection
