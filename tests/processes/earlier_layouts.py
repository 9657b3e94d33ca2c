"""Stores in the layouts of the version of txtopo before this version, and a process that dies while
it brings a store forward.

``EARLIER`` has, by backend of the conformance tests, a function that turns a store into the earlier
layout, in place; connections must be closed before.

``python -m tests.processes.earlier_layouts PICKLE N`` writes to the store, and dies before the
statement ``N`` that brings it forward (from 1 on).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa

from tests.patience import PATIENCE_S
from tests.processes.store_copies import connected
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.transaction import TransactionAttempt

ROOT = Path(__file__).resolve().parents[2]
DIED = 9


def sqlite(store: Store) -> None:
    assert isinstance(store, SqliteStore)
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.executescript("DROP TABLE txtopo_count; ALTER TABLE txtopo_fence DROP COLUMN counted; UPDATE txtopo_schema SET version = 3")


def database(store: Store) -> None:
    assert isinstance(store, SqlStore)
    with contextlib.closing(connected(store.url)) as connection:
        connection.execute(sa.text("DROP TABLE txtopo_count"))
        connection.execute(sa.text("ALTER TABLE txtopo_fence DROP COLUMN counted"))
        connection.execute(sa.text("UPDATE txtopo_schema SET version = 3"))
        connection.commit()


def redis_database(store: Store) -> None:
    assert isinstance(store, RedisStore)
    with contextlib.closing(redis.Redis.from_url(store.url)) as client:
        for key in [*client.scan_iter(f"txtopo:{{{store.name}}}:counts:*")]:
            client.delete(key)
        client.hset(f"txtopo:{{{store.name}}}:meta", "layout", 1)


EARLIER: dict[str, Callable[[Store], None]] = {"mariadb": database, "postgresql": database, "redis": redis_database, "sqlite": sqlite}


def dies_while_bringing_forward(store: Store, statement: int, directory: Path) -> bool:
    """Whether a process that writes to ``store`` had such a statement to die before; if not, it has
    written."""
    pickled = directory / "store.pickle"
    pickled.write_bytes(pickle.dumps(store))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.processes.earlier_layouts", pickled, str(statement)], cwd=ROOT, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode in (0, DIED)
    return ended.returncode == DIED


class _Deadly:
    """Counts the statements that bring a store forward, and ends the process before the one that
    was chosen."""

    def __init__(self, statement: int) -> None:
        self._left = statement

    def before(self, statement: str) -> None:
        text = statement.lower()
        if ("create table" in text and "txtopo_count" in text) or text.startswith(("alter table", "update txtopo_schema set version")):
            self._left -= 1
            if not self._left:
                os._exit(DIED)


def _main(pickled: str, statement: int) -> None:
    store: Store = pickle.loads(Path(pickled).read_bytes())
    deadly = _Deadly(statement)
    if isinstance(store, SqliteStore):
        opened = sqlite3.connect

        def connect(*args: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = opened(*args, **options)
            connection.set_trace_callback(deadly.before)
            return connection

        vars(sqlite3)["connect"] = connect
    else:
        sa.event.listen(sa.engine.Engine, "before_cursor_execute", lambda c, cursor, text, *rest: deadly.before(text.strip()))
    with store.transaction(WorkerProcess().task(num_tasks=2), TransactionAttempt(2, 0)) as opened_store:
        opened_store.put("x", 2)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
