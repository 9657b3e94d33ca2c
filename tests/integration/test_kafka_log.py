"""The log of a topic changes under a Kafka spout, on a real broker: every way ends in an error that
says where, or, where the user allows it, goes on at what is left and says what was lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.kafka import MEMORY_AND_BROKER, KafkaServer
from tests.topic_drive import REFRESH_S, Drive, Plan
from txtopo.connectors.kafka import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout, log
from txtopo.connectors.kafka.source import LogChangedError
from txtopo.errors import FailedException, SetupError

pytestmark = MEMORY_AND_BROKER

KINDS = pytest.mark.parametrize(
    "kind",
    [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout],
    ids=["transactional", "opaque"],
)
CURE = "`txtopo state reset words` shows"


def numbered(begin: int, end: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{n}" for n in range(begin, end)]


def filled(kafka: KafkaServer, count: int) -> str:
    topic = kafka.new_topic()
    kafka.produce(topic, numbered(0, count))
    return topic


# -- deleted, and made again -----------------------------------------------------------------------


@pytest.mark.usefixtures("sole_broker")
@pytest.mark.in_gate("*memory", "transactional-broker")
@KINDS
def test_a_deleted_topic_stops_the_spout_with_the_place_and_a_cure(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    topic = filled(kafka, 5)
    drive = driven(kind, topic)
    assert drive.rest() == numbered(0, 5)
    kafka.delete_topic(topic)
    # The broker gives the log up a moment after the topic.
    _await_ready(kafka, drive)
    with pytest.raises(
        LogChangedError,
        match=rf"topic {topic}, partition 0, read up to offset 5: the topic was deleted(.|\n)*{CURE}",
    ):
        _ready_and_plan(drive)
    drive.restart()
    with pytest.raises(LogChangedError, match="the topic was deleted"):
        _ready_and_plan(drive)


def _ready_and_plan(drive: Drive) -> Plan:
    assert drive.is_ready
    return drive.plan()


@pytest.mark.in_gate("*memory", "as long-transactional-broker")
@KINDS
@pytest.mark.parametrize("count", [0, 3, 5, 9], ids=["empty", "shorter", "as long", "longer"])
def test_a_topic_made_again_while_nothing_was_to_do_stops_the_spout(
    kafka: KafkaServer, driven: Any, kind: Any, count: int
) -> None:
    topic = filled(kafka, 5)
    drive = driven(kind, topic)
    assert drive.rest() == numbered(0, 5)
    kafka.delete_topic(topic)
    kafka.new_topic(topic)
    kafka.produce(topic, numbered(0, count, "new"))
    with pytest.raises(
        LogChangedError,
        match=rf"topic {topic}, partition 0(.|\n)*the topic was deleted and made again(.|\n)*{CURE}",
    ):
        _rest_with_failures(drive)
    assert drive.positions[0]["end"] == 5


@pytest.mark.in_gate("*memory", "kept consumer-opaque-broker")
@KINDS
@pytest.mark.parametrize("is_warm", [True, False], ids=["kept consumer", "fresh consumer"])
def test_a_topic_made_again_between_plan_and_reading_fails_the_reading(
    kafka: KafkaServer, driven: Any, kind: Any, is_warm: bool
) -> None:
    topic = filled(kafka, 10)
    drive = driven(kind, topic, records_per_batch=5)
    drive.pin()
    assert drive.next() == numbered(0, 5)
    if not is_warm:
        drive.fresh_readers()
    plan = _ready_and_plan(drive)
    kafka.delete_topic(topic)
    kafka.new_topic(topic)
    kafka.produce(topic, numbered(0, 10, "new"))
    stopped = LogChangedError if kind is KafkaTransactionalSpout else FailedException
    with pytest.raises(
        stopped,
        match=rf"topic {topic}, partition 0, offsets 5 to 10: the topic was deleted and made again",
    ):
        drive.read(plan)
    if kind is OpaqueKafkaTransactionalSpout:
        with pytest.raises(LogChangedError, match="the topic was deleted and made again"):
            drive.plan()


@pytest.mark.in_gate("*memory")
def test_a_topic_that_is_deleted_between_plan_and_reading_is_not_waited_for(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 10)
    drive = driven(KafkaTransactionalSpout, topic)
    plan = _ready_and_plan(drive)
    kafka.delete_topic(topic)
    with pytest.raises(LogChangedError, match="the topic was deleted"):
        drive.read(plan)


@pytest.mark.in_gate("*memory", "5-broker")
@pytest.mark.parametrize("count", [0, 3, 5, 9])
def test_a_topic_made_again_is_read_from_its_beginning_with_skip(
    kafka: KafkaServer, driven: Any, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(kafka, 5)
    drive = driven(OpaqueKafkaTransactionalSpout, topic, lost="skip")
    assert drive.rest() == numbered(0, 5)
    kafka.delete_topic(topic)
    kafka.new_topic(topic)
    kafka.produce(topic, numbered(0, count, "new"))
    with caplog.at_level(logging.WARNING, "txtopo.kafka"):
        rows = _rest_with_failures(drive)
    assert rows == numbered(0, count, "new")
    assert (
        f"topic {topic}, partition 0, read up to offset 5: the topic was deleted and made again; going on at offset 0"
        in caplog.text
    )
    assert drive.planner.lost(drive.positions) == {f"{topic}/0": None}
    assert drive.positions[0]["lost"]["why"] == "the topic was deleted and made again"


def _rest_with_failures(drive: Drive) -> list[Any]:
    """As ``rest``, over two times of refresh, with attempts that fail."""
    rows: list[Any] = []
    for _ in range(10):
        if drive.tried(lambda: drive.is_ready):
            rows += drive.tried(drive.next)
        else:
            drive.wait(REFRESH_S / 4)
    return rows


@pytest.mark.in_gate("*memory")
def test_a_deleted_topic_is_left_out_with_skip_and_read_again_when_it_is_back(
    kafka: KafkaServer, driven: Any
) -> None:
    topic, other = filled(kafka, 5), filled(kafka, 2)
    drive = driven(OpaqueKafkaTransactionalSpout, [topic, other], lost="skip")
    assert sorted(drive.rest()) == sorted([*numbered(0, 5), *numbered(0, 2)])
    kafka.delete_topic(topic)
    kafka.produce(other, ["more"])
    drive.wait(REFRESH_S)
    assert drive.rest() == ["more"]
    drive.wait(REFRESH_S)
    assert not drive.is_ready
    drive.restart()
    assert drive.rest() == []
    kafka.new_topic(topic)
    kafka.produce(topic, ["back"])
    drive.wait(REFRESH_S)
    assert drive.rest() == ["back"]


@pytest.mark.in_gate("*memory")
@KINDS
def test_a_topic_that_is_no_longer_named_is_left_alone_and_keeps_its_position(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    topic, other = filled(kafka, 5), filled(kafka, 2)
    both = driven(kind, [topic, other])
    both.rest()
    kafka.produce(topic, ["later"])
    alone = driven(kind, [other])
    alone.positions = dict(both.positions)
    alone.restart()
    kafka.produce(other, ["more"])
    assert alone.rest() == ["more"]
    again = driven(kind, [topic, other])
    again.positions = dict(alone.positions)
    again.restart()
    assert again.rest() == ["later"]


# -- aged out --------------------------------------------------------------------------------------


@pytest.mark.in_gate("*memory", "opaque-broker")
@KINDS
def test_records_that_aged_out_before_the_plan_stop_the_spout(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    topic = filled(kafka, 20)
    drive = driven(kind, topic, records_per_batch=5)
    drive.pin()
    assert drive.next() == numbered(0, 5)
    kafka.forget_before(topic, 12)
    drive.wait(REFRESH_S)
    said = rf"topic {topic}, partition 0, read up to offset 5: records were deleted(.|\n)*read there is 12(.|\n)*{CURE}"
    with pytest.raises(LogChangedError, match=said):
        _ready_and_plan(drive)


@pytest.mark.in_gate("*memory", "all-transactional-broker")
@KINDS
@pytest.mark.parametrize("before", [7, 20], ids=["some", "all"])
def test_records_that_aged_out_between_plan_and_reading_fail_the_reading(
    kafka: KafkaServer, driven: Any, kind: Any, before: int
) -> None:
    topic = filled(kafka, 20)
    drive = driven(kind, topic, records_per_batch=5)
    drive.pin()
    assert drive.next() == numbered(0, 5)
    drive.fresh_readers()
    plan = _ready_and_plan(drive)
    kafka.forget_before(topic, before)
    stopped = LogChangedError if kind is KafkaTransactionalSpout else FailedException
    with pytest.raises(
        stopped,
        match=rf"topic {topic}, partition 0, offsets 5 to 10: (.*)deleted before they were read",
    ):
        drive.read(plan)


@pytest.mark.in_gate("*memory", "transactional-broker")
@KINDS
def test_a_reader_passes_over_records_that_other_workers_read_and_that_may_be_gone(
    kafka: KafkaServer, driven: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(kafka, 20)
    drive = driven(kind, topic, records_per_batch=5)
    drive.pin()
    assert drive.next() == numbered(0, 5)
    assert drive.next_elsewhere() == numbered(5, 10)
    with monkeypatch.context() as patch:
        patch.setattr(log.Log, "assign", None)  # no new position
        assert drive.next() == numbered(10, 15)
    assert drive.next_elsewhere() == numbered(15, 20)
    kafka.produce(topic, numbered(20, 30))
    assert drive.next_elsewhere() == numbered(20, 25)
    kafka.forget_before(topic, 23)
    assert drive.next() == numbered(25, 30)


def test_skip_goes_on_behind_records_that_aged_out_and_counts_them(
    kafka: KafkaServer, driven: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(kafka, 20)
    drive = driven(OpaqueKafkaTransactionalSpout, topic, records_per_batch=5, lost="skip")
    drive.pin()
    assert drive.next() == numbered(0, 5)
    plan = _ready_and_plan(drive)
    kafka.forget_before(topic, 12)
    drive.fresh_readers()
    with pytest.raises(FailedException):
        drive.read(plan)
    with caplog.at_level(logging.WARNING, "txtopo.kafka"):
        assert drive.next() == numbered(12, 17)
    assert "going on at offset 12; 7 offsets are lost" in caplog.text
    why = "records were deleted before they were read, by retention or by hand"
    assert drive.positions[0]["lost"] == {"from": 5, "to": 12, "offsets": 7, "why": why}
    assert drive.rest() == numbered(17, 20)
    kafka.produce(topic, numbered(20, 30))
    kafka.forget_before(topic, 23)
    drive.wait(REFRESH_S)
    assert drive.rest() == numbered(23, 30)
    assert drive.planner.lost(drive.positions) == {f"{topic}/0": 10}
    drive.restart()
    assert drive.planner.lost(drive.positions) == {f"{topic}/0": 10}


def test_records_that_aged_out_behind_the_pinned_start_are_told_as_lost(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 9)
    drive = driven(OpaqueKafkaTransactionalSpout, topic, lost="skip")
    drive.pin()
    kafka.forget_before(topic, 4)
    drive.restart()
    assert drive.rest() == numbered(4, 9)
    assert drive.planner.lost(drive.positions) == {f"{topic}/0": 4}


def test_records_of_a_new_partition_that_aged_out_are_told_as_lost(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 2)
    drive = driven(OpaqueKafkaTransactionalSpout, topic, lost="skip")
    assert drive.rest() == numbered(0, 2)
    other = kafka.new_topic(f"{topic}-more")
    kafka.produce(other, numbered(0, 9))
    both = driven(OpaqueKafkaTransactionalSpout, [topic, other], lost="skip")
    both.positions = dict(drive.positions)
    both.restart()
    assert both.is_ready
    assert both.next() == []
    kafka.forget_before(other, 4)
    both.restart()
    assert both.rest() == numbered(4, 9)
    assert both.planner.lost(both.positions) == {f"{other}/0": 4}


def test_the_end_of_a_compacted_topic_is_refused_unless_the_user_takes_it(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = kafka.new_topic(cleanup_policy="compact")
    kafka.produce(topic, ["a", "b"], key="k")
    with pytest.raises(
        SetupError,
        match=rf"topic {topic} is compacted(.|\n)*OpaqueKafkaTransactionalSpout(.|\n)*compacted=True",
    ):
        driven(KafkaTransactionalSpout, topic)
    assert driven(KafkaTransactionalSpout, topic, compacted=True).rest() == ["a", "b"]
    assert driven(OpaqueKafkaTransactionalSpout, topic).rest() == ["a", "b"]


def test_a_topic_that_becomes_compacted_is_refused_at_the_next_look(
    kafka: KafkaServer, driven: Any
) -> None:
    topic = filled(kafka, 3)
    drive = driven(KafkaTransactionalSpout, topic)
    assert drive.rest() == numbered(0, 3)
    kafka.set_policy(topic, "compact")
    drive.wait(REFRESH_S)
    with pytest.raises(SetupError, match="is compacted"):
        _ = drive.is_ready


# -- transactions of producers ---------------------------------------------------------------------


def write(producer: Any, topic: str, values: list[str], *, commit: bool | None) -> None:
    """A transaction; ``None`` leaves it open."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(PATIENCE_S)
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)


