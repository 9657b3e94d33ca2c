"""Topologies under load: a spout that makes rows of any size and number out of nothing, and bolts
that keep nothing, everything, or many keys."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from tests.servers.clusters import Journal
from txtopo import (
    BaseBatchBolt,
    BaseTransactionalBolt,
    BaseTransactionalSpout,
    BatchOutputCollector,
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
from txtopo.dataplane import spill
from txtopo.stores import SqliteStore

KEYS = 97


class Flood(BaseTransactionalSpout):
    """A transaction has one row (key, ``row_bytes`` bytes), and txid ``huge`` has ``rows`` rows.
    ``huge`` 0: every transaction has ``rows`` rows."""

    def __init__(
        self, transactions: int, rows: int, row_bytes: int, huge: int = 0, file_bytes_max: int = 0
    ) -> None:
        self.transactions, self.rows, self.row_bytes, self.huge, self.file_bytes_max = (
            transactions,
            rows,
            row_bytes,
            huge,
            file_bytes_max,
        )

    def rows_of(self, txid: int) -> int:
        """How many rows ``txid`` has."""
        return self.rows if self.huge in (0, txid) else 1

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> TransactionalSpoutCoordinator:
        return _FloodCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> TransactionalSpoutEmitter:
        return _FloodEmitter(self, context)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "payload"))


class _FloodCoordinator(TransactionalSpoutCoordinator):
    def __init__(self, spout: Flood, context: CoordinatorContext) -> None:
        self.spout, self.context = spout, context

    def is_ready(self) -> bool:
        last = self.context.last_metadata
        return (0 if last is None else int(last["txid"])) < self.spout.transactions

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        return {"txid": txid}


class _FloodEmitter(TransactionalSpoutEmitter):
    def __init__(self, spout: Flood, context: TopologyContext) -> None:
        self.spout, self.context = spout, context

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        size = self.spout.row_bytes
        if self.spout.file_bytes_max and self.spout.rows_of(metadata["txid"]) > 1:
            # A stand-in for a disk quota of this process: every file ends here.
            resource.setrlimit(
                resource.RLIMIT_FSIZE,
                (self.spout.file_bytes_max, resource.getrlimit(resource.RLIMIT_FSIZE)[1]),
            )
        for n in range(
            self.context.task_index, self.spout.rows_of(metadata["txid"]), self.context.num_tasks
        ):
            # Bytes of its own for each row: pickle stores a shared object only once.
            collector.emit([attempt, n % KEYS, n.to_bytes(4, "big") + bytes(max(0, size - 4))])


class Weigh(BaseBatchBolt):
    """Keeps nothing but how many tuples it got, and how many bytes they were. Kills its process,
    ``kills`` times in all, at ``kill_at``: (txid, how many tuples)."""

    def __init__(self, journal: Journal, kill_at: tuple[int, int] | None, kills: int) -> None:
        self.journal, self.kill_at, self.kills = journal, kill_at, kills

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt
        self.rows, self.bytes = 0, 0

    def execute(self, tup: Tuple) -> None:
        self.rows += 1
        self.bytes += len(tup["payload"])
        if (self.attempt.txid, self.rows) == self.kill_at and self.journal.claim(
            "killed", self.kills
        ):
            if _has_spilled():
                self.journal.write("spilled")
            os.kill(os.getpid(), signal.SIGKILL)

    def finish_batch(self) -> None:
        self.collector.emit([self.attempt, self.rows, self.bytes])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "rows", "bytes"))


def _has_spilled() -> bool:
    """Whether this process has a file of its own in the directory for spilled bytes."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the directory itself
            if descriptor.readlink().is_relative_to(spill.directory()):
                return True
    return False


class Total(BaseTransactionalBolt, ICommitter):
    """Commits weights: the transaction's weights under ``(txid, …)``, the sums under ``all``.
    Takes ``pause_s`` for this."""

    def __init__(self, store: SqliteStore, pause_s: float = 0.0, ballast_bytes: int = 0) -> None:
        self.store, self.pause_s, self.ballast_bytes = store, pause_s, ballast_bytes

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.rows, self.bytes = 0, 0
        self.ballast = os.urandom(self.ballast_bytes)

    def execute(self, tup: Tuple) -> None:
        self.rows += tup["rows"]
        self.bytes += tup["bytes"]

    def finish_batch(self) -> None:
        time.sleep(self.pause_s)
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("transactions", lambda old: (old or 0) + 1)
            transaction.update("rows", lambda old: (old or 0) + self.rows)
            transaction.update("bytes", lambda old: (old or 0) + self.bytes)


class Hoard(BaseTransactionalBolt, ICommitter):
    """A committer that keeps every payload until its transaction commits."""

    def __init__(self, store: SqliteStore, journal: Journal) -> None:
        self.store, self.journal = store, journal

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.payloads: list[bytes] = []

    def execute(self, tup: Tuple) -> None:
        self.payloads.append(tup["payload"])

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update(
                f"transactions {self.context.task_index}", lambda old: (old or 0) + 1
            )
            transaction.update(
                f"rows {self.context.task_index}", lambda old: (old or 0) + len(self.payloads)
            )
            transaction.update(
                f"bytes {self.context.task_index}",
                lambda old: (old or 0) + sum(map(len, self.payloads)),
            )


class ManyKeys(BaseTransactionalBolt, ICommitter):
    """Writes one key of the store for every row, in one store transaction."""

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
        self.numbers: list[int] = []

    def execute(self, tup: Tuple) -> None:
        self.numbers.append(int.from_bytes(tup["payload"][:4], "big"))

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            for number in self.numbers:
                transaction.update(number, lambda old: (old or 0) + 1)


def weighing(
    id: str,
    directory: Path,
    flood: Flood,
    *,
    shuffled: bool,
    kill_at: tuple[int, int] | None = None,
    kills: int = 1,
    **total: Any,
) -> Any:
    """flood → weigh → total; with ``shuffled``, every row goes through a shuffle with fields
    grouping to one of three tasks."""
    builder = TransactionalTopologyBuilder(id, "flood", flood, 2 if shuffled else 1)
    weigh = builder.set_bolt(
        "weigh", Weigh(Journal(directory / "journal"), kill_at, kills), 3 if shuffled else 1
    )
    if shuffled:
        weigh.fields_grouping("flood", Fields("key"))
    else:
        weigh.local_or_shuffle_grouping("flood")
    builder.set_bolt("total", Total(store_of(directory), **total)).global_grouping("weigh")
    return builder.build_topology()


def committing(id: str, bolt: Any, flood: Flood, tasks: int = 2) -> Any:
    """flood → a committer, by key."""
    builder = TransactionalTopologyBuilder(id, "flood", flood, 2)
    builder.set_bolt("committer", bolt, tasks).fields_grouping("flood", Fields("key"))
    return builder.build_topology()


def store_of(directory: Path) -> SqliteStore:
    """The store of a topology in ``directory``."""
    return SqliteStore(directory / "store.db", "results")
