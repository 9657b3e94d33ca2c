"""WRONG on purpose: an exporter whose target trusts the order of arrival: the last write wins.

::

    numbers ×2 ──fields(shop)──► total ×2 (committer), queues shop → total

Entries come in order, but they may come again, also after newer ones: from an exporter that died
after it had told them, or that slept while another one took over. Then an old total replaces a
newer one, and stays. The corrected twin keeps each entry's sequence in the target, and writes an
entry only if its sequence is higher.

The target is an SQLite database: the file that TXTOPO_STARTER_STORE names.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
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
from txtopo.exports import Exporter, ExportQueue, SequencedExport
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

DATA: dict[int, list[tuple[Any, ...]]] = {
    0: [("Bern", 1), ("Cork", 2), ("Bern", 3)],
    1: [("Cork", 10), ("Bern", 20), ("Cork", 30)],
}


class WrongTarget(Exporter):
    """Writes each entry as it comes."""

    # The mistake: nothing tells that an entry is older than the row.
    statement = "INSERT OR REPLACE INTO totals VALUES (?, ?, ?)"

    def export(self, entries: Iterator[SequencedExport]) -> None:
        with closing(connect()) as database, database:
            database.executemany(
                self.statement, ((entry.key, entry.value, entry.sequence) for entry in entries)
            )


class CorrectedTarget(WrongTarget):
    """Writes an entry if its sequence is higher than the row's."""

    statement = (
        "INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (shop) DO UPDATE"
        " SET total = excluded.total, sequence = excluded.sequence WHERE sequence < excluded.sequence"
    )


class Total(BaseTransactionalBolt, ICommitter):
    """Adds the batch to the totals, and queues the new ones."""

    def __init__(self, store: SqliteStore, queue: ExportQueue) -> None:
        self.store, self.queue = store, queue

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.sums: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.sums[tup["shop"]] += tup["number"]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            updates = transaction.update_many(self.sums, lambda old, more: (old or 0) + more)
            for shop, update in updates.items():
                self.queue.add(transaction, shop, update.curr)


def path() -> Path:
    """The target."""
    file = Path(os.environ.get("TXTOPO_STARTER_STORE") or ".txtopo/wrong.db").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def connect() -> sqlite3.Connection:
    """A connection to it."""
    database = sqlite3.connect(path())
    database.execute(
        "CREATE TABLE IF NOT EXISTS totals(shop TEXT PRIMARY KEY, total INTEGER, sequence INTEGER)"
    )
    return database


def effects() -> dict[str, int]:
    """What the simulator compares: the contents of the target, as plain data."""
    with closing(connect()) as database:
        return dict(database.execute("SELECT shop, total FROM totals"))


def reset() -> None:
    """Empty the target: each schedule of the simulator begins so."""
    path().unlink(missing_ok=True)


def make_topology(target: Exporter) -> Any:
    """The topology, which exports to ``target``."""
    store = SqliteStore(path().with_suffix(".store"), "totals")
    builder = TransactionalTopologyBuilder(
        "arrival-order", "numbers", MemoryTransactionalSpout(DATA, Fields("shop", "number"), 1), 2
    )
    builder.set_bolt(
        "total", Total(store, ExportQueue("totals", store, exporter=target)), 2
    ).fields_grouping("numbers", Fields("shop"))
    return builder.build_topology()


conf = Config(max_spout_pending=2, until="exhausted")
topology = make_topology(WrongTarget())
corrected = make_topology(CorrectedTarget())
