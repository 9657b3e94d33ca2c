"""The contract of sinks over a Kafka sink and a real broker, with a kill at every line of the
sink's own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.kafka import KafkaServer
from txtopo.connectors.kafka import KafkaSink
from txtopo.testing import check_sink

ROWS = [("k", f"row {number}") for number in range(4)]


@pytest.mark.thorough
@pytest.mark.rule(28, 29, 40)
def test_a_kafka_sink_keeps_the_contract_of_sinks(kafka: KafkaServer) -> None:
    topics: dict[Path, str] = {}

    def topic_in(directory: Path) -> str:
        if directory not in topics:
            topics[directory] = kafka.new_topic()
            # The contract forks, and a child has none of the threads that a client needs.
            del kafka.admin
        return topics[directory]

    def sink(directory: Path) -> KafkaSink:
        topic = topic_in(directory)
        return KafkaSink(
            kafka.servers, topic, key="key", format="text", transactions_topic=f"{topic}-tx"
        )

    report = check_sink(
        sink,
        ROWS,
        fields=("key", "value"),
        contents=lambda directory: kafka.values(topic_in(directory)),
    )
    assert report.points > 50
    assert not report.takes_back
