"""The auxiliary topic of a sink: the last transaction of each of its tasks, one record per task,
written in the transaction of Kafka that has the task's rows.

The topic has a partition per task, and is compacted: the last record of a task is kept for ever. A
partition has one writer, the producer of its task. If tasks shared a partition, an open transaction
of one would hide the last records of the others.

Runs on: executor, and the command line.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka.log import OF_THE_GROUP, Log, UnknownTopicError
from txtopo.connectors.kafka.topic_admin import TopicAdmin
from txtopo.sinks import task_ledger

VERSION = 1
"""Of the form of a record."""
PREFIX = "txtopo."
"""Of the names of auxiliary topics."""
NAME_MAX = 249
"""Characters in the name of a topic."""

_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""Of a new auxiliary topic. Compaction leaves the newest segment as it is, so segments are small.
"""
_TAIL, _FURTHER = 4, 8
"""How many offsets before the end of a partition its last record is looked for; and how much
further each time that only aborted records are there."""
DECIDED_S = 5.0
"""How long to wait for the marker of a commit. A transaction that is open for longer is that of a
late task, which has begun since: a replay fences it."""
_WAIT_S = 30.0
_POLL_S, _TICK_S = 0.5, 0.005


@dataclasses.dataclass(frozen=True, slots=True)
class Record(task_ledger.Record):
    """The last transaction of a task, as it is kept."""

    target: str = ""
    """The topic that the rows went to, or the field that named it; for people."""
    sink: str = ""
    """The name of the sink."""

    @property
    def key(self) -> bytes:
        """By which the topic is compacted."""
        return json.dumps([self.topology_id, self.component, self.task]).encode()

    @property
    def value(self) -> bytes:
        """As it is kept."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}).encode()


def topic_name(topology_id: str, component: str) -> str:
    """The auxiliary topic of a component.

    :raises errors.SetupError: no topic can have this name.
    """
    name = f"{PREFIX}{topology_id}.{component}"
    if not is_topic_name(name):
        raise errors.SetupError(
            f"Kafka sink: the auxiliary topic of component {component!r} would be {name!r}; names of topics have letters, digits, '.', '_' and '-',"
            f" {NAME_MAX} at most\n  Give transactions_topic='name'."
        )
    return name


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    return (
        0 < len(name) <= NAME_MAX
        and name not in (".", "..")
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    )


class AuxiliaryTopic:
    """The auxiliary topic ``name``, asked about through ``log``."""

    def __init__(self, log: Log, name: str) -> None:
        self.name, self._log, self._kafka = name, log, log.cluster.confluent_kafka()
        self._admin = TopicAdmin(log)

    def partitions(self, surely: bool = False) -> int:
        """How many there are; 0 without the topic, ``surely`` as all brokers know it."""
        describe = self._log.describe_surely if surely else self._log.describe
        topic = describe([self.name]).get(self.name)
        return 0 if topic is None else topic.partitions

    def make(self, tasks: int, before: int) -> None:
        """Give it a partition for each of ``tasks``, where it has ``before``; 0: make it."""
        if before == 0:
            self._admin.make_topic(self.name, tasks, _SETTINGS)
        if 0 < before < tasks:
            self._admin.widen_topic(self.name, tasks)
        if before < tasks:
            self._wait_for(
                "it lacks partitions",
                lambda: self.partitions() >= tasks and self._has_leaders(tasks),
            )

    def delete(self) -> None:
        """Delete it, and wait until a broker that is asked no longer has it."""
        before = self._id()
        self._admin.delete_topic(self.name)
        self._wait_for(
            "it is deleted, and a broker still has it", lambda: not before or self._id() != before
        )

    def _id(self) -> str:
        topic = self._log.describe([self.name]).get(self.name)
        return "" if topic is None else topic.id

    def check_is_kept(self) -> None:
        """Refuse a topic that forgets.

        :raises errors.SetupError: it is not compacted, or its records are deleted after some time.
        """
        try:
            policy = self._admin.settings_of(self.name).get("cleanup.policy", "compact")
        except errors.SetupError:
            return  # this user may not see settings
        if policy != "compact":
            raise errors.SetupError(
                f"{self._log.cluster.owner}: the auxiliary topic {self.name} has cleanup.policy={policy}, and would forget which transactions are"
                " written\n  Set it to compact; or delete the topic before anything was written, and the sink makes it."
            )

    def undecided(self, tasks: Iterable[int]) -> list[int]:
        """The tasks in whose partitions something belongs to an open transaction: their last stable
        offset is not the end. A commit is answered before its marker is in the partition."""
        places = [(self.name, task) for task in tasks]
        ends = self._log.ends(places, "read_uncommitted")
        stable = self._log.ends(places)
        return [
            task
            for (_, task) in places
            if stable[self.name, task].offset < ends[self.name, task].offset
        ]

    def wait_until_decided(self, tasks: Sequence[int]) -> None:
        """Wait until nothing in the partitions of ``tasks`` belongs to an open transaction.

        :raises errors.FailedException: another producer has begun there since.
        """
        why = "another producer has an open transaction there; `txtopo store show` tells where, and `txtopo kafka abort` ends it"
        self._wait_for(why, lambda: not self.undecided(tasks), DECIDED_S)

    def ends(self, tasks: Iterable[int], isolation: str = "read_committed") -> dict[int, int]:
        """The offset at which the partition of each task ends, for readers of committed records
        where its first open transaction begins."""
        return {
            task: at.offset
            for (_, task), at in self._log.ends(
                [(self.name, task) for task in tasks], isolation
            ).items()
        }

    def last_records(self, ends: dict[int, int]) -> dict[int, Record]:
        """For each task of ``ends``, its last committed record before that offset, if there is one.

        :raises errors.StateMismatchError: a record is none of a sink's.
        """
        beginnings = {
            task: at.offset
            for (_, task), at in self._log.beginnings([(self.name, task) for task in ends]).items()
        }
        records: dict[int, Record] = {}
        wanted = {task for task in ends if ends[task] > beginnings[task]}
        back = _TAIL
        consumer = self._log.consumer({"isolation.level": "read_committed"})
        try:
            while wanted:
                starts = {task: max(beginnings[task], ends[task] - back) for task in wanted}
                records.update(self._read(consumer, starts, ends))
                wanted = {
                    task for task in wanted - records.keys() if starts[task] > beginnings[task]
                }
                back *= _FURTHER
        finally:
            consumer.close()
        return records

    def may_be_ours(self) -> bool:
        """Whether the topic has records of a sink alone, or none."""
        try:
            self.last_records(self.ends(range(self.partitions())))
        except (errors.StateMismatchError, UnknownTopicError):
            return False
        return True

    def _read(
        self, consumer: Any, starts: dict[int, int], ends: dict[int, int]
    ) -> dict[int, Record]:
        """The last record of each partition between the two offsets."""
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
                    # A replica that lags behind says that the partition ends where it ends itself.
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

    :raises errors.StateMismatchError: it is none of a sink's.
    """
    try:
        fields = json.loads(value or b"")
        version = fields.pop("version")
        if version == VERSION:
            return Record(**fields)
        why = f"its version is {version}, which a newer txtopo has written"
    except (ValueError, TypeError, AttributeError, KeyError):
        why = f"it is no record of a sink, but {(value or b'')[:80]!r}"
    raise errors.StateMismatchError(
        f"the last record of topic {topic} cannot be read: {why}\n"
        "  The auxiliary topic of a sink has one writer, the sink. Nothing was written. Give the sink another transactions_topic; or install the"
        " newer txtopo."
    )
