"""A word count whose every hook can be told to fail: once, for a given transaction, in a given way,
in any process."""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.clusters import Journal
from txtopo import (
    BaseBasicBolt,
    BaseBatchBolt,
    BaseTransactionalBolt,
    BasicOutputCollector,
    BatchOutputCollector,
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
from txtopo.testing import MemoryTransactionalSpout

WORDS = ["cat", "dog", "cat", "apple", "dog", "cat", "banana", "dog", "apple", "cat", "dog", "cat"]
"""Twelve words; with take 2 in two partitions, three transactions."""


class UnpicklableError(Exception):
    """An exception without a way out of its process."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


@dataclass(frozen=True)
class Fault:
    """Do ``kind`` in ``hook`` (``component.hook``) of transaction ``txid``, the first ``times``
    times, counted over all processes by ``journal``."""

    journal: Journal
    hook: str
    kind: str
    txid: int = 2
    times: int = 1

    def strike(self, hook: str, txid: int) -> None:
        """Called by every hook with its own name."""
        if (hook, txid) != (self.hook, self.txid) or not self.journal.claim(
            f"fault {hook}", self.times
        ):
            return
        if self.kind == "failed":
            raise FailedException(f"told to fail in {hook}")
        if self.kind == "error":
            raise ValueError(f"told to err in {hook}")
        if self.kind == "os._exit":
            os._exit(7)
        if self.kind == "SystemExit":
            raise SystemExit(3)
        if self.kind == "KeyboardInterrupt":
            raise KeyboardInterrupt
        if self.kind == "RecursionError":
            _recurse()
        if self.kind == "MemoryError":
            raise MemoryError
        if self.kind == "unpicklable":
            raise UnpicklableError
        if self.kind == "hang":
            time.sleep(60)
        raise AssertionError(self.kind)


def _recurse() -> None:
    _recurse()


class Split(BaseBatchBolt):
    """Passes words on; says when it finishes."""

    def __init__(self, journal: Journal, faults: Sequence[Fault]) -> None:
        self.journal, self.faults = journal, faults

    def reach(self, hook: str) -> None:
        for fault in self.faults:
            fault.strike(f"{self.context.component_id}.{hook}", self.attempt.txid)

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.words: list[str] = []
        self.reach("prepare")

    def execute(self, tup: Tuple) -> None:
        self.reach("execute")
        self.collector.emit([tup[0], tup["word"]])

    def finish_batch(self) -> None:
        self.reach("finish_batch")
        self.journal.write(
            f"{self.context.component_id} finished {self.attempt.txid} in {self.context.phase}"
        )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


class Count(BaseTransactionalBolt, ICommitter):
    """Counts words in the store, and emits each with its new count."""

    def __init__(self, store: SqliteStore, journal: Journal, faults: Sequence[Fault]) -> None:
        self.store, self.journal, self.faults = store, journal, faults

    def reach(self, hook: str) -> None:
        for fault in self.faults:
            fault.strike(f"count.{hook}", self.attempt.txid)

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.counts: collections.Counter[str] = collections.Counter()
        self.reach("prepare")

    def execute(self, tup: Tuple) -> None:
        self.reach("execute")
        assert self.context.phase == "processing"
        self.counts[tup["word"]] += 1

    def finish_batch(self) -> None:
        assert self.context.phase == "commit"
        self.reach("finish_batch before write")
        with self.store.transaction(self.context, self.attempt) as transaction:
            updates = transaction.update_many(dict(self.counts), lambda old, new: (old or 0) + new)
        self.reach("finish_batch after write")
        self.journal.write(f"commit {self.attempt.txid}")
        for word, update in sorted(updates.items()):
            self.collector.emit([self.attempt, word, update.prev, update.curr])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "prev", "curr"))


class Tag(BaseBasicBolt):
    """A basic bolt downstream of the committer."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = faults

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for fault in self.faults:
            fault.strike("tag.execute", tup.attempt.txid)
        collector.emit(tup.values)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "prev", "curr"))


class After(BaseBatchBolt):
    """Writes down the input downstream of the committer, per transaction."""

    def __init__(self, journal: Journal, faults: Sequence[Fault]) -> None:
        self.journal, self.faults = journal, faults

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.rows: list[tuple[Any, ...]] = []

    def execute(self, tup: Tuple) -> None:
        self.rows.append(tup.values[1:])

    def finish_batch(self) -> None:
        assert self.context.phase == "commit"
        for fault in self.faults:
            fault.strike("after.finish_batch", self.attempt.txid)
        self.journal.write(f"after {self.attempt.txid} {sorted(self.rows)}")


@dataclass
class FaultyCount:
    """The topology with its parts, over ``spout`` or the twelve words."""

    id: str
    directory: Path
    faults: Sequence[tuple[str, str]] = ()
    txid: int = 2
    times: int = 1
    spout: Any = None

    def __post_init__(self) -> None:
        self.journal = Journal(self.directory / "journal")
        self.store = SqliteStore(self.directory / "counts.db", "counts")
        faults = [
            Fault(self.journal, hook, kind, self.txid, self.times) for hook, kind in self.faults
        ]
        rows = [(word,) for word in WORDS]
        spout = self.spout or MemoryTransactionalSpout(
            {0: rows[:6], 1: rows[6:]}, Fields("word"), 2
        )
        builder = TransactionalTopologyBuilder(self.id, "words", spout, 2)
        builder.set_bolt("split", Split(self.journal, faults), 2).shuffle_grouping("words")
        builder.set_bolt("count", Count(self.store, self.journal, faults), 2).fields_grouping(
            "split", Fields("word")
        )
        builder.set_bolt("tag", Tag(faults), 2).local_or_shuffle_grouping("count")
        builder.set_bolt("after", After(self.journal, faults)).global_grouping("tag")
        self.topology = builder.build_topology()

    @property
    def counts(self) -> dict[str, int]:
        """What the store holds."""
        return {str(word): count for word, count in self.store.items()}

    @property
    def expected(self) -> dict[str, int]:
        """The right content in the end."""
        return dict(collections.Counter(WORDS))

    def seen_after(self, txid: int) -> set[str]:
        """The different things that were seen downstream of the committer for ``txid``, over all
        attempts."""
        return {line for line in self.journal.lines() if line.startswith(f"after {txid} ")}

    def fault_count(self, hook: str) -> int:
        """How often the fault in ``hook`` struck."""
        return self.journal.count(f"fault {hook}")
