"""Brokers of a cluster die while a Kafka sink writes: other brokers take over, each transaction is
there once, and a spout reads it while the dead broker is away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.kafka import COORDINATORS, TIME_OUTS, KafkaServer, three_brokers
from tests.topic_drive import Drive
from tests.topologies.kafka_sinks import Sales
from tests.topologies.stepped_tasks import Task, set_points
from txtopo.connectors.kafka import KafkaSink, KafkaTransactionalSpout
from txtopo.errors import FailedException
from txtopo.testing.contracts.worker_process import WorkerProcess

pytestmark = pytest.mark.thorough

PHASES = ("begin", "read", "produce", "commit")
"""Before which of its steps a task stands while a broker dies."""


@pytest.fixture(scope="module")
def started() -> Iterator[list[KafkaServer]]:
    with three_brokers() as brokers:
        yield brokers


@pytest.fixture
def brokers(started: list[KafkaServer]) -> list[KafkaServer]:
    """The brokers, all running and in sync."""
    for broker in started:
        broker.start()
    return started


class Cluster:
    """A topology's sink and spout, which know all brokers."""

    def __init__(self, brokers: list[KafkaServer], **settings: Any) -> None:
        self.servers = ",".join(broker.servers for broker in brokers)
        self.sales = Sales(brokers[0], replicas=3, **settings)

    @property
    def leader(self) -> int:
        """The place among the brokers of the topic's leader."""
        return self._leader(self.sales.topic, 0)

    @property
    def coordinator(self) -> int:
        """The place among the brokers of the transaction coordinator for the sink's only task."""
        hashed = 0
        for character in f"{self.sales.auxiliary_topic}.0":
            hashed = (31 * hashed + ord(character)) & 0xFFFFFFFF
        hashed -= (hashed & 0x80000000) << 1
        return self._leader("__transaction_state", abs(hashed) % COORDINATORS)

    def _leader(self, topic: str, partition: int) -> int:
        """The place of a partition's leader, once there is a leader."""
        leaders: list[int] = []

        def has_leader() -> bool:
            topics = self.sales.kafka.admin.list_topics(topic, timeout=PATIENCE_S).topics
            partitions = topics[topic].partitions
            known = [partitions[partition].leader] if partition in partitions else []
            leaders[:] = [leader - 1 for leader in known if leader > 0]
            return bool(leaders)

        wait_until(has_leader, f"a leader of partition {partition} in topic {topic}")
        return leaders[0]

    def sink(self, **arguments: float) -> KafkaSink:
        return self.sales.sink(servers=self.servers, **arguments)

    def write(self, worker: WorkerProcess, txid: int, attempt: int, values: list[str]) -> int:
        """A whole task, which is the only one."""
        return self.sales.write(worker, txid, attempt, values, tasks=1, sink=self.sink())

    def replay(self, txid: int, attempt: int, values: list[str]) -> None:
        """Attempts in workers of their own, until one succeeds."""

        def succeeds() -> bool:
            nonlocal attempt
            worker = WorkerProcess()
            try:
                return self.write(worker, txid, attempt, values) == len(values)
            except FailedException:
                attempt += 1
                return False
            finally:
                worker.close()

        wait_until(succeeds, "a replay that succeeds")

    def read(self) -> list[str]:
        """What a spout reads."""
        spout = KafkaTransactionalSpout(self.servers, self.sales.topic, format="text")
        drive = Drive(spout)
        try:
            values: list[str] = drive.tried(drive.rest)
            return values
        finally:
            drive.close()


@pytest.mark.rule(28, 40)
@pytest.mark.parametrize("role", ["leader", "follower", "coordinator"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_broker_dies_and_the_others_take_over(
    brokers: list[KafkaServer],
    process: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    role: str,
) -> None:
    set_points(monkeypatch)
    # The first broker is the controller, and stays.
    while True:
        cluster = Cluster(brokers)
        cluster.replay(1, 0, ["a"])
        leader, coordinator = cluster.leader, cluster.coordinator
        if leader > 0 and coordinator > 0:
            break
    victim = {"leader": leader, "follower": 3 - leader, "coordinator": coordinator}[role]
    task = Task(lambda: cluster.write(process, 2, 0, ["b1", "b2"]))
    for _ in range(PHASES.index(phase)):
        task.step()
    brokers[victim].kill()
    task.finish()
    assert task.outcome == 2 or isinstance(task.outcome, FailedException), task.outcome
    process.close()
    cluster.replay(2, 1, ["b1", "b2"])
    assert (cluster.leader != leader) == (victim == leader)
    assert (cluster.coordinator != coordinator) == (victim == coordinator)
    cluster.replay(3, 0, ["c"])
    assert cluster.sales.values == ["a", "b1", "b2", "c"]
    assert cluster.read() == ["a", "b1", "b2", "c"]


@pytest.mark.rule(28, 40)
def test_too_few_brokers_in_sync_fail_the_attempt_until_they_are_back(
    brokers: list[KafkaServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, worker = Cluster(brokers, min_insync_replicas="3"), WorkerProcess()
    cluster.replay(1, 0, ["a"])
    cluster.sales.wait_until_settled()
    assert cluster.sales.values == ["a"]
    brokers[2].kill()
    sink = cluster.sink(transaction_timeout_s=3)
    with monkeypatch.context() as patch:
        for module, name in TIME_OUTS:
            patch.setattr(module, name, 3.0)
        with pytest.raises(FailedException, match=r"timed out|failed delivery|an unknown offset"):
            cluster.sales.write(worker, 2, 0, ["b"], tasks=1, sink=sink)
    worker.close()
    brokers[2].start()
    cluster.replay(2, 1, ["b"])
    assert cluster.sales.values == ["a", "b"]
