"""Asks the brokers about topics and their logs: ids, partitions, offsets, leader epochs.

Runs on: driver and executor. Broker errors that pass become
:class:`~txtopo.errors.FailedException`, set-up errors :class:`~txtopo.errors.SetupError`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client

_GREETING_S = 0.3
"""How long to wait for a broker's first answer before looking for a refusal."""

LOGGER = logging.getLogger("txtopo.kafka")

_OUT_OF_REACH = dict[str, list[str]]()
"""The brokers that this process did not reach at first, by ``servers``."""

Partition = tuple[str, int]
"""Topic and partition number."""

_PASSWORD = "Check the user and the password: client['sasl.username'], and client['sasl.password_env'] or client['sasl.password_file']."
_WRONG_SET_UP = {
    "_AUTHENTICATION": _PASSWORD,
    "SASL_AUTHENTICATION_FAILED": _PASSWORD,
    "_SSL": "Check client['security.protocol'] and the settings that begin with ssl.",
    "TOPIC_AUTHORIZATION_FAILED": "Allow the user to READ, DESCRIBE and DESCRIBE_CONFIGS the topic. A sink's user must also be allowed to WRITE"
    " to the topic, and to CREATE the auxiliary topic.",
    "GROUP_AUTHORIZATION_FAILED": "Allow the user to READ the group.",
    "CLUSTER_AUTHORIZATION_FAILED": "Allow the user IDEMPOTENT_WRITE on the cluster.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Allow the user to WRITE to and DESCRIBE the transactional ids that begin with txtopo.",
    "UNSUPPORTED_SASL_MECHANISM": "Check client['sasl.mechanism'].",
    "UNSUPPORTED_VERSION": "The brokers are too old: Kafka 2.8 or newer is needed.",
    "TOPIC_EXCEPTION": "A topic name has only letters, digits, '.', '_' and '-', at most 249. Kafka refuses names that differ in '.'"
    " and '_' alone. For a sink's auxiliary topic give transactions_topic='name'.",
    "_UNKNOWN_TOPIC": "Check the name, or make the topic first.",
    "UNKNOWN_TOPIC_OR_PART": "Check the name, or make the topic first.",
}
"""The cure, by the name of a Kafka error that no second try mends."""

POSITIONED = {
    "group.id": "txtopo",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
"""Settings for consumers that keep their own positions."""

FETCHING = {
    # If a batch ends in a transaction marker, only the partition's end shows that the batch is
    # over. Brokers report the end after this time.
    "fetch.wait.max.ms": 10,
    # A small queue stands still for this time, by default a second.
    "fetch.queue.backoff.ms": 10,
    # Otherwise up to 64 MB are fetched ahead, and thrown away with each new position.
    "queued.max.messages.kbytes": 4096,
    "fetch.message.max.bytes": 262_144,
}
"""Settings for the same consumers, for quick answers. The user's settings win."""

TRUNCATED = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")
"""Errors for a position that the log lacks, or where the log has changed."""

UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "_UNKNOWN_PARTITION")
"""Errors for an unknown topic or partition."""