@pytest.mark.in_gate("*memory", "opaque-broker")
@KINDS
def test_nothing_behind_an_open_transaction_is_read_until_it_is_decided(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    topic = filled(kafka, 3)
    drive = driven(kind, topic)
    stranger = kafka.producer(f"stranger-{topic}")
    write(stranger, topic, ["open"], commit=None)
    kafka.produce(topic, ["behind"])
    assert drive.rest() == numbered(0, 3)
    assert not drive.is_ready
    loud = driven(kind, topic, isolation="read_uncommitted")
    assert loud.rest() == [*numbered(0, 3), "open", "behind"]
    stranger.commit_transaction(PATIENCE_S)
    _await_ready(kafka, drive)
    assert drive.rest() == ["open", "behind"]


def _await_ready(kafka: KafkaServer, drive: Drive) -> None:
    # The marker of a commit is written a moment after the commit was answered.
    kafka.wait_until(lambda: drive.is_ready)


@pytest.mark.in_gate("*memory", "2-opaque-broker")
@KINDS
@pytest.mark.parametrize("records_per_batch", [1, 2, 3, 100])
def test_aborted_records_and_markers_are_gaps_also_at_the_ends_of_batches(
    kafka: KafkaServer, driven: Any, kind: Any, records_per_batch: int
) -> None:
    topic = filled(kafka, 2)
    stranger = kafka.producer(f"stranger-{topic}")
    write(stranger, topic, ["x", "y", "z"], commit=False)
    write(stranger, topic, ["a"], commit=True)
    write(stranger, topic, ["b"], commit=True)
    kafka.produce(topic, ["plain"])
    write(stranger, topic, ["never", "ever"], commit=False)
    drive = driven(kind, topic, records_per_batch=records_per_batch)
    kafka.wait_until(
        lambda: (
            drive.planner.is_ready()
            and drive.planner._log.ends([(topic, 0)])[topic, 0].offset == 14
        )
    )
    drive.wait(REFRESH_S)
    assert drive.rest() == ["0", "1", "a", "b", "plain"]
    assert drive.positions[0]["end"] == 14
    write(stranger, topic, ["c"], commit=True)
    _await_ready(kafka, drive)
    assert drive.rest() == ["c"]
    if records_per_batch == 100:
        drive = driven(kind, topic, isolation="read_uncommitted")
        assert drive.rest() == ["0", "1", "x", "y", "z", "a", "b", "plain", "never", "ever", "c"]


# -- records that come during a read ---------------------------------------------------------------


@pytest.mark.in_gate("*memory", "transactional-broker")
@KINDS
def test_records_that_come_behind_the_end_of_the_partition_are_in_the_next_batch(
    kafka: KafkaServer, driven: Any, kind: Any
) -> None:
    topic = kafka.new_topic()
    drive = driven(kind, topic, records_per_batch=7)
    producer, values, rows = kafka.producer(), iter(range(10**6)), []
    written = 0
    for round_number in range(300):
        for _ in range(round_number % 5):
            producer.produce(topic, str(next(values)), partition=0)
            written += 1
        if round_number % 3 == 0:
            producer.flush(PATIENCE_S)
        else:
            producer.poll(0)
        if drive.is_ready:
            rows += drive.next()
    producer.flush(PATIENCE_S)
    rows += drive.rest()
    assert rows == numbered(0, written)
