"""Kafka spouts and brokers that do not let them in, or cannot be reached: errors of set-up, soon,
and without a secret."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import admin

from tests.patience import PATIENCE_S
from tests.servers.kafka import PASSWORD, USER, KafkaServer
from tests.servers.ports import free_port
from tests.topic_drive import Drive
from tests.topologies.kafka_sinks import Sales
from txtopo.connectors.kafka import (
    KafkaTransactionalSpout,
    OpaqueKafkaTransactionalSpout,
    client,
    log,
)
from txtopo.errors import ConfigError, InputError, SetupError
from txtopo.testing.contracts.worker_process import WorkerProcess

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password_env": "KAFKA_PASSWORD",
}


@pytest.fixture
def granted(kafka: KafkaServer) -> str:
    """A topic with two records, which the user may read."""
    topic = kafka.new_topic(f"granted{kafka.new_topic()}")
    kafka.produce(topic, ["a", "b"])
    kafka.grant(
        admin.ResourceType.TOPIC,
        topic,
        admin.AclOperation.READ,
        admin.AclOperation.DESCRIBE,
        admin.AclOperation.DESCRIBE_CONFIGS,
    )
    return topic


class RefusedFirst:
    """A consumer whose library delivers the refusal of the group before any record.

    The library looks for the coordinator of the group in the background, and which message comes
    first is a race between two brokers' answers.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._held: list[Any] | None = []
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, count: int, timeout: float) -> list[Any]:
        if self._held is None:
            messages: list[Any] = self._consumer.consume(count, timeout)
            return messages
        message = self._consumer.poll(1.0)
        if message is None:
            return []
        if message.error() is None or message.error().name() != "GROUP_AUTHORIZATION_FAILED":
            self._held.append(message)
            return self.consume(count, timeout)
        self.refusals += 1
        messages, self._held = [message, *self._held], None
        return messages

    def poll(self, timeout: float) -> Any:
        return self._consumer.poll(timeout) if self._held is None else None


