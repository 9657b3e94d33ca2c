"""A topology to look at: transactions that take a while, side by side, and that fail now and then.

The store is in the current directory. The pause of ``split`` makes lanes long enough for
the eye, and is no wait of a test.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.topologies import endless_words
from txtopo import (
    BaseBasicBolt,
    BaseTransactionalBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    Config,
    CoordinatorContext,
    Count,
    Fields,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalSpoutCoordinator,
    TransactionalSpoutEmitter,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.topology.graph import TopologyGraph

POISON = 7
"""Every so many transactions, the first two attempts fail."""
LINES = ("the cat sat on the mat", "a dog ran", "the <b>bird</b> flew away")
_TAKES_S = 0.8


class Lines(endless_words.Words):
    """Lines without an end."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return LinesCoordinator()

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return LinesEmitter()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "line"))


class LinesCoordinator(endless_words.WordsCoordinator):
    def lag(self, last_metadata: Any) -> dict[str, int]:
        return {"lines/0": max(0, 2_000 - 10 * (last_metadata or 0)), "lines/1": 12}


class LinesEmitter(TransactionalSpoutEmitter):
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        for number in range(200 + 40 * (metadata % 5)):
            collector.emit([attempt, LINES[number % len(LINES)]])


class Split(BaseTransactionalBolt):
    """A line in, its words out. Cannot read some batches at first."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt

    def execute(self, tup: Tuple) -> None:
        for word in tup["line"].split():
            self.collector.emit([self.attempt, word])

    def finish_batch(self) -> None:
        txid, attempt_id = self.attempt.txid, self.attempt.attempt_id
        time.sleep(_TAKES_S + 0.25 * (txid % 3))
        if txid % POISON == 0 and attempt_id % 1_000_000 < 2:
            raise ValueError(f"cannot parse {LINES[2]!r}")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


class Long(BaseBasicBolt):
    """Lets long words through."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if len(tup["word"]) > len("the"):
            collector.emit([tup.attempt, tup["word"]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


def make_topology() -> TopologyGraph:
    """lines → split ×2 → count ×2, and split → long → count-long."""
    store = str(Path("words.db").absolute())
    builder = TransactionalTopologyBuilder("words", "lines", Lines())
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("long", Long(), 2).none_grouping("split")
    for id, source in (("count", "split"), ("count-long", "long")):
        table = id.replace("-", "_")
        builder.set_aggregate(id, Count(), SqliteStore(store, table), 2).group_by(
            source, Fields("word")
        )
    return builder.build_topology()


topology = make_topology
conf = Config(max_spout_pending=4, on_error="replay", journal="full")
