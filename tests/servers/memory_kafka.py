"""Kafka brokers in memory for tests, with the methods of :class:`tests.servers.kafka.KafkaServer`
that tests of the log need: the same tests run over both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests import patience
from txtopo.connectors.kafka import memory_brokers, memory_clients


class Record(NamedTuple):
    """A record, as a consumer of committed records reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class MemoryKafka:
    """Brokers whose commits are answered before readers see the records."""

    servers = "memory:9092"

    def __init__(self) -> None:
        self.brokers = memory_brokers.Brokers(are_markers_late=True)
        self.library = memory_clients.library(self.brokers)

    @property
    def topics(self) -> list[str]:
        with self.brokers.turn:
            return list(self.brokers.topics)

    def new_topic(self, name: str = "", partitions: int = 1, **settings: str) -> str:
        name = name or f"fresh{len(self.brokers.topics)}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        assert self.brokers.make_topic(name, partitions, config)
        return name

    def delete_topic(self, name: str) -> None:
        del self.brokers.topics[name]

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.brokers.widen_topic(topic, partitions)

    def forget_before(self, topic: str, offset: int) -> None:
        self.brokers.log((topic, 0)).forget_before(offset)

    def set_policy(self, topic: str, policy: str) -> None:
        self.brokers.topic(topic).settings["cleanup.policy"] = policy

    def commit_as(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self.brokers.groups[group] = {(topic, number): at for number, at in offsets.items()}

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        known = self.brokers.groups.get(group, {})
        return [known.get((topic, number), -1001) for number in range(partitions)]

    def producer(self, transactional_id: str = "") -> Any:
        producer = self.library.Producer({"transactional.id": transactional_id})
        if transactional_id:
            producer.init_transactions()
        return producer

    def produce(self, topic: str, values: Iterable[Any], partition: int = 0, **more: Any) -> None:
        for value in values:
            self.producer().produce(topic, value, partition=partition, **more)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        consumer = self.library.Consumer({"isolation.level": isolation})
        with self.brokers.turn:
            partitions = len(self.brokers.topic(topic).partitions)
        place = self.library.TopicPartition
        records = []
        for number in range(partitions):
            consumer.assign([place(topic, number, 0)])
            records += [
                Record(number, message.offset(), message.key(), message.value())
                for message in consumer.consume(1_000_000)
                if message.error() is None
            ]
        return records

    def is_settled(self, topic: str) -> bool:
        with self.brokers.turn:
            logs = self.brokers.topic(topic).partitions
            for log in logs:
                log.asked_for_end()
            return all(log.stable_end == log.end for log in logs)

    def wait_until_settled(self, topic: str) -> None:
        self.wait_until(lambda: self.is_settled(topic))

    def values(self, topic: str, isolation: str = "read_committed") -> list[str]:
        self.wait_until_settled(topic)
        return [(record.value or b"").decode() for record in self.read(topic, isolation)]

    def wait_until(self, condition: Callable[[], object]) -> None:
        patience.wait_until(condition)
