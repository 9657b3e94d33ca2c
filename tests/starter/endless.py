"""A topology without end, ten tuples per transaction, whose commits a test can hold up: the tests
of signals and of the live status run this topology.

``ENDLESS_STORE`` names the store's file. While the directory ``ENDLESS_GATE`` has a file ``shut``,
commits say so in a file ``waiting`` there, and wait. A commit that a newer attempt has overtaken
leaves a file ``refused`` there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseTransactionalBolt,
    BaseTransactionalSpout,
    BatchOutputCollector,
    Config,
    CoordinatorContext,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalSpoutCoordinator,
    TransactionalSpoutEmitter,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.errors import StaleAttemptError
from txtopo.stores import SqliteStore

ROWS = 10


class Always(TransactionalSpoutCoordinator):
    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        return ROWS


class Numbers(TransactionalSpoutEmitter):
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        for number in range(metadata):
            collector.emit([attempt, number])


class Endless(BaseTransactionalSpout):
    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return Always()

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return Numbers()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "number"))


class Count(BaseTransactionalBolt, ICommitter):
    def __init__(self, store: SqliteStore, gate: Path) -> None:
        self.store, self.gate = store, gate

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.count = 0

    def execute(self, tup: Tuple) -> None:
        self.count += 1

    def finish_batch(self) -> None:
        if self.attempt.txid == 1:
            self.context.log.info("the count begins")
        while (self.gate / "shut").exists():
            (self.gate / "waiting").touch()
            time.sleep(0.05)
        try:
            with self.store.transaction(self.context, self.attempt) as transaction:
                transaction.update("count", lambda count: (count or 0) + self.count)
        except StaleAttemptError:
            (self.gate / "refused").touch()
            raise


def make(store: str, gate: str) -> TransactionalTopologyBuilder:
    """The topology, not built yet."""
    builder = TransactionalTopologyBuilder("endless", "spout", Endless())
    builder.set_bolt("count", Count(SqliteStore(store, "numbers"), Path(gate))).global_grouping(
        "spout"
    )
    return builder


conf = Config(max_spout_pending=2)

if __name__ == "__main__":
    txtopo.main(make(os.environ["ENDLESS_STORE"], os.environ["ENDLESS_GATE"]), conf)
