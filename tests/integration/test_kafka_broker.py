"""A Kafka spout beside the members of a group, and while its broker is dead."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.servers.kafka import ENDLESS_S, KafkaServer
from txtopo.connectors.kafka import KafkaTransactionalSpout, client, progress
from txtopo.errors import FailedException


def joined(member: Consumer) -> list[TopicPartition]:
    """The member's partitions after a poll: a member joins its group while polling."""
    member.poll(0.1)
    return list(member.assignment())


@pytest.mark.thorough
def test_a_group_with_members_is_left_alone_and_no_transaction_fails(
    kafka: KafkaServer,
    driven: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(progress, "_LAST_S", ENDLESS_S)
    topic = kafka.new_topic()
    kafka.produce(topic, ["a", "b", "c"])
    member = Consumer(
        {"bootstrap.servers": kafka.servers, "group.id": f"busy-{topic}", "log_level": 0}
    )
    member.subscribe([topic])
    kafka.wait_until(lambda: bool(joined(member)))
    drive = driven(KafkaTransactionalSpout, topic, client_group=f"busy-{topic}")
    assert drive.rest() == ["a", "b", "c"]
    drive.planner.lag(drive.positions)
    drive.planner.close()
    assert f"the offsets of consumer group busy-{topic} could not be published" in caplog.text
    member.close()


@pytest.mark.thorough
def test_a_dead_broker_fails_attempts_until_it_is_back(
    kafka: KafkaServer, driven: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic()
    kafka.produce(topic, map(str, range(20)))
    drive = driven(KafkaTransactionalSpout, topic, records_per_batch=10)
    assert len(drive.next()) == 10
    assert drive.is_ready
    plan = drive.plan()
    drive.fresh_readers()
    kafka.kill()
    with monkeypatch.context() as patch:
        patch.setattr(client, "CALL_TIMEOUT_S", 1.0)
        with pytest.raises(FailedException):
            drive.read(plan)
    kafka.start()
    assert drive.tried(lambda: drive.read(plan)) == [str(n) for n in range(10, 20)]
    drive.commit(plan)
    kafka.produce(topic, ["more"])
    kafka.wait_until(lambda: drive.tried(lambda: drive.is_ready))
    assert drive.rest() == ["more"]
