"""The topologies that are measured by column and by tuple, over the same Parquet files.

A partial bolt beside the spout works on the rows read there; a committer adds up the partial
results. Executors import this module, so that the module may not import pyspark.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from starter.transactional_words import added
from txtopo import (
    BaseArrowBatchBolt,
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
from txtopo.connectors.files.parquet import ParquetTransactionalSpout
from txtopo.stores import SqliteStore

COUNTS = pa.schema([("key", pa.string()), ("count", pa.int64())])
NUMBERS = ("a", "b")


class PartialKeyCount(BaseBatchBolt):
    """Tuples per key in this task's input, by tuple."""

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
        self.counts[tup.get_string(1)] += 1

    def finish_batch(self) -> None:
        for key, count in self.counts.items():
            self.collector.emit([self.attempt, key, count])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "count"))


class ArrowPartialKeyCount(BaseArrowBatchBolt):
    """The same by column."""

    emits_columns = True

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector = collector
        self.counts: Counter[str] = Counter()

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        add_counts(self.counts, batch.column(0))

    def finish_batch(self) -> None:
        self.collector.emit_batch(
            pa.RecordBatch.from_pydict(
                {"key": list(self.counts), "count": list(self.counts.values())}, schema=COUNTS
            )
        )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "count"), schema=COUNTS)


class StoreCounts(BaseTransactionalBolt, ICommitter):
    """Adds counts of keys to those in a store."""

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
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup.get_string(1)] += tup.get_integer(2)

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            for key, count in self.counts.items():
                transaction.update(key, partial(added, count))


class StoreKeys(StoreCounts):
    """Counts keys that come singly, from a fields grouping."""

    def execute(self, tup: Tuple) -> None:
        self.counts[tup.get_string(1)] += 1


class ArrowStoreKeys(BaseArrowBatchBolt, ICommitter):
    """The same by column."""

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
        self.counts: Counter[str] = Counter()

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        add_counts(self.counts, batch.column(0))

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            for key, count in self.counts.items():
                transaction.update(key, partial(added, count))


class PartialSums(BaseBatchBolt):
    """The sums of two columns, by tuple."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt
        self.a = self.b = 0

    def execute(self, tup: Tuple) -> None:
        self.a += tup.get_integer(1)
        self.b += tup.get_integer(2)

    def finish_batch(self) -> None:
        self.collector.emit([self.attempt, "a", self.a])
        self.collector.emit([self.attempt, "b", self.b])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "count"))


class ArrowPartialSums(BaseArrowBatchBolt):
    """The same by column."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt
        self.a = self.b = 0

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.a += sum_of(batch.column(0))
        self.b += sum_of(batch.column(1))

    def finish_batch(self) -> None:
        self.collector.emit([self.attempt, "a", self.a])
        self.collector.emit([self.attempt, "b", self.b])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "count"))


def add_counts(counts: Counter[str], column: Any) -> None:
    """Add the number of occurrences of each value in ``column``. The work by hand calls this,
    too.
    """
    counted = pc.value_counts(column)
    for key, count in zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True):
        counts[key] += count


def sum_of(column: Any) -> int:
    """The sum of ``column``. The work by hand calls this, too."""
    total: int = pc.sum(column).as_py()
    return total


PARTIAL: dict[tuple[str, str], Any] = {
    ("key-count", "tuples"): PartialKeyCount,
    ("key-count", "columns"): ArrowPartialKeyCount,
    ("sums", "tuples"): PartialSums,
    ("sums", "columns"): ArrowPartialSums,
}


def spout_of(
    paths: list[str], work: str, rows_per_batch: int, parallelism: int
) -> ParquetTransactionalSpout:
    """The columns that ``work`` needs, of Parquet files. Keys stay dictionary-encoded, as they are
    in the files."""
    is_sums = work == "sums"
    return ParquetTransactionalSpout(
        paths,
        list(NUMBERS) if is_sums else ["key"],
        rows_per_batch,
        parallelism,
        dictionaries=() if is_sums else ("key",),
    )


def topology(id: str, spout: Any, work: str, by: str, store: SqliteStore, parallelism: int) -> Any:
    """``work``: key-count, sums, or keys-grouped, in which every key crosses a fields grouping.
    ``by``: tuples or columns."""
    builder = TransactionalTopologyBuilder(id, "spout", spout, parallelism)
    if work == "keys-grouped":
        bolt = StoreKeys(store) if by == "tuples" else ArrowStoreKeys(store)
        builder.set_bolt("store", bolt, parallelism).fields_grouping("spout", Fields("key"))
        return builder.build_topology()
    builder.set_bolt("partial", PARTIAL[work, by](), parallelism).none_grouping("spout")
    builder.set_bolt("store", StoreCounts(store)).global_grouping("partial")
    return builder.build_topology()
