"""The starter with an SQL table on real Spark and ZooKeeper: each line of the file is one row, also
after a second run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from starter import sales_table
from tests.servers.clusters import run_to_idle
from txtopo import LocalCluster


@pytest.mark.rule(28)
def test_each_line_is_one_row_and_stays_one_when_the_topology_is_run_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    rows = [
        tuple(line.split(","))
        for line in sales_table.SALES.read_text(encoding="utf-8").splitlines()
    ]
    for _ in range(2):
        run_to_idle(cluster, sales_table.make_topology(tmp_path / "shop.db"), max_spout_pending=3)
        shop = sqlite3.connect(tmp_path / "shop.db")
        written = shop.execute("SELECT * FROM sales ORDER BY id").fetchall()
        shop.close()
        assert written == [(int(number), article, int(cents)) for number, article, cents in rows]
