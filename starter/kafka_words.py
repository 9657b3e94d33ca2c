"""Count the words of a topic of Kafka, each record once.

::

    lines ×2 ──shuffle──► split ×2 ──none──► count-of-split ×2 ──word──► count ×2 (committer)

The same as ``word_count.py``, over a topic in the place of a file. The positions in the topic are
in ZooKeeper and the counts in the store, transaction by transaction: kill the topology at any
moment and run it again, and no record is lost or counted twice. Records of transactions of Kafka
count once these have committed.

Type ``KAFKA_SERVERS=host:port KAFKA_TOPIC=words txtopo run starter/kafka_words.py``;
the topic has to be there. It reads what the topic has, and the next run goes on behind it; without
``until="exhausted"`` it waits for more. It needs ``pip install 'txtopo[kafka]'``. The store is the
file that TXTOPO_STARTER_STORE names, otherwise .txtopo/kafka-words.db.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Config,
    Count,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.kafka import KafkaTransactionalSpout
from txtopo.stores import SqliteStore

SERVERS = os.environ.get("KAFKA_SERVERS") or "127.0.0.1:9092"
TOPIC = os.environ.get("KAFKA_TOPIC") or "words"
RECORDS_PER_BATCH = 1000
STORE_PATH = ".txtopo/kafka-words.db"


class Split(BaseBasicBolt):
    """A line in, each word of the line out. A record may have no value."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit_all([tup.attempt, word] for word in (tup["value"] or "").split())

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


def open_store(path: str | Path | None = None) -> SqliteStore:
    """The store of word → count."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "kafka_words")


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the topic), counting into the store at ``store_path``."""
    spout = spout or KafkaTransactionalSpout(
        SERVERS, TOPIC, RECORDS_PER_BATCH, format="text", errors="replace"
    )
    builder = TransactionalTopologyBuilder("kafka-words", "lines", spout, 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_aggregate("count", Count(), open_store(store_path), 2).group_by(
        "split", Fields("word")
    )
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
