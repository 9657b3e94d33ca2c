"""Exporters to Kafka die, lose an answer, or sleep while another one takes over: readers of committed
records see every entry once, in order. Over brokers in memory and a real broker."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_export_queue import Topology
from tests.conformance.test_store_contract import FACTORIES
from tests.fault.test_kafka_sink_zombies import SCHEDULES
from tests.processes import kafka_tasks
from tests.servers import memory_kafka
from tests.servers.kafka import MEMORY_AND_BROKER, OPEN_S, KafkaServer
from tests.topologies.stepped_tasks import Task, set_points
from txtopo.connectors.kafka import KafkaSink, auxiliary, producing
from txtopo.errors import ConfigError, FailedException, SetupError, StateMismatchError, UsageError
from txtopo.exports import (
    EntryRefusedError,
    Exporter,
    ExportQueue,
    KafkaExporter,
    SequencedExport,
    leases,
)


class Changes:
    """A topic, and a queue that is exported to it."""

    def __init__(self, kafka: Any) -> None:
        self.kafka, self.queue = kafka, f"q{uuid.uuid4().hex[:8]}"
        self.topic = kafka.new_topic(f"changes-{self.queue}")
        self.exporters = contextlib.ExitStack()

    def exporter(self, **arguments: Any) -> KafkaExporter:
        arguments = {"transaction_timeout_s": OPEN_S, **arguments}
        exporter = KafkaExporter(self.kafka.servers, self.topic, **arguments)
        return self.exporters.enter_context(contextlib.closing(exporter))

    def tell(self, exporter: Exporter, last: int, bucket: int = 0) -> None:
        """Export entries 1 to ``last`` once."""
        exporter.export(kafka_tasks.entries_to(last, self.queue, bucket))

    def complete(self, exporter: Exporter, last: int) -> None:
        """Export entries 1 to ``last`` until a call succeeds. Some calls may fail before."""
        for _ in range(5):
            with contextlib.suppress(FailedException):
                return self.tell(exporter, last)
        raise AssertionError("every call fails")

    @property
    def values(self) -> list[Any]:
        """The committed records' values, in order."""
        return [json.loads(text) for text in self.kafka.values(self.topic)]

    def numbers(self, bucket: int = 0) -> list[int]:
        """The committed sequences of ``bucket``, in order."""
        return [number for each, number in self.values if each == bucket]


@pytest.fixture
def changes(kafka: KafkaServer) -> Iterator[Changes]:
    changes = Changes(kafka)
    with changes.exporters:
        yield changes


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> Changes:
    """On brokers in memory alone."""
    return Changes(memory_kafka.patched_in(monkeypatch))


def entry(key: Any, value: Any, sequence: int, of: str = "first", queue: str = "") -> Any:
    return iter([SequencedExport(queue, 0, key, value, sequence, of)])


@MEMORY_AND_BROKER
def test_entries_that_come_again_are_in_the_topic_once_and_in_order(changes: Changes) -> None:
    first, second = changes.exporter(), changes.exporter()
    for exporter, last, bucket in [(first, 2, 0), (first, 3, 0), (first, 2, 20), (second, 4, 0)]:
        changes.tell(exporter, last, bucket)
        changes.tell(exporter, last, bucket)
    with pytest.raises(FailedException):  # the second exporter has fenced it
        changes.tell(first, 5)
    changes.tell(pickle.loads(pickle.dumps(first)), 6)
    assert (changes.numbers(), changes.numbers(bucket=20)) == ([1, 2, 3, 4, 5, 6], [1, 2])


@MEMORY_AND_BROKER
@pytest.mark.in_gate("*memory")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_late_exporter_beside_a_live_one_doubles_and_moves_no_entry(
    changes: Changes, monkeypatch: pytest.MonkeyPatch, schedule: str, is_kept: bool
) -> None:
    late, live = changes.exporter(), changes.exporter()
    if is_kept:
        changes.tell(late, 1)
    with monkeypatch.context() as patch:
        set_points(patch)
        patch.setattr(auxiliary, "DECIDED_S", 0.1)
        tasks = {"Z": Task(lambda: changes.tell(late, 2)), "L": Task(lambda: changes.tell(live, 3))}
        for letter in schedule:
            tasks[letter].step()
        for task in tasks.values():
            task.finish()
            assert task.outcome is None or isinstance(task.outcome, FailedException), task.outcome
    changes.complete(live, 4)
    changes.complete(late, 5)
    assert changes.numbers() == [1, 2, 3, 4, 5]


