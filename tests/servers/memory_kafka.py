"""Kafka brokers in memory for tests, with the methods of :class:`tests.servers.kafka.KafkaServer`
that tests of the log need: the same tests run over both."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import patience
from txtopo.connectors.kafka import client, log, memory_brokers, memory_clients


class Record(NamedTuple):
    """A record, as a consumer of committed records reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class MemoryKafka:
    """Brokers whose commits are answered before readers see the records."""

    servers = "memory:9092"

    def __init__(self, brokers: memory_brokers.Brokers | None = None) -> None:
        self.brokers = brokers or memory_brokers.Brokers()
        self.module = memory_clients.module_over(self.brokers)
        self._numbers = itertools.count(1)

    @property
    def topics(self) -> list[str]:
        with self.brokers.turn:
            return list(self.brokers.topics)

    def new_topic(self, name: str = "", partitions: int = 1, **settings: str) -> str:
        name = name or f"fresh{next(self._numbers)}."
        config = {key.replace("_", "."): value for key, value in settings.items()}
        with self.brokers.turn:
            assert self.brokers.make_topic(name, partitions, config)
        return name

    def delete_topic(self, name: str) -> None:
        del self.brokers.topics[name]

    def forget(self, topic: str) -> None:
        """Forget a topic, and what its sinks have kept."""
        with self.brokers.turn:
            self.brokers.transactions.clear()
            for name in [name for name in self.brokers.topics if name.startswith(topic)]:
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
        producer = self.module.Producer({"transactional.id": transactional_id})
        if transactional_id:
            producer.init_transactions()
        return producer

    def produce(self, topic: str, values: Iterable[Any], partition: int = 0, **more: Any) -> None:
        for value in values:
            self.producer().produce(topic, value, partition=partition, **more)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        consumer = self.module.Consumer({"isolation.level": isolation})
        with self.brokers.turn:
            partitions = len(self.brokers.topic(topic).partitions)
        place = self.module.TopicPartition
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
            for log in logs * (memory_brokers.DELAYED + 1):
                log.asked_for_end()
            return all(log.stable_end == log.end for log in logs)

    def wait_until_settled(self, topic: str) -> None:
        self.wait_until(lambda: self.is_settled(topic))

    def values(self, topic: str, isolation: str = "read_committed") -> list[str]:
        self.wait_until_settled(topic)
        return [(record.value or b"").decode() for record in self.read(topic, isolation)]

    def wait_until(self, condition: Callable[[], object]) -> None:
        patience.wait_until(condition)


class SharedBrokers(memory_brokers.Brokers):
    """Brokers for a process and its forked children: what they hold is in ``path``."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self.turn = path, self
        self._holding = contextlib.ExitStack()
        self._save()

    def __enter__(self) -> None:
        self._holding.enter_context(self._held())

    def __exit__(self, *raised: object) -> None:
        self._holding.close()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            vars(self).update(pickle.load(file))
            try:
                yield
            finally:
                self._save()

    def _save(self) -> None:
        own = ("_path", "_holding", "turn")
        held = {name: value for name, value in vars(self).items() if name not in own}
        self._path.write_bytes(pickle.dumps(held))


def patched_in(patch: pytest.MonkeyPatch, path: Path | None = None) -> MemoryKafka:
    """Brokers in memory, which every client reaches while ``patch`` lasts. With ``path``, forked
    children reach them, too."""
    kafka = MemoryKafka(None if path is None else SharedBrokers(path))
    patch.setattr(client, "confluent_kafka", lambda: kafka.module)
    patch.setattr(client.Cluster, "reach", lambda *address: None)
    patch.setattr(log, "_HEARSAY_S", 0.0)
    return kafka