OF_THE_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""An error about a consumer's group. The library looks for the group's coordinator although no
consumer joins the group, and may deliver the refusal before any record."""

_AUTHENTICATION = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED")
_REFUSALS = 3
"""How many refusals in a row are no accident."""

_NEWS_S = 1.0
"""How long the question for leaders may take."""
_OFFSETS_TIMEOUT_S = 4.0
"""How long a question for offsets may take, and how long failed answers are asked again, once at
least."""

_HEARSAY_S, _HEARSAY_TICK_S = 1.0, 0.1
"""How long a broker may lack a topic or a partition that another broker knows, and how long to wait
between two questions."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it now."""

    id: str
    """Changes when a topic is deleted and made again."""
    partitions: int


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset, and the leader epoch when the offset was read, -1 if unknown."""

    offset: int
    epoch: int


class Log:
    """Asks the brokers in ``cluster`` through one client, which is made for the first question."""

    def __init__(self, cluster: client.Cluster, isolation: str = "read_committed") -> None:
        self.cluster, self.isolation = cluster, isolation
        self._kafka = cluster.confluent_kafka()
        self._admin: Any = None
        self._refused: collections.deque[Any] = collections.deque(maxlen=8)
        """Errors that reached the clients outside any answer, since the last answer."""

    @property
    def admin(self) -> Any:
        if self._admin is None:
            admin = self.new_client(self._kafka.admin.AdminClient, self.cluster.config({}))
            with self.translated("connecting"):
                self._wait_for_a_broker(admin)
            self._admin = admin
        return self._admin

    def consumer(self, ours: dict[str, Any]) -> Any:
        """A new ``Consumer`` that keeps its own positions."""
        settings = {**POSITIONED, "isolation.level": self.isolation, **ours}
        return self.new_client(self._kafka.Consumer, self.cluster.config(settings, FETCHING))

    def new_client(self, kind: Any, config: dict[str, Any]) -> Any:
        """A new client of the class ``kind``.

        :raises errors.ConfigError: the library refuses a setting in ``config``.
        """
        try:
            return kind({**config, "error_cb": self._refused.append}, logger=Quiet())
        except self._kafka.KafkaException as error:
            raise not_made(self.cluster, error, "Mend client.") from error

    def check_let_in(self) -> None:
        """Raise :class:`~txtopo.errors.SetupError` if the brokers keep refusing the user. A single
        refusal may come from a broker that is shutting down."""
        refused = [error for error in self._refused if error.name() in _AUTHENTICATION]
        if len(refused) >= _REFUSALS:
            raise translate(self.cluster, "connecting", refused[-1])

    def _wait_for_a_broker(self, admin: Any) -> None:
        """Wait for the first answer, and until any broker that the answer names can be reached. No
        question ends because a password is wrong: the library reports the refusal outside the
        answers."""
        deadline = time.monotonic() + client.CALL_TIMEOUT_S
        while True:
            try:
                brokers = admin.list_topics("txtopo", timeout=_GREETING_S).brokers.values()
                refusals = _OUT_OF_REACH[self.cluster.servers] = self._refusals(brokers)
                if not refusals or len(refusals) < len(brokers):
                    return
                if time.monotonic() > deadline:
                    raise errors.SetupError(
                        f"{self.cluster.owner}: the brokers at {self.cluster.servers} call themselves {', '.join(refusals)}, out of reach from here\n"
                        "  Set the brokers' advertised.listeners to names that this machine reaches, or let this machine reach the names above."
                    )
                time.sleep(_GREETING_S)
            except self._kafka.KafkaException:
                admin.poll(0)
                for error in list(self._refused):
                    if error.name() in _WRONG_SET_UP:
                        raise translate(self.cluster, "connecting", error) from None
                if time.monotonic() > deadline:
                    raise

    def _refusals(self, brokers: Iterable[Any]) -> list[str]:
        """The addresses of the brokers that are out of reach, each with the reason."""
        refusals = []
        for broker in brokers:
            try:
                self.cluster.reach(broker.host, broker.port, _NEWS_S)
            except (OSError, UnicodeError) as error:
                refusals.append(f"{broker.host}:{broker.port} ({error})")
        return refusals

    def topic_names(self, beginning: str = "") -> list[str]:
        """The topic names that begin with ``beginning``, sorted. Without ``beginning``, all topics
        except Kafka's own and sinks' auxiliary topics."""
        with self.translated("listing topics"):
            topics = self.admin.list_topics(timeout=client.CALL_TIMEOUT_S).topics
        return sorted(
            name
            for name in topics
            if (name.startswith(beginning) if beginning else not name.startswith(("__", "txtopo.")))
        )

    def describe_surely(self, known: Mapping[str, int]) -> dict[str, Topic]:
        """The topics in ``known`` that exist, and ask again for a topic that one broker does not
        know, or with fewer partitions than ``known``: news travel from broker to broker."""
        deadline = time.monotonic() + _HEARSAY_S
        described = self.describe(known)
        while (late := _late(known, described)) and time.monotonic() < deadline:
            time.sleep(_HEARSAY_TICK_S)
            described.update(self.describe(late))
        return described

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        """The topics in ``topics`` that exist."""
        if not topics:
            return {}
        described = {}
        with self.translated("describing topics"):
            futures = self.admin.describe_topics(
                self._kafka.TopicCollection(sorted(set(topics))),
                request_timeout=client.CALL_TIMEOUT_S,
            )
        for name, future in futures.items():
            try:
                with self.translated(f"describing topic {name}"):
                    answer = future.result()
            except UnknownTopicError:
                continue
            described[name] = Topic(str(answer.topic_id), len(answer.partitions))
        return described

    def settings_of(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of the topics in ``topics`` that exist."""
        admin = self._kafka.admin
        resources = [admin.ConfigResource(admin.ResourceType.TOPIC, topic) for topic in topics]
        if not resources:
            return {}
        settings = {}
        with self.translated("asking for the settings of topics"):
            futures = self.admin.describe_configs(resources, request_timeout=client.CALL_TIMEOUT_S)
        for resource, future in futures.items():
            try:
                with self.translated(f"asking for the settings of topic {resource.name}"):
                    answer = future.result()
            except UnknownTopicError:
                continue
            settings[resource.name] = {name: entry.value for name, entry in answer.items()}
        return settings

    def offsets(self, wanted: dict[Partition, Any], isolation: str = "") -> dict[Partition, Offset]:
        """Each partition's offset by its ``OffsetSpec``, in one call."""
        deadline, pause_s = time.monotonic() + _OFFSETS_TIMEOUT_S, 0.0
        while True:
            try:
                return self._offsets(wanted, isolation)
            except (errors.FailedException, UnknownTopicError) as error:
                is_late = isinstance(error, UnknownTopicError) or time.monotonic() > deadline
                if pause_s and is_late:
                    raise
            # The client may know an old leader, or lack a new partition, and looks for it only on
            # request. A broker that has just begun may know an older epoch than its controller.
            with contextlib.suppress(self._kafka.KafkaException):
                self.admin.list_topics(timeout=_NEWS_S)
            time.sleep(pause_s)
            pause_s = _HEARSAY_TICK_S

    def _offsets(self, wanted: dict[Partition, Any], isolation: str) -> dict[Partition, Offset]:
        if not wanted:
            return {}
        level = (isolation or self.isolation).upper()
        requests = {
            self._kafka.TopicPartition(topic, partition): spec
            for (topic, partition), spec in wanted.items()
        }
        with self.translated("asking for offsets"):
            of_level = getattr(self._kafka.IsolationLevel, level)
            futures = self.admin.list_offsets(
                requests, isolation_level=of_level, request_timeout=_OFFSETS_TIMEOUT_S
            )
        answers = {}
        for place, future in futures.items():
            with self.translated(
                f"asking for an offset of topic {place.topic}, partition {place.partition}"
            ):
                answer = future.result()
            answers[place.topic, place.partition] = Offset(
                answer.offset, -1 if answer.leader_epoch is None else answer.leader_epoch
            )
        return answers

    def ends(self, partitions: Iterable[Partition], isolation: str = "") -> dict[Partition, Offset]:
        """The last stable offsets, or with ``read_uncommitted`` the high watermarks."""
        latest = self._kafka.admin.OffsetSpec.latest()
        return self.offsets(dict.fromkeys(partitions, latest), isolation)

    def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
        """The first offsets that are still there."""
        earliest = self._kafka.admin.OffsetSpec.earliest()
        return self.offsets(dict.fromkeys(partitions, earliest))

    def at_time(
        self, partitions: Iterable[Partition], timestamp_ms: int
    ) -> dict[Partition, Offset]:
        """Each partition's first offset with this timestamp or a later timestamp, -1 if there is
        none."""
        spec = self._kafka.admin.OffsetSpec.for_timestamp(timestamp_ms)
        return self.offsets(dict.fromkeys(partitions, spec))

    def committed(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offsets that consumer group ``group`` has committed. Partitions without an offset are
        left out."""
        places = [self._kafka.TopicPartition(*place) for place in partitions]
        with (
            contextlib.closing(self.consumer({"group.id": group})) as consumer,
            self.translated(f"asking for the offsets of group {group}"),
        ):
            answers = consumer.committed(places, timeout=client.CALL_TIMEOUT_S)
        return {(each.topic, each.partition): each.offset for each in answers if each.offset >= 0}

    def is_truncated(self, place: Partition, position: Offset) -> bool:
        """Whether the leader's log up to ``position`` differs from the log under the position's
        leader epoch."""
        return self._next_offset(place, position, "error") is None

    def where_cut(self, place: Partition, position: Offset) -> int | None:
        """The offset from which the log, truncated before ``position``, has other records. ``None``
        if the position has no leader epoch to compare."""
        return None if position.epoch < 0 else self._next_offset(place, position, "earliest")

    def _next_offset(self, place: Partition, position: Offset, reset: str) -> int | None:
        """The offset at which a consumer reads on from ``position``. ``None`` if the log has
        changed and ``reset`` is ``"error"``."""
        log = f"topic {place[0]}, partition {place[1]}"
        deadline = time.monotonic() + client.CALL_TIMEOUT_S
        # A new consumer for each question: a used consumer may answer without asking the leader.
        with (
            contextlib.closing(self.consumer({"auto.offset.reset": reset})) as consumer,
            self.translated(f"looking at {log}"),
        ):
            self.assign(consumer, place, position)
            while (left := deadline - time.monotonic()) > 0:
                message = consumer.poll(left)
                error = None if message is None else message.error()
                if message is None or (error is not None and _passes(error)):
                    continue
                if error is None or error.name() == "_PARTITION_EOF":
                    return int(message.offset())
                if error.name() not in TRUNCATED:
                    raise self._kafka.KafkaException(error)
                if reset == "error":
                    return None
                # The error says why the consumer moves. A message from the new position follows.
        raise errors.FailedException(f"no answer about {log} for {client.CALL_TIMEOUT_S:g} s")

    def assign(self, consumer: Any, place: Partition, position: Offset) -> None:
        """Let ``consumer`` read on from ``position``. If the position has a leader epoch, the
        leader compares the epoch with the log."""
        epoch = {"leader_epoch": position.epoch} if position.epoch >= 0 else {}
        consumer.assign([self._kafka.TopicPartition(*place, position.offset, **epoch)])

    def close(self) -> None:
        """Give connections back. The log may be asked again."""
        self._admin = None

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raise the library's errors as txtopo's errors."""
        try:
            yield
            self._refused.clear()
        except self._kafka.KafkaException as error:
            if self._admin is not None:
                self._admin.poll(0)
            self.check_let_in()
            raise translate(self.cluster, doing, error.args[0]) from error


class UnknownTopicError(errors.SetupError):
    """The topic does not exist."""

    page = "kafka.html"


def partitions_of(topics: Mapping[str, Topic]) -> list[Partition]:
    """The partitions in ``topics``, in order."""
    return [
        (name, partition) for name, topic in topics.items() for partition in range(topic.partitions)
    ]


def _late(known: Mapping[str, int], described: Mapping[str, Topic]) -> list[str]:
    """The topics that are not described, or with fewer partitions than ``known``."""
    return [
        name
        for name, partitions in known.items()
        if name not in described or described[name].partitions < partitions
    ]


def _passes(error: Any) -> bool:
    """Whether an error between two records may be waited out."""
    return error.name() == OF_THE_GROUP or (error.retriable() and error.name() not in TRUNCATED)


def translate(cluster: client.Cluster, doing: str, error: Any) -> Exception:
    """The exception for ``error``, a ``KafkaError``: a set-up error if no second try mends the
    fault, else a failed attempt."""
    name, said = error.name(), error.str()
    if name in UNKNOWN:
        return UnknownTopicError(
            f"{cluster.owner}: {doing} at {cluster.servers}: {said}\n  {_WRONG_SET_UP['_UNKNOWN_TOPIC']}"
        )
    if name in _WRONG_SET_UP:
        return errors.SetupError(
            f"{cluster.owner}: {doing} at {cluster.servers}: {said}\n  {_WRONG_SET_UP[name]}"
        )
    refusals = _OUT_OF_REACH.get(cluster.servers)
    more = f"; at first there was {', '.join(refusals)}, out of reach from here" if refusals else ""
    return errors.FailedException(
        f"{cluster.owner}: {doing} at {cluster.servers}: {said} ({name}){more}"
    )


def not_made(cluster: client.Cluster, error: Any, cure: str) -> Exception:
    """The exception for a client that the library did not make, by ``error``, a ``KafkaException``:
    for want of threads, which passes, or because it refuses a setting."""
    fault = error.args[0]
    if fault.name() == "_CRIT_SYS_RESOURCE":
        return translate(cluster, "making a client", fault)
    return errors.ConfigError(f"{cluster.owner}: client: {fault.str()}\n  {cure}")


class Quiet:
    """A logger for librdkafka, which passes every message to txtopo's logger at debug level.

    librdkafka's fatal errors concern one client, and reach the client's caller.
    """

    def log(self, level: int, message: str, *arguments: Any) -> None:
        LOGGER.debug(message, *arguments)
