"""The driver's half of a Kafka spout: finds partitions, pins positions, plans batches, and notices a
log that was changed.

A partition's metadata is a range of offsets, half open::

    {"topic": "orders", "partition": 3, "id": "<topic id>", "start": 100, "end": 200, "epoch": 7, "start_epoch": 6}

``epoch`` is the leader epoch under which ``end`` was told, ``start_epoch`` the one of ``start``: the
same as ``epoch`` of the batch before. A number of a partition in the spout (its *index*) belongs to
one partition of one topic for ever.

Runs on: driver.

Invariants:
    - An index is bound, and its position pinned, by the first transaction that knows of the
      partition, also if the partition has nothing to read: a start that were found out again after
      a restart would be another one.
    - ``end`` is at most the last stable offset: the records of a range are decided for ever.
    - A position is compared with the log whenever a batch begins there: the topic's id, the first
      offset that is still there, the last stable offset. Executors compare the leader epochs.
"""

from __future__ import annotations

import datetime
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import Log, Offset, Partition, Topic, UnknownTopicError
from txtopo.topology import spout

LOGGER = logging.getLogger("txtopo.kafka")

Start = Literal["earliest", "latest"] | str | datetime.datetime | Mapping[str, Mapping[int, int]]
Lost = Literal["stop", "skip"]
GROUP = "group:"
"""Prefix of a start at the committed offsets of a consumer group."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a Kafka spout reads. Checked when it is made; connects to nothing."""

    cluster: client.Cluster
    topics: tuple[str, ...] | re.Pattern[str]
    records_per_batch: int | None
    records_per_transaction: int | None
    start: Start
    isolation: str
    refresh_s: float
    is_opaque: bool
    compacted: bool
    lost: Lost

    def log(self) -> Log:
        """The brokers' log."""
        return Log(self.cluster, self.isolation)


class LogChangedError(errors.InputError):
    """The log is not the one that was read: records of the position were lost, or are other
    records."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What happened to a log under a position; where it is possible to go on, and how many offsets
    are lost then, if these are known."""

    what: str
    position: Offset | None = None
    count: int | None = None


