"""``txtopo reset`` of a topology with a Kafka sink whose first transaction is not decided, over
brokers in memory."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers import memory_kafka
from tests.topologies import kafka_sinks
from tests.topologies.kafka_sinks import COMPONENT, Sales
from txtopo import Fields, TransactionalTopologyBuilder
from txtopo.command import cli
from txtopo.command.reset import reset
from txtopo.connectors.kafka import auxiliary, upkeep
from txtopo.connectors.kafka.client import confluent_kafka
from txtopo.errors import UsageError
from txtopo.testing import MemoryTransactionalSpout
from txtopo.testing.contracts.worker_process import WorkerProcess

pytestmark = pytest.mark.rule(27, 40)

NAMED: dict[str, Any] = {
    "transactions_topic": "shop-tx",
    "name": "orders",
    "client": {"client.id": "the shop", "security.protocol": "plaintext"},
}


class Shop(Sales):
    """A topology that has begun its first transaction: task 1 has written a row, and has not
    committed."""

    def __init__(self, kafka: Any, **arguments: Any) -> None:
        super().__init__(kafka, topology_id="shop")
        self.arguments = arguments
        self.transactions_topic = arguments.get("transactions_topic", self.auxiliary_topic)
        kafka.new_topic(self.transactions_topic, 2, cleanup_policy="compact")
        self.late_task = kafka.producer(f"{self.transactions_topic}.1")
        self.late_task.begin_transaction()
        self.late_task.produce(self.topic, b"first", b"k")

    def write_record(self) -> None:
        """Write the late task's auxiliary record."""
        name = self.arguments.get("name", "kafka")
        record = auxiliary.Record("shop", COMPONENT, 1, "one", 1, 0, 2, 1, 1, self.topic, name)
        self.late_task.produce(self.transactions_topic, record.value, record.key, partition=1)

    def reset(self, execute: bool, leave_rows: bool = False) -> list[str]:
        spout = MemoryTransactionalSpout({0: [("k", "a")]}, Fields("key", "value"), 1)
        builder = TransactionalTopologyBuilder("shop", "spout", spout)
        sink = self.sink(**self.arguments)
        builder.set_bolt(COMPONENT, sink, 2).shuffle_grouping("spout")
        return reset(builder.build_topology(), None, "memory", leave_rows, execute)

    def run_again(self, process: WorkerProcess) -> None:
        """The first transaction of the next run, in a new generation."""
        for task in (0, 1):
            sink = self.sink(**self.arguments)
            self.write(process, 1, 0, ["again"], task=task, sink=sink, generation="two")

    def is_fenced(self) -> bool:
        try:
            self.late_task.commit_transaction(PATIENCE_S)
        except confluent_kafka().KafkaException as error:
            return bool(error.args[0].fatal())
        return False


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(auxiliary, "DECIDED_S", 0.0)
    return memory_kafka.patched_in(monkeypatch)


@pytest.mark.parametrize("arguments", [{}, NAMED], ids=["default", "named"])
def test_an_undecided_record_is_not_reset_and_the_refusal_has_the_command_to_type(
    kafka: Any, arguments: dict[str, Any], process: WorkerProcess
) -> None:
    shop = Shop(kafka, **arguments)
    shop.write_record()
    for execute in (False, True):
        with pytest.raises(UsageError, match="has an open transaction") as refused:
            shop.reset(execute)
        assert not kafka.is_settled(shop.topic)
    assert "Try again when the brokers can be reached" not in str(refused.value)
    command = shlex.split(str(refused.value).split("`")[1])
    assert command[:3] == ["txtopo", "kafka", "abort"]
    assert cli.main(command[1:]) == 0
    assert shop.reset(execute=True)[1].endswith(": 0 rows, 0 fences")
    assert shop.is_fenced()
    shop.run_again(process)
    assert shop.values == ["again", "again"]


@pytest.mark.parametrize("arguments", [{}, NAMED], ids=["default", "named"])
def test_a_reset_ends_a_transaction_that_has_rows_and_no_record_yet(
    kafka: Any, arguments: dict[str, Any], process: WorkerProcess
) -> None:
    shop = Shop(kafka, **arguments)
    shop.reset(execute=False)
    assert not kafka.is_settled(shop.topic), "nothing is changed"
    shop.reset(execute=True)
    assert kafka.is_settled(shop.topic)
    assert shop.is_fenced()
    shop.run_again(process)
    assert shop.values == ["again", "again"]


def test_the_topic_of_a_component_with_a_dot_is_no_other_topologys(
    kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (kafka_sinks, sys.modules[__name__]):
        monkeypatch.setattr(module, "COMPONENT", "write.all")
    shop = Shop(kafka)
    shop.reset(execute=True)
    assert kafka.is_settled(shop.topic)
    assert shop.is_fenced()


def test_a_transaction_that_was_committed_a_moment_ago_is_reset_as_a_committed_one(
    kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auxiliary, "DECIDED_S", PATIENCE_S)
    shop = Shop(kafka)
    shop.write_record()
    shop.late_task.commit_transaction(PATIENCE_S)
    with pytest.raises(UsageError, match="are not empty, and are yours"):
        shop.reset(execute=True)
    assert shop.reset(execute=True, leave_rows=True)[1].endswith(": 1 row, 1 fence")


def test_a_task_that_commits_during_a_reset_keeps_its_record(
    kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, abort = Shop(kafka), upkeep.AuxiliaryTopics.abort
    monkeypatch.setattr(auxiliary, "DECIDED_S", PATIENCE_S)

    def commit_and_abort(topics: upkeep.AuxiliaryTopics, dry_run: bool) -> list[str]:
        shop.write_record()
        shop.late_task.commit_transaction(PATIENCE_S)
        return abort(topics, dry_run)

    with monkeypatch.context() as committing:
        committing.setattr(upkeep.AuxiliaryTopics, "abort", commit_and_abort)
        with pytest.raises(UsageError, match="has just committed\n  Type this command"):
            shop.reset(execute=True)
    with pytest.raises(UsageError, match="are not empty, and are yours"):
        shop.reset(execute=True)


@pytest.mark.parametrize("has_record", [False, True])
def test_after_a_reset_of_the_state_alone_the_next_run_ends_the_transaction(
    kafka: Any, has_record: bool, process: WorkerProcess
) -> None:
    shop = Shop(kafka)
    if has_record:
        shop.write_record()
    shop.run_again(process)
    assert shop.is_fenced()
    assert shop.values == ["again", "again"]
