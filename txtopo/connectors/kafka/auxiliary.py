"""A Kafka sink's auxiliary topic: one record per task about its last transaction, written in the
Kafka transaction that has the task's rows.

The topic has a partition per task, and is compacted: a task's last record is kept for ever. A
partition has one writer, its task's producer. If tasks shared a partition, one task's open
transaction would hide the last records of the others.

Runs on: executor, and the command line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
import time
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import OF_THE_GROUP, Log, UnknownTopicError
from txtopo.sinks import task_ledger

SCHEME = "kafka"
"""How the address of auxiliary topics begins."""

TOPIC = "transactions_topic"
"""The option in an address for the sink's argument ``transactions_topic``. All other options are
settings in ``client``."""

VERSION = 1
"""The version of the records' form."""
PREFIX = "txtopo."
"""How the name of every auxiliary topic begins."""
NAME_MAX = 249
"""Characters in a topic's name."""
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_MAX}}}")

_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""Settings for a new auxiliary topic. Compaction spares the newest segment, so segments are
small."""
_TAIL, _FURTHER = 4, 8
"""The last record is looked for in the partition's last ``_TAIL`` offsets. While only aborted
records are found, the search goes back ``_FURTHER`` times as far."""
DECIDED_S = 5.0
"""How long to wait for a commit's marker. A transaction that is open for longer belongs to a late
task that has begun since. A replay fences the late task."""
_WAIT_S = 30.0
_POLL_S, _TICK_S = 0.5, 0.005


@dataclasses.dataclass(frozen=True, slots=True)
class Record(task_ledger.Record):
    """A task's last transaction, as the auxiliary topic keeps it."""

    target: str = ""
    """The rows' topic, or the field that named the topic. For people."""
    sink: str = ""
    """The sink's name."""

    @property
    def key(self) -> bytes:
        """The Kafka key, by which the topic is compacted."""
        return json.dumps([self.topology_id, self.component, self.task]).encode()

    @property
    def value(self) -> bytes:
        """The record as JSON."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}).encode()


def address_of(cluster: client.Cluster, topic: str | None) -> str:
    """The auxiliary topics' address for the command line:
    ``kafka://host:port?security.protocol=SASL_SSL``."""
    options = {TOPIC: topic} if topic else {}
    options.update(
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in cluster.settings.items()
    )
    query = urllib.parse.urlencode(options, quote_via=urllib.parse.quote)
    return f"{SCHEME}://{cluster.servers}{f'?{query}' if query else ''}"


def topic_name(topology_id: str, component: str) -> str:
    """The name for a component's auxiliary topic.

    :raises errors.SetupError: no topic can have this name.
    """
    name = f"{PREFIX}{topology_id}.{component}"
    if not is_topic_name(name):
        raise errors.SetupError(
            f"Kafka sink: the auxiliary topic for component {component!r} would be {name!r}, but topic names have letters, digits, '.', '_' and '-',"
            f" {NAME_MAX} at most\n  Give transactions_topic='name'."
        )
    return name


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    return name not in (".", "..") and _NAME.fullmatch(name) is not None


