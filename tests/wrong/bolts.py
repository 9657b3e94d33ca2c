"""Committers with the mistakes that people make, each with a directory for its writes. And right
committers."""

from __future__ import annotations

import collections
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore

BATCHES = [
    [("cat", 1), ("dog", 2), ("cat", 3)],
    [("dog", 1)],
    [],
    [("ant", 5), ("cat", 1), ("bee", 2)],
]
"""Transactions of (word, count); one of them is empty."""

FIELDS = ("word", "count")

_ever_seen: collections.Counter[str] = collections.Counter()
_applied: set[tuple[str, int]] = set()


def forget() -> None:
    """Empty the globals of this module, as a new process would find them."""
    _ever_seen.clear()
    _applied.clear()


def ledger(directory: Path) -> dict[str, int]:
    """The writes of the bolts that use SQL themselves."""
    with closing(_open(directory)) as connection:
        return dict(connection.execute("SELECT word, count FROM counts ORDER BY word").fetchall())


def _open(directory: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(directory / "ledger.db", isolation_level=None)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER, txid INTEGER, attempt INTEGER)"
    )
    connection.execute(
        "CREATE TABLE IF NOT EXISTS fence (id INTEGER PRIMARY KEY CHECK (id = 0), txid INTEGER, attempt INTEGER)"
    )
    return connection


class Counting(BaseTransactionalBolt, ICommitter):
    """Sums counts by word; how they are written is for subclasses to say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = SqliteStore(directory / "counts.db", "counts")

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.counts: collections.Counter[str] = collections.Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += tup["count"]

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "count"))
        declarer.declare_stream("direct", Fields("tx", "word"), direct=True)

    @property
    def connection(self) -> sqlite3.Connection:
        return self.context.resource("ledger", lambda: _open(self.directory))


class Right(Counting):
    """Writes to a store of txtopo, and emits the store's results."""

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            updates = transaction.update_many(dict(self.counts), lambda old, new: (old or 0) + new)
        for word, update in updates.items():
            self.collector.emit([self.attempt, word, update.curr])


class CompareAndSet(Counting):
    """Writes SQL itself, behind a fence in the same transaction: the safe hand-written committer."""

    def finish_batch(self) -> None:
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            last = connection.execute("SELECT txid, attempt FROM fence").fetchone() or (0, 0)
            if last > (self.attempt.txid, self.attempt.attempt_id):
                raise RuntimeError(f"attempt {self.attempt} is late")
            connection.execute(
                "INSERT OR REPLACE INTO fence VALUES (0, ?, ?)",
                [self.attempt.txid, self.attempt.attempt_id],
            )
            if last[0] < self.attempt.txid:
                add(connection, self.counts, self.attempt)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def add(
    connection: sqlite3.Connection, counts: dict[str, int], attempt: TransactionAttempt
) -> None:
    for word, count in counts.items():
        connection.execute(
            "INSERT INTO counts VALUES (?, ?, ?, ?) ON CONFLICT (word) DO UPDATE SET count = count + excluded.count, txid = excluded.txid",
            [word, count, attempt.txid, attempt.attempt_id],
        )


class UnconditionalIncrement(Counting):
    """Adds, whether it has added before or not."""

    def finish_batch(self) -> None:
        add(self.connection, self.counts, self.attempt)


class ClassicNotEqual(Counting):
    """The classic of the documentation: writes unless the stored txid is its own. A late task of an
    earlier transaction finds a different txid."""

    def finish_batch(self) -> None:
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            for word, count in self.counts.items():
                stored = connection.execute(
                    "SELECT count, txid FROM counts WHERE word = ?", [word]
                ).fetchone() or (0, 0)
                if stored[1] != self.attempt.txid:
                    values = [word, stored[0] + count, self.attempt.txid, self.attempt.attempt_id]
                    connection.execute("INSERT OR REPLACE INTO counts VALUES (?, ?, ?, ?)", values)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


class OutsideTheTransaction(Counting):
    """Records in a store transaction the writes of a later database transaction."""

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            update = transaction.update("last txid", lambda old: self.attempt.txid)
        if update.applied:
            add(self.connection, self.counts, self.attempt)


class StateInAGlobal(Right):
    """Sums in a module global, which outlives the attempt."""

    def execute(self, tup: Tuple) -> None:
        _ever_seen[tup["word"]] += tup["count"]
        self.counts[tup["word"]] = _ever_seen[tup["word"]]


class AppliedInAGlobal(Counting):
    """Remembers its applications in a module global: a new process does not know them."""

    def finish_batch(self) -> None:
        if (str(self.directory), self.attempt.txid) not in _applied:
            add(self.connection, self.counts, self.attempt)
            _applied.add((str(self.directory), self.attempt.txid))


class WritesWhileProcessing(Counting):
    """Writes in ``execute``."""

    def execute(self, tup: Tuple) -> None:
        super().execute(tup)
        with closing(_open(self.directory)) as connection:
            add(connection, {tup["word"]: tup["count"]}, self.attempt)


class StoreWhileProcessing(Right):
    """Opens a store in ``execute``."""

    def execute(self, tup: Tuple) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update(tup["word"], lambda old: (old or 0) + tup["count"])


class RoutesByHash(Right):
    """Names the task by Python's own hash, which each process computes differently."""

    def finish_batch(self) -> None:
        super().finish_batch()
        for word in self.counts:
            self.collector.emit_direct(
                hash(word) % len(self.context.component_tasks("sink")),
                [self.attempt, word],
                "direct",
            )


class RoutesColumnsByHash(Right):
    """Names the task of columns by Python's own hash."""

    def finish_batch(self) -> None:
        super().finish_batch()
        for word in self.counts:
            task = hash(word) % len(self.context.component_tasks("sink"))
            columns = pa.RecordBatch.from_pydict({"word": [word]})
            self.collector.emit_batch_direct(task, columns, "direct")


class EmitsWhatItApplied(Counting):
    """Emits only fresh applications, so that a replay is silent downstream."""

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            updates = transaction.update_many(dict(self.counts), lambda old, new: (old or 0) + new)
        for word, update in updates.items():
            if update.applied:
                self.collector.emit([self.attempt, word, update.curr])


class AnswersByAttempt(Counting):
    """Writes the attempt into the result."""

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("last", lambda old: self.attempt.txid)
        self.collector.emit([self.attempt, "attempt", self.attempt.attempt_id])


class CannotBeHeld(Right):
    """Keeps a connection between the phases."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        super().prepare(conf, context, collector, attempt)
        self.kept: Any = self.connection


class Raises(Right):
    """Has a bug."""

    def finish_batch(self) -> None:
        raise ZeroDivisionError("a bug")
