"""Kafka brokers in this process's memory: topics, their logs, and a transaction coordinator.

The log has what real logs have and tests rarely meet: transaction markers and aborted records,
which take up offsets, open transactions, which hold up readers of committed records, leader epochs,
retention, truncation, and topics that are deleted and made again.

Runs on: driver. Standard library only.

Invariants:
    - A log's offsets never repeat under one leader epoch.
    - A producer id has one producer at a time: the producer that has begun last.
    - A transaction's outcome is decided once. Its markers may come later.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Partition = tuple[str, int]

DELAYED = 2
"""How many questions for a partition's end a late marker misses."""


def now_ms() -> int:
    """The time in milliseconds since 1970."""
    return int(time.time() * 1000)


class UnknownTopic(LookupError):
    """There is no such topic or partition."""


class Fenced(Exception):
    """Another producer with this id has begun."""


class RecordTooLarge(ValueError):
    """The record is larger than the topic allows."""


@dataclass(slots=True, eq=False)
class Transaction:
    """A producer's transaction."""

    id: str
    state: str = "open"
    """``open``, ``committed`` or ``aborted``."""
    records: list[tuple[Partition, Record]] = field(default_factory=list)


class Record(NamedTuple):
    """A record, or a transaction's marker."""

    offset: int
    epoch: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    transaction: Transaction | None = None
    is_marker: bool = False


@dataclass(slots=True)
class PartitionLog:
    """A partition's log. ``begin`` is the first offset that is still there."""

    records: list[Record] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    epoch: int = 0
    unmarked: dict[Transaction, int] = field(default_factory=dict)
    """Each transaction without a marker, and its first offset."""
    delays: dict[Transaction, int] = field(default_factory=dict)
    """How many questions each late marker still misses."""

    def append(self, transaction: Transaction | None, is_marker: bool = False, **parts: Any) -> int:
        """Add a record, and return its offset."""
        record = Record(self.end, self.epoch, **parts, transaction=transaction, is_marker=is_marker)
        self.records.append(record)
        if is_marker and transaction is not None:
            self.unmarked.pop(transaction, None)
            self.delays.pop(transaction, None)
        elif transaction is not None:
            self.unmarked.setdefault(transaction, record.offset)
        self.end += 1
        return record.offset

    @property
    def stable_end(self) -> int:
        """The last stable offset: the end for readers of committed records."""
        return min([self.end, *self.unmarked.values()])

    def asked_for_end(self) -> None:
        """Write the markers that have been late for long enough."""
        for transaction, left in list(self.delays.items()):
            self.delays[transaction] = left - 1
            if left <= 0:
                self.append(transaction, is_marker=True)

    def next_record(self, position: int, is_committed: bool) -> tuple[Record | None, int]:
        """The first readable record at ``position`` or later, and where the search has stopped."""
        bound = self.stable_end if is_committed else self.end
        first = bisect.bisect_left(self.records, position, key=lambda record: record.offset)
        for record in self.records[first:]:
            if record.offset >= bound:
                break
            owner = record.transaction
            is_hidden = is_committed and owner is not None and owner.state == "aborted"
            if not record.is_marker and not is_hidden:
                return record, record.offset + 1
        return None, max(position, bound)

    def end_under(self, epoch: int) -> int:
        """Where the log ended under ``epoch``, or ends now under the present epoch."""
        later = (record.offset for record in self.records if record.epoch > epoch)
        return min(later, default=self.end)

    def forget_before(self, offset: int) -> None:
        """Delete the records before ``offset``, as retention does."""
        self.begin = max(self.begin, offset)
        self.records = [record for record in self.records if record.offset >= self.begin]

    def truncate(self, offset: int) -> None:
        """Lose the records from ``offset`` on, and go on under another leader."""
        self.records = [record for record in self.records if record.offset < offset]
        self.unmarked = {owner: at for owner, at in self.unmarked.items() if at < offset}
        self.delays = {owner: left for owner, left in self.delays.items() if owner in self.unmarked}
        self.end = min(self.end, offset)
        self.epoch += 1


@dataclass(slots=True)
class TopicLog:
    """A topic. ``id`` changes when the topic is made again."""

    settings: dict[str, str]
    partitions: list[PartitionLog]
    id: str

    @property
    def bytes_max(self) -> int:
        return int(self.settings["max.message.bytes"])


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    transaction: Transaction | None = None


