"""Write each sale of a file into an SQL table, exactly once.

::

    lines ──none──► parse ×2 ──none──► write ×2 (committer)

The table is an ordinary one, which any program may read: ``sales (id, article, cents)`` in a SQLite
file. ``SqlSink`` writes the rows of a batch and, in the same database transaction, a note that the
batch is written; so a replay adds no row. An address such as
``postgresql+psycopg://user@host/shop`` in the place of the file writes to a database server.

Run it with ``txtopo run starter/sales_table.py``; append a line to ``sales.csv``, run it again, and
one row is added. The database is the file that TXTOPO_STARTER_STORE names, otherwise
.txtopo/shop.db.
"""

from __future__ import annotations

import os
import sqlite3
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
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.connectors.sql import SqlSink

SALES = Path(__file__).with_name("sales.csv")
STORE_PATH = ".txtopo/shop.db"


class ParseSale(BaseBasicBolt):
    """A line in, the number, the article and the cents of a sale out."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number, article, cents = tup["line"].split(",")
        collector.emit([tup.attempt, int(number), article, int(cents)])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "id", "article", "cents"))


def make_table(path: str | Path | None = None) -> Path:
    """Make the table of sales, if there is none, and return the path of its database."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(file)
    try:
        database.execute(
            "CREATE TABLE IF NOT EXISTS sales (id INTEGER PRIMARY KEY, article TEXT NOT NULL, cents INTEGER NOT NULL)"
        )
        database.commit()
    finally:
        database.close()
    return file


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the lines of ``sales.csv``), writing into the database
    at ``store_path``."""
    # A real file takes bytes_per_batch of a megabyte, the default; 20 bytes make three batches.
    spout = spout or FileTransactionalSpout(SALES, bytes_per_batch=20)
    builder = TransactionalTopologyBuilder("sales-table", "lines", spout)
    builder.set_bolt("parse", ParseSale(), 2).shuffle_grouping("lines")
    builder.set_bolt(
        "write", SqlSink(str(make_table(store_path)), "sales", ["id", "article", "cents"]), 2
    ).none_grouping("parse")
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