class Planner(spout.PartitionedSpoutCoordinator, spout.OpaquePartitionedSpoutCoordinator):
    """Plans a batch as ranges of offsets.

    ``is_ready`` asks the brokers for the ends of all partitions, in one call; the plan after it uses
    this answer. Where the answer left something to read, no further question is asked.
    """

    def __init__(self, source: Source, last_metadata: Callable[[], Mapping[int, Any]], clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._last_metadata, self._clock = source, last_metadata, clock
        self._log = source.log()
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._looked_at = -float("inf")
        self._indices: dict[Partition, int] = {}
        self._ends: dict[Partition, Offset] = {}
        self._beginnings: dict[Partition, Offset] = {}
        self._starts_chosen: dict[Partition, Offset] = {}
        self._intact: dict[Partition, tuple[int, int, int]] = {}
        """By partition a position, its leader epoch and a later epoch: nothing was truncated between
        the two."""
        self._gone: set[Partition] = set()
        self._planned = 0
        try:
            self._refresh()
        except errors.FailedException as error:
            cure = "Check servers and client: are the brokers running, and reachable from the driver?"
            raise errors.SetupError(f"{error}\n  {cure}") from error

    # -- what the engine asks ----------------------------------------------------------------------------------------------

    def num_partitions(self) -> int:
        with self._lock:
            return max(self._indices.values(), default=-1) + 1

    def is_ready(self) -> bool:
        with self._lock:
            last = self._last_metadata() or {}
            self._bind(last)
            if self._clock() - self._looked_at >= self._source.refresh_s:
                self._refresh()
            if self._has_more(last):
                return True
            self._ends = self._log.ends(self._readable())
            return self._has_more(last)

    def plan_batch(self, txid: int, last: Mapping[int, Any]) -> dict[int, Any]:
        """The ranges of ``txid``, from where ``last`` ended."""
        with self._lock:
            if txid <= self._planned:
                # A replay: what failed may be the log.
                self._refresh()
            self._planned = max(txid, self._planned)
            self._bind(last)
            if any(place not in self._ends for place in self._readable()) or not self._has_more(last):
                self._ends = self._log.ends(self._readable())
            positions, lost = self._positions(last)
            new = [place for place in self._readable() if self._indices[place] not in last]
            starts = self._starts(new, is_first=not last)
            positions.update(starts)
            counts = self._counts({place: max(0, self._ends[place].offset - start.offset) for place, start in positions.items()})
            return {
                self._indices[place]: self._range(place, start, counts[place], lost.get(place))
                for place, start in positions.items()
                if counts[place] or place in starts or place in lost
            }

    def lag(self, committed: Mapping[int, Any]) -> dict[str, int]:
        """By partition, how many offsets lie between the committed position and the last known end.
        """
        with self._lock:
            return {
                f"{metadata['topic']}/{metadata['partition']}": max(0, end.offset - metadata["end"])
                for metadata in committed.values()
                if (end := self._ends.get((metadata["topic"], metadata["partition"]))) is not None
            }

    # -- partitions ----------------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Look for topics and partitions; new ones get the indices after those there are."""
        source = self._source
        named = source.topics
        names = [name for name in self._log.topic_names() if named.fullmatch(name)] if isinstance(named, re.Pattern) else list(named)
        found = self._log.describe(names)
        if not isinstance(named, re.Pattern):
            for name in names:
                if name not in found and name not in self._topics:
                    cure = "Check the name; or make the topic first."
                    raise UnknownTopicError(f"{source.cluster.owner}: there is no topic {name!r} at {source.cluster.servers}\n  {cure}")
        for name in sorted(found.keys() - self._topics.keys()):
            self._check_not_compacted(name)
        self._topics, self._looked_at = found, self._clock()
        self._bind(self._last_metadata() or {})
        self._ends, self._beginnings = self._log.ends(self._readable()), self._log.beginnings(self._readable())

    def _check_not_compacted(self, topic: str) -> None:
        if self._source.is_opaque or self._source.compacted:
            return
        if "compact" in self._log.settings_of(topic).get("cleanup.policy", ""):
            raise errors.SetupError(
                f"{self._source.cluster.owner}: topic {topic} is compacted, so a replay may have fewer records than the first attempt\n"
                "  Use OpaqueKafkaTransactionalSpout with opaque stores; or give compacted=True, if every key is written once."
            )

    def _bind(self, last: Mapping[int, Any]) -> None:
        for index, metadata in last.items():
            self._indices[metadata["topic"], metadata["partition"]] = index
        begin = max(self._indices.values(), default=-1) + 1
        unbound = [
            (name, partition)
            for name, topic in sorted(self._topics.items())
            for partition in range(topic.partitions)
            if (name, partition) not in self._indices
        ]
        self._indices.update({place: begin + number for number, place in enumerate(unbound)})

    def _readable(self) -> list[Partition]:
        """The partitions of the topics that there are."""
        return [(name, partition) for name, topic in self._topics.items() for partition in range(topic.partitions)]

    # -- positions -----------------------------------------------------------------------------------------------------------

    def _has_more(self, last: Mapping[int, Any]) -> bool:
        """Whether a batch after ``last`` would move a position, or stop the run."""
        places = {(metadata["topic"], metadata["partition"]): metadata for metadata in last.values()}
        if any(place not in places for place in self._readable()):
            return True
        return any(self._change(place, metadata) or self._ends[place].offset > metadata["end"] for place, metadata in places.items() if place not in self._gone)

    def _positions(self, last: Mapping[int, Any]) -> tuple[dict[Partition, Offset], dict[Partition, dict[str, Any]]]:
        """Where each partition of ``last`` goes on; and what was lost there, if the spout may go
        on."""
        positions, lost = {}, {}
        for metadata in last.values():
            place = metadata["topic"], metadata["partition"]
            if place in self._gone:
                continue
            positions[place] = Offset(metadata["end"], metadata["epoch"])
            change = self._change(place, metadata)
            if change is not None:
                self._stop_or_skip(place, metadata, change)
                if change.position is None:
                    self._gone.add(place)
                    del positions[place]
                else:
                    positions[place] = change.position
                    lost[place] = {"from": metadata["end"], "to": change.position.offset, "records": change.count, "why": change.what}
        return positions, lost

    def _change(self, place: Partition, metadata: Mapping[str, Any]) -> _Change | None:
        """How the log of ``place`` has changed under its position; ``None`` if it has not."""
        topic, beginning, end = self._topics.get(place[0]), self._beginnings.get(place), self._ends.get(place)
        if topic is None:
            return _Change("the topic was deleted")
        if topic.id != metadata["id"]:
            return _Change("the topic was deleted and made again", None if beginning is None else Offset(beginning.offset, -1))
        if beginning is None or end is None:
            return _Change(f"the topic has {topic.partitions} partitions now")
        if beginning.offset > metadata["end"]:
            what = "records were deleted before they were read, by retention or by hand"
            return _Change(what, Offset(beginning.offset, -1), beginning.offset - metadata["end"])
        if (end.offset < metadata["end"] or end.epoch != metadata["epoch"]) and self._is_truncated(place, metadata, end.epoch):
            return _Change(f"the log was truncated, and ends at offset {end.offset}", Offset(min(end.offset, metadata["end"]), -1))
        return None

    def _is_truncated(self, place: Partition, metadata: Mapping[str, Any], epoch: int) -> bool:
        """Whether the log ends, or had once ended, before the position: a question to the leader,
        asked once for each position and epoch. An end that lags behind after a change of leaders is
        no truncation."""
        question = (metadata["end"], metadata["epoch"], epoch)
        if self._intact.get(place) == question:
            return False
        if self._log.is_truncated(place, Offset(metadata["end"], metadata["epoch"])):
            return True
        self._intact[place] = question
        return False

    def _stop_or_skip(self, place: Partition, metadata: Mapping[str, Any], change: _Change) -> None:
        source = self._source
        where = f"{source.cluster.owner}: topic {place[0]}, partition {place[1]}, read up to offset {metadata['end']}: {change.what}"
        if not source.is_opaque or source.lost == "stop":
            begins = "" if change.position is None else f"; the next offset to read there is {change.position.offset}"
            skip = "Go on at what is left with lost='skip'" if source.is_opaque else "Go on at what is left with an opaque spout, opaque stores and lost='skip'"
            raise LogChangedError(
                f"{where}{begins}\n  {skip}; or count everything anew: `txtopo state reset`, and `txtopo store clear` for each store."
            )
        goes_on = "no longer read" if change.position is None else f"going on at offset {change.position.offset}"
        LOGGER.warning("%s; %s; %s", where, goes_on, "nobody knows how much is lost" if change.count is None else f"{change.count} offsets are lost")

    def _range(self, place: Partition, start: Offset, count: int, lost: dict[str, Any] | None) -> dict[str, Any]:
        end = self._ends[place]
        planned = {
            "topic": place[0], "partition": place[1], "id": self._topics[place[0]].id, "start": start.offset, "end": start.offset + count,
            "epoch": end.epoch, "start_epoch": start.epoch,
        }  # fmt: skip
        return planned if lost is None else {**planned, "lost": lost}

    # -- where and how much --------------------------------------------------------------------------------------------------

    def _starts(self, places: list[Partition], is_first: bool) -> dict[Partition, Offset]:
        """The first positions of ``places``. What is found later is read from its beginning."""
        if not places:
            return {}
        beginnings = self._beginnings
        if not is_first or self._source.start == "earliest":
            return {place: Offset(beginnings[place].offset, -1) for place in places}
        if not self._starts_chosen.keys() >= set(places):
            chosen = self._chosen_starts(places, beginnings)
            for place, offset in chosen.items():
                if not beginnings[place].offset <= offset <= self._ends[place].offset:
                    raise errors.InputError(
                        f"{self._source.cluster.owner}: start is offset {offset} of topic {place[0]}, partition {place[1]}, which has the offsets "
                        f"{beginnings[place].offset} to {self._ends[place].offset}\n  Give an offset in between, or 'earliest' or 'latest'."
                    )
            # A replay begins where the first attempt began.
            self._starts_chosen = {place: Offset(offset, -1) for place, offset in chosen.items()}
        return {place: self._starts_chosen[place] for place in places}

    def _chosen_starts(self, places: list[Partition], beginnings: Mapping[Partition, Offset]) -> dict[Partition, int]:
        start = self._source.start
        ends = {place: self._ends[place].offset for place in places}
        if start == "latest":
            return ends
        if isinstance(start, datetime.datetime):
            since = self._log.at_time(places, int(start.timestamp() * 1000))
            return {place: since[place].offset if 0 <= since[place].offset <= ends[place] else ends[place] for place in places}
        if isinstance(start, str):
            committed = self._log.committed(start.removeprefix(GROUP), places)
            return {place: committed.get(place, beginnings[place].offset) for place in places}
        unknown = [(topic, partition) for topic, offsets in start.items() for partition in offsets if (topic, partition) not in ends]
        if unknown:
            topic, partition = unknown[0]
            raise errors.InputError(f"{self._source.cluster.owner}: start names topic {topic!r}, partition {partition}, which there is not\n  Mend start.")
        return {(topic, partition): start.get(topic, {}).get(partition, beginnings[topic, partition].offset) for topic, partition in places}

    def _counts(self, lags: Mapping[Partition, int]) -> dict[Partition, int]:
        """How many offsets of each partition are in the batch."""
        most = self._source.records_per_batch
        counts = {place: lag if most is None else min(lag, most) for place, lag in lags.items()}
        bound, total = self._source.records_per_transaction, sum(counts.values())
        if bound is None or total <= bound:
            return counts
        # By lag; what rounding leaves goes to the largest lags, so that a batch is never empty.
        shares = {place: count * bound // total for place, count in counts.items()}
        for place in sorted(counts, key=lambda place: shares[place] - counts[place])[: bound - sum(shares.values())]:
            shares[place] += 1
        return shares


def check(source: Source) -> None:
    """:class:`~txtopo.errors.ConfigError` for an impossible argument of a spout."""
    owner = source.cluster.owner

    def refuse(name: str, value: Any, allowed: str) -> errors.ConfigError:
        return errors.ConfigError(f"{owner}: {name} is {value!r}; it is {allowed}")

    if isinstance(source.topics, tuple) and (not source.topics or not all(isinstance(name, str) and name for name in source.topics)):
        raise refuse("topics", list(source.topics), "a topic's name, a list of names, or a pattern: re.compile('shop-.*')")
    for name, count in (("records_per_batch", source.records_per_batch), ("records_per_transaction", source.records_per_transaction)):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise refuse(name, count, "a whole number of at least 1, or None for no bound")
    if source.isolation not in ("read_committed", "read_uncommitted"):
        raise refuse("isolation", source.isolation, "'read_committed' or 'read_uncommitted'")
    if not isinstance(source.refresh_s, int | float) or not source.refresh_s > 0:
        raise refuse("refresh_s", source.refresh_s, "a number of seconds above 0")
    if source.lost not in ("stop", "skip"):
        raise refuse("lost", source.lost, "'stop' or 'skip'")
    _check_start(source.start, refuse)


def _check_start(start: Any, refuse: Callable[[str, Any, str], errors.ConfigError]) -> None:
    allowed = "'earliest', 'latest', 'group:<id>', a datetime with a time zone, or offsets: {'topic': {0: 17}}"
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise refuse("start", start, "ambiguous without a time zone: give one, for example datetime(…, tzinfo=UTC)")
    elif isinstance(start, Mapping):
        offsets: Iterable[Any] = start.values()
        if not all(isinstance(each, Mapping) for each in offsets):
            raise refuse("start", start, allowed)
        for topic, each in start.items():
            if not all(isinstance(number, int) and isinstance(offset, int) and number >= 0 and offset >= 0 for number, offset in each.items()):
                raise refuse(f"start[{topic!r}]", each, "a dict from partition to offset, both whole numbers of at least 0")
    elif start not in ("earliest", "latest") and not (isinstance(start, str) and start.startswith(GROUP) and len(start) > len(GROUP)):
        raise refuse("start", start, allowed)
