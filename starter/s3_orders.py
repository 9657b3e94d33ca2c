"""Read orders from objects in S3, add their prices, and write them to S3 again, each once.

::

    orders ──none──► price ×2 ──none──► write ×2 (committer)

``FileSink`` puts each task's rows into an object of the attempt, and one conditional put decides
for all objects of a transaction: a replay adds no row, also if the topology is killed.
``txtopo.connectors.files.read_committed`` reads whole transactions, and so does
``CommittedFilesSpout`` in the next topology.

An order is a JSON object in a line: ``{"order": 17, "article": "pen", "count": 3}``. They are in
``orders/*.jsonl`` below the address that S3_ROOT names, and the priced ones come into ``priced/``.
Type ``S3_ROOT=s3://bucket/shop txtopo run starter/s3_orders.py``; it needs
``pip install 'txtopo[objects]'``, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the
environment. S3_ENDPOINT names a server other than Amazon's.
"""

from __future__ import annotations

import os
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

S3_ROOT = os.environ.get("S3_ROOT") or "s3://shop"
CLIENT = {"endpoint": os.environ["S3_ENDPOINT"]} if "S3_ENDPOINT" in os.environ else {}
CENTS = {"pen": 120, "book": 1499, "lamp": 3999}


class Price(BaseBasicBolt):
    """An order in, the order with its price out."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        attempt, order, article, count = tup.values
        collector.emit([attempt, order, article, count, count * CENTS[article]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "order", "article", "count", "cents"))


def make_topology(root: str = S3_ROOT, spout: Any = None) -> Any:
    """The topology, from the orders (or another ``spout``) to the priced orders below ``root``."""
    spout = spout or FileTransactionalSpout(
        f"{root}/orders/*.jsonl",
        fields=("order", "article", "count"),
        format="json",
        client=CLIENT,
    )
    builder = TransactionalTopologyBuilder("s3-orders", "orders", spout)
    builder.set_bolt("price", Price(), 2).shuffle_grouping("orders")
    builder.set_bolt("write", FileSink(f"{root}/priced", client=CLIENT), 2).none_grouping("price")
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=4, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
