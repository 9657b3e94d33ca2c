"""Tells a queue's entries to a Kafka topic, exactly once for readers of committed records.

A call writes each bucket's entries in one Kafka transaction, with the bucket's *position* after
them. The position is an auxiliary record like those of Kafka sinks: the bucket is the task, and an
entry's number in its transaction is the attempt. ``connectors.kafka.ledger`` says why no other
exporter writes between the reading of a position and the commit after it.

Runs where confluent-kafka is installed, and is configuration elsewhere.

Invariants:
    - A bucket's entries up to its position are in the topic, and are not written again.
    - A position in memory is used until a call for its bucket fails. The next call reads the
      position, with a new producer, which has fenced all earlier producers.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors, plain_json
from txtopo.connectors.kafka import auxiliary, ledger, producing, sink, target
from txtopo.connectors.kafka import client as clients
from txtopo.connectors.kafka.producing import Message
from txtopo.exports import linked
from txtopo.exports.entries import SEQUENCE_BITS, EntryRefusedError, SequencedExport

_OWNER = "Kafka exporter"
_NAMED = "export"
"""The sink's name in positions, and the topology's in the names of auxiliary topics."""
_PARTITIONS = 17
"""An auxiliary topic has a multiple of so many partitions: a queue's buckets, by default."""


