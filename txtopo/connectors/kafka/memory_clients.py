"""Kafka's library over brokers in memory: a consumer, a producer and an admin client with the
methods that this package calls.

Values and errors are the real library's. Each client has its answers at once, and no thread.

Runs on: driver.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import re
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.memory_brokers import (
    Brokers,
    Fenced,
    Partition,
    RecordTooLarge,
    UnknownTopic,
)

_TOPIC = re.compile(r"[\w.-]+", re.ASCII)
_IDLE_S = 0.001
"""How long a consumer without a record waits."""

Strike = Callable[[], str | None]
"""How the next transaction fails: ``before it began``, ``after it committed``, or not at all."""


def module_over(brokers: Brokers, strike: Strike = lambda: None) -> Any:
    """The module ``confluent_kafka``, with clients that reach ``brokers``.

    :raises errors.SetupError: the module cannot be imported.
    """
    real = client.confluent_kafka()
    admin = types.SimpleNamespace(**vars(real.admin))
    admin.AdminClient = functools.partial(_Admin, real, brokers)
    replaced = types.SimpleNamespace(**vars(real))
    replaced.admin = admin
    replaced.Consumer = functools.partial(_Consumer, real, brokers)
    replaced.Producer = functools.partial(_Producer, real, brokers, strike)
    return replaced


class _Client:
    def __init__(
        self, real: Any, brokers: Brokers, config: dict[str, Any], logger: Any = None
    ) -> None:
        self._real, self._brokers, self._config = real, brokers, config

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        with self._brokers.turn:
            names = dict.fromkeys(self._brokers.topics)
        return types.SimpleNamespace(
            topics=names, brokers={0: types.SimpleNamespace(host="memory", port=0)}
        )

    def poll(self, timeout: float = 0) -> Any:
        return None

    def close(self) -> None:
        """Every method works after this, too."""

    def _error(self, name: str, **flags: bool) -> Any:
        code = getattr(self._real.KafkaError, name)
        said = self._real.KafkaError(code).str()
        return self._real.KafkaException(self._real.KafkaError(code, said, **flags))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Hold the brokers, and raise their errors as the library's."""
        try:
            with self._brokers.turn:
                yield
        except UnknownTopic:
            raise self._error("UNKNOWN_TOPIC_OR_PART") from None
        except Fenced:
            raise self._error("_FENCED", fatal=True) from None

    def _answer(
        self, function: Callable[..., Any], *arguments: Any
    ) -> concurrent.futures.Future[Any]:
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            with self._asking():
                answer.set_result(function(*arguments))
        except self._real.KafkaException as error:
            answer.set_exception(error)
        return answer


