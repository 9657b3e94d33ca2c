"""Beginnings, sizes of batches and partitions of a Kafka spout, on a real broker."""

from __future__ import annotations

import concurrent.futures
import datetime
import itertools
import re
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.servers.kafka import ENDLESS_S, MEMORY_AND_BROKER, KafkaServer
from tests.topic_drive import REFRESH_S
from txtopo.connectors.kafka import (
    KafkaTransactionalSpout,
    OpaqueKafkaTransactionalSpout,
    progress,
)
from txtopo.connectors.kafka.auxiliary import Record
from txtopo.errors import InputError, SetupError

pytestmark = MEMORY_AND_BROKER

KINDS = pytest.mark.parametrize(
    "kind",
    [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout],
    ids=["transactional", "opaque"],
)


def numbered(begin: int, end: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{n}" for n in range(begin, end)]


def filled(kafka: KafkaServer, *counts: int) -> str:
    topic = kafka.new_topic(partitions=len(counts))
    for partition, count in enumerate(counts):
        kafka.produce(topic, numbered(0, count, f"{partition}-"), partition)
    return topic


# -- where the first transaction begins ----------------------------------------------------------


def start_at(kafka: KafkaServer, topic: str, kind: str) -> Any:
    """A start behind the first three records of partition 0, and behind all of partition 1."""
    if kind == "group":
        kafka.commit_as(f"of-{topic}", topic, {0: 3, 1: 2})
        return f"group:of-{topic}"
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(milliseconds=2)
    return {"latest": "latest", "offsets": {topic: {0: 3, 1: 2}}, "time": soon}[kind]


@pytest.mark.in_gate("*memory", "time-transactional-broker", "group-opaque-broker")
@KINDS
@pytest.mark.parametrize("start", ["latest", "offsets", "time", "group"])
def test_a_start_is_pinned_by_the_first_transaction_before_anything_is_read(
    kafka: KafkaServer, driven: Any, kind: Any, start: str
) -> None:
    topic = filled(kafka, 3, 2)
    drive = driven(kind, topic, start=start_at(kafka, topic, start))
    assert drive.is_ready
    first = drive.plan()
    assert {index: (metadata["start"], metadata["end"]) for index, metadata in first.items()} == {
        0: (3, 3),
        1: (2, 2),
    }
    # The first attempt fails, and records come meanwhile, also to a new partition.
    kafka.produce(topic, ["0-3"], 0)
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, ["2-0"], 2)
    drive.wait(REFRESH_S)
    second = drive.plan() if kind is OpaqueKafkaTransactionalSpout else first
    assert all(
        second[index]["start"] == second[index]["end"] == first[index]["start"] for index in first
    )
    assert drive.read(second) == []
    drive.commit(second)
    drive.restart()
    assert drive.rest() == ["0-3", "2-0"]


@pytest.mark.in_gate("*memory", "opaque-broker")
@KINDS
def test_the_earliest_start_reads_all_there_is(kafka: KafkaServer, driven: Any, kind: Any) -> None:
    topic = filled(kafka, 3, 2)
    assert driven(kind, topic).rest() == [*numbered(0, 3, "0-"), *numbered(0, 2, "1-")]


