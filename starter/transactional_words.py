"""Count every word, and how many words have been seen 0–9, 10–19, … times: Storm's
``TransactionalWords``.

::

    spout ×2 ──fields(word)──► count ×5 (committer) ──none──► bucketize ×1 ──fields(bucket)──► buckets ×5

A committer feeds further bolts here: when a word moves from one bucket to the next, both buckets
change. ``buckets`` is not marked as a committer, but everything downstream of one finishes in the
commit phase too (R12), so it may write to a store all the same.

Run it with ``txtopo run starter/transactional_words.py``. The store is the file that
TXTOPO_STARTER_STORE names, otherwise .txtopo/words.db, with tables ``word_counts`` and
``word_buckets``. Source: storm-starter v1.2.4, TransactionalWords.java.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBasicBolt,
    BaseTransactionalBolt,
    BasicOutputCollector,
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

BUCKET_SIZE = 10
PARTITION_TAKE_PER_BATCH = 3
DATA: dict[int, list[tuple[Any, ...]]] = {
    0: [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    1: [("cat",), ("dog",), ("apple",), ("banana",)],
    2: [("cat",), ("cat",), ("cat",), ("cat",), ("cat",), ("dog",), ("dog",), ("dog",), ("dog",)],
}
STORE_PATH = ".txtopo/words.db"


class KeyedCountUpdater(BaseTransactionalBolt, ICommitter):
    """Adds the batch's words to their counts; emits each word with its count now and before, the
    same on every replay (R28)."""

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
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup.get_string(1)] += 1

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            for word, more in self.counts.items():
                update = transaction.update(word, partial(added, more))
                self.collector.emit([self.attempt, word, update.curr, update.prev])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "count", "prev-count"))


class Bucketize(BaseBasicBolt):
    """A changed count in, changes of buckets out: +1 for the new bucket of the word, -1 for the old
    one."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        attempt, _, count, prev = tup.values
        bucket = count // BUCKET_SIZE
        if prev is None:
            collector.emit([attempt, bucket, 1])
        elif prev // BUCKET_SIZE != bucket:
            collector.emit([attempt, bucket, 1])
            collector.emit([attempt, prev // BUCKET_SIZE, -1])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "bucket", "delta"))


class BucketCountUpdater(BaseTransactionalBolt):
    """Keeps the number of words in each bucket. Not marked as a committer: being downstream of one
    is enough."""

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
        self.deltas: Counter[int] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.deltas[tup.get_integer(1)] += tup.get_integer(2)

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            for bucket, delta in self.deltas.items():
                update = transaction.update(bucket, partial(added, delta))
                self.collector.emit([self.attempt, bucket, update.curr])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "bucket", "count"))


def added(more: int, total: int | None) -> int:
    """The new value of a key in the store: ``total`` is ``None`` the first time."""
    return (total or 0) + more


def open_stores(path: str | Path | None = None) -> tuple[SqliteStore, SqliteStore]:
    """The stores of word → count and bucket → number of words, two tables of one file."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "word_counts"), SqliteStore(file, "word_buckets")


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the nineteen words of ``DATA``), counting into the
    stores at ``store_path``."""
    words, buckets = open_stores(store_path)
    spout = spout or MemoryTransactionalSpout(DATA, Fields("word"), PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("top-n-words", "spout", spout, 2)
    builder.set_bolt("count", KeyedCountUpdater(words), 5).fields_grouping("spout", Fields("word"))
    builder.set_bolt("bucketize", Bucketize()).none_grouping("count")
    builder.set_bolt("buckets", BucketCountUpdater(buckets), 5).fields_grouping(
        "bucketize", Fields("bucket")
    )
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