class _Consumer(_Client):
    """Reads the assigned partitions in turn. Reports each partition's end once."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._is_committed = self._config.get("isolation.level") != "read_uncommitted"
        self._positions: dict[Partition, int] = {}
        self._epochs: dict[Partition, int] = {}
        self._reported: dict[Partition, int] = {}

    def assign(self, places: Iterable[Any]) -> None:
        self._reported.clear()
        self._positions = {(place.topic, place.partition): place.offset for place in places}
        self._epochs = {
            (place.topic, place.partition): place.leader_epoch
            for place in places
            if place.leader_epoch is not None
        }

    def committed(self, places: Iterable[Any], timeout: float = -1) -> list[Any]:
        with self._brokers.turn:
            known = self._brokers.groups.get(self._config["group.id"], {})
        return [
            self._real.TopicPartition(
                place.topic, place.partition, known.get((place.topic, place.partition), -1001)
            )
            for place in places
        ]

    def poll(self, timeout: float = -1) -> Any:
        messages = self.consume(1)
        if not messages:
            time.sleep(min(max(timeout, 0), _IDLE_S))
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        messages: list[Any] = []
        with self._brokers.turn:
            for place in self._positions:
                while len(messages) < num_messages and (message := self._next(place)) is not None:
                    messages.append(message)
        return messages

    def _next(self, place: Partition) -> Any:
        try:
            log = self._brokers.log(place)
        except UnknownTopic:
            return self._event(place, "UNKNOWN_TOPIC_OR_PART", self._positions[place])
        position, epoch = self._positions[place], self._epochs.pop(place, None)
        end = log.end if epoch is None else log.end_under(epoch)
        if not log.begin <= position <= end:
            resets = self._config.get("auto.offset.reset") == "earliest"
            self._positions[place] = max(end, log.begin) if resets else -1
            name = (
                "_AUTO_OFFSET_RESET" if epoch is None or position < log.begin else "_LOG_TRUNCATION"
            )
            return self._event(place, name, position)
        record, self._positions[place] = log.next_record(position, self._is_committed)
        if record is None:
            return self._end_of(place)
        self._reported.pop(place, None)
        return self._real.Message(
            topic=place[0],
            partition=place[1],
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=list(record.headers) or None,
            timestamp=(1, record.timestamp_ms),
            leader_epoch=record.epoch,
        )

    def _end_of(self, place: Partition) -> Any:
        end = self._positions[place]
        if self._reported.get(place) == end:
            return None
        self._reported[place] = end
        return self._event(place, "_PARTITION_EOF", end)

    def _event(self, place: Partition, name: str, offset: int) -> Any:
        error = self._error(name).args[0]
        return self._real.Message(topic=place[0], partition=place[1], offset=offset, error=error)


class _Producer(_Client):
    """Writes records as they come, and reports them in ``flush``."""

    def __init__(
        self, real: Any, brokers: Brokers, strike: Strike, *arguments: Any, **named: Any
    ) -> None:
        super().__init__(real, brokers, *arguments, **named)
        self._strike = strike
        self._identity: tuple[str, int] | None = None
        self._is_open = False
        self._refused: Any = None
        self._reports: list[Callable[[], None]] = []

    def init_transactions(self, timeout: float = -1) -> None:
        id = self._config["transactional.id"]
        with self._asking():
            self._identity = (id, self._brokers.begin_producer(id))

    def begin_transaction(self) -> None:
        self._is_open, self._refused = True, None

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Callable[[Any, Any], None] | None = None,
        timestamp: int = 0,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> None:
        value, key = as_bytes(value), as_bytes(key)
        if len(value or b"") > int(self._config.get("message.max.bytes", 1_000_000)):
            raise self._error("MSG_SIZE_TOO_LARGE")
        with self._asking():
            if partition >= len(self._brokers.topic(topic).partitions):
                raise self._error("_UNKNOWN_PARTITION")
            try:
                place, offset = self._brokers.append(
                    topic,
                    value,
                    key,
                    partition,
                    headers or (),
                    timestamp or self._brokers.clock_ms(),
                    self._identity,
                )
            except RecordTooLarge:
                self._refused = self._error("MSG_SIZE_TOO_LARGE", txn_requires_abort=True)
                return
        if on_delivery is not None:
            message = self._real.Message(topic=topic, partition=place[1], offset=offset)
            self._reports.append(functools.partial(on_delivery, None, message))

    def flush(self, timeout: float = -1) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return 0

    def commit_transaction(self, timeout: float = -1) -> None:
        how = self._strike()
        if self._refused is not None:
            raise self._refused
        if how == "before it began":
            raise self._error("_TIMED_OUT", txn_requires_abort=True)
        self._end("committed")
        if how == "after it committed":
            raise self._error("_TRANSPORT")

    def abort_transaction(self, timeout: float = -1) -> None:
        self._end("aborted")

    def _end(self, outcome: str) -> None:
        if not self._is_open or self._identity is None:
            raise self._error("_STATE")
        self._is_open = False
        with self._asking():
            self._brokers.end_transaction(*self._identity, outcome)


class _Admin(_Client):
    def describe_topics(self, topics: Any, request_timeout: float = 0) -> dict[str, Any]:
        def described(name: str) -> Any:
            if not _TOPIC.fullmatch(name):
                raise self._error("TOPIC_EXCEPTION")
            topic = self._brokers.topic(name)
            return types.SimpleNamespace(topic_id=topic.id, partitions=topic.partitions)

        return {name: self._answer(described, name) for name in topics.topic_names}

    def list_offsets(
        self, requests: dict[Any, Any], isolation_level: Any = None, request_timeout: float = 0
    ) -> dict[Any, Any]:
        is_committed = isolation_level == self._real.IsolationLevel.READ_COMMITTED

        def offset(place: Any, spec: Any) -> Any:
            log = self._brokers.log((place.topic, place.partition))
            kinds = self._real.admin.OffsetSpec
            if spec is kinds.earliest():
                at = log.begin
            elif spec is kinds.latest():
                log.asked_for_end()
                at = log.stable_end if is_committed else log.end
            else:
                later = (
                    record.offset
                    for record in log.records
                    if not record.is_marker and record.timestamp_ms >= spec.timestamp
                )
                at = next(later, -1)
            return self._real.admin.ListOffsetsResultInfo(at, -1, log.epoch)

        return {place: self._answer(offset, place, spec) for place, spec in requests.items()}

    def alter_consumer_group_offsets(
        self, requests: list[Any], request_timeout: float = 0
    ) -> dict[str, Any]:
        def alter(request: Any) -> Any:
            known = self._brokers.groups.setdefault(request.group_id, {})
            for place in request.topic_partitions:
                known[place.topic, place.partition] = place.offset
            return request

        return {request.group_id: self._answer(alter, request) for request in requests}

    def describe_configs(self, resources: list[Any], request_timeout: float = 0) -> dict[Any, Any]:
        def settings(resource: Any) -> Any:
            is_topic = resource.restype == self._real.admin.ResourceType.TOPIC
            known = (
                self._brokers.topic(resource.name).settings
                if is_topic
                else {"transaction.max.timeout.ms": "900000"}
            )
            return {name: types.SimpleNamespace(value=value) for name, value in known.items()}

        return {resource: self._answer(settings, resource) for resource in resources}

    def create_topics(self, topics: list[Any], request_timeout: float = 0) -> dict[str, Any]:
        def make(new: Any) -> None:
            if not self._brokers.make_topic(new.topic, new.num_partitions, new.config):
                raise self._error("TOPIC_ALREADY_EXISTS")

        return {new.topic: self._answer(make, new) for new in topics}

    def create_partitions(self, topics: list[Any], request_timeout: float = 0) -> dict[str, Any]:
        def widen(new: Any) -> None:
            if not self._brokers.widen_topic(new.topic, new.new_total_count):
                raise self._error("INVALID_PARTITIONS")

        return {new.topic: self._answer(widen, new) for new in topics}

    def delete_topics(self, names: list[str], request_timeout: float = 0) -> dict[str, Any]:
        def delete(name: str) -> None:
            self._brokers.topic(name)
            del self._brokers.topics[name]

        return {name: self._answer(delete, name) for name in names}


def as_bytes(value: bytes | str | None) -> bytes | None:
    """Text in UTF-8. Other values stay as they are."""
    return value.encode() if isinstance(value, str) else value
