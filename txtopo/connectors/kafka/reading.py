"""The executor's half of a Kafka spout: reads a range of offsets, completely or with an error.

Offsets have gaps, where aborted records and transaction markers are, so records are not counted. A
range is read when the consumer has delivered a record at or beyond the range's end, or has reported
a partition end there or later.

Runs on: executor.

Invariants:
    - Every record in a range comes from the planned topic: the topic's id is asked again after the
      records were read.
    - Every record in a range was written before the plan: its leader epoch is not above the plan's.
      Epochs grow along the log, so only the last record is checked. If a range ends in a gap, the
      leader is asked whether the log has changed since the plan.
    - The next range uses records that were fetched ahead only if it begins where the last range
      ended, or soon after, in the same topic, under the same leader epoch. Only records before the
      next range are dropped while their consumer reads on.
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
    Log,
    Offset,
    UnknownTopicError,
    translate,
)
from txtopo.connectors.kafka.source import LogChangedError, Source, reset_command
from txtopo.topology.context import TopologyContext

_AT_ONCE = 1_000
"""Records per library call. More are no faster."""
_SKIPPED_MAX = 3_000
"""How many records are passed over before a range. Beyond that, a new position costs less. Another
process may have read the ranges between."""
_POLL_S = 1.0
_SILENCE_S = 30.0
"""Without any answer from the brokers for this long, the attempt fails."""
_CONSUMERS_MAX = 8
"""Consumers per process. Each consumer has its own threads and connections."""
_GONE = "the topic was deleted, or has fewer partitions now"


class Reader:
    """Reads ranges. A reader is kept across transactions: a range that begins where the last range
    ended needs no new position."""

    def __init__(self, source: Source, topology_id: str = "") -> None:
        self._source, self._topology_id = source, topology_id
        self.log = source.log()
        self._consumers: dict[tuple[str, int], _Standing] = {}

    def records(self, metadata: Mapping[str, Any]) -> Iterator[list[Any]]:
        """A range's records in order, as lists of ``confluent_kafka.Message``."""
        place = metadata["topic"], metadata["partition"]
        if metadata["start"] == metadata["end"]:
            return
        standing = self._consumers.pop(place, None)
        if standing is None and len(self._consumers) >= _CONSUMERS_MAX:
            standing = self._consumers.pop(next(iter(self._consumers)))
        standing = standing or _Standing(self.log.consumer({}))
        try:
            standing.stand_at(self.log, place, metadata)
            is_sure = False
            while True:
                standing.take(metadata["start"])
                inside = standing.take(metadata["end"])
                if inside:
                    is_sure = (
                        self._is_old(inside[-1], metadata)
                        and inside[-1].offset() == metadata["end"] - 1
                    )
                    yield inside
                if standing.seen >= metadata["end"]:
                    break
                self._fetch(standing, metadata)
            is_sure = is_sure or (
                bool(standing.ahead) and self._is_old(standing.ahead[0], metadata, is_inside=False)
            )
            self._check(metadata, is_sure)
        except BaseException:
            standing.consumer.close()
            raise
        # Put last, as the consumer used last.
        self._consumers[place] = standing

    def close(self) -> None:
        while self._consumers:
            self._consumers.popitem()[1].consumer.close()
        self.log.close()

    def _fetch(self, standing: _Standing, metadata: Mapping[str, Any]) -> None:
        """Fetch some records, or learn that there are none."""
        deadline = time.monotonic() + _SILENCE_S
        while time.monotonic() < deadline:
            # With a time-out, the library would wait for so many records.
            messages: list[Any] = standing.consumer.consume(_AT_ONCE, 0.0)
            if not messages:
                first = standing.consumer.poll(_POLL_S)
                if first is None:
                    # A deleted topic is silent.
                    self.log.check_let_in()
                    self._check(metadata, is_sure=False)
                    continue
                messages = [first, *standing.consumer.consume(_AT_ONCE, 0.0)]
            records, reports = messages, [each for each in messages if each.error() is not None]
            if reports:
                messages = [each for each in messages if not _is_of_the_group(each.error())]
                records = [message for message in messages if message.error() is None]
                reports = [message for message in messages if message.error() is not None]
            if standing.seen < metadata["start"] and any(map(_is_lost, reports)):
                # Records before the range need not be there any more.
                standing.leave()
                standing.stand_at(self.log, (metadata["topic"], metadata["partition"]), metadata)
                continue
            ended_at = self._end_among(reports, metadata)
            if standing.add(records, ended_at):
                if standing.seen < metadata["end"] and messages[-1].error() is not None:
                    self._check(metadata, is_sure=False)
                return
        raise errors.FailedException(
            f"{self._where(metadata)}: no answer for {_SILENCE_S:g} s, after the log was read up to offset {standing.seen}"
        )

    def _end_among(self, reports: list[Any], metadata: Mapping[str, Any]) -> int:
        """The partition's end, if ``reports`` have it, else -1."""
        ended_at = -1
        for report in reports:
            error = report.error()
            if error.name() == "_PARTITION_EOF":
                ended_at = report.offset()
            elif error.name() in TRUNCATED or error.name() in UNKNOWN or not error.retriable():
                raise self._refusal(error, metadata)
        return ended_at

    def _is_old(self, message: Any, metadata: Mapping[str, Any], is_inside: bool = True) -> bool:
        """Whether a record is known to have no later leader epoch than the plan. A later epoch
        inside the range is an error."""
        written, planned = message.leader_epoch(), metadata["epoch"]
        if written is None or written < 0 or planned < 0:
            return False
        if is_inside and written > planned:
            newer = f"offset {message.offset()} was written under leader epoch {written}, after the plan"
            raise self._change_error(metadata, f"the log was truncated: {newer}")
        return bool(written <= planned)

    def _check(self, metadata: Mapping[str, Any], is_sure: bool) -> None:
        """Check that the topic is the planned topic. Unless ``is_sure``, also check that its log
        has not changed."""
        place = metadata["topic"], metadata["partition"]
        topic = self.log.describe_surely({place[0]: place[1] + 1}).get(place[0])
        if topic is None or topic.id != metadata["id"]:
            raise self._change_error(
                metadata,
                "the topic was deleted"
                if topic is None
                else "the topic was deleted and made again",
            )
        if topic.partitions <= place[1]:
            raise self._change_error(metadata, _GONE)
        if is_sure:
            return
        try:
            end = self.log.ends([place])[place]
            if (
                end.epoch != metadata["epoch"] or end.offset < metadata["end"]
            ) and self.log.is_truncated(place, Offset(metadata["end"], metadata["epoch"])):
                raise self._change_error(
                    metadata, f"the log was truncated, and ends at offset {end.offset}"
                )
        except UnknownTopicError:
            # The partition was described just before. A replay finds out.
            raise errors.FailedException(f"{self._where(metadata)}: {_GONE}") from None

    def _refusal(self, error: Any, metadata: Mapping[str, Any]) -> Exception:
        if error.name() not in (*TRUNCATED, *UNKNOWN):
            return translate(self._source.cluster, f"reading {self._where(metadata)}", error)
        place = metadata["topic"], metadata["partition"]
        self._check(metadata, is_sure=True)
        try:
            beginning = self.log.beginnings([place])[place].offset
        except UnknownTopicError:
            return errors.FailedException(f"{self._where(metadata)}: {_GONE}")
        if beginning > metadata["start"]:
            return self._change_error(
                metadata,
                f"the records before offset {beginning} were deleted before they were read",
            )
        if error.name() in UNKNOWN:
            return errors.FailedException(f"{self._where(metadata)}: {error.str()}")
        return self._change_error(metadata, f"the log was truncated ({error.str()})")

    def _change_error(self, metadata: Mapping[str, Any], event: str) -> Exception:
        """The error for a changed log. An opaque spout's batch is planned again, and the new plan
        finds the change."""
        if self._source.is_opaque:
            return errors.FailedException(f"{self._where(metadata)}: {event}")
        return LogChangedError(
            f"{self._where(metadata)}: {event}\n"
            f"  This batch cannot be read again as it was. Count everything anew: {reset_command(self._topology_id)}.\n"
            "  An opaque spout with opaque stores and lost='skip' goes on with the records that are left."
        )

    def _where(self, metadata: Mapping[str, Any]) -> str:
        place = f"topic {metadata['topic']}, partition {metadata['partition']}"
        return f"{self._source.cluster.owner}: {place}, offsets {metadata['start']} to {metadata['end']}"


