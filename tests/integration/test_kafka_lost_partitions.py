"""A topic has fewer partitions than a Kafka spout has read: the spout stops with the place, or goes
on with the partitions that are left.

A real broker takes partitions away only with their topic. Brokers in memory also take away a
partition of a topic that stays.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.kafka import MEMORY_AND_BROKER, KafkaServer
from tests.servers.memory_kafka import MemoryKafka
from tests.topic_drive import REFRESH_S
from txtopo.connectors.kafka import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout, log
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


def answer_late(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """Let the next two descriptions come from a broker that has not heard of partition 1."""
    describe, left = log.Log.describe, [topic] * 2

    def described(self: log.Log, topics: Any) -> dict[str, log.Topic]:
        answer = describe(self, topics)
        if left:
            answer[left.pop()] = log.Topic(answer[topic].id, 1)
        return answer

    monkeypatch.setattr(log, "_HEARSAY_S", PATIENCE_S)
    monkeypatch.setattr(log.Log, "describe", described)


@MEMORY
@KINDS
def test_a_broker_that_has_not_heard_of_a_partition_is_asked_again(
    kafka: MemoryKafka, driven: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(kafka)
    drive = driven(kind, topic)
    assert drive.rest() == READ
    kafka.produce(topic, ["more"], 1)
    answer_late(monkeypatch, topic)
    drive.wait(REFRESH_S)
    assert drive.rest() == ["more"]


@MEMORY
def test_a_new_partition_is_kept_though_another_broker_has_not_heard_of_it(
    kafka: MemoryKafka, driven: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(kafka)
    describe, counts = log.Log.describe, [2, 1, 1]

    def described(self: log.Log, topics: Any) -> dict[str, log.Topic]:
        answer = describe(self, topics)
        if counts and answer:
            answer[topic] = log.Topic(answer[topic].id, counts.pop(0))
        return answer

    monkeypatch.setattr(log, "_HEARSAY_S", PATIENCE_S)
    monkeypatch.setattr(log.Log, "describe", described)
    assert driven(KafkaTransactionalSpout, topic).planner.num_partitions() == 2
    assert counts == []


@MEMORY
@pytest.mark.parametrize("question", ["describe", "ends", "_offsets"])
def test_a_reader_stops_no_run_over_a_broker_that_has_not_heard_of_its_partition(
    kafka: MemoryKafka, driven: Any, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(kafka)
    # The range ends in a gap, so that the leader is asked although all was fetched.
    stranger = kafka.producer(f"stranger-{topic}")
    stranger.begin_transaction()
    stranger.produce(topic, "aborted", partition=1)
    stranger.abort_transaction()
    drive = driven(KafkaTransactionalSpout, topic)
    assert drive.is_ready
    plan = drive.plan()
    if question == "describe":
        answer_late(monkeypatch, topic)
    else:
        ask = getattr(log.Log, question)

        def unknown(*arguments: Any) -> Any:
            monkeypatch.setattr(log.Log, question, ask)
            raise log.UnknownTopicError("Broker: Unknown topic or partition")

        monkeypatch.setattr(log.Log, question, unknown)
    if question == "ends":
        with pytest.raises(FailedException, match="partition 1, offsets 0 to 7"):
            drive.read(plan)
    assert drive.read(plan) == READ


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
