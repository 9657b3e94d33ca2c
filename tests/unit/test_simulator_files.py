"""A sink for files under the simulator: files in memory, and no directory."""

from __future__ import annotations

from typing import Any

import pytest

from txtopo import Fields, TransactionalTopologyBuilder
from txtopo.connectors.files import FileSink
from txtopo.testing import (
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    simulate,
)

ROWS = [(f"account {number % 7}", number) for number in range(40)]


@pytest.mark.parametrize(
    ("spout", "arguments"),
    [
        (MemoryTransactionalSpout, {"partition_by": ["account"]}),
        (OpaqueMemoryTransactionalSpout, {"opaque": True, "format": "parquet"}),
    ],
    ids=["transactional", "opaque"],
)
def test_every_row_is_there_once_in_every_schedule(spout: Any, arguments: dict[str, Any]) -> None:
    rows = spout({0: ROWS[:20], 1: ROWS[20:]}, Fields("account", "cents"), take_per_partition=4)
    builder = TransactionalTopologyBuilder("sales", "spout", rows)
    sink = FileSink("/nowhere/sales", **arguments)
    builder.set_bolt("write", sink, 3).shuffle_grouping("spout")
    report = simulate(builder.build_topology(), seeds=40, other_processes=False)
    assert report.violation is None
    assert "sink /nowhere/sales" in str(report)
