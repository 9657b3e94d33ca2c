"""The stores of a trial: which kind is the world's to say; and stores that are broken on purpose.

Broken stores are there to be caught: a harness without violations proves something only if it
reports the violations of these.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.soak.world import World
from txtopo import TopologyContext, TransactionAttempt
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store, fencing, sessions, stamps
from txtopo.stores.updates import Update

SABOTAGES = ("blind-store", "no-take-back", "no-counts", "unsteady-source")
"""Ways to break a store: it applies any update, regardless of earlier attempts · a fence that takes
nothing back (R31) · a store that compares its fence and not how much of the attempt is there (R34)
· a transactional source that gives another batch on replay (R18)."""


def open_store(world: World, name: str, opaque: bool = False) -> Any:
    """The store ``name`` of a workload, in a SQLite file of its own or in the world's database or
    server."""
    if world.sabotage == "blind-store":
        return BlindStore(str(world.path / f"{name}.db"))
    if world.sabotage == "no-take-back":
        return UntakenStore(world.path / f"{name}.db", name, opaque=opaque)
    counts = world.sabotage != "no-counts"
    if world.store == "sqlite":
        return (SqliteStore if counts else UncountedSqliteStore)(
            world.path / f"{name}.db", name, opaque=opaque
        )
    if world.store.startswith("redis:"):
        return (RedisStore if counts else UncountedRedisStore)(
            world.store, name, opaque=opaque, answer_timeout_s=WAIT_S
        )
    return (SqlStore if counts else UncountedSqlStore)(
        world.store, name, opaque=opaque, lock_timeout_s=WAIT_S, idle_timeout_s=WAIT_S
    )


WAIT_S = 5.0
"""How long a paused worker may block others: less than its pause, or its late deeds would never be
late."""


class UntakenStore(SqliteStore):
    """Its fence is raised without taking back the writes of the attempt before."""

    def _stand_at_fence(self, session: sessions.Session, opening: fencing.Opening) -> None:
        stamp = opening.stamp
        session.write_fence(
            stamps.Fence(
                stamp.topology_id, stamp.component, stamp.generation, stamp.txid, stamp.attempt
            )
        )


class Uncounted(Store):
    """Goes by the attempt of its fence alone: a copy in which tasks of the recorded attempt are
    missing passes for complete."""

    def _recorded(self, context: TopologyContext) -> stamps.Recorded | None:
        recorded = super()._recorded(context)
        return recorded and {
            component: TransactionAttempt(last.txid, last.attempt_id)
            for component, last in recorded.items()
        }


class UncountedSqliteStore(Uncounted, SqliteStore):
    """In a file."""


class UncountedSqlStore(Uncounted, SqlStore):
    """In a database."""


class UncountedRedisStore(Uncounted, RedisStore):
    """In a Redis server."""


class BlindStore:
    """What many write at first: read, add, write back, in one transaction of the database, and not
    a word about whose transaction it was."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextlib.contextmanager
    def transaction(
        self, context: TopologyContext, attempt: TransactionAttempt
    ) -> Iterator[BlindStore.Transaction]:
        with contextlib.closing(
            sqlite3.connect(self.path, timeout=30, isolation_level=None)
        ) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS blind(key TEXT PRIMARY KEY, value TEXT)")
            connection.execute("BEGIN IMMEDIATE")
            yield self.Transaction(connection)
            connection.execute("COMMIT")

    def items(self) -> Iterator[tuple[Any, Any]]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS blind(key TEXT PRIMARY KEY, value TEXT)")
            for key, value in connection.execute(
                "SELECT key, value FROM blind ORDER BY key"
            ).fetchall():
                yield json.loads(key), json.loads(value)

    class Transaction:
        """Knows only its connection."""

        def __init__(self, connection: sqlite3.Connection) -> None:
            self.connection = connection

        def update(self, key: Any, fn: Callable[[Any], Any]) -> Update:
            text = json.dumps(key)
            row = self.connection.execute(
                "SELECT value FROM blind WHERE key = ?", [text]
            ).fetchone()
            old = None if row is None else json.loads(row[0])
            new = fn(old)
            self.connection.execute(
                "INSERT OR REPLACE INTO blind(key, value) VALUES (?, ?)", [text, json.dumps(new)]
            )
            return Update(old, new, applied=True)

        def update_many(
            self, deltas: Mapping[Any, Any], combine: Callable[[Any, Any], Any]
        ) -> dict[Any, Update]:
            updates = {}
            for key, delta in deltas.items():

                def combined(old: Any, delta: Any = delta) -> Any:
                    return combine(old, delta)

                updates[key] = self.update(key, combined)
            return updates
