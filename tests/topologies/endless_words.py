"""Drivers of a topology without an end, which readers follow while a test kills one driver after
the other.

The id of the topology is that of ``tests.readers``. A store beside the data directory counts its
transactions and its words.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.processes import readers
from txtopo import (
    BaseTransactionalBolt,
    BaseTransactionalSpout,
    BatchOutputCollector,
    Config,
    CoordinatorContext,
    Fields,
    ICommitter,
    LocalCluster,
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

DRIVING = (
    "import sys; from tests.topologies import endless_words; endless_words.drive(*sys.argv[1:])"
)
"""A driver. Its arguments are the data directory, the life, and after how many transactions it ends
by itself, if it does."""
SESSION_TIMEOUT_S = 40.0
"""Far longer than a start takes, so that a driver that waits for the session of a killed driver is
noticed."""
TRANSACTIONS = "transactions"
_WORDS = "ant", "bee", "cat", "dog", "elk"


def words_of(txid: int) -> list[str]:
    """The batch of ``txid``."""
    return [_WORDS[(txid + number) % len(_WORDS)] for number in range(1 + txid % 4)]


def expected(committed: int) -> dict[str, int]:
    """The store's content after ``committed`` transactions."""
    counts = Counter(word for txid in range(1, committed + 1) for word in words_of(txid))
    return {**counts, TRANSACTIONS: committed}


def open_store(data_dir: Path) -> SqliteStore:
    """The store that ``txtopo store get`` of ``tests.readers`` reads."""
    return SqliteStore(f"{data_dir}.db", "counts")


class Words(BaseTransactionalSpout):
    """Words without an end; the metadata of a batch is its txid."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return WordsCoordinator()

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return WordsEmitter()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


class WordsCoordinator(TransactionalSpoutCoordinator):
    def is_ready(self) -> bool:
        return True

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        return txid


class WordsEmitter(TransactionalSpoutEmitter):
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        for word in words_of(metadata):
            collector.emit([attempt, word])


class Count(BaseTransactionalBolt, ICommitter):
    """Adds the words of the batch, and one transaction."""

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
        self.counts = Counter({TRANSACTIONS: 1})

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += 1

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(dict(self.counts), lambda old, new: (old or 0) + new)


def make_topology(data_dir: Path) -> TopologyGraph:
    """words ×1 → count ×1."""
    builder = TransactionalTopologyBuilder(readers.ID, "words", Words())
    builder.set_bolt("count", Count(open_store(data_dir))).global_grouping("words")
    return builder.build_topology()


def drive(data_dir: str, life: str, ends_after: str = "") -> None:
    """Run in the driver process: report the last recorded txid as JSON, once at the beginning and
    then whenever it grows.

    In every second life each transaction is a Spark job of its own.
    """
    conf = Config(
        max_spout_pending=1 + int(life) % 3,
        poll_interval_s=0.02,
        zookeeper_session_timeout_s=SESSION_TIMEOUT_S,
        max_transactions=int(ends_after) if ends_after else None,
        **({"small_transaction_s": 0.0} if int(life) % 2 else {}),
    )
    with LocalCluster(master="local[2]", data_dir=Path(data_dir)) as cluster:
        run = cluster.submit_topology(readers.ID, conf, make_topology(Path(data_dir)))
        assert run.began is not None
        committed = run.began.current - 1
        _report(committed)
        while run.is_alive:
            if run.status().current - 1 > committed:
                committed = run.status().current - 1
                _report(committed)
            threading.Event().wait(0.005)
        _report(run.join(PATIENCE_S).current - 1)


def _report(committed: int) -> None:
    print(json.dumps({"committed": committed}))
    sys.stdout.flush()
