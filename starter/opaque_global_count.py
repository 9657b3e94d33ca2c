"""Count all words of a source that cannot always give the same batch again: the opaque global count
of Storm's documentation.

::

    spout ×3 ──none──► partial-count ×5 ──global──► sum ×1 (committer)

The shape is that of ``transactional_global_count.py``. The spout is *opaque*: a replay may have
other tuples, here because a partition is lost. So the store keeps the total with its transaction,
and with the value before that transaction, ``count, txid, prev_count``:

=====================================  ====================================================
the batch is of                        then
=====================================  ====================================================
a later transaction than ``txid``      ``prev_count = count``, ``count = count + batch``
the same transaction, replayed         ``count = prev_count + batch``: the first sum is void
=====================================  ====================================================

A store with ``opaque=True`` does so (R30). To show the effect, partition 2 is lost in the middle of
the commit of transaction 2, after 9 words were added; the partition comes back with transaction 3.
All 27 words count once. Run it with ``txtopo run starter/opaque_global_count.py``; the store is the
file that TXTOPO_STARTER_STORE names, otherwise .txtopo/opaque-global-count.db. Source: Storm's
documentation, Transactional-topologies.md, "Opaque Transactional Spouts".
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
    FailedException,
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
from txtopo.testing import OpaqueMemoryTransactionalSpout

PARTITION_TAKE_PER_BATCH = 3
DATA: dict[int, list[tuple[Any, ...]]] = {
    0: [
        ("cat",),
        ("dog",),
        ("chicken",),
        ("cat",),
        ("dog",),
        ("apple",),
        ("cat",),
        ("cat",),
        ("dog",),
        ("banana",),
        ("cat",),
        ("dog",),
    ],
    1: [("cat",), ("dog",), ("apple",), ("banana",), ("dog",), ("dog",)],
    2: [("cat",), ("cat",), ("cat",), ("cat",), ("cat",), ("dog",), ("dog",), ("dog",), ("dog",)],
}
LOST_PARTITION = 2
LOST_IN = TransactionAttempt(2, 0)
BACK_IN_TXID = 3
GLOBAL_COUNT_KEY = "GLOBAL-COUNT"
STORE_PATH = ".txtopo/opaque-global-count.db"


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


class UpdateOpaqueGlobalCount(BaseTransactionalBolt, ICommitter):
    """Adds the batch to the total. A replay needs no code here: an opaque store keeps the value
    before the transaction."""

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
        self.collector.emit([self.attempt, update.curr, update.prev])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "count", "prev-count"))


class LosesPartition(UpdateOpaqueGlobalCount):
    """The accident: after the write, and before the driver knows of the write, a commit fails
    because a partition of the source is gone."""

    def __init__(self, store: SqliteStore, spout: OpaqueMemoryTransactionalSpout) -> None:
        super().__init__(store)
        self.spout = spout

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.attempt == LOST_IN:
            self.spout.set_disabled(LOST_PARTITION, True)
            raise FailedException(
                f"partition {LOST_PARTITION} is lost; transaction {self.attempt.txid} is planned anew, without it"
            )
        if self.attempt.txid == BACK_IN_TXID:
            self.spout.set_disabled(LOST_PARTITION, False)


def open_store(path: str | Path | None = None) -> SqliteStore:
    """The store of the total: ``open_store().get(GLOBAL_COUNT_KEY)`` reads it from anywhere."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "opaque_global_count", opaque=True)


def stored_count(store: SqliteStore) -> tuple[int, int, int | None]:
    """What Storm's documentation keeps: ``(count, txid, prev_count)``."""
    value = store.inspect(GLOBAL_COUNT_KEY)
    return (0, 0, None) if value is None else (value.curr, value.txid, value.prev)


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, counting into the store at ``store_path``: over your own ``spout``, or over the
    words of ``DATA``, with the accident."""
    store = open_store(store_path)
    if spout is None:
        spout = OpaqueMemoryTransactionalSpout(DATA, Fields("word"), PARTITION_TAKE_PER_BATCH)
        committer: UpdateOpaqueGlobalCount = LosesPartition(store, spout)
    else:
        committer = UpdateOpaqueGlobalCount(store)
    builder = TransactionalTopologyBuilder("opaque-global-count", "spout", spout, 3)
    builder.set_bolt("partial-count", BatchCount(), 5).none_grouping("spout")
    builder.set_bolt("sum", committer).global_grouping("partial-count")
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
