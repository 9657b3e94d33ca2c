"""WRONG on purpose: a bolt that deals words to buckets by ``hash()``.

::

    words ×2 ──shuffle──► deal ×2 ──fields(bucket)──► count ×2 (committer)

``hash("cat")`` is another number in every Python process that was not told otherwise: a batch that
is computed again, on another worker or after a restart, puts its words into other buckets. The
corrected twin hashes the encoded text, which is the same everywhere.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

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

DATA: dict[int, list[tuple[Any, ...]]] = {
    0: [("cat",), ("dog",), ("apple",)],
    1: [("banana",), ("chicken",), ("cat",)],
}
BUCKETS = 8


class WrongDeal(BaseBasicBolt):
    """Says which bucket a word is in."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup[0], self.bucket_of(tup["word"])])

    def bucket_of(self, word: str) -> int:
        """The mistake: not the same in every process."""
        return hash(word) % BUCKETS

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "bucket"))


class CorrectedDeal(WrongDeal):
    """Gives the same task in every process."""

    def bucket_of(self, word: str) -> int:
        return zlib.crc32(word.encode()) % BUCKETS


class Count(BaseTransactionalBolt, ICommitter):
    """Counts the words in each bucket."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.counts: Counter[int] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["bucket"]] += 1

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(self.counts, lambda total, more: (total or 0) + more)


def make_topology(deal: WrongDeal) -> Any:
    """The topology with ``deal`` between words and counts."""
    file = Path(os.environ.get("TXTOPO_STARTER_STORE") or ".txtopo/wrong.db").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    builder = TransactionalTopologyBuilder(
        "routing-by-hash", "words", MemoryTransactionalSpout(DATA, Fields("word"), 1), 2
    )
    builder.set_bolt("deal", deal, 2).shuffle_grouping("words")
    builder.set_bolt("count", Count(SqliteStore(file, "buckets")), 2).fields_grouping(
        "deal", Fields("bucket")
    )
    return builder.build_topology()


conf = Config(max_spout_pending=2, until="exhausted")
topology = make_topology(WrongDeal())
corrected = make_topology(CorrectedDeal())
