"""Delta's own reader in Spark sees the rows that the sink has committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.servers import jars
from tests.topologies.file_sinks import ROWS, Writing
from txtopo.connectors.delta import DeltaSink

READER = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's newer reader. The older one of Delta 4.4.0 runs on Spark 4.2 only.
    "spark.databricks.delta.v2.enableMode": "STRICT",
}


def show(*tables: str) -> None:
    """Print the rows in the ``tables``."""
    from pyspark.sql import SparkSession

    files = ",".join(map(str, jars.directory("delta").iterdir()))
    spark = SparkSession.builder.config(map={**READER, "spark.jars": files}).getOrCreate()
    for table in tables:
        print(json.dumps(sorted(spark.table(f"delta.`{table}`").collect())))


@pytest.mark.thorough
@pytest.mark.rule(28, 31)
def test_delta_reads_what_was_committed(tmp_path: Path) -> None:
    jars.directory("delta")
    tables, expected = [], []
    for is_opaque in (False, True):
        tables.append(str(tmp_path / f"opaque-{is_opaque}"))
        sink = DeltaSink(tables[-1], partition_by=["account"], opaque=is_opaque, compact_every=3)
        writing, committed = Writing(sink, tasks=2), list[Any]()
        for txid in range(1, 8):
            rows = ROWS[txid % 3 :]
            writing.write_all(txid, 0, ROWS if is_opaque else rows)
            if txid % 2:
                writing.write_all(txid, 1, rows)
            else:
                rows = ROWS if is_opaque else rows
            committed += rows
        expected.append(sorted(map(list, committed)))
        paths = deltalake.DeltaTable(tables[-1]).file_uris()
        assert any("compacted" in path for path in paths)
    program = f"from {__name__} import show; show(*{tables})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(map(json.loads, done.stdout.splitlines())) == expected
