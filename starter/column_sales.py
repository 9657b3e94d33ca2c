"""Total sales by shop and by day, in columns: no tuple is ever made on the way to the shops'
totals.

::

    sales ×2 ──none──► partial ×2 ──fields(shop)──► totals ×2 (committer)
                       partial ×2 ──fields(day)───► days ×2 (committer, takes tuples)

``partial`` adds up its part of the batch first, so that little travels, and emits the sums on two
streams. ``totals`` takes columns, ``days`` takes tuples, only to show that both may listen to the
same bolt: the columns become tuples at its door. The sales are in memory here;
``ParquetTransactionalSpout``, ``CsvTransactionalSpout`` or ``JsonLinesTransactionalSpout`` of
``txtopo.connectors.files`` take their place.

Run it with ``txtopo run starter/column_sales.py``; it needs pyarrow: ``pip install
'txtopo[arrow]'``. The store is the file that TXTOPO_STARTER_STORE names, otherwise
.txtopo/column-sales.db, with tables ``shop_totals`` and ``day_totals``.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

import txtopo
from txtopo import (
    BaseArrowBatchBolt,
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
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
from txtopo.testing import ArrowMemoryTransactionalSpout

SHOPS = ("Antwerp", "Bern", "Cork", "Delft", "Evora")
FIRST_DAY = datetime.date(2026, 1, 1)
SALES_PER_BATCH = 500
KEYS = ("shop", "day")
STORE_PATH = ".txtopo/column-sales.db"


def sales(first: int, count: int) -> pa.Table:
    """Sales number ``first`` to ``first + count - 1``: made up, but always the same."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "shop": pa.array([SHOPS[n * n % len(SHOPS)] for n in numbers]),
            "day": pa.array([FIRST_DAY + datetime.timedelta(days=n % 7) for n in numbers]),
            "cents": pa.array([100 + 37 * n % 900 for n in numbers], pa.int64()),
        }
    )


DATA = {0: sales(0, 2000), 1: sales(2000, 1200)}


class AddUpPart(BaseArrowBatchBolt):
    """Sums by shop, and by day, of its part of the batch."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector = collector
        self.sums: dict[str, list[pa.Table]] = {key: [] for key in KEYS}

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        for key, sums in self.sums.items():
            self.sums[key] = [summed(pa.concat_tables([*sums, table.select([key, "cents"])]), key)]

    def finish_batch(self) -> None:
        for key, sums in self.sums.items():
            for batch in itertools.chain.from_iterable(table.to_batches() for table in sums):
                self.collector.emit_batch(batch, f"by {key}")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        for key in KEYS:
            declarer.declare_stream(f"by {key}", Fields("tx", key, "cents"))


def summed(table: pa.Table, key: str) -> pa.Table:
    """Columns ``key`` and ``cents``, with one row per key."""
    # One thread: Spark has given each task a core.
    return (
        table.group_by(key, use_threads=False)
        .aggregate([("cents", "sum")])
        .rename_columns([key, "cents"])
        .combine_chunks()
    )


class UpdateShops(BaseArrowBatchBolt, ICommitter):
    """Adds the sums to the totals, all shops in one go."""

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
        self.batches: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def finish_batch(self) -> None:
        if self.batches:
            totals = summed(pa.Table.from_batches(self.batches), "shop").to_pydict()
            with self.store.transaction(self.context, self.attempt) as transaction:
                transaction.update_many(
                    dict(zip(totals["shop"], totals["cents"], strict=True)), added
                )


class UpdateDays(BaseTransactionalBolt, ICommitter):
    """The same by day, from tuples."""

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
        self.totals: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.totals[tup["day"].isoformat()] += tup["cents"]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(self.totals, added)


def added(total: int | None, more: int) -> int:
    """The new value of a key in the store: ``total`` is ``None`` the first time."""
    return (total or 0) + more


def open_stores(path: str | Path | None = None) -> tuple[SqliteStore, SqliteStore]:
    """The stores of shop → cents and day → cents, two tables of one file."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "shop_totals"), SqliteStore(file, "day_totals")


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the 3,200 sales of ``DATA``), adding up into the
    stores at ``store_path``."""
    shops, days = open_stores(store_path)
    spout = spout or ArrowMemoryTransactionalSpout(DATA, rows_per_record_batch=SALES_PER_BATCH)
    builder = TransactionalTopologyBuilder("column-sales", "sales", spout, 2)
    builder.set_bolt("partial", AddUpPart(), 2).none_grouping("sales")
    builder.set_bolt("totals", UpdateShops(shops), 2).fields_grouping(
        "partial", Fields("shop"), "by shop"
    )
    builder.set_bolt("days", UpdateDays(days), 2).fields_grouping(
        "partial", Fields("day"), "by day"
    )
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
