"""The executor's half of a Kafka spout: reads a range of offsets, all of it or with an error.

A range is over when a record at or beyond its end arrives, or the end of the partition does: offsets
have gaps, where aborted records and the markers of transactions are, so nothing is counted.

Runs on: executor.

Invariants:
    - Every record of a range is of the topic that was planned, and was written before the plan: its
      leader epoch is not above that of the plan, and the topic's id is asked again after the records
      were read.
    - Records that were fetched ahead are used by the next range only if it begins where they begin,
      under the same leader epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import CONSUMER, TRUNCATED, Log, Offset, assign, silence, translate
from txtopo.connectors.kafka.planning import LogChangedError, Source
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
        self._source, self._kafka = source, client.library()
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
        standing = standing or _Standing(self._consumer())
        try:
            standing.stand_at(place, metadata)
            while standing.offset < metadata["end"]:
                yield from self._some(standing, metadata)
            self._check_id(metadata)
        except BaseException:
            standing.consumer.close()
            raise
        # The last one in the order is the last one used.
        self._consumers[place] = standing

    def close(self) -> None:
        """Close all consumers."""
        while self._consumers:
            self._consumers.popitem()[1].consumer.close()

    def _some(self, standing: _Standing, metadata: Mapping[str, Any]) -> Iterator[list[Any]]:
        messages = standing.ahead or self._consumed(standing, metadata)
        standing.ahead = []
        end, epoch = metadata["end"], metadata["epoch"]
        last = messages[-1]
        if last.error() is None and last.offset() < end:
            inside = messages
            standing.offset = last.offset() + 1
        else:
            inside = [message for message in messages if message.error() is None and message.offset() < end]
            standing.ahead = messages[len(inside) :]
            first = standing.ahead[0]
            if first.error() is not None:
                standing.ahead = []
                self._check_end(first, metadata)
            standing.offset = end
        if inside:
            newest = inside[-1].leader_epoch()
            if newest is not None and 0 <= epoch < newest:
                raise self._changed(metadata, f"the record at offset {inside[-1].offset()} was written under leader epoch {newest}, after the plan")
            yield inside

    def _consumed(self, standing: _Standing, metadata: Mapping[str, Any]) -> list[Any]:
        """At least one message, the last of which may be the end of the partition."""
        deadline = time.monotonic() + _SILENCE_S
        while time.monotonic() < deadline:
            messages: list[Any] = standing.consumer.consume(_AT_ONCE, _POLL_S)
            for number, message in enumerate(messages):
                error = message.error()
                if error is not None:
                    if error.name() == "_PARTITION_EOF":
                        # What comes after an end was written since, and is read again.
                        return messages[: number + 1]
                    if error.retriable() and error.name() not in TRUNCATED:
                        messages = messages[:number]
                        break
                    raise self._refused(error, metadata)
            if messages:
                return messages
            # A deleted topic is silent.
            self._check_id(metadata)
        raise errors.FailedException(f"{self._where(metadata)}: no answer for {_SILENCE_S:g} s")

    def _check_end(self, end_of_partition: Any, metadata: Mapping[str, Any]) -> None:
        if end_of_partition.offset() < metadata["end"]:
            raise errors.FailedException(
                f"{self._where(metadata)}: the partition ends at offset {end_of_partition.offset()}, before the end of the batch, {metadata['end']}"
            )

    def _check_id(self, metadata: Mapping[str, Any]) -> None:
        topic = self.log.describe([metadata["topic"]]).get(metadata["topic"])
        if topic is None or topic.id != metadata["id"]:
            raise self._changed(metadata, "the topic was deleted" if topic is None else "the topic was deleted and made again")

    def _refused(self, error: Any, metadata: Mapping[str, Any]) -> Exception:
        if error.name() not in TRUNCATED:
            return translate(self._source.cluster, f"reading {self._where(metadata)}", error)
        place = metadata["topic"], metadata["partition"]
        beginning = self.log.beginnings([place])[place].offset
        if beginning > metadata["start"]:
            return self._changed(metadata, f"the records before offset {beginning} were deleted before they were read")
        return self._changed(metadata, f"the log was truncated ({error.str()})")

    def _changed(self, metadata: Mapping[str, Any], what: str) -> Exception:
        """The error that the log is another one. The batch of an opaque spout is planned anew, and
        the plan finds the change."""
        if self._source.is_opaque:
            return errors.FailedException(f"{self._where(metadata)}: {what}")
        return LogChangedError(
            f"{self._where(metadata)}: {what}\n"
            "  This batch cannot be read again as it was. Go on at what is left with an opaque spout, opaque stores and lost='skip'; or count everything"
            " anew: `txtopo state reset`, and `txtopo store clear` for each store."
        )

    def _where(self, metadata: Mapping[str, Any]) -> str:
        return f"{self._source.cluster.owner}: topic {metadata['topic']}, partition {metadata['partition']}, offsets {metadata['start']} to {metadata['end']}"

    def _consumer(self) -> Any:
        settings = {**CONSUMER, "group.id": "txtopo", "isolation.level": self._source.isolation}
        return self._kafka.Consumer(self._source.cluster.config(settings), logger=silence())


class _Standing:
    """A consumer, and where it stands: the next offset, and the records that were fetched from
    there on."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.ahead: list[Any] = []
        self.offset = -1
        self._place: tuple[str, int] | None = None
        self._epoch = -1

    def stand_at(self, place: tuple[str, int], metadata: Mapping[str, Any]) -> None:
        """Go to the start of a range, unless the consumer is there."""
        start, epoch = metadata["start"], metadata["epoch"]
        if (self._place, self.offset, self._epoch) != (place, start, epoch):
            self.ahead = []
            assign(self.consumer, place, Offset(start, metadata["start_epoch"]))
        self._place, self.offset, self._epoch = place, start, epoch


def reader_of(context: TopologyContext, source: Source) -> Reader:
    """The reader of this process for ``source``."""
    name = f"kafka-reader:{source.isolation}:{source.cluster.key}"
    reader: Reader = context.resource(name, lambda: Reader(source))
    return reader


__all__ = ["Log", "Reader", "reader_of"]
