"""Count every word of a source that cannot always give the same batch again, also the word that
only a failed attempt has seen.

::

    spout ×2 ──word──► count ×5 (committer) ──fields(word)──► accident ×5

With a count per word it is not enough to keep, beside each count, its transaction and the count
before (see ``opaque_global_count.py``). Transaction 2 is tried with partition 2, whose "zebra" is
counted; then the partition is lost, and transaction 2 is replayed without the partition. No tuple
of the replay leads to "zebra", so the row of "zebra" is not touched and its count stays. When the
partition is back, the same tuple is counted again. In Storm, and in Trident, "zebra" ends at 2.

In txtopo, opening the store undoes the count: when an attempt opens the store for the first time,
all writes of an earlier attempt of the same transaction are taken back, also in rows that the new
attempt does not touch (R31). So a committer opens its store even if it has nothing to write. If a
committer does not, its next opening takes the writes back, but until then a reader sees a count
that never happened.

Run it with ``txtopo run starter/opaque_keyed_count.py``. The store is the file that
TXTOPO_STARTER_STORE names, otherwise .txtopo/opaque-keyed-count.db.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBatchBolt,
    BatchOutputCollector,
    Config,
    Count,
    FailedException,
    Fields,
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
    2: [("cat",), ("cat",), ("cat",), ("cat",), ("zebra",), ("dog",), ("dog",), ("dog",), ("dog",)],
}
LOST_PARTITION = 2
LOST_WORD = "zebra"
LOST_IN = TransactionAttempt(2, 0)
BACK_IN_TXID = 3
STORE_PATH = ".txtopo/opaque-keyed-count.db"


class LosesPartition(BaseBatchBolt):
    """The accident: just when "zebra" has been counted, the commit fails, and the partition that
    the word came from is gone."""

    def __init__(self, spout: OpaqueMemoryTransactionalSpout) -> None:
        self.spout = spout

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.attempt = attempt
        self.words: set[str] = set()

    def execute(self, tup: Tuple) -> None:
        self.words.add(tup["word"])

    def finish_batch(self) -> None:
        if self.attempt == LOST_IN and LOST_WORD in self.words:
            self.spout.set_disabled(LOST_PARTITION, True)
            raise FailedException(
                f"partition {LOST_PARTITION} is lost; transaction {self.attempt.txid} is planned anew, without it"
            )
        if self.attempt.txid == BACK_IN_TXID:
            self.spout.set_disabled(LOST_PARTITION, False)


def open_store(path: str | Path | None = None) -> SqliteStore:
    """The store of word → count."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "opaque_keyed_count", opaque=True)


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, counting into the store at ``store_path``: over your own ``spout``, or over the
    words of ``DATA``, with the accident."""
    words = OpaqueMemoryTransactionalSpout(DATA, Fields("word"), PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("opaque-keyed-count", "spout", spout or words, 2)
    builder.set_aggregate("count", Count(), open_store(store_path), 5).group_by(
        "spout", Fields("word")
    )
    if spout is None:
        builder.set_bolt("accident", LosesPartition(words), 5).fields_grouping(
            "count", Fields("word")
        )
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
