"""A real Kafka broker for tests (see ``owned``), of one node, in KRaft mode.

In a test ask for the fixture ``kafka`` (one broker for all tests, running at the beginning of every
test)::

    def test_something(kafka: KafkaServer) -> None:
        topic = kafka.new_topic(partitions=2)
        kafka.produce(topic, ["a", "b"], partition=0)
        kafka.read(topic)        # [(partition, offset, key, value), …] as a consumer of committed records has it

The clients in this module are confluent-kafka's, with settings of their own: none of txtopo's code
takes part in what a test compares with.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests import quick_java
from tests.patience import PATIENCE_S
from tests.servers import jars, memory_kafka, owned, ports
from tests.servers.memory_kafka import Record
from txtopo.connectors.kafka import auxiliary, client, log, producing, reading

OPEN_S = 600
"""How long a transaction may be open: longer than any wait of a test, so that no test waits for a
time-out of the broker by mistake."""

COORDINATORS = 6
"""Partitions for transactions in a cluster. A transactional id's hash chooses one, whose leader
coordinates the transactions."""

ENDLESS_S = 3 * PATIENCE_S
"""Longer than the waits of all tests. Clients in C cannot be interrupted meanwhile."""

TIME_OUTS = (
    (client, "CALL_TIMEOUT_S"),
    (log, "_OFFSETS_TIMEOUT_S"),
    (reading, "_SILENCE_S"),
    (producing, "INIT_S"),
    (producing, "_ABORT_S"),
    (auxiliary, "DECIDED_S"),
    (auxiliary, "_WAIT_S"),
)
"""How long txtopo waits for brokers."""

USER, PASSWORD = "clerk", "clerk's secret"
"""Who may log in at :attr:`KafkaServer.sasl_servers`."""

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOST:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    ),
    # Without a password there are all rights, and the user has those that a test grants.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "400",
    # The default of ten seconds is a long time for a test of time-outs.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.retention.check.interval.ms": "1000",
    # Half of the heap otherwise, which a broker that begins again with many topics lacks.
    "log.cleaner.dedupe.buffer.size": "2097152",
}

_UNFENCED = "The broker has been unfenced"
"""What the broker says when it may lead partitions: some time after its port is open."""

_LOGGING = """
status = error
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.lifecycle.name = org.apache.kafka.server.BrokerLifecycleManager
logger.lifecycle.level = info
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %p %c{1} %m%n
"""


class KafkaServer(owned.Server):
    """A broker with data of its own; it lives inside a ``with``. With ``controller_of`` it joins
    the cluster of that broker."""

    title = "Kafka"
    port_taken = "Address already in use"

    def __init__(
        self,
        settings: dict[str, str] | None = None,
        has_tls: bool = False,
        controller_of: KafkaServer | None = None,
    ) -> None:
        super().__init__()
        self._settings, self._has_tls = {**_SETTINGS, **(settings or {})}, has_tls
        self._controller_of = controller_of
        self._cluster = ""
        self._numbers = itertools.count(1)
        self._jars = jars.directory("kafka")
        self._controller = self._sasl = self._lost = self._tls = self._said_before = 0

    @property
    def servers(self) -> str:
        """The address, as clients take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """The address of a listener that wants a password (PLAIN, not encrypted)."""
        return f"127.0.0.1:{self._sasl}"

    @property
    def lost_servers(self) -> str:
        """The address of a listener that sends clients to an address without a listener."""
        return f"127.0.0.1:{self._lost}"

    @property
    def tls_servers(self) -> str:
        """The address of a listener that wants a client's certificate, with ``has_tls``."""
        return f"127.0.0.1:{self._tls}"

    # -- what tests do with a broker ---------------------------------------------------------------

    @functools.cached_property
    def admin(self) -> AdminClient:
        """A client for topics and offsets."""
        # The longest time-out that the library takes.
        return AdminClient(
            {"bootstrap.servers": self.servers, "socket.timeout.ms": 300_000, "log_level": 0}
        )

    @property
    def topics(self) -> list[str]:
        """The names of all topics."""
        return list(self.admin.list_topics(timeout=PATIENCE_S).topics)

    def new_topic(
        self, name: str = "", partitions: int = 1, replicas: int = 1, **settings: str
    ) -> str:
        """Make a topic that is not there yet; ``settings`` have underscores for dots."""
        name = name or f"fresh{next(self._numbers)}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, replicas, config=config)])[
            name
        ].result(PATIENCE_S)
        self.wait_until(lambda: self._has_leaders(name, partitions))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([name])[name].result(PATIENCE_S)
        self.wait_until(lambda: name not in self.topics)

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Allow :data:`USER` to do ``operations`` to whatever begins with ``name``."""
        acls = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.PREFIXED,
                f"User:{USER}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for granted in self.admin.create_acls(acls).values():
            granted.result(PATIENCE_S)
        # The controller knows them first, and the broker a moment later.
        all_of_user = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{USER}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        self.wait_until(
            lambda: {*acls} <= {*self.admin.describe_acls(all_of_user).result(PATIENCE_S)}
        )

    def producer(self, transactional_id: str = "", **settings: Any) -> Producer:
        """A producer that waits for the broker's answers, and keeps the order also when it has to
        send again; with a ``transactional_id``, a transaction may begin. ``settings`` have
        underscores for dots."""
        more = {key.replace("_", "."): value for key, value in settings.items()}
        if transactional_id:
            more = {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": OPEN_S * 1000,
                **more,
            }
        quick = {"linger.ms": 0, "retry.backoff.ms": 10}
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                **quick,
                "enable.idempotence": True,
                "log_level": 0,
                **more,
            }
        )
        if more.get("enable.idempotence", True):
            # Before it is connected it cannot ask for its number, and tries again half a second later.
            producer.list_topics(timeout=PATIENCE_S)
        if transactional_id:
            producer.init_transactions(PATIENCE_S)
        return producer

    def forget(self, topic: str) -> None:
        """Leave a topic and what its sinks have kept where they are."""

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, and wait until they can be read."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(PATIENCE_S)
        self.wait_until(lambda: self._has_leaders(topic, partitions))

    def forget_before(self, topic: str, offset: int) -> None:
        """Delete the records of partition 0 before ``offset``, as retention does."""
        (future,) = self.admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        future.result(PATIENCE_S)

    def set_policy(self, topic: str, policy: str) -> None:
        """Set the topic's ``cleanup.policy``."""
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        (future,) = self.admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
        ).values()
        future.result(PATIENCE_S)
        asked = ConfigResource(ResourceType.TOPIC, topic)

        def shown() -> Any:
            return self.admin.describe_configs([asked])[asked].result(PATIENCE_S)

        self.wait_until(lambda: shown()["cleanup.policy"].value == policy)

    def commit_as(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commit a consumer group's ``offsets``."""
        places = [TopicPartition(topic, *offset) for offset in offsets.items()]
        consumer = Consumer(self._of_group(group))
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        """The offsets that a consumer group has committed, ``OFFSET_INVALID`` where there is none."""
        places = [TopicPartition(topic, n) for n in range(partitions)]
        consumer = Consumer(self._of_group(group))
        try:
            return [each.offset for each in consumer.committed(places, timeout=PATIENCE_S)]
        finally:
            consumer.close()

    def _of_group(self, group: str) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers, "group.id": group, "log_level": 0}

    def produce(
        self, topic: str, values: Iterable[str | bytes | None], partition: int = 0, **more: Any
    ) -> None:
        """Append records, each with ``more``, and wait until they are there."""
        refused: list[KafkaError] = []
        # One at a time and without a second try, which keeps the order, too. A producer that numbers
        # its records would wait half a second for a number of its own; and kept from call to call it
        # loses records where a topic is made again, which the broker takes for repetitions.
        patience_ms = int(1000 * PATIENCE_S)
        producer = self.producer(
            enable_idempotence=False,
            max_in_flight=1,
            retries=0,
            request_timeout_ms=patience_ms,
            socket_timeout_ms=patience_ms,
        )
        for value in values:
            while True:
                try:
                    producer.produce(
                        topic,
                        value,
                        partition=partition,
                        on_delivery=lambda error, _: refused.append(error) if error else None,
                        **more,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        left = producer.flush(PATIENCE_S)
        assert (left, refused) == (0, []), f"{topic} did not take all records"

    def read(self, topic: str, isolation: str = "read_committed") -> list[Record]:
        """Everything in a topic, partition by partition."""
        settings = {
            "bootstrap.servers": self.servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            records, ended = [], set[int]()
            while len(ended) < len(partitions):
                message = consumer.poll(PATIENCE_S)
                assert message is not None, f"no answer while reading {topic}"
                error = message.error()
                if error is None:
                    records.append(
                        Record(
                            message.partition(), message.offset(), message.key(), message.value()
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
            return sorted(records, key=lambda record: (record.partition, record.offset))
        finally:
            consumer.close()

    def is_settled(self, topic: str) -> bool:
        """Whether no open transaction holds up the readers of committed records. False while leaders
        change."""
        places = [
            TopicPartition(topic, partition)
            for partition in self.admin.list_topics(topic, timeout=PATIENCE_S)
            .topics[topic]
            .partitions
        ]
        request = {place: OffsetSpec.latest() for place in places}
        try:
            stable, ends = (
                [
                    answer.result(PATIENCE_S).offset
                    for answer in self.admin.list_offsets(request, isolation_level=level).values()
                ]
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
        except KafkaException as error:
            # The partition has a new leader, as after a pause, and the broker learns it just now.
            if error.args[0].code() not in (
                KafkaError.UNKNOWN_LEADER_EPOCH,
                KafkaError.FENCED_LEADER_EPOCH,
            ):
                raise
            return False
        return stable == ends

    def wait_until_settled(self, topic: str) -> None:
        """Wait until no open transaction holds up readers: for a marker under way, and not for the
        time-out of a transaction."""
        self.wait_until(lambda: self.is_settled(topic))

    def values(self, topic: str, isolation: str = "read_committed") -> list[str]:
        """The values in a topic as texts, partition by partition, when no transaction is open: the
        answer to a commit comes before readers see the records."""
        self.wait_until_settled(topic)
        return [(record.value or b"").decode() for record in self.read(topic, isolation)]

    # -- the server --------------------------------------------------------------------------------

    @property
    def data(self) -> Path:
        """The directory of partitions."""
        return self._directory / "data"

    def _make(self) -> None:
        if self._run("ls", str(self._jars)).wait(PATIENCE_S) != 0:
            # The account that must run the broker cannot reach them, as in a home directory of root.
            self._jars = shutil.copytree(self._jars, self._directory / "jars")
        first = self._controller_of
        self._cluster = (
            urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            if first is None
            else first._cluster
        )

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        is_first = not self.port
        if is_first:
            # No start has succeeded so far. The address of the controller is part of the data.
            self._controller, self._sasl, self._lost, self._tls = ports.free_ports(4)
            if self._controller_of is not None:
                self._controller = self._controller_of._controller
            shutil.rmtree(self.data, ignore_errors=True)
            self.data.mkdir()
            if self._account is not None:
                os.chown(self.data, self._account.pw_uid, self._account.pw_gid)
        listeners = [f"PLAINTEXT://127.0.0.1:{port}", f"SASL://{self.sasl_servers}"]
        is_controller = self._controller_of is None
        controller = f"CONTROLLER://127.0.0.1:{self._controller}"
        if self._has_tls:
            listeners.append(f"TLS://{self.tls_servers}")
        lines = {
            **self._settings,
            "listeners": ",".join(
                [*listeners, f"LOST://{self.lost_servers}", *([controller] * is_controller)]
            ),
            "advertised.listeners": ",".join([*listeners, f"LOST://127.0.0.2:{self._lost}"]),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller}",
            "log.dirs": str(self.data),
            # A killed broker comes back only after its session: short sessions from the second
            # start on. In the first run a stall of the machine must not end a session.
            "broker.session.timeout.ms": self._settings.get(
                "broker.session.timeout.ms", "60000" if is_first else "2000"
            ),
        }
        self._said_before = len(self.log)
        configuration = self._directory / "server.properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        (self._directory / "log4j2.properties").write_text(_LOGGING)
        if not (self.data / "meta.properties").exists():
            formatted = self._java(
                "kafka.tools.StorageTool",
                "format",
                *(["--standalone"] if self._controller_of is None else []),
                f"--cluster-id={self._cluster}",
                "-c",
                str(configuration),
            )
            assert formatted.wait(PATIENCE_S) == 0, self.log
        return self._java("kafka.Kafka", str(configuration))

    def _java(self, *main: str) -> subprocess.Popen[bytes]:
        options = [
            "-Xmx256m",
            *quick_java.QUICK_JAVA.split(),
            f"-Dlog4j2.configurationFile={self._directory}/log4j2.properties",
        ]
        return self._run(jars.java(), *options, "-cp", f"{self._jars}/*", *main)

    def _is_ready(self, port: int) -> bool:
        return _UNFENCED in self.log[self._said_before :] and self._answers(port)

    def _answers(self, port: int) -> bool:
        asking = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        with contextlib.suppress(KafkaException):
            known = asking.list_topics(timeout=PATIENCE_S)
            return bool(known.brokers) and all(
                p.leader >= 0 for topic in known.topics.values() for p in topic.partitions.values()
            )
        return False

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        known = self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        return (
            known.error is None
            and len(known.partitions) == partitions
            and all(p.leader >= 0 for p in known.partitions.values())
        )


@contextlib.contextmanager
def three_brokers() -> Iterator[list[KafkaServer]]:
    """A cluster, in which each record is on three brokers, and counts when it is on two. The first
    broker is the controller, too."""
    settings = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.num.partitions": str(COORDINATORS),
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        # A dead broker's partitions move when its session is over.
        "broker.session.timeout.ms": "2000",
    }
    with contextlib.ExitStack() as brokers:
        first = brokers.enter_context(KafkaServer(settings))
        more = [
            brokers.enter_context(
                KafkaServer(
                    {**settings, "process.roles": "broker", "node.id": f"{number}"},
                    controller_of=first,
                )
            )
            for number in (2, 3)
        ]
        yield [first, *more]


@functools.cache
def _shared_server() -> KafkaServer:
    server = KafkaServer().__enter__()
    atexit.register(server.close)
    return server


def running_server() -> KafkaServer:
    """The broker of this process: made when first asked for, running whenever it is, gone when the
    process ends."""
    server = _shared_server()
    server.resume()
    server.start()
    return server


@pytest.fixture
def kafka(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The broker that all tests of this process share, running again after any damage by the test
    before. With the parameter ``memory``, brokers in memory.

    txtopo waits for the broker's answers without an end: a slow machine fails no attempt. A test of
    a time-out sets the time-out.
    """
    for module, name in TIME_OUTS:
        monkeypatch.setattr(module, name, ENDLESS_S)
    if getattr(request, "param", "broker") == "broker":
        return running_server()
    return memory_kafka.patched_in(monkeypatch)


MEMORY_AND_BROKER = pytest.mark.parametrize("kafka", ["memory", "broker"], indirect=True)
"""A test, or a file of tests, over both."""


@pytest.fixture
def sole_broker(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> KafkaServer:
    """``kafka``, known to be the only broker: a topic that it does not know is not asked for again."""
    monkeypatch.setattr(log, "_HEARSAY_S", 0.0)
    return kafka
