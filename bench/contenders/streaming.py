"""Structured Streaming's ``foreachBatch``, with the best settings we know, on the work of the
topologies.

Every micro-batch is counted, in the JVM alone or row by row in Python, and added to a SQLite file
with the same durability as txtopo's store (a write-ahead log, synchronous=FULL); the batch id makes
that idempotent. Time is taken between the ends of two such updates.
"""

from __future__ import annotations

import collections
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from bench import rows
from bench.line import check
from bench.spark import PEER_SETTINGS, peer_session

_TIMEOUT_S = 240.0
SETTINGS = {
    **PEER_SETTINGS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    # Half as many calls to the file system as the default, and half the time of a batch.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.asyncLogPurge.enabled": "true",
    # Rewriting the list of files read, every tenth batch, is put off.
    "spark.sql.streaming.fileSource.log.compactInterval": "100000",
}


class Streaming:
    """Queries, each a block, in one session. ``kind`` is count-jvm, count-python, words-jvm or
    words-python."""

    def __init__(
        self, directory: str, checkpoints: str, more: dict[str, str] | None = None
    ) -> None:
        self._directory, self._checkpoints = Path(directory), Path(checkpoints)
        self._session = peer_session({**SETTINGS, **(more or {})})
        self._made = 0

    def block(
        self,
        kind: str,
        transactions: int,
        warm: int = 5,
        rows_per_batch: int = 0,
        files: str | None = None,
        partitions: int = 1,
        servers: str = "",
        topic: str | None = None,
    ) -> dict[str, Any]:
        """So many micro-batches of ``rate-micro-batch``, or one for each file in the directory
        ``files``, or so many of the records in a Kafka ``topic``."""
        self._made += 1
        count = warm + transactions
        sink = Sink(self._directory / f"sink-{self._made}.db", count)
        reader = self._session.readStream
        if topic is not None:
            kafka = reader.format("kafka").option("kafka.bootstrap.servers", servers)
            kafka = kafka.option("subscribe", topic).option("startingOffsets", "earliest")
            source = kafka.option("maxOffsetsPerTrigger", rows_per_batch).load().select("value")
        elif files is None:
            source = (
                reader.format("rate-micro-batch")
                .option("rowsPerBatch", rows_per_batch)
                .option("numPartitions", partitions)
                .load()
            )
        else:
            source = reader.schema("value string").option("maxFilesPerTrigger", 1).text(files)
        checkpoint = self._checkpoints / f"{self._directory.name}-{self._made}"
        writer = source.writeStream.foreachBatch(sink.taking(KINDS[kind])).trigger(
            processingTime="0 seconds"
        )
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            if not sink.done.wait(_TIMEOUT_S):
                raise TimeoutError(
                    f"{sink.batches} micro-batches in {_TIMEOUT_S} s: {query.exception()}"
                )
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
        sink.close()
        self._check(sink, kind, files, count * rows_per_batch)
        return {"seconds": sink.ends[count - 1] - sink.ends[warm - 1], "transactions": transactions}

    def _check(self, sink: Sink, kind: str, files: str | None, rows_in_all: int) -> None:
        if files is not None:
            one = rows.counted([str(next(iter(sorted(Path(files).iterdir()))))])
            truth = {word: count * sink.batches for word, count in one.items()}
            rows_in_all = sum(truth.values())
            if kind.startswith("words"):
                check(sink.counts, truth)
        if files is not None or kind.startswith("count"):
            check(sum(sink.counts.values()), rows_in_all)

    def close(self) -> None:
        """End the session. Checkpoints may be outside of the directory that goes with the line."""
        self._session.stop()
        shutil.rmtree(self._checkpoints, ignore_errors=True)


class Sink:
    """A SQLite file of counts that takes every micro-batch once, however often it is given."""

    def __init__(self, path: Path, wanted: int) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA synchronous = FULL",
            "PRAGMA journal_mode = WAL",
            "CREATE TABLE counts (key TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
            "CREATE TABLE progress (batch INTEGER NOT NULL)",
            "INSERT INTO progress VALUES (-1)",
        ):
            self._connection.execute(statement)
        self._wanted = wanted
        self.batches = 0
        self.ends: list[float] = []
        """When each update was on disk."""
        self.counts: dict[str, int] = {}
        """The rows in the file, once the file is closed."""
        self.done = threading.Event()

    def taking(
        self, count: Callable[[DataFrame], Iterable[tuple[str, int]]]
    ) -> Callable[[DataFrame, int], None]:
        """The function for ``foreachBatch``."""

        def take(frame: DataFrame, batch: int) -> None:
            # Batches during the stop of the query are left alone, so that the truth is about a
            # known number of batches.
            if not self.done.is_set():
                self._add(batch, count(frame))

        return take

    def _add(self, batch: int, counts: Iterable[tuple[str, int]]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        ((last,),) = connection.execute("SELECT batch FROM progress").fetchall()
        if batch > last:
            upsert = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET count = count + excluded.count"
            connection.executemany(upsert, counts)
            connection.execute("UPDATE progress SET batch = ?", [batch])
        connection.execute("COMMIT")
        self.ends.append(time.perf_counter())
        self.batches += 1
        if self.batches == self._wanted:
            self.done.set()

    def close(self) -> None:
        """Read the results, and close."""
        self.counts = dict(self._connection.execute("SELECT key, count FROM counts"))
        self._connection.close()


def _count_in_jvm(frame: DataFrame) -> list[tuple[str, int]]:
    return [("total", frame.count())]


def _count_in_python(frame: DataFrame) -> list[tuple[str, int]]:
    return [("total", sum(frame.rdd.mapPartitions(count_rows).collect()))]


def _words_in_jvm(frame: DataFrame) -> list[tuple[str, int]]:
    return [(str(row[0]), row[1]) for row in frame.groupBy("value").count().collect()]


def _words_in_python(frame: DataFrame) -> list[tuple[str, int]]:
    # Every task counts its rows; the few counts are added up where they are written.
    merged: collections.Counter[str] = collections.Counter()
    for word, count in frame.rdd.mapPartitions(count_words).collect():
        merged[word] += count
    return list(merged.items())


KINDS = {
    "count-jvm": _count_in_jvm,
    "count-python": _count_in_python,
    "words-jvm": _words_in_jvm,
    "words-python": _words_in_python,
}


def count_rows(records: Iterable[Any]) -> Iterator[int]:
    """One row at a time, as a bolt is given them."""
    count = 0
    for _ in records:
        count += 1
    yield count


def count_words(records: Iterable[Any]) -> Iterator[tuple[str, int]]:
    """One row at a time."""
    counts: collections.Counter[str] = collections.Counter()
    for record in records:
        counts[str(record["value"])] += 1
    yield from counts.items()
