"""Topologies that read a topic of Kafka: a GlobalCount, and from topic to topic; and the loop by
hand from topic to topic.

By hand is Kafka's own way: records and the consumer's positions in one transaction, in one process
without Spark.
"""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka

from bench import topics, topologies
from bench.contenders.txtopo_runs import Runs
from bench.line import check
from bench.process import Sample
from txtopo import Config, TransactionalTopologyBuilder
from txtopo.connectors.kafka import KafkaSink, KafkaTransactionalSpout
from txtopo.connectors.kafka.log import FETCHING


class Counts(Runs):
    """GlobalCount of a topic's records."""

    def block(
        self,
        servers: str,
        topic: str,
        partitions: int,
        rows_per_batch: int,
        transactions: int,
        pending: int,
        warm: int,
    ) -> Sample:
        """``transactions`` with ``rows_per_batch``, dealt to ``partitions``, after ``warm``
        others."""
        id, store = self.fresh()
        spout = KafkaTransactionalSpout(servers, topic, rows_per_batch // partitions)
        topology = topologies.global_count(id, spout, store, partitions)
        sample = self.timed(
            topology, Config(max_spout_pending=pending), transactions, warm, pending
        )
        check(topologies.total(store), (warm + transactions + pending) * rows_per_batch)
        return sample


class Chain(Runs):
    """From topic to topic by a topology: a spout, and a sink beside it."""

    def block(
        self, servers: str, topic: str, rows_per_batch: int, transactions: int, pending: int
    ) -> Sample:
        """``transactions``, after some others, from the beginning of ``topic`` to a new topic."""
        id, _ = self.fresh()
        target = f"by-{id}"
        topics.make(servers, target)
        builder = TransactionalTopologyBuilder(
            id, "read", KafkaTransactionalSpout(servers, topic, rows_per_batch)
        )
        builder.set_bolt("write", KafkaSink(servers, target)).none_grouping("read")
        warm = 2 * pending + 5
        sample = self.timed(
            builder.build_topology(),
            Config(max_spout_pending=pending),
            transactions,
            warm,
            pending,
        )
        rows = (warm + transactions + pending) * rows_per_batch
        check(
            topics.committed(servers, target)[0], [topics.value(number) for number in range(rows)]
        )
        return sample


class Loop:
    """From topic to topic by hand."""

    def __init__(self, directory: str) -> None:
        self._made = 0

    def block(self, servers: str, topic: str, rows_per_batch: int, transactions: int) -> Sample:
        """``transactions``, after five others, from the beginning of ``topic`` to a new topic."""
        self._made += 1
        name, warm = f"by-hand-{self._made}", 5
        topics.make(servers, name)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "transactional.id": name}
        )
        producer.init_transactions(topics.ANSWER_S)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **FETCHING,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            for number in range(warm + transactions):
                if number == warm:
                    began = time.perf_counter()
                _copy(consumer, producer, rows_per_batch, name)
            seconds = time.perf_counter() - began
        finally:
            consumer.close()
        rows = (warm + transactions) * rows_per_batch
        check(topics.committed(servers, name)[0], [topics.value(number) for number in range(rows)])
        return {"seconds": seconds}

    def close(self) -> None:
        """Nothing is left open."""


def _copy(consumer: Any, producer: Any, rows: int, target: str) -> None:
    """One transaction."""
    values: list[bytes] = []
    while len(values) < rows:
        messages = consumer.consume(rows - len(values), topics.ANSWER_S)
        if not messages:
            raise RuntimeError("the topic has no more records")
        values += [message.value() for message in messages if message.error() is None]
    producer.begin_transaction()
    topics.produce(producer, target, values)
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
    )
    producer.commit_transaction(topics.ANSWER_S)
