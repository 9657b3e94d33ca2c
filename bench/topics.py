"""Topics of Kafka for the contenders: made, filled, and read back, by confluent-kafka alone."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterable
from typing import Any

import confluent_kafka

ANSWER_S = 20.0


def value(number: int) -> bytes:
    """Record ``number``: a JSON object with some 80 bytes."""
    return json.dumps(
        {"id": number, "cents": number % 1000, "name": f"an article with a long name {number:09d}"}
    ).encode()


def make(servers: str, topic: str, partitions: int = 1) -> None:
    """A new topic."""
    admin: Any = importlib.import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": servers})
    client.create_topics([admin.NewTopic(topic, partitions, 1)])[topic].result(ANSWER_S)


def produce(producer: Any, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    """Hand over all ``values``, and wait for room where there is none."""
    for record in values:
        while True:
            try:
                producer.produce(topic, record, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)


def fill(servers: str, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    """Write ``values``, and wait until the brokers have them."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 20})
    produce(producer, topic, values, partition)
    if producer.flush(ANSWER_S):
        raise RuntimeError(f"topic {topic} could not be filled")


def committed(servers: str, topic: str, start: int = 0) -> tuple[list[bytes], int]:
    """The values of the committed records in partition 0, from offset ``start`` on, and the offset
    after the last one."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "reads-back",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
    values: list[bytes] = []
    deadline = time.monotonic() + ANSWER_S
    try:
        while True:
            # It waits so long where fewer records are left.
            messages = consumer.consume(1000, 0.1)
            if messages:
                deadline = time.monotonic() + ANSWER_S
            elif time.monotonic() > deadline:
                raise RuntimeError(f"topic {topic} does not answer for {ANSWER_S:g} s")
            for message in messages:
                if message.error() is None:
                    values.append(message.value())
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return values, message.offset()
                else:
                    raise confluent_kafka.KafkaException(message.error())
    finally:
        consumer.close()
