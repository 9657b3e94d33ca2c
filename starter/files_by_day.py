"""Write events from JSON lines into Parquet files, a folder for each day, each event once.

::

    lines ──none──► day ×2 ──none──► write ×2 (committer)

``FileSink`` writes files of its own in each attempt, and one record decides for all of them: a
transaction's rows are there together or not at all, also if the topology is killed. Every reader of
Parquet reads the folder: ``pyarrow.parquet.read_table(".txtopo/events")``, DuckDB's
``read_parquet('.txtopo/events/*/*.parquet')``, ``spark.read.parquet``. An address such as
``hdfs://host:port/events`` or ``s3://bucket/events`` in FILES_ROOT writes to another machine.

Run it with ``txtopo run starter/files_by_day.py``; append a line to ``events.jsonl``, run it again,
and one row is added. It needs ``pip install 'txtopo[arrow]'``.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Config,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.files import FileSink, FileTransactionalSpout

EVENTS = Path(__file__).with_name("events.jsonl")
FILES_ROOT = os.environ.get("FILES_ROOT") or ".txtopo/events"


class Day(BaseBasicBolt):
    """An event in, the event with its day out."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        at = datetime.datetime.fromisoformat(tup["at"])
        collector.emit([tup.attempt, at.date(), at, tup["shop"], tup["cents"]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "day", "at", "shop", "cents"))


def make_topology(root: str | Path = FILES_ROOT, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the lines of ``events.jsonl``), writing below
    ``root``."""
    # A real file takes bytes_per_batch of a megabyte, the default; 200 bytes make four batches.
    spout = spout or FileTransactionalSpout(
        EVENTS, bytes_per_batch=200, fields=("at", "shop", "cents"), format="json"
    )
    builder = TransactionalTopologyBuilder("files-by-day", "lines", spout)
    builder.set_bolt("day", Day(), 2).shuffle_grouping("lines")
    builder.set_bolt(
        "write", FileSink(root, format="parquet", partition_by=["day"]), 2
    ).none_grouping("day")
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