@pytest.mark.in_gate("*memory")
@KINDS
def test_a_time_begins_at_the_first_record_of_that_time(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    topic = kafka.new_topic(partitions=2)
    moment = datetime.datetime.now(datetime.UTC).replace(microsecond=0) - datetime.timedelta(days=1)
    for n in range(4):
        kafka.produce(
            topic,
            [str(n)],
            0,
            timestamp=int((moment + datetime.timedelta(hours=n)).timestamp() * 1000),
        )
    drive = driven(kind, topic, start=moment + datetime.timedelta(hours=1, microseconds=1))
    assert drive.rest() == ["2", "3"]


@KINDS
def test_a_group_that_has_committed_nothing_is_refused(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    drive = driven(kind, filled(kafka, 1), start="group:nobody")
    assert drive.is_ready
    with pytest.raises(
        InputError,
        match=r"consumer group 'nobody' has committed no offset in these topics(.|\n)*Check the group",
    ):
        drive.plan()


@pytest.mark.in_gate("*memory", "*-transactional-broker")
@KINDS
@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            {0: 4},
            "start is offset 4 in topic T, partition 0, which has the offsets 0 to 3\n  Give an offset in between",
        ),
        ({7: 0}, "start names topic 'T', partition 7, which does not exist"),
    ],
)
def test_a_start_that_the_log_does_not_have_is_refused(
    kafka: KafkaServer, driven: Any, kind: Any, start: dict[int, int], message: str
) -> None:
    topic = filled(kafka, 3)
    drive = driven(kind, topic, start={topic: start})
    assert drive.is_ready
    with pytest.raises(InputError, match=message.replace("T", topic)):
        drive.plan()


def test_the_end_of_the_log_is_a_start(kafka: KafkaServer, driven: Any) -> None:
    topic = filled(kafka, 3)
    drive = driven(KafkaTransactionalSpout, topic, start={topic: {0: 3}})
    assert drive.rest() == []
    assert drive.positions[0]["end"] == 3


# -- partitions and topics -----------------------------------------------------------------------


@pytest.mark.in_gate("*memory", "earliest-opaque-broker")
@KINDS
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_new_partitions_and_topics_are_found_in_time_and_read_from_their_beginning(
    kafka: KafkaServer, driven: Any, kind: Any, start: str
) -> None:
    prefix = kafka.new_topic()
    kafka.produce(prefix, ["old"])
    drive = driven(kind, re.compile(f"{prefix}.*"), start=start)
    assert drive.rest() == (["old"] if start == "earliest" else [])
    kafka.add_partitions(prefix, 2)
    kafka.produce(prefix, ["of a new partition"], 1)
    earlier = kafka.new_topic(f"{prefix}-a")
    kafka.produce(earlier, ["of a new topic"])
    assert not drive.is_ready
    drive.wait(REFRESH_S)
    assert sorted(drive.rest()) == ["of a new partition", "of a new topic"]
    bound = {
        (metadata["topic"], metadata["partition"]): index
        for index, metadata in drive.positions.items()
    }
    assert bound == {(prefix, 0): 0, (prefix, 1): 1, (earlier, 0): 2}
    # A topic whose name sorts first gets the next index, also after a restart.
    drive.restart()
    kafka.produce(kafka.new_topic(f"{prefix}-"), ["newest"])
    kafka.produce(prefix, ["more"], 1)
    drive.wait(REFRESH_S)
    assert sorted(drive.rest()) == ["more", "newest"]
    bound = {
        (metadata["topic"], metadata["partition"]): index
        for index, metadata in drive.positions.items()
    }
    assert bound == {(prefix, 0): 0, (prefix, 1): 1, (earlier, 0): 2, (f"{prefix}-", 0): 3}


def test_a_pattern_without_a_topic_waits_and_reads_the_first_topic_whole(
    kafka: KafkaServer, driven: Any
) -> None:
    prefix = kafka.new_topic()
    drive = driven(KafkaTransactionalSpout, re.compile(f"{prefix}-.*"), start="latest")
    assert not drive.is_ready
    kafka.produce(kafka.new_topic(f"{prefix}-one"), ["first"])
    drive.wait(REFRESH_S)
    assert drive.rest() == ["first"]


def test_an_opaque_replay_that_finds_a_new_partition_keeps_to_the_number_that_was_told(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 3)
    drive = driven(OpaqueKafkaTransactionalSpout, topic)
    drive.pin()
    assert drive.is_ready
    drive.plan()
    kafka.add_partitions(topic, 2)
    kafka.produce(topic, ["1-0"], 1)
    assert drive.next() == numbered(0, 3, "0-")
    assert drive.rest() == ["1-0"]