class _Standing:
    """A consumer and its place in the log. ``ahead`` has the fetched records that are not taken
    yet. Every record below ``seen`` was fetched."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.ahead: list[Any] = []
        self.seen = -1
        self._log: tuple[Any, ...] = ()
        self._end = -1

    def stand_at(self, asked: Log, place: tuple[str, int], metadata: Mapping[str, Any]) -> None:
        """Go to a range's start, unless the consumer is there or comes there soon."""
        log, start = (*place, metadata["id"], metadata["epoch"]), metadata["start"]
        if self._log != log or not 0 <= start - self._end <= _SKIPPED_MAX:
            self.ahead, self.seen = [], start
            asked.assign(self.consumer, place, Offset(start, metadata["start_epoch"]))
        self._log, self._end = log, metadata["end"]

    def leave(self) -> None:
        """Forget the place: the next range gets a new position."""
        self._log = ()

    def take(self, end: int) -> list[Any]:
        """Take the records below ``end`` from ``ahead``."""
        ahead = self.ahead
        if not ahead or ahead[-1].offset() < end:
            self.ahead = []
            return ahead
        count = bisect.bisect_left(ahead, end, key=lambda message: message.offset())
        self.ahead = ahead[count:]
        return ahead[:count]

    def add(self, records: list[Any], ended_at: int) -> bool:
        """Add fetched records, and return whether anything was learnt.

        :param ended_at: the partition's end, -1 if unknown.
        :raises errors.FailedException: a record lies before the position.
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


def _is_lost(report: Any) -> bool:
    return bool(report.error().name() in TRUNCATED)


def _is_of_the_group(error: Any) -> bool:
    return error is not None and bool(error.name() == OF_THE_GROUP)


def reader_of(context: TopologyContext, source: Source) -> Reader:
    """This process's reader for ``source``."""
    reader: Reader = context.resource(
        f"kafka-reader:{source.isolation}:{source.cluster.key}",
        lambda: Reader(source, context.topology_id),
    )
    return reader
