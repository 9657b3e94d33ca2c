"""A topology whose middle bolt numbers lines: rightly, within its batch; or wrongly, by a counter
of its module."""

from __future__ import annotations

from typing import Any

from txtopo import (
    BaseBasicBolt,
    BaseTransactionalBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.exports import ExportQueue
from txtopo.stores import Store
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txtopo.topology.graph import TopologyGraph

LINES = {0: [("dog",), ("cat",), ("dog",), ("cow",), ("dog",)], 1: [("cow",), ("cat",), ("cat",)]}

numbered: list[str] = []
"""Every word numbered in this process so far."""


class Numbering(BaseBasicBolt):
    """Emits ``(tx, word, number)``; the number of letters, or of the words that were numbered in
    this process before."""

    def __init__(self, is_wrong: bool) -> None:
        self.is_wrong = is_wrong

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "number"))

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        numbered.append(tup["word"])
        collector.emit([tup[0], tup["word"], len(numbered) if self.is_wrong else len(tup["word"])])


class Putting(BaseTransactionalBolt, ICommitter):
    """Puts the last number of each word into ``store``."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.numbers: dict[str, int] = {}

    def execute(self, tup: Tuple) -> None:
        self.numbers[tup["word"]] = tup["number"]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.put_many(self.numbers)


class Queueing(Putting):
    """Puts the last number of each word into the store of ``queue``, and queues it."""

    def __init__(self, queue: ExportQueue) -> None:
        super().__init__(queue.store)
        self.queue = queue

    def execute(self, tup: Tuple) -> None:
        self.numbers[tup.values[1]] = tup.values[2]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.put_many(self.numbers)
            for word, number in self.numbers.items():
                self.queue.add(transaction, word, number)


def topology(bolt: Any, is_wrong: bool = False, is_opaque: bool = False) -> TopologyGraph:
    """``bolt`` writes the numbered words."""
    spout = (OpaqueMemoryTransactionalSpout if is_opaque else MemoryTransactionalSpout)(
        LINES, ["word"], 1
    )
    builder = TransactionalTopologyBuilder("lines", "spout", spout)
    builder.set_bolt("number", Numbering(is_wrong), 2).fields_grouping("spout", ["word"])
    builder.set_bolt("write", bolt, 2).fields_grouping("number", ["word"])
    return builder.build_topology()
