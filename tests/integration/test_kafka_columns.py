"""Topologies on Spark that read topics of a real Kafka broker in columns, each record once."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.integration.test_columns import Add
from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.servers.kafka import KafkaServer
from txtopo import Fields, InputError, LocalCluster, TransactionalTopologyBuilder
from txtopo.connectors.kafka import KafkaColumnSpout, OpaqueKafkaColumnSpout
from txtopo.stores import SqliteStore

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
WRITTEN = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "n", "type": "long"}, {"name": "word", "type": "string"}],
}
ROWS = [(f"word{i * i % 97}", i) for i in range(6_000)]


def encoded(format: str, word: str, n: int) -> bytes:
    if format == "json":
        return json.dumps({"word": word, "n": n}).encode()
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, WRITTEN, {"word": word, "n": n})
    return stream.getvalue()


def adding(id: str, spout: Any, store: SqliteStore, journal: Journal, how: str = "") -> Any:
    builder = TransactionalTopologyBuilder(id, "rows", spout, 2)
    builder.set_bolt("add", Add(store, journal, how), 2).fields_grouping("rows", Fields("word"))
    return builder.build_topology()


@pytest.mark.thorough
@pytest.mark.rule(18, 38)
@pytest.mark.parametrize(
    ("spout", "format"), [(KafkaColumnSpout, "json"), (OpaqueKafkaColumnSpout, "avro")]
)
def test_committed_records_are_summed_up_once_in_columns_also_by_a_replay(
    cluster: LocalCluster, kafka: KafkaServer, tmp_path: Path, spout: Any, format: str
) -> None:
    topic = kafka.new_topic(partitions=2)
    producer = kafka.producer(transactional_id=topic)
    for begin in range(0, len(ROWS), 1500):
        for is_kept in (False, True):
            producer.begin_transaction()
            for word, n in ROWS[begin : begin + 1500]:
                producer.produce(
                    topic, encoded(format, word, n if is_kept else 1_000_000), partition=n % 2
                )
            producer.flush()
            producer.commit_transaction() if is_kept else producer.abort_transaction()
    opaque = spout is OpaqueKafkaColumnSpout
    store, journal = (
        SqliteStore(tmp_path / "sums.db", "sums", opaque=opaque),
        Journal(tmp_path / "journal"),
    )
    expected: Counter[str] = Counter()
    for word, n in ROWS:
        expected[word] += n

    def topology() -> Any:
        decoded = {"avro_schema": WRITTEN} if format == "avro" else {}
        reading = spout(
            kafka.servers, topic, format=format, schema=SCHEMA, records_per_batch=2_000, **decoded
        )
        return adding(f"kafka-columns-{format}-{spout.__name__}", reading, store, journal, "fails")

    first = run_to_idle(cluster, topology(), max_spout_pending=3)
    assert first.status().tuples == len(ROWS)
    assert journal.count("wrong") == 1
    assert dict(store.items()) == expected
    kafka.produce(topic, [encoded(format, "more", 7)], 1)
    run_to_idle(cluster, topology())
    assert dict(store.items()) == {**expected, "more": 7}


def test_a_value_that_does_not_fit_stops_the_run_and_names_its_place(
    cluster: LocalCluster, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.new_topic()
    kafka.produce(topic, ['{"word":"cat","n":1}', '{"word":"dog","n":1.5}'])
    store = SqliteStore(tmp_path / "sums.db", "sums")
    spout = KafkaColumnSpout(kafka.servers, topic, format="json", schema=SCHEMA)
    run = cluster.submit_topology(
        "kafka-columns-bad",
        fast(),
        adding("kafka-columns-bad", spout, store, Journal(tmp_path / "journal")),
    )
    with pytest.raises(
        InputError,
        match=rf"topic {topic}, partition 0, offset 1 cannot be read: .*Failed to convert JSON to int64",
    ) as caught:
        run.join(PATIENCE_S)
    assert caught.value.exit_code == 2
    assert dict(store.items()) == {}
