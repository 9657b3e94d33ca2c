"""Topologies on Spark that read topics of a real Kafka broker, each record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers.clusters import run_to_idle
from tests.servers.kafka import KafkaServer
from txtopo import BaseTransactionalBolt, Fields, ICommitter, LocalCluster, OutputFieldsDeclarer, TransactionalTopologyBuilder, Tuple
from txtopo.connectors.kafka import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout
from txtopo.stores import SqliteStore


class Keep(BaseTransactionalBolt, ICommitter):
    """Counts every record by its place and value."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def prepare(self, conf: Any, context: Any, collector: Any, attempt: Any) -> None:
        self.context, self.attempt = context, attempt
        self.counts: dict[tuple[Any, ...], int] = {}

    def execute(self, tup: Tuple) -> None:
        key = tuple(tup.values[1:])
        self.counts[key] = self.counts.get(key, 0) + 1

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(self.counts, lambda old, delta: (old or 0) + delta)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx"))


def keeping(id: str, spout: Any, store: SqliteStore) -> Any:
    builder = TransactionalTopologyBuilder(id, "records", spout, 2)
    builder.set_bolt("keep", Keep(store), 2).fields_grouping("records", Fields("value"))
    return builder.build_topology()


@pytest.mark.parametrize("spout", [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout])
def test_every_record_of_a_topic_counts_once_and_a_second_run_goes_on(cluster: LocalCluster, kafka: KafkaServer, tmp_path: Path, spout: Any) -> None:
    topic = kafka.new_topic(partitions=3)
    for partition in range(3):
        kafka.produce(topic, [f"{partition}-{n}" for n in range(50)], partition)
    opaque = spout is OpaqueKafkaTransactionalSpout
    store = SqliteStore(tmp_path / "records.db", "records", opaque=opaque)

    def topology() -> Any:
        reading = spout(kafka.servers, topic, records_per_batch=20, fields=("partition", "offset", "value"), format="text")
        return keeping(f"kafka-{'opaque' if opaque else 'plain'}", reading, store)

    first = run_to_idle(cluster, topology(), max_spout_pending=3)
    assert first.status().committed == 3
    expected = {(partition, n, f"{partition}-{n}"): 1 for partition in range(3) for n in range(50)}
    assert dict(store.items()) == expected
    kafka.produce(topic, ["more"], 1)
    run_to_idle(cluster, topology())
    assert dict(store.items()) == {**expected, (1, 50, "more"): 1}