@pytest.mark.parametrize("kind", [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout])
def test_a_user_who_may_not_join_the_group_reads_all_the_same(
    kafka: KafkaServer, granted: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    consumers: list[RefusedFirst] = []

    def consumer(self: log.Log, ours: dict[str, Any]) -> RefusedFirst:
        consumers.append(RefusedFirst(original(self, ours)))
        return consumers[-1]

    drive = Drive(kind(kafka.sasl_servers, granted, format="text", client=SASL))
    drive.pin()
    plan = drive.plan()
    original = log.Log.consumer
    monkeypatch.setattr(log.Log, "consumer", consumer)
    assert drive.read(plan) == ["a", "b"]
    assert consumers[0].refusals == 1
    drive.close()


def test_a_password_from_the_environment_lets_the_spout_in(
    kafka: KafkaServer, granted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    drive = Drive(KafkaTransactionalSpout(kafka.sasl_servers, granted, format="text", client=SASL))
    assert drive.rest() == ["a", "b"]
    assert PASSWORD not in repr(drive.spout) + repr(drive.planner) + repr(vars(drive.spout))
    drive.close()


@pytest.mark.thorough
def test_a_password_for_scram_lets_the_spout_and_the_sink_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mechanism = admin.ScramMechanism.SCRAM_SHA_512
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": module,
        "super.users": f"User:ANONYMOUS;User:{USER}",
    }
    client = {**SASL, "sasl.mechanism": "SCRAM-SHA-512"}
    with KafkaServer(settings) as broker:
        user = admin.UserScramCredentialUpsertion(
            USER, admin.ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
        )
        broker.admin.alter_user_scram_credentials([user])[USER].result(PATIENCE_S)
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
        sales, process = Sales(broker), WorkerProcess()
        sink = sales.sink(servers=broker.sasl_servers, client=client)
        assert sales.write(process, 1, 0, ["a", "b"], sink=sink) == 2
        process.close()
        spout = KafkaTransactionalSpout(
            broker.sasl_servers, sales.topic, format="text", client=client
        )
        drive = Drive(spout)
        assert drive.rest() == ["a", "b"]
        drive.close()
        monkeypatch.setenv("KAFKA_PASSWORD", "wrong")
        with pytest.raises(SetupError, match=r"client\['sasl.password_env'\]"):
            Drive(spout)


@pytest.mark.in_gate("Kafka*")
@pytest.mark.parametrize("kind", [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout])
def test_a_wrong_password_is_an_error_of_set_up_at_once(
    kafka: KafkaServer,
    granted: str,
    kind: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = "not the password"
    monkeypatch.setenv("KAFKA_PASSWORD", wrong)
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(
            SetupError, match=r"(?s)Kafka spout: .*\n  Check the user and the password"
        ) as refused,
    ):
        Drive(kind(kafka.sasl_servers, granted, client=SASL))
    assert refused.value.exit_code == 2
    assert wrong not in str(refused.value) + caplog.text


def test_a_password_that_becomes_wrong_ends_the_reading_and_is_not_tried_for_ever(
    kafka: KafkaServer, granted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    drive = Drive(KafkaTransactionalSpout(kafka.sasl_servers, granted, format="text", client=SASL))
    assert drive.is_ready
    plan = drive.plan()
    monkeypatch.setenv("KAFKA_PASSWORD", "not the password")
    with pytest.raises(SetupError, match="Check the user and the password"):
        drive.read(plan)
    drive.close()


def test_a_topic_that_the_user_may_not_read_is_an_error_of_set_up(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    topic = kafka.new_topic()
    with pytest.raises(SetupError, match=r"(?s)Allow the user|there is no topic"):
        Drive(KafkaTransactionalSpout(kafka.sasl_servers, topic, client=SASL))


def test_brokers_that_want_a_password_are_not_waited_for_for_ever(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.1)
    with pytest.raises(SetupError, match="Kafka spout: "):
        Drive(KafkaTransactionalSpout(kafka.sasl_servers, "orders"))


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_brokers_out_of_reach_are_an_error_of_set_up(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 1.0)
    with pytest.raises(SetupError, match=r"(?s)Kafka spout: .* at .*\n  Check servers and client"):
        Drive(KafkaTransactionalSpout(f"{host}:{free_port()}", "orders"))


@pytest.mark.parametrize("part", ["spout", "sink"])
def test_a_broker_that_gives_an_address_out_of_reach_is_an_error_of_set_up(
    kafka: KafkaServer, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(log, "_GREETING_S", PATIENCE_S)
    sales, worker, servers = Sales(kafka), WorkerProcess(), kafka.lost_servers
    named = servers.replace("127.0.0.1", "127.0.0.2")
    starts: dict[str, Callable[[], Any]] = {
        "spout": lambda: Drive(KafkaTransactionalSpout(servers, sales.topic)),
        "sink": lambda: sales.prepared(worker, 1, 0, sink=sales.sink(servers=servers)),
    }
    said = rf"(?s)Kafka {part}: the brokers at {servers} call themselves {named} .*refused.*, out of reach from here\n.*advertised.listeners"
    with pytest.raises(SetupError, match=said):
        starts[part]()
    worker.close()


def test_a_value_that_the_library_does_not_take_is_named(kafka: KafkaServer) -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)Kafka spout: client: .*fetch.min.bytes.*\n  Mend client"
    ):
        Drive(
            KafkaTransactionalSpout(
                kafka.servers, kafka.new_topic(), client={"fetch.min.bytes": "many"}
            )
        )


@pytest.mark.thorough
def test_a_record_of_twenty_megabytes_is_read(kafka: KafkaServer) -> None:
    topic = kafka.new_topic(max_message_bytes="30000000")
    record = b"x" * 20_000_000
    producer = kafka.producer(message_max_bytes=30_000_000)
    producer.produce(topic, record, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    kafka.produce(topic, [None, "after"], key="k")
    drive = Drive(KafkaTransactionalSpout(kafka.servers, topic, fields=("key", "value")))
    assert drive.rest() == [(None, record), (b"k", None), (b"k", b"after")]
    drive.close()


def test_a_record_that_is_not_as_the_format_says_is_named_and_nothing_of_it_is_emitted(
    kafka: KafkaServer,
) -> None:
    topic = kafka.new_topic()
    kafka.produce(topic, ['{"a": 1}', "[1]"], headers=[("h", b"1"), ("h", b"2")])
    drive = Drive(KafkaTransactionalSpout(kafka.servers, topic, fields=("a",), format="json"))
    with pytest.raises(
        InputError, match=f"topic {topic}, partition 0, offset 1 is not a JSON object but a list"
    ):
        drive.next()
    drive.close()
    drive = Drive(KafkaTransactionalSpout(kafka.servers, topic, fields=("headers", "offset")))
    assert drive.rest() == [([("h", b"1"), ("h", b"2")], 0), ([("h", b"1"), ("h", b"2")], 1)]
    drive.close()
