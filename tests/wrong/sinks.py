"""A right sink, and sinks that each break one promise: rows of an SQLite table."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    ICommitter,
    TransactionAttempt,
    Tuple,
)
from txtopo.errors import StaleAttemptError
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.destination import Destination, Guarantee

ROWS = [("ann", 1), ("bob", 2), ("cid", 3), ("dan", 4), ("eve", 5)]
FIELDS = ("name", "cents")


class Rows:
    """The table of a sink, unknown to a topology."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the database, with the tables in it."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS sales(name TEXT, cents INTEGER, txid INTEGER, task INTEGER)"
            )
            connection.execute(
                "CREATE TABLE IF NOT EXISTS fence(component TEXT PRIMARY KEY, txid INTEGER, attempt INTEGER)"
            )
            yield connection
            connection.execute("COMMIT")


class Table(Rows, Destination):
    """The table of a sink."""

    def guarantee(self) -> Guarantee:
        return Guarantee(
            f"sales in {self.path}", "rows, inserted", takes_back=True, is_keyed=False, cure=""
        )


class Right(BaseTransactionalBolt, ICommitter):
    """Keeps the contract: fence, rows and their txid are of one transaction of the database."""

    def __init__(self, directory: Path) -> None:
        self.table: Rows = Table(directory / "sales.db")

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.rows: list[tuple[Any, ...]] = []

    def execute(self, tup: Tuple) -> None:
        self.rows.append(tup.values[1:])

    def finish_batch(self) -> None:
        with self.table.transaction() as connection:
            self.raise_fence(connection)
            self.write(connection)
        self.collector.emit([self.attempt, len(self.rows)])

    def raise_fence(self, connection: sqlite3.Connection) -> None:
        """Refuse a late task; the first task of an attempt undoes the attempt before."""
        component, now = self.context.component_id, (self.attempt.txid, self.attempt.attempt_id)
        last = connection.execute(
            "SELECT txid, attempt FROM fence WHERE component = ?", [component]
        ).fetchone() or (0, 0)
        if last > now:
            raise StaleAttemptError(
                self.table.path, component, "{}:{}".format(*last), "{}:{}".format(*now)
            )
        if last < now:
            connection.execute("DELETE FROM sales WHERE txid = ?", [self.attempt.txid])
            connection.execute("INSERT OR REPLACE INTO fence VALUES (?, ?, ?)", [component, *now])

    def write(self, connection: sqlite3.Connection) -> None:
        """Write the rows of this task, in the place of rows that the task wrote before."""
        place = [self.attempt.txid, self.context.task_index]
        connection.execute("DELETE FROM sales WHERE txid = ? AND task = ?", place)
        for row in self.rows:
            connection.execute("INSERT INTO sales VALUES (?, ?, ?, ?)", [*row, *place])


def contents(directory: Path) -> list[tuple[Any, ...]]:
    """The committed rows."""
    if not (directory / "sales.db").exists():
        return []
    with contextlib.closing(sqlite3.connect(directory / "sales.db")) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sales'").fetchone():
            return []
        return connection.execute("SELECT name, cents FROM sales").fetchall()


class Appending(Right):
    """Appends rows on every attempt."""

    def raise_fence(self, connection: sqlite3.Connection) -> None:
        return

    def write(self, connection: sqlite3.Connection) -> None:
        connection.executemany(
            "INSERT INTO sales VALUES (?, ?, ?, 0)",
            [(*row, self.attempt.txid) for row in self.rows],
        )


class SettingAside(Right):
    """Knows a transaction by its txid alone, so that rows of the second task are skipped."""

    def write(self, connection: sqlite3.Connection) -> None:
        if not connection.execute(
            "SELECT 1 FROM sales WHERE txid = ?", [self.attempt.txid]
        ).fetchone():
            super().write(connection)


class Unfenced(Right):
    """Writes rows once, and lets every attempt in."""

    def raise_fence(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM sales WHERE txid = ?", [self.attempt.txid]
        ) if self.context.task_index == 0 else None


class Halving(Right):
    """Commits after each row."""

    def write(self, connection: sqlite3.Connection) -> None:
        place = [self.attempt.txid, self.context.task_index]
        connection.execute("DELETE FROM sales WHERE txid = ? AND task = ?", place)
        for row in self.rows:
            connection.execute("INSERT INTO sales VALUES (?, ?, ?, ?)", [*row, *place])
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")


class Keeping(Right):
    """Leaves the rows of a failed attempt where the same task does not write."""

    def raise_fence(self, connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS kept AS SELECT * FROM sales WHERE 0")
        connection.execute("DELETE FROM kept")
        connection.execute("INSERT INTO kept SELECT * FROM sales")
        super().raise_fence(connection)
        connection.execute("DELETE FROM sales")
        connection.execute("INSERT INTO sales SELECT * FROM kept")


class Undeclared(Right):
    """Has no destination."""

    def __init__(self, directory: Path) -> None:
        self.table = Rows(directory / "sales.db")
