"""A topic has fewer partitions than a Kafka spout has read: the spout stops with the place, or goes
on with the partitions that are left.

A real broker takes partitions away only with their topic. Brokers in memory also take away a
partition of a topic that stays.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.servers.kafka import MEMORY_AND_BROKER, KafkaServer
from tests.servers.memory_kafka import MemoryKafka
from tests.topic_drive import REFRESH_S
from txtopo.connectors.kafka import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout
from txtopo.connectors.kafka.memory_brokers import PartitionLog
from txtopo.connectors.kafka.source import LogChangedError
from txtopo.errors import FailedException

KINDS = pytest.mark.parametrize(
    "kind",
    [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout],
    ids=["transactional", "opaque"],
)
MEMORY = pytest.mark.parametrize("kafka", ["memory"], indirect=True)
READ = [f"{partition}-{n}" for partition in range(2) for n in range(5)]
CURE = "`txtopo state reset words` shows"


def filled(kafka: Any) -> str:
    """A topic with two partitions."""
    topic: str = kafka.new_topic(partitions=2)
    for partition in range(2):
        kafka.produce(topic, READ[5 * partition :][:5], partition)
    return topic


def lose_partition(kafka: MemoryKafka, topic: str) -> PartitionLog:
    """Take partition 1 away, and return its log."""
    return kafka.brokers.topic(topic).partitions.pop()


@MEMORY
@KINDS
def test_a_lost_partition_stops_the_spout_with_the_place_and_a_cure(
    kafka: MemoryKafka, driven: Any, kind: Any
) -> None:
    topic = filled(kafka)
    drive = driven(kind, topic)
    assert drive.rest() == READ
    lose_partition(kafka, topic)
    said = rf"topic {topic}, partition 1, read up to offset 5: the topic has fewer partitions now: 1\n(.|\n)*{CURE}"
    assert drive.is_ready
    with pytest.raises(LogChangedError, match=said):
        drive.plan()
    drive.restart()
    assert drive.is_ready
    with pytest.raises(LogChangedError, match=said):
        drive.plan()
    assert drive.positions[1]["end"] == 5


@MEMORY
@pytest.mark.parametrize("is_warm", [True, False], ids=["kept consumer", "fresh consumer"])
@KINDS
def test_a_partition_lost_between_plan_and_reading_fails_the_reading(
    kafka: MemoryKafka, driven: Any, kind: Any, is_warm: bool
) -> None:
    topic = filled(kafka)
    # The range to be read ends in a gap, so that the leader is asked although all was fetched.
    stranger = kafka.producer(f"stranger-{topic}")
    stranger.begin_transaction()
    stranger.produce(topic, "aborted", partition=1)
    stranger.abort_transaction()
    drive = driven(kind, topic, records_per_batch=4)
    drive.pin()
    drive.next()
    if not is_warm:
        drive.fresh_readers()
    assert drive.is_ready
    plan = drive.plan()
    lose_partition(kafka, topic)
    stopped = LogChangedError if kind is KafkaTransactionalSpout else FailedException
    said = rf"topic {topic}, partition 1, offsets 4 to 7: the topic was deleted, or has fewer partitions now"
    with pytest.raises(stopped, match=said):
        drive.read(plan)
    if kind is OpaqueKafkaTransactionalSpout:
        with pytest.raises(LogChangedError, match="the topic has fewer partitions now: 1"):
            drive.plan()


@MEMORY
def test_a_lost_partition_is_left_out_with_skip_and_read_on_when_it_is_back(
    kafka: MemoryKafka, driven: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(kafka)
    drive = driven(OpaqueKafkaTransactionalSpout, topic, lost="skip")
    assert drive.rest() == READ
    log = lose_partition(kafka, topic)
    kafka.produce(topic, ["more"])
    with caplog.at_level(logging.WARNING, "txtopo.kafka"):
        drive.wait(REFRESH_S)
        assert drive.rest() == ["more"]
    assert (
        f"topic {topic}, partition 1, read up to offset 5: the topic has fewer partitions now: 1; no longer read; how much is lost is not known"
        in caplog.text
    )
    drive.restart()
    assert drive.rest() == []
    kafka.brokers.topic(topic).partitions.append(log)
    kafka.produce(topic, ["back"], 1)
    drive.wait(REFRESH_S)
    assert drive.rest() == ["back"]


@MEMORY_AND_BROKER
@pytest.mark.in_gate("*memory", "transactional-broker")
@KINDS
def test_a_topic_made_again_with_fewer_partitions_stops_the_spout(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    topic = filled(kafka)
    drive = driven(kind, topic)
    assert drive.rest() == READ
    kafka.delete_topic(topic)
    kafka.new_topic(topic)
    drive.wait(REFRESH_S)
    kafka.wait_until(lambda: drive.tried(lambda: drive.is_ready))
    with pytest.raises(
        LogChangedError,
        match=rf"topic {topic}, partition 0, read up to offset 5: the topic was deleted and made again(.|\n)*{CURE}",
    ):
        drive.plan()


@MEMORY_AND_BROKER
@pytest.mark.in_gate("memory")
def test_a_topic_made_again_with_fewer_partitions_is_read_with_skip(
    kafka: KafkaServer, driven: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(kafka)
    drive = driven(OpaqueKafkaTransactionalSpout, topic, lost="skip")
    assert drive.rest() == READ
    kafka.delete_topic(topic)
    kafka.new_topic(topic)
    kafka.produce(topic, ["new"])
    with caplog.at_level(logging.WARNING, "txtopo.kafka"):
        drive.wait(REFRESH_S)
        kafka.wait_until(lambda: drive.tried(lambda: drive.is_ready))
        assert drive.tried(drive.rest) == ["new"]
    for partition, goes_on in enumerate(("going on at offset 0", "no longer read")):
        place = f"topic {topic}, partition {partition}, read up to offset 5"
        assert f"{place}: the topic was deleted and made again; {goes_on}" in caplog.text
