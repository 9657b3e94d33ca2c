"""What the brokers say about the log of topics: ids, partitions, offsets, leader epochs.

Runs on: driver and executor. Errors of brokers that pass become
:class:`~txtopo.errors.FailedException`, errors of set-up a :class:`~txtopo.errors.SetupError`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client

_GREETING_S = 0.3
"""How long to wait for a broker's first answer before a refusal is looked for."""

Partition = tuple[str, int]
"""Topic and partition number."""

_WRONG_SET_UP = {
    "_AUTHENTICATION": "Check the user and the password: client['sasl.username'], and client['sasl.password_env'] or client['sasl.password_file'].",
    "SASL_AUTHENTICATION_FAILED": "Check the user and the password: client['sasl.username'], and client['sasl.password_env'] or client['sasl.password_file'].",
    "_SSL": "Check client['security.protocol'] and the settings that begin with ssl.",
    "TOPIC_AUTHORIZATION_FAILED": "Allow the user to DESCRIBE and READ the topic; for a sink also to WRITE to it, and to CREATE the auxiliary topic.",
    "GROUP_AUTHORIZATION_FAILED": "Allow the user to READ the group.",
    "CLUSTER_AUTHORIZATION_FAILED": "Allow the user IDEMPOTENT_WRITE on the cluster.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Allow the user to WRITE to and DESCRIBE the transactional ids that begin with txtopo.",
    "_UNKNOWN_TOPIC": "Check the name; or make the topic first.",
    "UNKNOWN_TOPIC_OR_PART": "Check the name; or make the topic first.",
}
"""By the name of an error of Kafka that no second try mends: the cure."""


CONSUMER = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A batch that ends in a marker of a transaction is only known to be over by the end of the
    # partition, which brokers tell after this time.
    "fetch.wait.max.ms": 10,
    # The default of a second is how long a small queue stands still.
    "fetch.queue.backoff.ms": 10,
    # Otherwise up to 64 MB are fetched ahead, and thrown away with each new position.
    "queued.max.messages.kbytes": 4096,
    "fetch.message.max.bytes": 262_144,
}
"""Settings of consumers with positions of their own."""

