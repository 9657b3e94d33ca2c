"""The databases whose stores are measured: how each is reached, its store, and the same updates by
hand, as fast as that database takes them.

By hand there is no fence, no stamp and no value before: a second run would count twice. The store's
part of the time pays for these. A further database is an entry of ``BACKENDS``.
"""

from __future__ import annotations

import sqlite3
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store

TABLE = "kept"
LOOKUP_KEYS_MAX = 500
"""How many keys one SELECT of SQLite looks up."""
FIRST = 100_000
"""The value of a key before it is counted."""


class ByHand(Protocol):
    """A table of counts, and one transaction per batch."""

    def add(self, more: Mapping[str, int]) -> None:
        """Add ``more`` to the counts, all or none, durable when it returns."""

    def update(self, more: Mapping[str, int]) -> None:
        """The same by reading the counts, adding here, and writing them: the way of any function of
        the old value."""

    def counts(self) -> dict[str, int]:
        """All counts."""

    def close(self) -> None:
        """Let go of the connection."""


class SqliteByHand:
    """A file in WAL mode, synced with each commit, as the store's is."""

    def __init__(self, address: str) -> None:
        self._connection = sqlite3.connect(address, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE counts (key TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID"
        )

    def add(self, more: Mapping[str, int]) -> None:
        """One statement per key, prepared once."""
        upsert = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = value + excluded.value"
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(upsert, more.items())
        self._connection.execute("COMMIT")

    def update(self, more: Mapping[str, int]) -> None:
        """One statement to read some hundred keys, one per key to write."""
        names = list(more)
        old: dict[str, int] = {}
        self._connection.execute("BEGIN IMMEDIATE")
        for start in range(0, len(names), LOOKUP_KEYS_MAX):
            some = names[start : start + LOOKUP_KEYS_MAX]
            select = f"SELECT key, value FROM counts WHERE key IN ({', '.join('?' * len(some))})"
            old.update(self._connection.execute(select, some).fetchall())
        new = ((key, old.get(key, 0) + count) for key, count in more.items())
        self._connection.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?)", new)
        self._connection.execute("COMMIT")

    def counts(self) -> dict[str, int]:
        """All counts."""
        return dict(self._connection.execute("SELECT key, value FROM counts"))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class PostgresByHand:
    """One statement per batch, its keys and numbers as two arrays."""

    def __init__(self, address: str) -> None:
        import psycopg

        self._connection = psycopg.connect(
            address.replace("postgresql+psycopg://", "postgresql://")
        )
        self._connection.execute("DROP TABLE IF EXISTS counts")
        self._connection.execute(
            'CREATE TABLE counts (key text COLLATE "C" PRIMARY KEY, value bigint)'
        )
        self._connection.commit()

    def add(self, more: Mapping[str, int]) -> None:
        """One statement, one commit."""
        rows = "SELECT * FROM unnest(%s::text[], %s::bigint[])"
        upsert = f"INSERT INTO counts {rows} ON CONFLICT (key) DO UPDATE SET value = counts.value + excluded.value"
        self._connection.execute(upsert, [list(more), list(more.values())])
        self._connection.commit()

    def update(self, more: Mapping[str, int]) -> None:
        """A statement for the reads, a statement for the writes, and a commit."""
        names = list(more)
        old: dict[str, int] = dict(
            self._connection.execute(
                "SELECT key, value FROM counts WHERE key = ANY(%s)", [names]
            ).fetchall()
        )
        new = [old.get(key, 0) + count for key, count in more.items()]
        rows = "SELECT * FROM unnest(%s::text[], %s::bigint[])"
        self._connection.execute(
            f"INSERT INTO counts {rows} ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [names, new],
        )
        self._connection.commit()

    def counts(self) -> dict[str, int]:
        """All counts."""
        return dict(self._connection.execute("SELECT key, value FROM counts").fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class MariaByHand:
    """One statement per batch, its keys and numbers as so many rows of values: the driver puts them
    together."""

    def __init__(self, address: str) -> None:
        import pymysql

        at = urllib.parse.urlsplit(address)
        self._connection = pymysql.connect(
            host=at.hostname,
            port=at.port or 3306,
            user=at.username or "",
            database=at.path.removeprefix("/"),
        )
        self._cursor = self._connection.cursor()
        self._cursor.execute("DROP TABLE IF EXISTS counts")
        self._cursor.execute(
            "CREATE TABLE counts (name varchar(100) COLLATE utf8mb4_bin PRIMARY KEY, value bigint) ENGINE = InnoDB"
        )
        self._connection.commit()

    def add(self, more: Mapping[str, int]) -> None:
        """One statement, one commit."""
        self._cursor.executemany(
            "INSERT INTO counts VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = value + VALUES(value)",
            list(more.items()),
        )
        self._connection.commit()

    def update(self, more: Mapping[str, int]) -> None:
        """A statement for the reads, a statement for the writes, and a commit."""
        self._cursor.execute("SELECT name, value FROM counts WHERE name IN %s", [list(more)])
        old: dict[str, int] = dict(self._cursor.fetchall())
        new = [(key, old.get(key, 0) + count) for key, count in more.items()]
        self._cursor.executemany(
            "INSERT INTO counts VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)", new
        )
        self._connection.commit()

    def counts(self) -> dict[str, int]:
        """All counts."""
        self._cursor.execute("SELECT name, value FROM counts")
        return dict(self._cursor.fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class RedisByHand:
    """A hash of counts, changed in one MULTI per batch, which is sent at once."""

    def __init__(self, address: str) -> None:
        import redis

        self._client = redis.Redis.from_url(address, decode_responses=True)
        self._client.delete("counts")

    def add(self, more: Mapping[str, int]) -> None:
        """A command per key, in one go."""
        with self._client.pipeline(transaction=True) as pipeline:
            for key, count in more.items():
                pipeline.hincrby("counts", key, count)
            pipeline.execute()

    def update(self, more: Mapping[str, int]) -> None:
        """One command for the reads, one for the writes."""
        names = list(more)
        old: Any = self._client.hmget("counts", names)
        new: dict[Any, Any] = {
            key: int(before or 0) + count
            for (key, count), before in zip(more.items(), old, strict=True)
        }
        self._client.hset("counts", mapping=new)

    def counts(self) -> dict[str, int]:
        """All counts."""
        counts: Any = self._client.hgetall("counts")
        return {key: int(count) for key, count in counts.items()}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


@dataclass(frozen=True)
class Backend:
    """One database. ``server`` is what ``python -m tests.servers.serve`` knows it by; None if it is
    a file."""

    name: str
    server: str | None
    store: Callable[[str, str, bool], Store]
    """``(address, table, opaque)``."""
    by_hand: Callable[[str], ByHand]


def _sqlite(address: str, table: str, opaque: bool) -> Store:
    return SqliteStore(address, table, opaque=opaque)


def _sql(address: str, table: str, opaque: bool) -> Store:
    return SqlStore(address, table, opaque=opaque)


def _redis(address: str, table: str, opaque: bool) -> Store:
    return RedisStore(address, table, opaque=opaque)


BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("sqlite", None, _sqlite, SqliteByHand),
        Backend("postgresql", "postgresql", _sql, PostgresByHand),
        Backend("mariadb", "mariadb", _sql, MariaByHand),
        Backend("redis", "redis", _redis, RedisByHand),
    )
}


def expected(batches: int, keys: int, of: int) -> dict[str, int]:
    """The counts in the end; see :func:`batch`."""
    counts: dict[str, int] = {}
    for number in range(batches):
        for key, more in batch(number, keys, of).items():
            counts[key] = counts.get(key, 0) + more
    return counts


def batch(number: int, keys: int, of: int) -> dict[str, Any]:
    """Batch ``number``: ``keys`` keys in turn out of ``of``, with a number each.

    Keys begin at a hundred thousand, so that values keep their length, as those of keys that have
    been counted for a while do.
    """
    begins = FIRST if number < of // keys else 0
    return {f"word-{(number * keys + i) % of:08d}": begins + 1 + i % 7 for i in range(keys)}
