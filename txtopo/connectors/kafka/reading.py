"""The executor's half of a Kafka spout: reads a range of offsets, all of it or with an error.

Offsets have gaps, where aborted records and the markers of transactions are, so nothing is counted.
A range has been read when the consumer has delivered a record at or beyond its end, or said that
the partition ends there or later.

Runs on: executor.

Invariants:
    - Every record of a range is of the topic that was planned: the topic's id is asked again after
      the records were read.
    - Every record of a range was written before the plan: its leader epoch is not above that of the
      plan. Epochs grow along the log, so the last record speaks for those before it. Where a range
      ends in a gap, the leader is asked whether the log is still the one that was planned.
    - What was fetched ahead is used by the next range only if it begins where that begins, of the
      same topic, under the same leader epoch. Nothing that was fetched is dropped while its
      consumer reads on.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Mapping
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka.log import (
    OF_THE_GROUP,
    TRUNCATED,
    UNKNOWN,
    Offset,
    UnknownTopicError,
    assign,
    translate,
)
from txtopo.connectors.kafka.source import LogChangedError, Source
from txtopo.topology.context import TopologyContext

_AT_ONCE = 1_000
"""Records per call of the library; more are no faster."""
_POLL_S = 1.0
_SILENCE_S = 30.0
"""Without any answer from the brokers for this long, the attempt fails."""
_CONSUMERS_MAX = 8
"""Per process: a consumer has threads and connections of its own."""


class Reader:
    """Reads ranges; kept from one transaction to the next, so that a range which begins where the
    last one ended is read on without a new position."""

    def __init__(self, source: Source) -> None:
        self._source, self._kafka = source, source.cluster.confluent_kafka()
        self.log = source.log()
        self._consumers: dict[tuple[str, int], _Standing] = {}

    def records(self, metadata: Mapping[str, Any]) -> Iterator[list[Any]]:
        """The records of a range, in order, in lists: ``confluent_kafka.Message``."""
        place = metadata["topic"], metadata["partition"]
        if metadata["start"] == metadata["end"]:
            return
        standing = self._consumers.pop(place, None)
        if standing is None and len(self._consumers) >= _CONSUMERS_MAX:
            standing = self._consumers.pop(next(iter(self._consumers)))
        standing = standing or _Standing(self.log.consumer({}))
        try:
            standing.stand_at(place, metadata)
            is_sure = False
            while True:
                inside = standing.taken(metadata["end"])
                if inside:
                    is_sure = (
                        self._is_old(inside[-1], metadata)
                        and inside[-1].offset() == metadata["end"] - 1
                    )
                    yield inside
                if standing.has_passed(metadata["end"]):
                    break
                self._fetch(standing, metadata)
            is_sure = is_sure or (
                bool(standing.ahead) and self._is_old(standing.ahead[0], metadata, is_inside=False)
            )
            self._check(metadata, is_sure)
        except BaseException:
            standing.consumer.close()
            raise
        # The last one in the order is the last one used.
        self._consumers[place] = standing

    def close(self) -> None:
        """Close all consumers."""
        while self._consumers:
            self._consumers.popitem()[1].consumer.close()
        self.log.close()

    def _fetch(self, standing: _Standing, metadata: Mapping[str, Any]) -> None:
        """Fetch some records, or come to know that there are none."""
        deadline = time.monotonic() + _SILENCE_S
        while time.monotonic() < deadline:
            # With a time, the library would wait until there are as many.
            messages: list[Any] = standing.consumer.consume(_AT_ONCE, 0.0)
            if not messages:
                first = standing.consumer.poll(_POLL_S)
                if first is None:
                    # A deleted topic is silent.
                    self.log.check_let_in()
                    self._check(metadata, is_sure=False)
                    continue
                messages = [first, *standing.consumer.consume(_AT_ONCE, 0.0)]
            messages = [message for message in messages if not _is_of_the_group(message.error())]
            ended_at = self._end_among(messages, metadata)
            if standing.add([message for message in messages if message.error() is None], ended_at):
                if standing.seen < metadata["end"] and messages[-1].error() is not None:
                    self._check(metadata, is_sure=False)
                return
        raise errors.FailedException(
            f"{self._where(metadata)}: no answer for {_SILENCE_S:g} s; the log was read up to offset {standing.seen}"
        )

    def _end_among(self, messages: list[Any], metadata: Mapping[str, Any]) -> int:
        """The end of the partition, if the messages tell it; -1 if they do not."""
        ended_at = -1
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.name() == "_PARTITION_EOF":
                ended_at = message.offset()
            elif error.name() in TRUNCATED or error.name() in UNKNOWN or not error.retriable():
                raise self._refused(error, metadata)
        return ended_at

    def _is_old(self, message: Any, metadata: Mapping[str, Any], is_inside: bool = True) -> bool:
        """Whether a record was written under no later leader epoch than that of the plan. A later
        one inside the range is an error."""
        written, planned = message.leader_epoch(), metadata["epoch"]
        if written is None or written < 0 or planned < 0:
            return False
        if is_inside and written > planned:
            newer = f"offset {message.offset()} was written under leader epoch {written}, after the plan"
            raise self._changed(metadata, f"the log was truncated: {newer}")
        return bool(written <= planned)

    def _check(self, metadata: Mapping[str, Any], is_sure: bool) -> None:
        """The topic is the one that was planned, and its log, unless that ``is_sure``, as well."""
        topic = self.log.describe_surely([metadata["topic"]]).get(metadata["topic"])
        if topic is None or topic.id != metadata["id"]:
            raise self._changed(
                metadata,
                "the topic was deleted"
                if topic is None
                else "the topic was deleted and made again",
            )
        if is_sure:
            return
        place = metadata["topic"], metadata["partition"]
        try:
            end = self.log.ends([place])[place]
            if (
                end.epoch != metadata["epoch"] or end.offset < metadata["end"]
            ) and self.log.is_truncated(place, Offset(metadata["end"], metadata["epoch"])):
                raise self._changed(
                    metadata, f"the log was truncated, and ends at offset {end.offset}"
                )
        except UnknownTopicError:
            raise self._changed(metadata, "the topic was deleted") from None

    def _refused(self, error: Any, metadata: Mapping[str, Any]) -> Exception:
        if error.name() not in (*TRUNCATED, *UNKNOWN):
            return translate(self._source.cluster, f"reading {self._where(metadata)}", error)
        place = metadata["topic"], metadata["partition"]
        self._check(metadata, is_sure=True)
        try:
            beginning = self.log.beginnings([place])[place].offset
        except UnknownTopicError:
            return self._changed(metadata, "the topic was deleted")
        if beginning > metadata["start"]:
            return self._changed(
                metadata,
                f"the records before offset {beginning} were deleted before they were read",
            )
        if error.name() in UNKNOWN:
            return errors.FailedException(f"{self._where(metadata)}: {error.str()}")
        return self._changed(metadata, f"the log was truncated ({error.str()})")

    def _changed(self, metadata: Mapping[str, Any], event: str) -> Exception:
        """The error that the log is another one. The batch of an opaque spout is planned anew, and
        the plan finds the change."""
        if self._source.is_opaque:
            return errors.FailedException(f"{self._where(metadata)}: {event}")
        return LogChangedError(
            f"{self._where(metadata)}: {event}\n"
            "  This batch cannot be read again as it was. Count everything anew: `txtopo state reset`, and `txtopo store clear` for each\n"
            "  store. An opaque spout with opaque stores and lost='skip' goes on at what is left."
        )

    def _where(self, metadata: Mapping[str, Any]) -> str:
        place = f"topic {metadata['topic']}, partition {metadata['partition']}"
        return f"{self._source.cluster.owner}: {place}, offsets {metadata['start']} to {metadata['end']}"


class _Standing:
    """A consumer, and where it stands: ``ahead`` are records that were fetched and not taken; below
    ``seen`` everything was fetched."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.ahead: list[Any] = []
        self.seen = -1
        self._next: tuple[Any, ...] = ()

    def stand_at(self, place: tuple[str, int], metadata: Mapping[str, Any]) -> None:
        """Go to the start of a range, unless the consumer is there."""
        log = (*place, metadata["id"], metadata["epoch"])
        if self._next != (*log, metadata["start"]):
            self.ahead, self.seen = [], metadata["start"]
            assign(self.consumer, place, Offset(metadata["start"], metadata["start_epoch"]))
        self._next = (*log, metadata["end"])

    def taken(self, end: int) -> list[Any]:
        """The fetched records below ``end``; they are no longer ahead."""
        ahead = self.ahead
        if not ahead or ahead[-1].offset() < end:
            self.ahead = []
            return ahead
        count = bisect.bisect_left(ahead, end, key=lambda message: message.offset())
        self.ahead = ahead[count:]
        return ahead[:count]

    def has_passed(self, end: int) -> bool:
        """Whether everything below ``end`` was fetched."""
        return self.seen >= end

    def add(self, records: list[Any], ended_at: int) -> bool:
        """Add what was fetched; ``ended_at`` is the end of the partition, -1 if it is not known.
        Whether anything was learnt.

        :raises errors.FailedException: a record from before the position.
        """
        if records and records[0].offset() < self.seen:
            raise errors.FailedException(
                f"the library delivered offset {records[0].offset()} again, after {self.seen}"
            )
        self.ahead += records
        before, self.seen = (
            self.seen,
            max(self.seen, ended_at, records[-1].offset() + 1 if records else -1),
        )
        return bool(records) or self.seen > before or ended_at >= 0


def _is_of_the_group(error: Any) -> bool:
    return error is not None and bool(error.name() == OF_THE_GROUP)


def reader_of(context: TopologyContext, source: Source) -> Reader:
    """The reader of this process for ``source``."""
    reader: Reader = context.resource(
        f"kafka-reader:{source.isolation}:{source.cluster.key}", lambda: Reader(source)
    )
    return reader
