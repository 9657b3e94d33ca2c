"""Columns through real Spark: over the shuffle, held, replayed, and mixed with tuples; the counts
equal those of plain Python."""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast, run_to_idle
from txtopo import (
    BaseArrowBatchBolt,
    BaseBasicBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    FailedException,
    Fields,
    ICommitter,
    InputError,
    LocalCluster,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    JsonLinesTransactionalSpout,
    ParquetTransactionalSpout,
)
from txtopo.stores import SqliteStore

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
ROWS = [(f"word{i * i % 97}", i) for i in range(8_000)]


class Add(BaseArrowBatchBolt, ICommitter):
    """Adds up the column ``n`` by ``word``. Its first attempt at transaction 2 goes wrong, ``how``."""

    def __init__(self, store: SqliteStore, journal: Journal, how: str = "") -> None:
        self.store, self.journal, self.how = store, journal, how

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
            table = pa.Table.from_batches(self.batches).unify_dictionaries()
            summed = table.group_by("word", use_threads=False).aggregate([("n", "sum")]).to_pydict()
            with self.store.transaction(self.context, self.attempt) as transaction:
                transaction.update_many(
                    dict(zip(summed["word"], summed["n_sum"], strict=True)),
                    lambda old, new: (old or 0) + new,
                )
        if self.how and self.attempt.txid == 2 and self.journal.claim("wrong"):
            if self.how == "dies":
                os._exit(1)
            raise FailedException("told to fail after the write")


class Doubled(BaseBasicBolt):
    """Takes tuples out of columns, and emits tuples that become columns again."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup[0], tup["word"], 2 * tup["n"]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "n"), schema=SCHEMA)


def sums(factor: int = 1) -> dict[str, int]:
    counted: collections.Counter[str] = collections.Counter()
    for word, n in ROWS:
        counted[word] += factor * n
    return dict(counted)


def table() -> pa.Table:
    return pa.table(
        {"word": [word for word, _ in ROWS], "n": pa.array([n for _, n in ROWS], pa.int64())}
    )


@pytest.mark.thorough
@pytest.mark.rule(12, 16, 18, 28, 33)
@pytest.mark.parametrize("how", ["", "fails", "dies"])
def test_parquet_files_are_summed_up_exactly_once_by_columns_and_by_tuples(
    cluster: LocalCluster, tmp_path: Path, how: str
) -> None:
    for i in range(4):
        pq.write_table(table().slice(2000 * i, 2000), tmp_path / f"{i}.parquet", row_group_size=400)
    store, doubles = (
        SqliteStore(tmp_path / "sums.db", "sums"),
        SqliteStore(tmp_path / "doubles.db", "doubles"),
    )
    journal = Journal(tmp_path / "journal")
    spout = ParquetTransactionalSpout(
        str(tmp_path / "*.parquet"), rows_per_batch=800, partitions=2, dictionaries=["word"]
    )
    builder = TransactionalTopologyBuilder(f"columns-parquet-{how}", "rows", spout, 2)
    builder.set_bolt("add", Add(store, journal, how), 2).fields_grouping("rows", Fields("word"))
    builder.set_bolt("doubled", Doubled(), 3).shuffle_grouping("rows")
    builder.set_bolt("twice", Add(doubles, journal), 2).fields_grouping("doubled", Fields("word"))
    run = run_to_idle(cluster, builder.build_topology(), max_spout_pending=3)
    assert dict(store.items()) == sums()
    assert dict(doubles.items()) == sums(2)
    assert run.status().tuples == len(ROWS), "rows are counted, not RecordBatches"
    assert (journal.count("wrong") == 1) == bool(how)


@pytest.mark.in_gate("csv")
@pytest.mark.rule(20, 23)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_lines_in_columns_are_read_once_and_a_second_run_finds_nothing_new(
    cluster: LocalCluster, tmp_path: Path, kind: str
) -> None:
    for i in range(3):
        lines = [
            f"{word},{n}" if kind == "csv" else json.dumps({"word": word, "n": n})
            for word, n in ROWS[i::3]
        ]
        (tmp_path / f"{i}.txt").write_text(
            "".join(f"{line}\n" for line in (["word,n"] if kind == "csv" else []) + lines)
        )
    store = SqliteStore(tmp_path / "sums.db", "sums")
    spout_class: Any = CsvTransactionalSpout if kind == "csv" else JsonLinesTransactionalSpout
    builder = TransactionalTopologyBuilder(
        f"columns-{kind}",
        "rows",
        spout_class(str(tmp_path / "*.txt"), SCHEMA, 16_000, partitions=2),
        2,
    )
    builder.set_bolt("add", Add(store, Journal(tmp_path / "journal")), 2).fields_grouping(
        "rows", Fields("word")
    )
    topology = builder.build_topology()
    assert run_to_idle(cluster, topology, max_spout_pending=3).status().committed > 2
    assert dict(store.items()) == sums()
    assert run_to_idle(cluster, topology).status().committed == 0


def test_a_record_that_does_not_fit_stops_the_run_and_names_the_file(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text("word,n\ncat,1\ndog,many\n")
    store = SqliteStore(tmp_path / "sums.db", "sums")
    builder = TransactionalTopologyBuilder(
        "columns-bad", "rows", CsvTransactionalSpout(tmp_path / "bad.csv", SCHEMA)
    )
    builder.set_bolt("add", Add(store, Journal(tmp_path / "journal"))).fields_grouping(
        "rows", Fields("word")
    )
    run = cluster.submit_topology("columns-bad", fast(), builder.build_topology())
    with pytest.raises(
        InputError, match=r"bad\.csv: the line at byte 13 cannot be read: .*invalid value 'many'"
    ) as caught:
        run.join(PATIENCE_S)
    assert caught.value.exit_code == 2
    assert dict(store.items()) == {}


@pytest.mark.rule(38)
def test_a_line_that_is_no_json_object_stops_the_run_and_kills_no_worker(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'null\n{"word":"cat","n":1}\n')
    store = SqliteStore(tmp_path / "sums.db", "sums")
    builder = TransactionalTopologyBuilder(
        "columns-null", "rows", JsonLinesTransactionalSpout(tmp_path / "bad.jsonl", SCHEMA)
    )
    builder.set_bolt("add", Add(store, Journal(tmp_path / "journal"))).global_grouping("rows")
    run = cluster.submit_topology("columns-null", fast(), builder.build_topology())
    with pytest.raises(
        InputError,
        match=r"bad\.jsonl: the line at byte 0 is not a JSON object but a NoneType\n  Mend the line",
    ):
        run.join(PATIENCE_S)
    assert run.status().replays == 0, "an error of the file, and not a crash"
    assert dict(store.items()) == {}
