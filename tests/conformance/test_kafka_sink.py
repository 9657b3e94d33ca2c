"""The contract of sinks over a Kafka sink, with kills at lines of the sink's own code: in the gate
at every twelfth line, on brokers in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import strides
from tests.servers import memory_kafka
from tests.servers.kafka import KafkaServer
from txtopo.connectors.kafka import KafkaSink
from txtopo.testing import SinkReport, check_sink

ROWS = [("k", f"row {number}") for number in range(4)]


def checked(kafka: Any) -> SinkReport:
    topics: dict[Path, str] = {}

    def topic_in(directory: Path) -> str:
        if directory not in topics:
            for done in list(topics)[:-3]:
                kafka.forget(topics.pop(done))
            topics[directory] = kafka.new_topic()
            # The contract forks, and a child has none of the threads that a client needs.
            vars(kafka).pop("admin", None)
        return topics[directory]

    def sink(directory: Path) -> KafkaSink:
        topic = topic_in(directory)
        return KafkaSink(
            kafka.servers, topic, key="key", format="text", transactions_topic=f"{topic}-tx"
        )

    return check_sink(
        sink,
        ROWS,
        fields=("key", "value"),
        contents=lambda directory: kafka.values(topic_in(directory)),
    )


@pytest.mark.in_gate("every 12th")
@pytest.mark.rule(28, 29, 40)
@pytest.mark.parametrize("stride", [12, 1], ids=strides.NAMES)
def test_a_kafka_sink_keeps_the_contract_of_sinks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stride: int
) -> None:
    strides.kill_at_every(stride, monkeypatch)
    report = checked(memory_kafka.patched_in(monkeypatch, tmp_path / "brokers"))
    assert report.points > 100 // stride
    assert not report.takes_back


@pytest.mark.thorough
@pytest.mark.rule(28, 29, 40)
def test_a_kafka_sink_keeps_the_contract_of_sinks_on_a_real_broker(kafka: KafkaServer) -> None:
    report = checked(kafka)
    assert report.points > 100
    assert not report.takes_back