TRUNCATED = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")
"""Errors of a position that the log does not have, or no longer has as it was."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it now."""

    id: str
    """Changes when a topic is deleted and made again."""
    partitions: int


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset, and the leader epoch under which it was told; -1 if unknown."""

    offset: int
    epoch: int


class Log:
    """Questions to the brokers of ``cluster``; one client, made when it is first asked."""

    def __init__(self, cluster: client.Cluster, isolation: str = "read_committed") -> None:
        self.cluster, self.isolation = cluster, isolation
        self._kafka = client.library()
        self._admin: Any = None

    @property
    def admin(self) -> Any:
        """The ``AdminClient``."""
        if self._admin is None:
            refused: collections.deque[Any] = collections.deque(maxlen=8)
            config = self.cluster.config({"error_cb": refused.append})
            with self.translated("connecting"):
                admin = self._of_admin.AdminClient(config, logger=silence())
                self._wait_for_a_broker(admin, refused)
            self._admin = admin
        return self._admin

    def _wait_for_a_broker(self, admin: Any, refused: Iterable[Any]) -> None:
        """Wait for the first answer. No question ends because a password is wrong: its refusal is
        told beside the questions."""
        deadline = time.monotonic() + client.CALL_TIMEOUT_S
        while True:
            try:
                admin.list_topics("txtopo", timeout=_GREETING_S)
                return
            except self._kafka.KafkaException:
                admin.poll(0)
                for error in list(refused):
                    if error.name() in _WRONG_SET_UP:
                        raise translate(self.cluster, "connecting", error) from None
                if time.monotonic() > deadline:
                    raise

    @property
    def _of_admin(self) -> Any:
        import confluent_kafka.admin

        return confluent_kafka.admin

    def topic_names(self) -> list[str]:
        """All topics that are not internal, sorted."""
        with self.translated("listing topics"):
            topics = self.admin.list_topics(timeout=client.CALL_TIMEOUT_S).topics
        return sorted(name for name in topics if not name.startswith("__"))

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        """The topics among ``topics`` that there are."""
        described = {}
        with self.translated("describing topics"):
            futures = self.admin.describe_topics(self._kafka.TopicCollection(sorted(set(topics))), request_timeout=client.CALL_TIMEOUT_S)
        for name, future in futures.items():
            try:
                with self.translated(f"describing topic {name}"):
                    answer = future.result()
            except UnknownTopicError:
                continue
            described[name] = Topic(str(answer.topic_id), len(answer.partitions))
        return described

    def offsets(self, wanted: dict[Partition, Any], isolation: str = "") -> dict[Partition, Offset]:
        """For each partition the offset that its ``OffsetSpec`` stands for, in one call."""
        if not wanted:
            return {}
        level = (isolation or self.isolation).upper()
        requests = {self._kafka.TopicPartition(topic, partition): spec for (topic, partition), spec in wanted.items()}
        with self.translated("asking for offsets"):
            of_level = getattr(self._kafka.IsolationLevel, level)
            futures = self.admin.list_offsets(requests, isolation_level=of_level, request_timeout=client.CALL_TIMEOUT_S)
        answers = {}
        for place, future in futures.items():
            with self.translated(f"asking for an offset of topic {place.topic}, partition {place.partition}"):
                answer = future.result()
            answers[place.topic, place.partition] = Offset(answer.offset, -1 if answer.leader_epoch is None else answer.leader_epoch)
        return answers

    def ends(self, partitions: Iterable[Partition], isolation: str = "") -> dict[Partition, Offset]:
        """The last stable offsets, or with ``read_uncommitted`` the high watermarks."""
        latest = self._of_admin.OffsetSpec.latest()
        return self.offsets(dict.fromkeys(partitions, latest), isolation)

    def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
        """The first offsets that are still there."""
        earliest = self._of_admin.OffsetSpec.earliest()
        return self.offsets(dict.fromkeys(partitions, earliest))

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, Offset]:
        """The first offsets with this timestamp or a later one; -1 where there is none."""
        spec = self._of_admin.OffsetSpec.for_timestamp(timestamp_ms)
        return self.offsets(dict.fromkeys(partitions, spec))

    def committed(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offsets that consumer group ``group`` has committed; partitions without one are left
        out."""
        consumer = self._kafka.Consumer(self.cluster.config({"group.id": group, "enable.auto.commit": False}), logger=silence())
        try:
            with self.translated(f"asking for the offsets of group {group}"):
                places = [self._kafka.TopicPartition(topic, partition) for topic, partition in partitions]
                answers = consumer.committed(places, timeout=client.CALL_TIMEOUT_S)
            return {(each.topic, each.partition): each.offset for each in answers if each.offset >= 0}
        finally:
            consumer.close()

    def is_truncated(self, place: Partition, position: Offset) -> bool:
        """Whether the leader no longer has the log up to ``position`` as it was under the position's
        leader epoch."""
        settings = {**CONSUMER, "group.id": "txtopo", "isolation.level": self.isolation}
        consumer = self._kafka.Consumer(self.cluster.config(settings), logger=silence())
        try:
            with self.translated(f"looking at topic {place[0]}, partition {place[1]}"):
                assign(consumer, place, position)
                message = consumer.poll(client.CALL_TIMEOUT_S)
                error = None if message is None else message.error()
                if message is None:
                    raise errors.FailedException(f"no answer about topic {place[0]}, partition {place[1]} for {client.CALL_TIMEOUT_S:g} s")
                if error is None or error.name() == "_PARTITION_EOF":
                    return False
                if error.name() in TRUNCATED:
                    return True
                raise self._kafka.KafkaException(error)
        finally:
            consumer.close()

    def settings_of(self, topic: str) -> dict[str, str]:
        """The topic's settings."""
        with self.translated(f"asking for the settings of topic {topic}"):
            return self._settings(self._of_admin.ResourceType.TOPIC, topic)

    def settings_of_a_broker(self) -> dict[str, str]:
        """The settings of one of the brokers."""
        with self.translated("asking for the settings of a broker"):
            broker = min(self.admin.list_topics("txtopo", timeout=client.CALL_TIMEOUT_S).brokers)
            return self._settings(self._of_admin.ResourceType.BROKER, str(broker))

    def _settings(self, kind: Any, name: str) -> dict[str, str]:
        resource = self._of_admin.ConfigResource(kind, name)
        (future,) = self.admin.describe_configs([resource], request_timeout=client.CALL_TIMEOUT_S).values()
        return {name: entry.value for name, entry in future.result().items()}

    def make_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        """Make a topic, with the brokers' own replication factor, unless it is there already."""
        new = self._of_admin.NewTopic(name, partitions, -1, config=settings)
        with self.translated(f"making topic {name}"):
            self._change(self.admin.create_topics([new], request_timeout=client.CALL_TIMEOUT_S), "TOPIC_ALREADY_EXISTS")

    def widen_topic(self, name: str, partitions: int) -> None:
        """Give a topic this many partitions, unless it has them already."""
        new = self._of_admin.NewPartitions(name, partitions)
        with self.translated(f"adding partitions to topic {name}"):
            self._change(self.admin.create_partitions([new], request_timeout=client.CALL_TIMEOUT_S), "INVALID_PARTITIONS")

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        with self.translated(f"deleting topic {name}"):
            self._change(self.admin.delete_topics([name], request_timeout=client.CALL_TIMEOUT_S), "UNKNOWN_TOPIC_OR_PART")

    def _change(self, futures: dict[str, Any], done: str) -> None:
        """Wait for a change; the error ``done`` says that another process has made it."""
        (future,) = futures.values()
        try:
            future.result()
        except self._kafka.KafkaException as error:
            if error.args[0].name() != done:
                raise

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Errors of the library as ours."""
        try:
            yield
        except self._kafka.KafkaException as error:
            raise translate(self.cluster, doing, error.args[0]) from error


class UnknownTopicError(errors.SetupError):
    """There is no such topic."""


def translate(cluster: client.Cluster, doing: str, error: Any) -> Exception:
    """The exception for ``error``, a ``KafkaError``: of set-up if no second try mends it, else of
    the attempt."""
    name, said = error.name(), error.str()
    if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID"):
        return UnknownTopicError(f"{cluster.owner}: {doing} at {cluster.servers}: {said}\n  {_WRONG_SET_UP['_UNKNOWN_TOPIC']}")
    if name in _WRONG_SET_UP:
        return errors.SetupError(f"{cluster.owner}: {doing} at {cluster.servers}: {said}\n  {_WRONG_SET_UP[name]}")
    return errors.FailedException(f"{cluster.owner}: {doing} at {cluster.servers}: {said} ({name})")


def assign(consumer: Any, place: Partition, position: Offset) -> None:
    """Let ``consumer`` read on from ``position``; if its leader epoch is known, the leader compares
    it with the log."""
    epoch = {"leader_epoch": position.epoch} if position.epoch >= 0 else {}
    consumer.assign([client.library().TopicPartition(*place, position.offset, **epoch)])


def silence() -> Any:
    """The logger that librdkafka writes to, on behalf of its user: txtopo's own, at debug level.

    What librdkafka calls fatal is an error of one client, which the caller is told."""
    return _QUIET


class _Quiet:
    def log(self, level: int, message: str, *arguments: Any) -> None:
        logging.getLogger("txtopo.kafka").debug(message, *arguments)


_QUIET = _Quiet()
