"""The same batch by hand, in PySpark: RDD code with the same per-record Python calls and no
map-side combine. Also the forms that Spark computes best by itself.

The lines are read in Python, as txtopo's file spout does, which is faster than ``textFile``. The
bolts of the topology are called on them, behind ``partitionBy`` or ``repartition`` where the
topology has a shuffle; the driver adds up and stores with the same committer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from bench import topologies
from bench.contenders import bare_loop
from bench.contenders.txtopo_runs import check_counts
from bench.spark import PEER_SETTINGS, peer_session
from starter.transactional_global_count import BatchCount, UpdateGlobalCount
from starter.transactional_words import KeyedCountUpdater
from txtopo import Fields, TopologyConf, TransactionAttempt, Tuple
from txtopo.topology.stream import TupleSource

_CONF = TopologyConf({})


class HandWritten:
    """Jobs, each for a batch, in one session."""

    def __init__(self, directory: str, partitions: int = 2) -> None:
        self._directory, self._partitions = Path(directory), partitions
        self._session = peer_session(
            {
                **PEER_SETTINGS,
                "spark.sql.shuffle.partitions": str(partitions),
                "spark.sql.adaptive.enabled": "false",
            }
        )
        self._made = 0

    def block(self, batches: list[list[str]], shape: str) -> dict[str, Any]:
        """All of ``batches``, in turn. ``shape``: none, shuffle, words; reduce-by-key and
        data-frame count words, too."""
        self._made += 1
        store = topologies.store_of(self._directory / f"store-{self._made}.db")
        resources: dict[str, Any] = {}
        is_words = shape in ("words", "reduce-by-key", "data-frame")
        began = time.perf_counter()
        for txid, batch in enumerate(batches, 1):
            attempt = TransactionAttempt(txid, 0)
            result = getattr(self, "_" + shape.replace("-", "_"))(batch, attempt)
            committer: Any = KeyedCountUpdater(store) if is_words else UpdateGlobalCount(store)
            committer.prepare(
                _CONF,
                bare_loop.context("committer", "commit", resources),
                bare_loop.Collected(),
                attempt,
            )
            if is_words:
                committer.counts = Counter(dict(result))
            else:
                committer.sum = sum(result)
            committer.finish_batch()
        seconds = time.perf_counter() - began
        for resource in resources.values():
            resource.close()
        check_counts(store, batches, is_words)
        return {"seconds": seconds, "transactions": len(batches)}

    def _lines(self, batch: list[str]) -> Any:
        return self._session.sparkContext.parallelize(batch, self._partitions).flatMap(read_lines)

    def _none(self, batch: list[str], attempt: TransactionAttempt) -> Any:
        return self._lines(batch).mapPartitions(Counting(attempt)).collect()

    def _shuffle(self, batch: list[str], attempt: TransactionAttempt) -> Any:
        return (
            self._lines(batch)
            .repartition(self._partitions)
            .mapPartitions(Counting(attempt))
            .collect()
        )

    def _words(self, batch: list[str], attempt: TransactionAttempt) -> Any:
        return (
            self._lines(batch)
            .map(keyed)
            .partitionBy(self._partitions)
            .mapPartitions(CountingWords(attempt))
            .collect()
        )

    def _reduce_by_key(self, batch: list[str], attempt: TransactionAttempt) -> Any:
        return self._lines(batch).map(keyed_one).reduceByKey(added, self._partitions).collect()

    def _data_frame(self, batch: list[str], attempt: TransactionAttempt) -> Any:
        return [
            (row[0], row[1])
            for row in self._session.read.text(batch).groupBy("value").count().collect()
        ]

    def close(self) -> None:
        """End the session."""
        self._session.stop()


def read_lines(path: str) -> Iterator[str]:
    """The lines of a file."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n")


def keyed(line: str) -> tuple[str, None]:
    """A line as a pair."""
    return line, None


def keyed_one(line: str) -> tuple[str, int]:
    """A line as a pair, counted once."""
    return line, 1


def added(left: int, right: int) -> int:
    """The sum."""
    return left + right


class Counting:
    """A task of the count: the partial bolt, over all records of the Spark partition."""

    def __init__(self, attempt: TransactionAttempt) -> None:
        self._attempt = attempt

    def __call__(self, lines: Iterable[str]) -> Iterator[int]:
        bolt, collector, attempt = BatchCount(), bare_loop.Collected(), self._attempt
        bolt.prepare(
            _CONF, bare_loop.context("partial-count", "processing", {}), collector, attempt
        )
        source = TupleSource("spout", 0, "default", Fields("tx", "line"))
        execute = bolt.execute
        for line in lines:
            execute(Tuple((attempt, line), source))
        bolt.finish_batch()
        yield collector.rows[0][1]


class CountingWords:
    """A task of the word count, behind the shuffle."""

    def __init__(self, attempt: TransactionAttempt) -> None:
        self._attempt = attempt

    def __call__(self, pairs: Iterable[tuple[str, None]]) -> Iterator[tuple[str, int]]:
        bolt, attempt = KeyedCountUpdater(cast(Any, None)), self._attempt  # No commit here.
        bolt.prepare(
            _CONF, bare_loop.context("count", "processing", {}), bare_loop.Collected(), attempt
        )
        source = TupleSource("spout", 0, "default", Fields("tx", "line"))
        execute = bolt.execute
        for word, _ in pairs:
            execute(Tuple((attempt, word), source))
        yield from bolt.counts.items()