@MEMORY_AND_BROKER
@pytest.mark.in_gate("*memory")
@pytest.mark.parametrize("steps", range(7))
def test_an_exporter_that_sleeps_while_its_lease_moves_on_changes_nothing(
    changes: Changes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: int
) -> None:
    topology = Topology(FACTORIES["sqlite"](tmp_path), buckets=2)
    topology.commit("a", "b", "c", "a", "c", "d")
    first, second = (topology.exporter(changes.exporter()) for _ in range(2))
    topology.clock += leases.BEAT_S
    with monkeypatch.context() as patch:
        set_points(patch)
        sleeper = Task(first.step)
        for _ in range(steps + 1):
            sleeper.step()
        second.step()
        topology.clock += leases.LEASE_S + 1
        topology.commit("a", "b")
        topology.settle(second)
        sleeper.finish()
    topology.commit("b", "d", "d")
    topology.settle(topology.exporter(changes.exporter()))
    assert not isinstance(sleeper.outcome, BaseException), sleeper.outcome
    changes.kafka.wait_until_settled(changes.topic)
    records = [(record.key, record.value) for record in changes.kafka.read(changes.topic)]
    for key, last in [(b"a", 3), (b"b", 3), (b"c", 2), (b"d", 3)]:
        assert [int(value) for each, value in records if each == key] == [*range(1, last + 1)]
    topology.process.close()


@pytest.mark.thorough
@pytest.mark.parametrize("point", kafka_tasks.POINTS)
def test_entries_of_an_exporter_that_was_killed_are_told_once(changes: Changes, point: str) -> None:
    changes.tell(changes.exporter(), 1)
    order = kafka_tasks.Order(
        changes.kafka.servers, changes.topic, changes.queue, 3, 0, [], point, is_export=True
    )
    assert kafka_tasks.run(order) == -signal.SIGKILL
    changes.complete(changes.exporter(), 4)
    assert changes.numbers() == [1, 2, 3, 4]


@MEMORY_AND_BROKER
@pytest.mark.in_gate("*memory")
@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_without_an_answer_is_looked_up(
    changes: Changes, monkeypatch: pytest.MonkeyPatch, is_committed: bool, is_first: bool
) -> None:
    exporter, commit = changes.exporter(), producing.TaskProducer._commit

    def unanswered(*arguments: Any) -> None:
        if is_committed:
            commit(*arguments)
        raise FailedException("no answer")

    if not is_first:
        changes.tell(exporter, 1)
    with monkeypatch.context() as patch:
        patch.setattr(producing.TaskProducer, "_commit", unanswered)
        with pytest.raises(FailedException, match="no answer"):
            changes.tell(exporter, 2)
    changes.complete(exporter, 3)
    assert changes.numbers() == [1, 2, 3]


