"""Topologies on Spark that read topics of a real Kafka broker, each record once."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.patience import PATIENCE_S
from tests.servers.clusters import fast, run_to_idle
from tests.servers.kafka import KafkaServer
from tests.topologies.topic_kept import make_topology, store_of
from txtopo import LocalCluster
from txtopo.errors import InputError

NAMES = pytest.mark.parametrize("name", ["plain-kafka", "opaque-kafka"])


@pytest.mark.in_gate("opaque-*")
@NAMES
def test_every_record_of_a_topic_counts_once_and_a_second_run_goes_on(
    cluster: LocalCluster, kafka: KafkaServer, tmp_path: Path, name: str
) -> None:
    topic = kafka.new_topic(partitions=3)
    for partition in range(3):
        kafka.produce(topic, [f"{partition}-{n}" for n in range(50)], partition)
    store = store_of(tmp_path, name)

    first = run_to_idle(
        cluster,
        make_topology(tmp_path, name, kafka.servers, topic, records_per_batch=20),
        max_spout_pending=3,
    )
    # An opaque spout's first transaction reads nothing.
    assert first.status().committed == (4 if name.startswith("opaque") else 3)
    assert dict(first.status().lag) == {f"{topic}/{partition}": 0 for partition in range(3)}
    expected = {(partition, n, f"{partition}-{n}"): 1 for partition in range(3) for n in range(50)}
    assert dict(store.items()) == expected
    kafka.produce(topic, ["more"], 1)
    run_to_idle(cluster, make_topology(tmp_path, name, kafka.servers, topic, records_per_batch=20))
    assert dict(store.items()) == {**expected, (1, 50, "more"): 1}


@pytest.mark.in_gate("plain-*")
@NAMES
def test_a_topic_that_is_made_again_stops_the_run_with_exit_code_2(
    cluster: LocalCluster, kafka: KafkaServer, tmp_path: Path, name: str
) -> None:
    topic = kafka.new_topic()
    kafka.produce(topic, ["a", "b"])
    name = f"{name}-again"
    run_to_idle(cluster, make_topology(tmp_path, name, kafka.servers, topic))
    kafka.delete_topic(topic)
    kafka.new_topic(topic)
    kafka.produce(topic, ["c", "d", "e"])
    run = cluster.submit_topology(name, fast(), make_topology(tmp_path, name, kafka.servers, topic))
    with pytest.raises(
        InputError,
        match=rf"topic {topic}, partition 0, read up to offset 2: the topic was deleted and made again",
    ) as stopped:
        run.join(PATIENCE_S)
    assert stopped.value.exit_code == 2
    assert dict(store_of(tmp_path, name).items()) == {(0, 0, "a"): 1, (0, 1, "b"): 1}


def test_what_was_lost_is_in_the_status(
    cluster: LocalCluster, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic, name = kafka.new_topic(), "opaque-kafka-lost"
    kafka.produce(topic, ["a", "b"])
    run_to_idle(cluster, make_topology(tmp_path, name, kafka.servers, topic, lost="skip"))
    kafka.produce(topic, ["c", "d", "e"])
    (deleted,) = kafka.admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result(PATIENCE_S)
    run = run_to_idle(cluster, make_topology(tmp_path, name, kafka.servers, topic, lost="skip"))
    assert dict(run.status().lost) == {f"{topic}/0": 2}
    assert dict(store_of(tmp_path, name).items()) == {
        (0, 0, "a"): 1,
        (0, 1, "b"): 1,
        (0, 4, "e"): 1,
    }
