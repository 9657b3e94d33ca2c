"""Copies of a store's content, taken between two commits, and put back later: the content of a
backup, or of a replica that lags.

``COPIERS`` has, by backend of the conformance tests, a function that copies the place of a store. A
copy is a function that puts the content back; connections must be closed before.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa

from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store
from txtopo.testing import stores

PutBack = Callable[[], None]


def sqlite(store: Store) -> PutBack:
    """The file with its log, while no transaction is open."""
    assert isinstance(store, SqliteStore)
    path = Path(store.path)
    kept = {
        file.name: file.read_bytes()
        for file in path.parent.glob(f"{path.name}*")
        if not file.name.endswith("-shm")
    }

    def put_back() -> None:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        for name, data in kept.items():
            (path.parent / name).write_bytes(data)

    return put_back


def memory(store: Store) -> PutBack:
    """The tables of the database."""
    assert isinstance(store, stores.MemoryStore)
    kept = copy.deepcopy(stores._databases[store.database].tables)

    def put_back() -> None:
        stores._databases[store.database].tables = copy.deepcopy(kept)

    return put_back


def database(store: Store) -> PutBack:
    """The rows of every table that the address shows, in one state."""
    assert isinstance(store, SqlStore)
    kept: dict[sa.Table, list[dict[str, Any]]] = {}
    with contextlib.closing(connected(store.url)) as connection:
        connection.execution_options(isolation_level="REPEATABLE READ")
        metadata = sa.MetaData()
        metadata.reflect(connection)
        for table in metadata.sorted_tables:
            columns = [column for column in table.columns if column.computed is None]
            kept[table] = [dict(row) for row in connection.execute(sa.select(*columns)).mappings()]

    def put_back() -> None:
        with contextlib.closing(connected(store.url)) as connection:
            for table, rows in kept.items():
                connection.execute(sa.delete(table))
                if rows:
                    connection.execute(sa.insert(table), rows)
            connection.commit()

    return put_back


def redis_database(store: Store) -> PutBack:
    """Every key, as DUMP has it."""
    assert isinstance(store, RedisStore)
    with contextlib.closing(redis.Redis.from_url(store.url)) as client:
        kept = {key: data for key in client.scan_iter() if (data := client.dump(key)) is not None}

    def put_back() -> None:
        with contextlib.closing(redis.Redis.from_url(store.url)) as client:
            client.flushdb()
            for key, data in kept.items():
                client.restore(key, 0, data)

    return put_back


def connected(url: str) -> sa.Connection:
    return sa.create_engine(url, poolclass=sa.NullPool).connect()


COPIERS: dict[str, Callable[[Store], PutBack]] = {
    "mariadb": database,
    "memory": memory,
    "postgresql": database,
    "redis": redis_database,
    "sqlite": sqlite,
}
