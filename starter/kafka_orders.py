"""Read orders from a topic of Kafka, add their prices, and write them to another topic, each once.

::

    orders ×2 ──none──► price ×2 ──fields(article)──► write ×2 (committer)

``KafkaSink`` writes the rows of a batch in transactions of Kafka, each together with a note that
the batch is written; so a replay adds no record. Kill the topology at any moment and run it again:
a consumer with ``isolation.level=read_committed`` sees every order once, and the orders of an
article in the order in which they came.

An order is a JSON object: ``{"order": 17, "article": "pen", "count": 3}``. Both topics have to be
there: KAFKA_TOPIC names the first one, otherwise ``orders``, and KAFKA_TARGET the second one,
otherwise ``priced-orders``. Type ``KAFKA_SERVERS=host:port txtopo run starter/kafka_orders.py``; it
needs ``pip install 'txtopo[kafka]'``. It reads what the topic has, and the next run goes on behind
it; without ``until="exhausted"`` it waits for more.
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
from txtopo.connectors.kafka import KafkaSink, KafkaTransactionalSpout

SERVERS = os.environ.get("KAFKA_SERVERS") or "127.0.0.1:9092"
ORDERS = os.environ.get("KAFKA_TOPIC") or "orders"
PRICED = os.environ.get("KAFKA_TARGET") or "priced-orders"
RECORDS_PER_BATCH = 1000
CENTS = {"pen": 120, "book": 1499, "lamp": 3999}


class Price(BaseBasicBolt):
    """An order in, the order with its price out."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        attempt, order, article, count = tup.values
        collector.emit([attempt, order, article, count, count * CENTS[article]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "order", "article", "count", "cents"))


def make_topology(
    servers: str = SERVERS, orders: str = ORDERS, priced: str = PRICED, spout: Any = None
) -> Any:
    """The topology, from topic ``orders`` (or another ``spout``) to topic ``priced``."""
    spout = spout or KafkaTransactionalSpout(
        servers, orders, RECORDS_PER_BATCH, fields=("order", "article", "count"), format="json"
    )
    # For `txtopo test`, which never reads the brokers.
    spout.sample = [
        f'{{"order": {number}, "article": "{article}", "count": {number % 3 + 1}}}'
        for number, article in enumerate([*CENTS] * 8)
    ]
    builder = TransactionalTopologyBuilder("kafka-orders", "orders", spout, 2)
    builder.set_bolt("price", Price(), 2).none_grouping("orders")
    builder.set_bolt(
        "write", KafkaSink(servers, priced, key="article", format="json"), 2
    ).fields_grouping("price", Fields("article"))
    return builder.build_topology()


topology = make_topology()
conf = Config(max_spout_pending=3, until="exhausted")

if __name__ == "__main__":
    txtopo.main(topology, conf)
