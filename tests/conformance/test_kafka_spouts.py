"""The contract of spouts, over the Kafka spouts: on brokers in memory, and on a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers.kafka import MEMORY_AND_BROKER, KafkaServer
from txtopo.connectors.kafka import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout
from txtopo.testing import check_spout


@MEMORY_AND_BROKER
@pytest.mark.in_gate("*memory", "Opaque*")
@pytest.mark.rule(4, 5, 9, 17, 18, 19, 20, 21, 22, 23)
@pytest.mark.parametrize("kind", [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout])
def test_the_kafka_spouts_keep_the_contract(kafka: KafkaServer, kind: Any) -> None:
    topic = kafka.new_topic(partitions=3)
    rows = []
    for partition, count in ((0, 20), (2, 7)):
        values = [f"{partition}-{n}" for n in range(count)]
        kafka.produce(topic, values, partition)
        rows += [(value,) for value in values]
    report = check_spout(
        lambda: kind(
            kafka.servers, topic, records_per_batch=4, format="text", client_group=f"of-{topic}"
        ),
        expected=rows,
        stories=8,
    )
    assert (report.is_exhausted, report.tuples, report.partitions) == (True, len(rows), 3)
    assert set(kafka.committed(f"of-{topic}", topic, 3)) == {-1001}, "a trial set a group's offsets"
