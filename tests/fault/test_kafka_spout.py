"""Drivers and brokers die while topologies read a topic of Kafka: every record counts once."""

from __future__ import annotations

import collections
import json
import signal
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.patience import PATIENCE_S
from tests.processes.drivers import drive_topics
from tests.servers.clusters import fast
from tests.servers.kafka import KafkaServer
from tests.topologies.topic_kept import make_topology, store_of
from txtopo import LocalCluster

FAULTS = {
    f"{kind}-{point.replace('.', '-')}": f"{point}@{kind}-{point.replace('.', '-')}:2=hold"
    for kind, points in {
        "plain": ("seal.after", "apply.inside", "record.before", "record.after"),
        "opaque": ("seal.after", "apply.before", "apply.after", "record.after"),
    }.items()
    for point in points
}
"""By topology the fault at which the topology is held. Only one topology is held inside its tasks,
which take two of the four cores."""
POINTS = [
    f"{step}.{moment}"
    for step in ("seal", "apply", "record", "forget")
    for moment in ("before", "inside", "after")
]
PARTITIONS = 2


def fill(kafka: KafkaServer, topic: str, begin: int, end: int) -> None:
    """Records with gaps between them: every third transaction of the producer is aborted."""
    producer = kafka.producer(transactional_id=f"filling-{topic}")
    for number, first in enumerate(range(begin, end, 5)):
        producer.begin_transaction()
        for n in range(first, min(end, first + 5)):
            producer.produce(
                topic, f"{n}" if number % 3 else f"aborted-{n}", partition=n % PARTITIONS
            )
        (producer.commit_transaction if number % 3 else producer.abort_transaction)(PATIENCE_S)
    kafka.wait_until_settled(topic)


@pytest.mark.rule(4, 18, 20, 23)
def test_drivers_that_are_killed_at_every_step_read_every_record_once(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.new_topic(partitions=PARTITIONS)
    fill(kafka, topic, 0, 60)
    killed = drive_topics(tmp_path, kafka.servers, topic, FAULTS, FAULTS.values())
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # More comes while no driver lives.
    fill(kafka, topic, 60, 100)
    done = drive_topics(tmp_path, kafka.servers, topic, FAULTS, [])
    assert done.returncode == 0, done.stderr
    began = {name: txid for name, (txid, _) in json.loads(done.stdout.splitlines()[0]).items()}
    assert began == {name: 3 if name.endswith("record-after") else 2 for name in FAULTS}
    expected = {
        (record.partition, record.offset, (record.value or b"").decode()): 1
        for record in kafka.read(topic)
    }
    assert len(expected) > 50
    for name in FAULTS:
        assert dict(store_of(tmp_path, name).items()) == expected, name


@pytest.mark.thorough
@pytest.mark.rule(23, 28, 40)
def test_drivers_that_are_killed_at_every_point_around_a_sink_write_every_record_once(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.new_topic(partitions=PARTITIONS)
    fill(kafka, topic, 0, 100)
    expected = {
        (record.partition, record.offset, (record.value or b"").decode()): 1
        for record in kafka.read(topic)
    }
    # One point of tasks at a time: they take two of the four cores.
    in_tasks = [point for point in POINTS if point.startswith("apply.in")]
    for points in ([*(point for point in POINTS if point not in in_tasks)], in_tasks):
        names = {f"sink-{point.replace('.', '-')}": point for point in points}
        for name in names:
            kafka.new_topic(name, partitions=2)
        faults = [f"{point}@{name}:2=hold" for name, point in names.items()]
        killed = drive_topics(tmp_path, kafka.servers, topic, names, faults)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        done = drive_topics(tmp_path, kafka.servers, topic, names, [])
        assert done.returncode == 0, done.stderr
        for name in names:
            written = collections.Counter(
                (row["partition"], row["offset"], row["value"])
                for row in map(json.loads, kafka.values(name))
            )
            assert written == expected, name


@pytest.mark.thorough
@pytest.mark.rule(7, 18, 20)
def test_a_broker_that_dies_and_then_hangs_makes_no_record_lost_or_doubled(
    cluster: LocalCluster, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.new_topic(partitions=PARTITIONS)
    count, names = 3_000, [f"{kind}-kafka-dies" for kind in ("plain", "opaque")]
    for partition in range(PARTITIONS):
        kafka.produce(topic, [f"{partition}-{n}" for n in range(count)], partition)
    conf = fast(max_spout_pending=2)
    runs = [
        cluster.submit_topology(
            name, conf, make_topology(tmp_path, name, kafka.servers, topic, records_per_batch=100)
        )
        for name in names
    ]

    def wait_for(transactions: int) -> None:
        kafka.wait_until(
            lambda: all(run.status().committed >= transactions or not run.is_alive for run in runs)
        )

    wait_for(3)
    kafka.kill()
    kafka.start()
    wait_for(10)
    kafka.pause()
    with pytest.raises(KafkaException):
        kafka.admin.list_topics(timeout=1.0)
    kafka.resume()
    expected = {
        (record.partition, record.offset, (record.value or b"").decode()): 1
        for record in kafka.read(topic)
    }
    for run, name in zip(runs, names, strict=True):
        run.wait_until_idle(PATIENCE_S)
        run.stop()
        assert dict(store_of(tmp_path, name).items()) == expected, name
