"""The topology of ``make kafka-demo`` numbers the lines of a topic, and writes the lines to a
second topic.

The environment names both topics, and the brokers: LINES_FROM, LINES_TO, KAFKA_SERVERS. It may say
how many lines of each partition a transaction has: LINES_AT_ONCE.
"""

from __future__ import annotations

import os

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


class Number(BaseBasicBolt):
    """A record in; out a record for the same partition, which begins with the offset of the first
    one."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        attempt, partition, offset, value = tup.values
        collector.emit([attempt, partition, b"%d %s" % (offset, value)])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "partition", "value"))


SERVERS = os.environ["KAFKA_SERVERS"]
spout = KafkaTransactionalSpout(
    SERVERS,
    os.environ["LINES_FROM"],
    int(os.environ.get("LINES_AT_ONCE", "2500")),
    fields=("partition", "offset", "value"),
)
builder = TransactionalTopologyBuilder("kafka-demo", "lines", spout, 2)
builder.set_bolt("number", Number(), 2).none_grouping("lines")
builder.set_bolt(
    "write", KafkaSink(SERVERS, os.environ["LINES_TO"], partition="partition"), 2
).fields_grouping("number", Fields("partition"))
topology = builder.build_topology()
conf = Config(max_spout_pending=3, message_timeout_s=120)
