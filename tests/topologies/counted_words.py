"""Counting words of text files on a cluster: the user's code of the cluster tests, which copy this
file into a project of its own.

It imports the standard library and txtopo only, because its executors have nothing else.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBatchBolt,
    BaseTransactionalBolt,
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
from txtopo.connectors.files import FileTransactionalSpout

WORDS = [f"word{number}" for number in range(23)]


class Split(BaseBatchBolt):
    """Emits each word of its part of the batch, with its number."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts.update(str(tup["line"]).split())

    def finish_batch(self) -> None:
        for word, count in self.counts.items():
            self.collector.emit([self.attempt, word, count])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "count"))


class Count(BaseTransactionalBolt, ICommitter):
    """Sums up the batch; subclasses keep the sums."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += tup["count"]


class CountInFiles(Count):
    """One file for each transaction and task, written again by each replay: a store that every host
    reaches, of the simplest kind."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def finish_batch(self) -> None:
        report = {
            "counts": dict(self.counts),
            "attempt": self.attempt.attempt_id,
            "python": sys.executable,
            "package": str(txtopo.__file__),
            "class": f"{type(self).__module__}.{type(self).__name__}",
            "cloudpickle": str(importlib.import_module("cloudpickle").__name__),
        }
        path = Path(self.directory) / f"{self.attempt.txid:06d}-{self.context.task_index}.json"
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(report))
        partial.replace(path)


class CountInStore(Count):
    """Adds to the counts in a store of txtopo."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(dict(self.counts), lambda old, new: (old or 0) + new)


def in_files(id: str, texts: str, directory: str, bytes_per_batch: int = 400) -> Any:
    """A topology that counts the words of ``texts`` in files of ``directory``."""
    return make(id, texts, CountInFiles(directory), bytes_per_batch)


def in_sqlite(id: str, texts: str, path: str) -> Any:
    """A topology with a store that works on one machine only."""
    from txtopo.stores import SqliteStore

    return make(id, texts, CountInStore(SqliteStore(path, "counts")))


def in_postgresql(id: str, texts: str, url: str) -> Any:
    """A topology that counts in a table ``counts``."""
    from txtopo.stores import SqlStore

    return make(id, texts, CountInStore(SqlStore(url, "counts")))


def make(id: str, texts: str, count: Count, bytes_per_batch: int = 400) -> Any:
    """A topology that counts the words of ``texts``, two tasks for each component."""
    builder = TransactionalTopologyBuilder(
        id, "spout", FileTransactionalSpout(texts, bytes_per_batch=bytes_per_batch, partitions=2), 2
    )
    builder.set_bolt("split", Split(), 2).none_grouping("spout")
    builder.set_bolt("count", count, 2).fields_grouping("split", Fields("word"))
    return builder.build_topology()


def write_texts(directory: Path, lines: int) -> Counter[str]:
    """Two files of ``lines`` lines of about 80 bytes each; the counts of their words."""
    expected: Counter[str] = Counter()
    directory.mkdir()
    for file in range(2):
        with (directory / f"{file}.txt").open("w") as text:
            for line in range(lines):
                words = [
                    WORDS[(line * line + 7 * number + file) % len(WORDS)] for number in range(12)
                ]
                expected.update(words)
                text.write(" ".join(words) + "\n")
    return expected


def records(directory: Path) -> list[dict[str, Any]]:
    """What :class:`CountInFiles` has written."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


def counted(directory: Path) -> Counter[str]:
    """The sum of it."""
    total: Counter[str] = Counter()
    for record in records(directory):
        total.update(record["counts"])
    return total