class AuxiliaryTopic:
    """The auxiliary topic ``name``, asked about through ``log``."""

    def __init__(self, log: Log, name: str) -> None:
        self.name, self._log, self._kafka = name, log, log.cluster.confluent_kafka()

    def partitions(self, surely: bool = False) -> int:
        """The partition count, 0 without the topic. With ``surely``, the count is 0 only if no
        broker knows the topic even after a moment."""
        describe = self._log.describe_surely if surely else self._log.describe
        topic = describe({self.name: 0}).get(self.name)
        return 0 if topic is None else topic.partitions

    def make(self, tasks: int, before: int) -> None:
        """Make or widen the topic, so that each of ``tasks`` has a partition.

        :param before: how many partitions there are, 0 if there is no topic.
        """
        if before == 0:
            # -1: the brokers' own replication factor.
            new = self._kafka.admin.NewTopic(self.name, tasks, -1, config=_SETTINGS)
            self._change("making topic", self._log.admin.create_topics, new, "TOPIC_ALREADY_EXISTS")
        if 0 < before < tasks:
            more = self._kafka.admin.NewPartitions(self.name, tasks)
            self._change(
                "adding partitions to topic",
                self._log.admin.create_partitions,
                more,
                "INVALID_PARTITIONS",
            )
        if before < tasks:
            self._wait_for(
                "it lacks partitions",
                lambda: self.partitions() >= tasks and self._has_leaders(tasks),
            )

    def delete(self) -> None:
        """Delete the topic, and wait until the broker that answers no longer has the topic."""
        before = self._id()
        self._change(
            "deleting topic", self._log.admin.delete_topics, self.name, "UNKNOWN_TOPIC_OR_PART"
        )
        self._wait_for(
            "it is deleted, and a broker still has it", lambda: not before or self._id() != before
        )

    def _change(
        self, doing: str, request: Callable[..., dict[str, Any]], change: Any, done: str
    ) -> None:
        """Send a ``request`` for one ``change``, and wait. The error ``done`` means that another
        process has made the change."""
        with self._log.translated(f"{doing} {self.name}"):
            (future,) = request([change], request_timeout=client.CALL_TIMEOUT_S).values()
            try:
                future.result()
            except self._kafka.KafkaException as error:
                if error.args[0].name() != done:
                    raise

    def _id(self) -> str:
        topic = self._log.describe([self.name]).get(self.name)
        return "" if topic is None else topic.id

    def check_is_kept(self) -> None:
        """Refuse a topic that forgets records.

        :raises errors.SetupError: the topic is not compacted, or its records are deleted after some
            time.
        """
        try:
            settings = self._log.settings_of([self.name]).get(self.name, {})
        except errors.SetupError:
            return  # this user may not see settings
        if (policy := settings.get("cleanup.policy", "compact")) != "compact":
            raise errors.SetupError(
                f"{self._log.cluster.owner}: the auxiliary topic {self.name} has cleanup.policy={policy}, and would forget which transactions are"
                " written\n  Set cleanup.policy to compact. If nothing is written yet, you may also delete the topic: the sink makes a new one."
            )

    def undecided(self, tasks: Iterable[int]) -> list[int]:
        """The tasks whose partition has an open transaction: its last stable offset is before its
        end. A commit that was answered a moment ago may still look open, until its marker is in the
        partition."""
        places = [(self.name, task) for task in tasks]
        ends = self._log.ends(places, "read_uncommitted")
        stable = self._log.ends(places)
        return [
            task
            for (_, task) in places
            if stable[self.name, task].offset < ends[self.name, task].offset
        ]

    def wait_until_decided(self, tasks: Sequence[int]) -> None:
        """Wait until no partition of ``tasks`` has an open transaction.

        :raises errors.FailedException: another producer has begun there since.
        """
        place = shlex.quote(address_of(self._log.cluster, self.name))
        why = f"another producer has an open transaction there\n  To end it, type `txtopo kafka abort {place} --topology ID --execute`."
        self._wait_for(why, lambda: not self.undecided(tasks), DECIDED_S)

    def ends(self, tasks: Iterable[int], isolation: str = "read_committed") -> dict[int, int]:
        """The offset at which each task's partition ends. For readers of committed records, the
        partition ends where its first open transaction begins."""
        return {
            task: at.offset
            for (_, task), at in self._log.ends(
                [(self.name, task) for task in tasks], isolation
            ).items()
        }

    def last_records(self, ends: dict[int, int]) -> dict[int, Record]:
        """Each task's last committed record before the offset in ``ends``. Tasks without a record
        are left out.

        :raises errors.StateMismatchError: a record was not written by a sink.
        """
        beginnings = {
            task: at.offset
            for (_, task), at in self._log.beginnings([(self.name, task) for task in ends]).items()
        }
        records: dict[int, Record] = {}
        wanted = {task for task in ends if ends[task] > beginnings[task]}
        back = _TAIL
        settings = {"isolation.level": "read_committed"}
        with contextlib.closing(self._log.consumer(settings)) as consumer:
            while wanted:
                starts = {task: max(beginnings[task], ends[task] - back) for task in wanted}
                records.update(self._read(consumer, starts, ends))
                wanted = {
                    task for task in wanted - records.keys() if starts[task] > beginnings[task]
                }
                back *= _FURTHER
        return records

    def may_be_ours(self) -> bool:
        """Whether the topic has no record, or only records that a sink has written."""
        try:
            self.last_records(self.ends(range(self.partitions())))
        except (errors.StateMismatchError, UnknownTopicError):
            return False
        return True

    def _read(
        self, consumer: Any, starts: dict[int, int], ends: dict[int, int]
    ) -> dict[int, Record]:
        """The last record in each partition from its offset in ``starts`` to its offset in
        ``ends``."""
        last: dict[int, Any] = {}
        reading, deadline = set(starts), time.monotonic() + _WAIT_S
        with self._log.translated(f"reading topic {self.name}"):
            consumer.assign(
                [
                    self._kafka.TopicPartition(self.name, task, start)
                    for task, start in starts.items()
                ]
            )
            while reading:
                message = consumer.poll(_POLL_S)
                error = None if message is None else message.error()
                if message is None or (error is not None and error.name() == OF_THE_GROUP):
                    pass
                elif error is not None and error.name() != "_PARTITION_EOF":
                    raise self._kafka.KafkaException(error)
                else:
                    task, read_to = message.partition(), message.offset()
                    if error is None:
                        last[task], read_to = message, read_to + 1
                    # A replica that lags behind reports its own end as the partition's end.
                    if read_to >= ends[task]:
                        reading.discard(task)
                if time.monotonic() > deadline:
                    raise errors.FailedException(
                        f"{self._log.cluster.owner}: topic {self.name}: no answer for {_WAIT_S:g} s"
                    )
        return {task: decoded(self.name, message.value()) for task, message in last.items()}

    def _has_leaders(self, tasks: int) -> bool:
        try:
            return bool(self._log.ends([(self.name, task) for task in range(tasks)]))
        except (errors.FailedException, UnknownTopicError):
            return False

    def _wait_for(
        self, hindrance: str, condition: Callable[[], bool], wait_s: float | None = None
    ) -> None:
        wait_s = _WAIT_S if wait_s is None else wait_s
        deadline = time.monotonic() + wait_s
        while not condition():
            if time.monotonic() > deadline:
                raise errors.FailedException(
                    f"{self._log.cluster.owner}: the auxiliary topic {self.name} at {self._log.cluster.servers} is not ready after {wait_s:g} s:"
                    f" {hindrance}"
                )
            time.sleep(_TICK_S)


def decoded(topic: str, value: bytes | None) -> Record:
    """The record with this value.

    :raises errors.StateMismatchError: no sink has written the value.
    """
    try:
        fields = json.loads(value or b"")
        version = fields.pop("version")
        if version == VERSION:
            return Record(**fields)
        why = f"its version is {version}, which a newer txtopo has written"
    except (ValueError, TypeError, AttributeError, KeyError):
        why = f"it is no sink's record, but {(value or b'')[:80]!r}"
    raise errors.StateMismatchError(
        f"the last record in topic {topic} cannot be read: {why}\n"
        "  Only the sink may write to its auxiliary topic. Nothing was written. Give the sink another transactions_topic, or install the"
        " newer txtopo."
    )
