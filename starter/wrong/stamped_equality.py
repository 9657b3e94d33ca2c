"""WRONG on purpose: a hand-written store that takes a total stamped with *another* txid for a total
without this transaction.

::

    numbers ×2 ──global──► total ×1 (committer)

``if stored_txid != txid`` is the classic of Storm's documentation. The comparison is right for a
replay of the newest transaction, and wrong for a task of an earlier attempt that was given up but
runs on: when the task writes, a later transaction has committed, the stamps differ, and the old
batch is applied once more. The corrected twin compares the order: a total stamped with a later txid
has this transaction already.

Both keep the total and the stamp in one transaction of an SQLite database, the file that
TXTOPO_STARTER_STORE names.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
    Fields,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.testing import MemoryTransactionalSpout

DATA: dict[int, list[tuple[Any, ...]]] = {0: [(1,), (2,), (3,)], 1: [(10,), (20,), (30,)]}


class WrongTotal(BaseTransactionalBolt, ICommitter):
    """Adds the batch to the total, unless the total is stamped with this transaction."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.sum = 0

    def execute(self, tup: Tuple) -> None:
        self.sum += tup["number"]

    def finish_batch(self) -> None:
        database = self.context.resource("totals", connect)
        database.execute("BEGIN IMMEDIATE")
        try:
            total, stored_txid = database.execute("SELECT total, txid FROM total").fetchone()
            if self.is_new(stored_txid):
                database.execute(
                    "UPDATE total SET total = ?, txid = ?", [total + self.sum, self.attempt.txid]
                )
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise

    def is_new(self, stored_txid: int) -> bool:
        """The mistake: an older transaction is no new one."""
        return stored_txid != self.attempt.txid


class CorrectedTotal(WrongTotal):
    """The same, comparing the order."""

    def is_new(self, stored_txid: int) -> bool:
        return stored_txid < self.attempt.txid


def path() -> Path:
    """The database."""
    return Path(os.environ.get("TXTOPO_STARTER_STORE") or ".txtopo/wrong.db").absolute()


def connect() -> sqlite3.Connection:
    """A connection to it, for a worker process to keep."""
    path().parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path(), isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS total(total INTEGER, txid INTEGER)")
    database.execute("INSERT INTO total SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM total)")
    return database


def effects() -> dict[str, int]:
    """What the simulator compares: everything the topology has written, as plain data."""
    database = connect()
    try:
        return {"total": database.execute("SELECT total FROM total").fetchone()[0]}
    finally:
        database.close()


def reset() -> None:
    """Remove all results: each schedule of the simulator begins so."""
    path().unlink(missing_ok=True)


def make_topology(total: WrongTotal) -> Any:
    """The topology with ``total`` as its committer."""
    builder = TransactionalTopologyBuilder(
        "stamped-equality", "numbers", MemoryTransactionalSpout(DATA, Fields("number"), 1), 2
    )
    builder.set_bolt("total", total).global_grouping("numbers")
    return builder.build_topology()


conf = Config(max_spout_pending=2, until="exhausted")
topology = make_topology(WrongTotal())
corrected = make_topology(CorrectedTotal())