def test_a_pattern_takes_neither_topics_of_kafka_nor_those_of_sinks(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 1)
    kafka.commit_as(f"of-{topic}", topic, {0: 0})
    auxiliary = kafka.new_topic(f"txtopo.{topic}", cleanup_policy="compact")
    drive = driven(KafkaTransactionalSpout, re.compile(rf"{topic}|__.*|{re.escape(auxiliary)}"))
    assert drive.rest() == ["0-0"]


def test_a_pattern_takes_no_auxiliary_topic_of_another_name(
    kafka: KafkaServer, driven: Any
) -> None:
    """Nor a compacted topic before anything is there: it may be one."""
    prefix = kafka.new_topic()
    own, new, auxiliary = (
        kafka.new_topic(f"{prefix}-{name}", cleanup_policy="compact")
        for name in ("own", "new", "written")
    )
    kafka.produce(own, ["mine"], key="k")
    kafka.produce(
        auxiliary, [Record("shop", "write", 0, "generation", 1, 0, 1, 0, 1, prefix).value], key="k"
    )
    drive = driven(OpaqueKafkaTransactionalSpout, re.compile(f"{prefix}.*"))
    assert drive.rest() == ["mine"]
    kafka.produce(new, ["mine, too"], key="k")
    drive.wait(REFRESH_S)
    assert drive.rest() == ["mine, too"]


@pytest.mark.usefixtures("sole_broker")
def test_a_topic_that_there_is_not_is_refused_at_the_start(kafka: KafkaServer, driven: Any) -> None:
    with pytest.raises(SetupError, match=r"there is no topic 'nowhere'(.|\n)*Check the name"):
        driven(KafkaTransactionalSpout, [kafka.new_topic(), "nowhere"])
    with pytest.raises(SetupError, match="A topic name has only letters"):
        driven(KafkaTransactionalSpout, "no topic")


# -- how much ------------------------------------------------------------------------------------


@pytest.mark.in_gate("*memory", "3-transactional-broker")
@KINDS
@pytest.mark.parametrize("bound", [1, 2, 3, 7, 30])
def test_a_transaction_takes_its_share_of_each_partition_and_none_waits_for_ever(
    kafka: KafkaServer, driven: Any, kind: Any, bound: int
) -> None:
    topic = filled(kafka, 50, 1, 0, 5)
    drive = driven(kind, topic, records_per_batch=20, records_per_transaction=bound)
    drive.pin()
    counts, rows = [], []
    while drive.is_ready:
        rows.append(drive.next())
        counts.append(len(rows[-1]))
    assert sum(counts) == 56
    assert max(counts) <= bound
    assert all(counts)
    when = {row: number for number, batch in enumerate(rows) for row in batch}
    assert when["1-0"] <= 3
    assert [row for batch in rows for row in batch if row.startswith("0-")] == numbered(0, 50, "0-")


def test_a_batch_takes_so_many_offsets_of_each_partition_or_all(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 25, 3)
    drive = driven(KafkaTransactionalSpout, topic, records_per_batch=10)
    assert [len(drive.next()) for _ in range(3)] == [13, 10, 5]
    assert len(driven(KafkaTransactionalSpout, topic, records_per_batch=None).next()) == 28


