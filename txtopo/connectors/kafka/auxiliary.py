"""The auxiliary topic of a sink: which transaction of each task is in the user's topics, in the same
transaction of Kafka as the rows.

The topic has a partition per task, and is compacted, so that the last record of a task is kept for
ever. A partition has one writer, the producer of its task, and so no transaction of another task
hides its last record.

Runs on: executor, and the command line.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import CONSUMER, Log, silence
from txtopo.stores import stamps

VERSION = 1
_TAIL = 4
"""How many offsets from the end of a partition its last record is looked for at first; aborted
transactions may have made the last ones."""
_FURTHER = 8
_DECIDED_S = 30.0
_READ_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What a task has written last."""

    topology_id: str
    component: str
    task: int
    generation: str
    txid: int
    attempt: int
    tasks: int
    rows: int

    @property
    def key(self) -> bytes:
        """By which the topic is compacted."""
        return json.dumps([self.topology_id, self.component, self.task]).encode()

    @property
    def value(self) -> bytes:
        """As it is kept."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}).encode()

    @property
    def fence(self) -> stamps.Fence:
        """As the rules of stores take it."""
        return stamps.Fence(self.topology_id, self.component, self.generation, self.txid, self.attempt, count=None)


def decoded(topic: str, value: bytes | None) -> Record:
    """The record with this value.

    :raises errors.UnreadableStateError: it is none of ours.
    """
    try:
        fields = json.loads(value or b"")
        version = fields.pop("version")
        if version != VERSION:
            raise errors.UnreadableStateError(f"topic {topic}", f"version {version} is not known to this version of txtopo")
        return Record(**fields)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise errors.UnreadableStateError(f"topic {topic}", f"{error}: {(value or b'')[:80]!r}") from error


class AuxiliaryTopic:
    """The auxiliary topic ``name``."""

    def __init__(self, cluster: client.Cluster, name: str) -> None:
        self.name, self._cluster = name, cluster
        self._log = Log(cluster)
        self._kafka = client.library()

    def partitions(self) -> int:
        """How many there are; 0 without the topic."""
        topic = self._log.describe([self.name]).get(self.name)
        return 0 if topic is None else topic.partitions

    def make(self, tasks: int) -> None:
        """Make it, with ``tasks`` partitions."""
        self._log.make_topic(self.name, tasks, {"cleanup.policy": "compact"})

    def last_records(self, tasks: Iterable[int]) -> dict[int, Record]:
        """The last record of each task that has one."""
        places = [(self.name, task) for task in tasks]
        ends = {task: offset.offset for (_, task), offset in self._log.ends(places).items()}
        beginnings = {task: offset.offset for (_, task), offset in self._log.beginnings(places).items()}
        records: dict[int, Record] = {}
        missing = {task for task in ends if ends[task] > beginnings[task]}
        back = _TAIL
        consumer = self._kafka.Consumer(self._cluster.config({**CONSUMER, "group.id": "txtopo", "isolation.level": "read_committed"}), logger=silence())
        try:
            while missing:
                starts = {task: max(beginnings[task], ends[task] - back) for task in missing}
                records.update(self._read(consumer, starts, ends))
                missing = {task for task in missing - records.keys() if starts[task] > beginnings[task]}
                back *= _FURTHER
        finally:
            consumer.close()
        return records

    def wait_until_decided(self, task: int) -> None:
        """Wait until nothing in the task's partition belongs to an open transaction."""
        place = (self.name, task)
        deadline = time.monotonic() + _DECIDED_S
        high = self._log.ends([place], "read_uncommitted")[place].offset
        while self._log.ends([place])[place].offset < high:
            if time.monotonic() > deadline:
                raise errors.FailedException(
                    f"{self._cluster.owner}: a transaction is open in partition {task} of topic {self.name}, which no other program should write to"
                )
            time.sleep(0.005)

    def _read(self, consumer: Any, starts: dict[int, int], ends: dict[int, int]) -> dict[int, Record]:
        with self._log.translated(f"reading topic {self.name}"):
            consumer.assign([self._kafka.TopicPartition(self.name, task, start) for task, start in starts.items()])
        records: dict[int, Record] = {}
        reading = set(starts)
        deadline = time.monotonic() + _READ_S
        while reading:
            with self._log.translated(f"reading topic {self.name}"):
                messages = consumer.consume(100, 0.5)
            for message in messages:
                error, task = message.error(), message.partition()
                if error is None:
                    records[task] = decoded(self.name, message.value())
                elif error.name() != "_PARTITION_EOF":
                    with self._log.translated(f"reading topic {self.name}"):
                        raise self._kafka.KafkaException(error)
                if message.offset() >= ends[task] - (error is None):
                    reading.discard(task)
            if time.monotonic() > deadline:
                raise errors.FailedException(f"{self._cluster.owner}: topic {self.name}: no answer for {_READ_S:g} s")
        return records