class KafkaExporter(linked.LinkedExporter):
    """Writes every entry as a record to a Kafka topic, exactly once and in order for all readers of
    committed records (``isolation.level=read_committed``), also behind an opaque spout.

    Records of a key go to one partition. The headers ``txtopo-bucket``, ``txtopo-sequence`` and
    ``txtopo-generation`` tell the entry. A key that is gone gets a record without a value.

    Needs ``pip install 'txtopo[kafka]'`` where entries are exported.

    :param servers: ``"host:port"``, or several with commas between.
    :param topic: an existing topic.
    :param key: makes the record's key, bytes or a ``str``, from the entry's key. If not given, a
        ``str`` is written as text, any other key as JSON. 7 and ``"7"`` are equal then.
    :param value: makes the record's value, bytes or a ``str``, from the entry's value, unless that
        is None. If not given, the value is JSON.
    :param transactions_topic: the auxiliary topic, for this queue and exporter alone. If not given,
        ``txtopo.export.<queue>.<topic>``. It is made on first use, compacted.
    :param transaction_timeout_s: how long a call's transaction may be open, in seconds, before the
        brokers abort it.
    :param client: librdkafka's settings, as a ``KafkaSink`` takes them.

    :raises errors.ConfigError: an impossible argument.
    """

    promise = "exactly once, in order, for readers of committed records"

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: Callable[[Any], bytes | str] | None = None,
        value: Callable[[Any], bytes | str] | None = None,
        transactions_topic: str | None = None,
        transaction_timeout_s: float = 60,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        sink.check(_OWNER, transactions_topic, transaction_timeout_s)
        if not isinstance(topic, str) or not auxiliary.is_topic_name(topic):
            raise errors.ConfigError(f"{_OWNER}: topic is {topic!r}\n  Give a topic's name.")
        cluster = clients.Cluster(_OWNER, servers, dict(client or {}))
        super().__init__(f"kafka://{servers}#{topic}")
        self._key, self._value = key or linked.text_of, value or plain_json.encode
        self._ledger = ledger.Ledger(
            cluster, topic, _NAMED, transactions_topic, float(transaction_timeout_s), False
        )

    def export(self, entries: Iterator[SequencedExport]) -> None:
        of_bucket = collections.defaultdict[int, list[SequencedExport]](list)
        for entry in entries:
            of_bucket[entry.bucket].append(entry)
        for told in of_bucket.values():
            self._tell(told)

    def _tell(self, last: Sequence[SequencedExport]) -> None:
        self._link = writers = self._link or ledger.Writers()
        topic = self._ledger.auxiliary_topic(f"{_NAMED}.{last[0].queue}", self._ledger.topic)
        id = f"{topic}.{last[0].bucket}"
        # A writer at work is not kept: after an error the next call makes a new one.
        writer = writers.pop(id, None) or self._new_writer(topic, last[0].bucket)
        try:
            for record in (writer.record, *(writer.others or {}).values()):
                self._check(topic, record, last[0])
            self._write(writer, topic, _after(writer.record, last))
        except BaseException:
            writer.producer.close()
            raise
        writers[id] = writer

    def _new_writer(self, topic: str, bucket: int) -> ledger.Writer:
        """The only producer for ``bucket``, with the position that it has read."""
        targets = target.Targets(self._ledger.cluster)
        targets.checked(self._ledger.topic, has_key=True)
        targets.check_timeout(self._ledger.timeout_s)
        sizes = targets.sizes_of([Message(self._ledger.topic, None)])
        kept = auxiliary.AuxiliaryTopic(targets.log, topic)
        before = kept.partitions()
        tasks = max(before, (bucket // _PARTITIONS + 1) * _PARTITIONS)
        return self._ledger.begin_writer(kept, before, bucket, tasks, sizes)

    def _write(self, writer: ledger.Writer, topic: str, entries: Sequence[SequencedExport]) -> None:
        """Write ``entries`` and the position after them, in one Kafka transaction."""
        if not entries:
            return
        messages, end = [self._message(entry) for entry in entries], entries[-1]
        place = ("", end.queue, end.bucket, end.generation, *_position(end))
        record = auxiliary.Record(*place, 0, 0, len(messages), self._ledger.topic, _NAMED)
        aside = Message(topic, record.value, record.key, partition=end.bucket)
        try:
            writer.producer.write(messages, [], aside, writer.end)
        except producing.MessageRefusedError as error:
            number, sizes = error.number, [len(message.value or b"") for message in messages]
            if not number and (error.name == "MSG_SIZE_TOO_LARGE" or len(messages) == 1):
                number = sizes.index(max(sizes)) + 1
            fact = f"{self.address}: {error.said} ({error.name})"
            if not number:
                raise errors.FailedException(fact) from error  # single entries follow
            raise EntryRefusedError(entries[number - 1].key, fact) from error
        writer.record, writer.others, writer.end = record, None, None

    def _message(self, entry: SequencedExport) -> Message:
        try:
            key = _encoded(self._key(entry.key))
            value = None if entry.value is None else _encoded(self._value(entry.value))
        except (TypeError, ValueError) as error:
            raise EntryRefusedError(entry.key, f"it makes no record: {error}") from error
        headers: producing.Headers = [
            ("txtopo-bucket", b"%d" % entry.bucket),
            ("txtopo-sequence", b"%d" % entry.sequence),
            ("txtopo-generation", entry.generation.encode()),
        ]
        return Message(self._ledger.topic, value, key, headers)

    def _check(self, topic: str, record: auxiliary.Record | None, entry: SequencedExport) -> None:
        """Refuse a position from another queue, or from another generation."""
        own = ("", entry.queue, self._ledger.topic)
        if record is None:
            return
        if (record.topology_id, record.component, record.target) != own:
            raise errors.SetupError(
                f"the auxiliary topic {topic} belongs to {record.component!r}, which writes to {record.target}, and export queue {entry.queue!r}"
                " cannot share it\n  Give each exporter and sink its own transactions_topic, or none."
            )
        if record.generation != entry.generation:
            raise errors.StateMismatchError(
                f"the auxiliary topic {topic} has positions of generation {record.generation!r}, and the entries have generation"
                f" {entry.generation!r}\n  Two generations' sequences cannot be compared. Delete the topic {topic}, and empty {own[2]}."
                f" {linked.REPLAY}\n  Or give each exporter its own transactions_topic, if two queues have the id {entry.queue!r}."
            )


def _position(entry: SequencedExport) -> tuple[int, int]:
    return divmod(entry.sequence, 1 << SEQUENCE_BITS)


def _after(
    record: auxiliary.Record | None, told: Sequence[SequencedExport]
) -> list[SequencedExport]:
    """The entries after the position in ``record``. The entries of a replay come in several calls,
    and have one sequence."""
    position, is_replay = (0, -1) if record is None else record.position, told[0].is_replayed
    if is_replay and _position(told[0]) < position:
        raise errors.UsageError(
            f"export queue {told[0].queue!r} has gone on, and a replay would hide newer records\n  Stop its exporters, and type the command again."
        )
    return [entry for entry in told if is_replay or _position(entry) > position]


def _encoded(value: Any) -> bytes:
    if not isinstance(value, bytes | str):
        raise TypeError(f"{value!r:.100} is neither bytes nor str")
    return value.encode() if isinstance(value, str) else value
