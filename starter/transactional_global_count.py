"""Count all words of all batches: Storm's ``TransactionalGlobalCount``, the smallest topology with
a committer of its own.

::

    spout ×3 ──none──► partial-count ×5 ──global──► sum ×1 (committer)

Each batch is counted in parallel; one committer adds the counts to a total in a SQLite file,
exactly once per transaction. The nineteen words below make three transactions: totals 9, 16 and 19.

Type ``txtopo run starter/transactional_global_count.py``; run the topology again, and no word is
counted twice. The store is the file that TXTOPO_STARTER_STORE names, otherwise
.txtopo/global-count.db. Source: storm-starter v1.2.4, TransactionalGlobalCount.java.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBatchBolt,
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

PARTITION_TAKE_PER_BATCH = 3
DATA: dict[int, list[tuple[Any, ...]]] = {
    0: [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    1: [("cat",), ("dog",), ("apple",), ("banana",)],
    2: [("cat",), ("cat",), ("cat",), ("cat",), ("cat",), ("dog",), ("dog",), ("dog",), ("dog",)],
}
GLOBAL_COUNT_KEY = "GLOBAL-COUNT"
STORE_PATH = ".txtopo/global-count.db"


class BatchCount(BaseBatchBolt):
    """Counts the tuples of the batch in this task; one row per task, also for no tuples."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt
        self.count = 0

    def execute(self, tup: Tuple) -> None:
        self.count += 1

    def finish_batch(self) -> None:
        self.collector.emit([self.attempt, self.count])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "count"))


class UpdateGlobalCount(BaseTransactionalBolt, ICommitter):
    """Adds the batch to the total. The store knows which transaction a total belongs to, so a
    replay changes nothing (R28)."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.sum = 0

    def execute(self, tup: Tuple) -> None:
        self.sum += tup.get_integer(1)

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            update = transaction.update(GLOBAL_COUNT_KEY, lambda total: (total or 0) + self.sum)
        self.collector.emit([self.attempt, update.curr])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "total"))


def open_store(path: str | Path | None = None) -> SqliteStore:
    """The store of totals: ``open_store().get(GLOBAL_COUNT_KEY)`` reads it from anywhere."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "global_count")


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the nineteen words of ``DATA``), counting into the
    store at ``store_path``."""
    spout = spout or MemoryTransactionalSpout(DATA, Fields("word"), PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("global-count", "spout", spout, 3)
    builder.set_bolt("partial-count", BatchCount(), 5).none_grouping("spout")
    builder.set_bolt("sum", UpdateGlobalCount(open_store(store_path))).global_grouping(
        "partial-count"
    )
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
