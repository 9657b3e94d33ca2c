"""Topologies on Spark whose results are rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import fast, run_to_idle
from tests.servers.postgres import PostgresServer
from tests.topologies.sinks import LOOSE, SALES, Shop
from txtopo import (
    FailedException,
    Fields,
    LocalCluster,
    RowRefusedError,
    TransactionalTopologyBuilder,
)
from txtopo.connectors.sql import SqlSink
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txtopo.topology.transaction import is_first_try

SOLD: dict[int, list[tuple[Any, ...]]] = {
    p: [(1000 * p + n, n) for n in range(40)] for p in range(2)
}
ROWS = sorted(row for rows in SOLD.values() for row in rows)


class FailsOnce(SqlSink):
    """One whose first attempt at every batch fails when its rows are there."""

    def finish_batch(self) -> None:
        super().finish_batch()
        if is_first_try(self.attempt):
            raise FailedException("the first attempt fails once its rows are there")


def topology(id: str, sink: SqlSink, told: SqlSink, opaque: bool = False) -> Any:
    make = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    builder = TransactionalTopologyBuilder(id, "spout", make(SOLD, Fields("id", "cents"), 15), 2)
    builder.set_bolt("write", sink, 3).fields_grouping("spout", Fields("id"))
    builder.set_bolt("told", told).global_grouping("write")
    return builder.build_topology()


@pytest.mark.in_gate("opaque")
@pytest.mark.rule(28, 29, 31)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_rows_are_there_once_although_every_batch_is_written_twice(
    cluster: LocalCluster, postgres: PostgresServer, opaque: bool
) -> None:
    database = postgres.new_database()
    shop = Shop(postgres.url(database), LOOSE)
    shop.execute("CREATE TABLE told (rows INTEGER, written_by TEXT)")
    sink = FailsOnce(shop.address, "sales", ["id", "cents"], mark="written_by", opaque=opaque)
    told = SqlSink(shop.address, "told", ["rows"], mark="written_by", opaque=opaque)
    run = run_to_idle(cluster, topology(f"sink-{opaque}", sink, told, opaque), max_spout_pending=3)
    assert shop.sales == ROWS
    assert shop.execute("SELECT SUM(rows), COUNT(*) FROM told") == [
        (len(ROWS), 3 * run.status().committed)
    ]
    assert run.status().replays >= run.status().committed == 3
    # One connection per worker process; those of failed tasks are being closed. After a minute
    # Spark would end the idle workers themselves.
    wait_until(
        lambda: len(postgres.backends(database)) <= 2, "the end of more sessions than that", 30.0
    )


@pytest.mark.thorough
@pytest.mark.rule(7)
def test_a_row_the_table_does_not_take_ends_the_run_at_once_and_is_written_when_the_table_was_mended(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    shop = Shop(str(tmp_path / "shop.db"), SALES.replace("cents >= 0", "cents <> 20"))
    shop.execute("CREATE TABLE told (rows INTEGER)")
    graph = topology("sink-poison", shop.sink(), SqlSink(shop.address, "told", ["rows"]))
    run = cluster.submit_topology("sink-poison", fast(max_spout_pending=2), graph)
    said = r"(?s)component 'write', task \d, attempt 2:0: CHECK constraint failed.*The row: id=\d+, cents=20"
    with pytest.raises(RowRefusedError, match=said) as caught:
        run.join(PATIENCE_S)
    assert (caught.value.exit_code, run.status().replays) == (1, 0)
    # Tasks without such a row have written; their transaction has not committed.
    assert [row for row in shop.sales if row[1] < 15] == [row for row in ROWS if row[1] < 15]
    rows = shop.execute("SELECT id, cents, written_by FROM sales")
    shop.execute("DROP TABLE sales")
    shop.execute(SALES)
    for row in rows:
        shop.execute("INSERT INTO sales VALUES (?, ?, ?)", row)
    run_to_idle(cluster, graph)
    assert shop.sales == ROWS
    assert shop.execute("SELECT SUM(rows) FROM told") == [(len(ROWS),)]


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_spark_ends_a_partition_whose_task_failed_as_complete_and_the_partition_that_comes_again_is_refused(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    shop = Shop(str(tmp_path / "shop.db"), LOOSE)
    rows = 5_000
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.json").write_text(
        "\n".join(f'{{"id": {number}, "cents": {number}}}' for number in range(rows))
    )
    spark = SparkSession.builder.getOrCreate()

    def run(cents: str) -> str:
        files = spark.readStream.schema("id INT, cents INT").json(str(tmp_path / "input"))
        stream = (
            files.repartition(1, "id")
            .selectExpr("id", cents)
            .writeStream.foreach(shop.sink().foreach_writer("q", partitions=1))
        )
        query = (
            stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(int(PATIENCE_S))
        return str(caught.value)

    assert "the task fails" in run(
        f"if(id = {rows - 1_000}, cast(raise_error('the task fails') AS INT), cents) AS cents"
    )
    written = len(shop.sales)
    assert 0 < written < rows
    assert (
        f"wrote {written} rows of component 'foreach', task 0, for transaction 1, whose replay now has {rows}"
        in run("cents")
    )
    assert len(shop.sales) == written


@pytest.mark.thorough
@pytest.mark.parametrize(
    "trigger",
    [{"realTime": "5 seconds"}, {"processingTime": "1 second"}],
    ids=lambda trigger: next(iter(trigger)),
)
def test_a_real_time_query_is_refused_before_a_row_is_written(
    cluster: LocalCluster, tmp_path: Path, trigger: dict[str, str]
) -> None:
    """Spark gives the trigger no property of its own that a task can see."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame, SparkSession

    shop = Shop(str(tmp_path / "shop.db"), LOOSE)
    session: Any = SparkSession.builder.getOrCreate()
    streams = getattr(
        session._jvm.org.apache.spark.sql.execution.streaming.sources, "LowLatencyMemoryStream$"
    ).__getattr__("MODULE$")
    stream = streams.apply(
        session._jsparkSession, 1, session._jvm.org.apache.spark.sql.Encoders.INT()
    )
    rows = DataFrame(stream.toDF(), session).selectExpr("value AS id", "value AS cents")
    writer = rows.writeStream.foreach(shop.sink().foreach_writer("q", partitions=1)).outputMode(
        "update"
    )
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()
    )
    if "realTime" in trigger:
        with pytest.raises(StreamingQueryException, match="may give partition 0 other rows"):
            query.awaitTermination(int(PATIENCE_S))
    else:
        wait_until(lambda: query.lastProgress is not None or not query.isActive, "an epoch")
        query.stop()
        assert query.exception() is None
    assert shop.sales == []