def test_a_position_that_is_not_the_last_one_is_noticed_by_its_place(
    at_hand: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a broker that leads no more has said where the partition ends."""
    for last in (1, 2):
        at_hand.tell(at_hand.exporter(), last)
    ends = auxiliary.AuxiliaryTopic.ends

    def early(*asked: Any) -> dict[int, int]:
        return {task: min(end, 2) for task, end in ends(*asked).items()}

    with monkeypatch.context() as patch:
        patch.setattr(auxiliary.AuxiliaryTopic, "ends", early)
        with pytest.raises(FailedException, match=r"which had ended at 2"):
            at_hand.tell(at_hand.exporter(), 3)
    at_hand.tell(at_hand.exporter(), 3)
    assert at_hand.numbers() == [1, 2, 3]


def test_a_record_has_key_value_and_headers(at_hand: Changes) -> None:
    exporter = at_hand.exporter()
    exporter.export(itertools.chain(entry("ä", {"n": "ü"}, 7), entry(("a", 7), None, 8)))
    own = at_hand.exporter(key=lambda key: f"<{key}>", value=lambda value: bytes([value]))
    own.export(entry(7, 65, 2**24))
    log = at_hand.kafka.brokers.log((at_hand.topic, 0))
    records = [record for record in log.records if not record.is_marker]
    assert [(record.key, record.value) for record in records] == [
        ("ä".encode(), '{"n":"ü"}'.encode()),
        (b'["a",7]', None),
        (b"<7>", b"A"),
    ]
    assert dict(records[2].headers) == {
        "txtopo-bucket": b"0",
        "txtopo-sequence": b"16777216",
        "txtopo-generation": b"first",
    }


def test_entries_that_make_no_record_are_refused_by_their_key(at_hand: Changes) -> None:
    exporter, log = at_hand.exporter(), at_hand.kafka.brokers.topic(at_hand.topic)
    for key, value in [("\ud800", 1), ("a", float("nan")), ("b", "x" * 2_000_000)]:
        with pytest.raises(EntryRefusedError) as caught:
            exporter.export(itertools.chain(entry("ok", 1, 5), entry(key, value, 6)))
        assert caught.value.key == key
    # The producer's bound is now larger than the broker's.
    exporter.export(entry("ok", 1, 5))
    log.settings["max.message.bytes"] = "100"
    with pytest.raises(EntryRefusedError, match=r"'b' is refused: .*MSG_SIZE_TOO_LARGE"):
        exporter.export(itertools.chain(entry("ok", 2, 6), entry("b", "x" * 200, 7)))
    log.settings["max.message.bytes"] = "2000000"
    exporter.export(itertools.chain(entry("ok", 2, 6), entry("b", "x" * 1_100_000, 7)))
    assert [len(f"{value}") for value in at_hand.values] == [1, 1, 1_100_000]


def test_positions_of_another_generation_queue_or_sink_are_refused(at_hand: Changes) -> None:
    kafka, exporter = at_hand.kafka, at_hand.exporter()
    exporter.export(entry("a", 1, 9, queue="shop"))
    name = f"txtopo.export.shop.{at_hand.topic}"
    assert kafka.brokers.topic(name).settings["cleanup.policy"] == "compact"
    for each in (exporter, at_hand.exporter()):
        with pytest.raises(StateMismatchError, match=f"Delete the topic {name}, and") as caught:
            each.export(entry("a", 2, 1, of="second", queue="shop"))
        assert caught.value.exit_code == 6
    kafka.delete_topic(name)
    exporter.export(entry("a", 2, 1, of="second", queue="shop"))
    assert at_hand.values == [1, 2]
    own = at_hand.exporter(transactions_topic=name)
    with pytest.raises(SetupError, match=r"belongs to 'shop'.* export queue 'other' cannot share"):
        own.export(entry("a", 2, 1, queue="other"))
    assert KafkaSink("kafka:9092", "t").ledger.kept("shop", "").records() == {}


def test_a_replay_is_written_whole_and_never_after_newer_records(at_hand: Changes) -> None:
    exporter, last = at_hand.exporter(), 2**24 - 1
    exporter.export(entry("a", 1, 5))
    for key in ("a", "b"):
        exporter.export(entry(key, 2, last))
    exporter.export(entry("a", 3, last + 1))
    with pytest.raises(UsageError, match="Stop its exporters"):
        exporter.export(entry("b", 2, last))
    assert at_hand.values == [1, 2, 2, 3]


def test_a_plan_names_the_topic_and_the_promise(tmp_path: Path) -> None:
    exporter = KafkaExporter("kafka:9092", "changes")
    queue = ExportQueue("words", FACTORIES["sqlite"](tmp_path), exporter=exporter)
    assert queue.guarantee().holds == "entries for KafkaExporter kafka://kafka:9092#changes"
    assert queue.guarantee().promise.startswith("exactly once, in order")


@pytest.mark.parametrize("argument", ["topic", "transactions_topic"])
def test_impossible_arguments_are_refused(argument: str) -> None:
    arguments: dict[str, Any] = {"servers": "kafka:9092", "topic": "t"}
    for mistake in (argument, "client"):
        with pytest.raises(ConfigError, match=f"Kafka exporter: {mistake}"):
            KafkaExporter(**{**arguments, mistake: {"acks": "1"}})