@pytest.mark.in_gate("*memory")
@KINDS
def test_a_transaction_asks_at_most_once_for_the_ends_of_all_partitions(
    kafka: KafkaServer, driven: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(kafka, 20, 7, 0)
    drive = driven(kind, topic, records_per_batch=10)
    drive.pin()
    admin, asked = drive.planner._log.admin, list[int]()
    list_offsets = admin.list_offsets

    def counted(requests: Any, **more: Any) -> Any:
        asked.append(len(requests))
        return list_offsets(requests, **more)

    monkeypatch.setattr(admin, "list_offsets", counted)
    assert drive.is_ready
    drive.next()
    assert asked == [], "the answer at the start has left something to read"
    assert drive.is_ready
    drive.next()
    kafka.produce(topic, ["more"], 2)
    assert drive.is_ready
    assert drive.next() == ["more"]
    assert asked == [3]


@pytest.mark.in_gate("*memory")
def test_a_broker_that_lags_behind_its_controller_is_asked_again(
    kafka: KafkaServer, driven: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = driven(KafkaTransactionalSpout, filled(kafka, 5))
    admin, asked = drive.planner._log.admin, itertools.count(1)
    list_offsets = admin.list_offsets

    def refused(requests: Any, **more: Any) -> Any:
        if next(asked) > 5:
            return list_offsets(requests, **more)
        answers = {place: concurrent.futures.Future[Any]() for place in requests}
        for answer in answers.values():
            error = KafkaError(KafkaError.UNKNOWN_LEADER_EPOCH)
            answer.set_exception(KafkaException(error))
        return answers

    monkeypatch.setattr(admin, "list_offsets", refused)
    assert drive.rest() == numbered(0, 5, "0-")
    assert next(asked) > 5


# -- lag and progress ----------------------------------------------------------------------------


def test_lag_is_what_is_behind_the_committed_positions_and_progress_is_published(
    kafka: KafkaServer, driven: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LAST_S", ENDLESS_S)
    topic = filled(kafka, 25, 3)
    group = f"progress-{topic}"
    drive = driven(KafkaTransactionalSpout, topic, records_per_batch=10, client_group=group)
    assert drive.is_ready
    assert drive.planner.lag({}) == {}
    drive.next()
    assert drive.planner.lag(drive.positions) == {f"{topic}/0": 15, f"{topic}/1": 0}
    kafka.wait_until(lambda: kafka.committed(group, topic, 2) == [10, 3])
    drive.rest()
    drive.planner.lag(drive.positions)
    drive.planner.close()
    kafka.wait_until(lambda: kafka.committed(group, topic, 2) == [25, 3])


def test_positions_that_come_soon_after_a_publication_are_published_while_nothing_happens(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 25)
    group = f"idle-{topic}"
    drive = driven(KafkaTransactionalSpout, topic, records_per_batch=10, client_group=group)
    for _ in range(2):
        drive.next()
        drive.planner.lag(drive.positions)
    kafka.wait_until(lambda: kafka.committed(group, topic, 1) == [20])


def test_a_publication_that_failed_is_tried_again_and_the_last_one_is_waited_for(
    kafka: KafkaServer,
    driven: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(progress, "_LAST_S", ENDLESS_S)
    topic = filled(kafka, 25)
    drive = driven(KafkaTransactionalSpout, topic, records_per_batch=10, client_group=f"g-{topic}")
    assert drive.is_ready
    admin, failing = drive.planner._log.admin, concurrent.futures.Future[Any]()
    with monkeypatch.context() as patch:
        patch.setattr(admin, "alter_consumer_group_offsets", lambda *_, **__: {"g": failing})
        drive.next()
        drive.planner.lag(drive.positions)
    threading.Timer(0.05, failing.set_exception, [RuntimeError("the brokers are busy")]).start()
    drive.next()
    drive.planner.lag(drive.positions)
    drive.planner.close()
    assert "could not be published: the brokers are busy" in caplog.text
    kafka.wait_until(lambda: kafka.committed(f"g-{topic}", topic, 1) == [20])


@pytest.mark.in_gate("*memory")
def test_without_room_for_a_thread_progress_is_published_by_the_run_and_nothing_after_its_end(
    kafka: KafkaServer,
    driven: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_room(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(progress, "_LAST_S", ENDLESS_S)
    monkeypatch.setattr(threading.Timer, "start", no_room)
    topic = filled(kafka, 25)
    drive = driven(KafkaTransactionalSpout, topic, records_per_batch=10, client_group=f"r-{topic}")
    for _ in range(2):
        drive.next()
        drive.planner.lag(drive.positions)
    drive.planner.close()
    assert "can't start new thread" in caplog.text
    kafka.wait_until(lambda: kafka.committed(f"r-{topic}", topic, 1) == [20])
    drive.next()
    drive.planner.lag(drive.positions)
    assert drive.planner._progress._under_way is None