class Brokers:
    """A cluster of brokers."""

    def __init__(self) -> None:
        self.are_markers_late = True
        """Whether a commit is answered before its markers are written."""
        self.clock_ms: Callable[[], int] = now_ms
        """The timestamp for a record without one."""
        self.turn: contextlib.AbstractContextManager[Any] = threading.RLock()
        """Held by a client while it asks or writes."""
        self.topics: dict[str, TopicLog] = {}
        self.groups: dict[str, dict[Partition, int]] = {}
        self.transactions: list[Transaction] = []
        """The committed transactions, in order."""
        self._producers: dict[str, _Producer] = {}

    # -- topics -----------------------------------------------------------------------------------

    def make_topic(
        self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> bool:
        """Make a topic. False if the topic exists."""
        if name in self.topics:
            return False
        defaults = {"cleanup.policy": "delete", "max.message.bytes": "1048588"}
        logs = [PartitionLog() for _ in range(partitions)]
        self.topics[name] = TopicLog({**defaults, **(settings or {})}, logs, self.new_id(name))
        return True

    def new_id(self, topic: str) -> str:
        return uuid.uuid4().hex

    def widen_topic(self, name: str, partitions: int) -> bool:
        """Add partitions. False if there are as many already."""
        logs = self.topic(name).partitions
        more = partitions - len(logs)
        logs.extend(PartitionLog() for _ in range(more))
        return more > 0

    def topic(self, name: str) -> TopicLog:
        """The topic ``name``.

        :raises UnknownTopic: there is no such topic.
        """
        if name not in self.topics:
            raise UnknownTopic(name)
        return self.topics[name]

    def log(self, place: Partition) -> PartitionLog:
        """A partition's log.

        :raises UnknownTopic: there is no such partition.
        """
        logs = self.topic(place[0]).partitions
        if not 0 <= place[1] < len(logs):
            raise UnknownTopic(place)
        return logs[place[1]]

    # -- producers --------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
        producer: tuple[str, int] | None = None,
    ) -> tuple[Partition, int]:
        """Add a record, and return its place and offset. Without ``partition``, equal keys, or
        without a key equal values, go to the same partition.

        :param producer: the producer whose transaction the record belongs to: id and epoch.
        """
        logs = self.topic(topic)
        if len(value or b"") + len(key or b"") > logs.bytes_max:
            raise RecordTooLarge(topic)
        number = zlib.crc32(key or value or b"") % len(logs.partitions)
        place = topic, number if partition < 0 else partition
        transaction = None if producer is None else self.transaction_of(*producer)
        offset = self.log(place).append(
            transaction, key=key, value=value, headers=tuple(headers), timestamp_ms=timestamp_ms
        )
        if transaction is not None:
            transaction.records.append((place, self.log(place).records[-1]))
        return place, offset

    def begin_producer(self, id: str) -> int:
        """Begin as the only producer with ``id``, and return its epoch. An open transaction is
        aborted. The markers of a decided transaction are written."""
        known = self._producers.setdefault(id, _Producer())
        if known.transaction is not None:
            self._decide(known.transaction, "aborted")
        for log in self._logs():
            for transaction in [each for each in log.delays if each.id == id]:
                log.append(transaction, is_marker=True)
        known.epoch, known.transaction = known.epoch + 1, None
        return known.epoch

    def transaction_of(self, id: str, epoch: int) -> Transaction:
        """The producer's open transaction, begun if need be.

        :raises Fenced: another producer has begun.
        """
        known = self._producers[id]
        if known.epoch != epoch:
            raise Fenced(id)
        known.transaction = known.transaction or Transaction(id)
        return known.transaction

    def end_transaction(self, id: str, epoch: int, outcome: str) -> None:
        """Decide the producer's transaction: ``committed`` or ``aborted``.

        :raises Fenced: another producer has begun.
        """
        transaction = self.transaction_of(id, epoch)
        self._producers[id].transaction = None
        self._decide(transaction, outcome)

    def _decide(self, transaction: Transaction, outcome: str) -> None:
        transaction.state = outcome
        if outcome == "committed":
            self.transactions.append(transaction)
        for log in self._logs():
            if transaction not in log.unmarked:
                continue
            if self.are_markers_late and outcome == "committed":
                log.delays[transaction] = DELAYED
            else:
                log.append(transaction, is_marker=True)

    def _logs(self) -> list[PartitionLog]:
        return [log for topic in self.topics.values() for log in topic.partitions]
