"""The driver's half of a Kafka spout: finds partitions, pins positions, plans batches, and notices
a log that was changed.

A partition's metadata is a half-open range of offsets::

    {"topic": "orders", "partition": 3, "id": "<topic id>",
     "start": 100, "end": 200, "epoch": 7, "start_epoch": 6}

``epoch`` is the leader epoch when ``end`` was read, ``start_epoch`` the leader epoch for ``start``:
the ``epoch`` in the batch before. A partition's number in the spout (its *index*) belongs to one
partition in one topic for ever.

Runs on: driver.

Invariants:
    - The first transaction that knows a partition binds the index and pins the position, even if
      the partition has nothing to read. If a restart looked for the start again, it could find
      another start. An opaque spout reads nothing of a partition in that transaction.
    - ``end`` is at most the last stable offset: a range's records are decided for ever.
    - A position is compared with the log whenever a batch begins there: the topic's id, the first
      offset in the log, the last stable offset. Executors compare the leader epochs.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import source as sources
from txtopo.connectors.kafka.auxiliary import AuxiliaryTopic
from txtopo.connectors.kafka.log import (
    Log,
    Offset,
    Partition,
    Topic,
    UnknownTopicError,
    partitions_of,
)
from txtopo.connectors.kafka.progress import Progress
from txtopo.connectors.kafka.source import GROUP, LogChangedError, Source
from txtopo.topology import spout

LOGGER = logging.getLogger("txtopo.kafka")

_LOOKS = 5
"""How often to look at topics that change meanwhile."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A log's change under a position: the event, the position where reading can go on, and how
    many offsets are lost then. The last two are ``None`` if unknown."""

    event: str
    position: Offset | None = None
    count: int | None = None


class Planner(spout.PartitionedSpoutCoordinator, spout.OpaquePartitionedSpoutCoordinator):
    """Plans a batch as ranges of offsets.

    ``is_ready`` asks the brokers for all partitions' ends in one call. The next plan uses the
    answer. While the answer leaves something to read, no further question is asked.
    """

    def __init__(
        self,
        source: Source,
        last_metadata: Callable[[], Mapping[int, Any]],
        clock: Callable[[], float] = time.monotonic,
        topology_id: str = "",
    ) -> None:
        self._source, self._last_metadata, self._clock = source, last_metadata, clock
        self._reset = sources.reset_command(topology_id)
        self._log = source.log()
        self._progress = (
            None if source.client_group is None else Progress(self._log, source.client_group, clock)
        )
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._looked_at = -float("inf")
        self._indices: dict[Partition, int] = {}
        self._told = 0
        """How many indices the engine knows."""
        self._ends: dict[Partition, Offset] = {}
        self._beginnings: dict[Partition, Offset] = {}
        self._starts_chosen: dict[Partition, Offset] = {}
        self._intact: dict[Partition, tuple[int, int, int]] = {}
        """By partition a position, its leader epoch and a later epoch, if nothing was truncated
        between the two epochs."""
        self._gone: set[Partition] = set()
        """Partitions that have gone, and that the user allows to skip, until they are back."""
        self._planned = 0
        try:
            self._refresh(self._bind(last_metadata() or {}))
        except errors.FailedException as error:
            cure = (
                "Check servers and client: are the brokers running, and reachable from the driver?"
            )
            raise errors.SetupError(f"{error}\n  {cure}") from error
        self._at_begin = frozenset(self._readable())

    # -- what the engine asks ---------------------------------------------------------------------

    def num_partitions(self) -> int:
        with self._lock:
            self._told = max(self._indices.values(), default=-1) + 1
            return self._told

    def is_ready(self) -> bool:
        # Read before the lock: the simulator lets a thread wait at this reading, and a waiting
        # thread must hold no lock.
        metadata = self._last_metadata() or {}
        with self._lock:
            last = self._bind(metadata)
            if self._clock() - self._looked_at >= self._source.refresh_s:
                self._refresh(last)
            if self._has_more(last):
                return True
            self._look_at_ends(last)
            return self._has_more(last)

    def plan_batch(self, txid: int, last: Mapping[int, Any]) -> dict[int, Any]:
        """The ranges for transaction ``txid``, from where ``last`` ended."""
        with self._lock:
            last = self._bind(last)
            if txid <= self._planned:
                # A replay: the log may be the reason.
                self._refresh(last)
            elif not self._has_more(last):
                self._look_at_ends(last)
            self._planned = max(txid, self._planned)
            positions, lost = self._positions(last)
            known = set(map(_place, last.values()))
            # A replay may have found more partitions than the engine was told.
            new = [
                place
                for place in self._readable()
                if place not in known and self._indices[place] < self._told
            ]
            starts = self._starts(new, is_first=not last)
            positions.update(starts)
            waiting = {
                place: max(0, self._ends[place].offset - start.offset)
                for place, start in positions.items()
            }
            if self._source.is_opaque or (not last and self._source.start != "earliest"):
                # Nothing is read before the positions are recorded: if a restart looked for the
                # start again, it could find another start, and retention would lose records
                # without a word.
                waiting.update(dict.fromkeys(starts, 0))
            counts = self._counts(waiting, txid)
            return {
                self._indices[place]: self._range(
                    place, start, counts[place], last.get(self._indices[place]), lost.get(place)
                )
                for place, start in positions.items()
                if counts[place] or place in starts or place in lost
            }

    def lag(self, committed: Mapping[int, Any]) -> dict[str, int]:
        """By partition, how many offsets lie between the committed position and the last known end.
        Also publishes the committed positions, if the user gave ``client_group``."""
        with self._lock:
            if self._progress is not None:
                self._progress.publish({_place(each): each["end"] for each in committed.values()})
            return {
                f"{metadata['topic']}/{metadata['partition']}": max(0, end.offset - metadata["end"])
                for metadata in committed.values()
                if (end := self._ends.get(_place(metadata))) is not None
            }

    def lost(self, committed: Mapping[int, Any]) -> dict[str, int | None]:
        """How many offsets were passed over since the beginning, for each partition with a loss.
        ``None`` if the number cannot be known."""
        losing = [metadata for metadata in committed.values() if "lost_offsets" in metadata]
        return {
            f"{metadata['topic']}/{metadata['partition']}": metadata["lost_offsets"]
            for metadata in losing
        }

    def close(self) -> None:
        """Publish the last positions, and give connections back."""
        with self._lock:
            if self._progress is not None:
                self._progress.close()
            self._log.close()

    # -- partitions -------------------------------------------------------------------------------

    def _bind(self, last: Mapping[int, Any]) -> dict[int, Any]:
        """Bind each index in ``last``, and return the metadata for topics that the user names. A
        topic that is no longer named keeps its position."""
        for index, metadata in last.items():
            if "topic" not in metadata:
                raise errors.StateMismatchError(
                    f"this spout's stored positions come from another source than Kafka topics: {metadata!r}\n"
                    f"  Run the topology with its former spout, or begin anew: {self._reset}."
                )
            self._indices[_place(metadata)] = index
        return {
            index: metadata for index, metadata in last.items() if self._is_named(metadata["topic"])
        }

    def _is_named(self, topic: str) -> bool:
        named = self._source.topics
        return (
            named.fullmatch(topic) is not None if isinstance(named, re.Pattern) else topic in named
        )

    def _refresh(self, last: Mapping[int, Any]) -> None:
        """Ask again for topics, partitions, beginnings and ends. New partitions get the next
        indices. The topics' ids are compared before and after, so that all answers are about the
        same topics."""
        before = self._named_topics(last)
        for _ in range(_LOOKS):
            topics = before
            try:
                ends = self._log.ends(partitions_of(topics))
                beginnings = self._log.beginnings(partitions_of(topics))
            except UnknownTopicError:
                before = self._named_topics(last)
                continue
            before = self._log.describe_surely(
                {name: topic.partitions for name, topic in topics.items()}
            )
            if before == topics:
                break
        else:
            raise errors.FailedException(
                f"{self._source.cluster.owner}: the topics were changed again and again while the spout looked at them"
            )
        self._check_not_compacted(topics)
        self._topics = topics
        self._ends = ends
        self._beginnings = beginnings
        self._looked_at = self._clock()
        self._gone -= ends.keys()
        begin = max(self._indices.values(), default=-1) + 1
        unbound = [place for place in sorted(partitions_of(topics)) if place not in self._indices]
        self._indices.update({place: begin + number for number, place in enumerate(unbound)})

    def _look_at_ends(self, last: Mapping[int, Any]) -> None:
        """Ask for the ends. If a log may have changed, ask for everything."""
        try:
            self._ends = self._log.ends(self._readable())
        except UnknownTopicError:
            self._refresh(last)
        else:
            if any(self._is_doubtful(metadata) for metadata in last.values()):
                self._refresh(last)

    def _is_doubtful(self, metadata: Mapping[str, Any]) -> bool:
        place, position, epoch = _place(metadata), metadata["end"], metadata["epoch"]
        end = self._ends.get(place)
        if end is None:
            return place not in self._gone
        is_as_before = end.offset >= position and end.epoch == epoch
        return not is_as_before and self._intact.get(place) != (position, epoch, end.epoch)

    def _named_topics(self, last: Mapping[int, Any]) -> dict[str, Topic]:
        """The topics that the user names, including all topics in ``last``."""
        source, known = self._source, {metadata["topic"] for metadata in last.values()}
        listed = (
            [name for name in self._log.topic_names() if self._is_named(name)]
            if isinstance(source.topics, re.Pattern)
            else source.topics
        )
        if isinstance(source.topics, re.Pattern):
            # A sink's auxiliary topic may have any name, and is compacted.
            doubtful = _compacted(self._log, {*listed} - known)
            listed = [
                name
                for name in listed
                if name not in doubtful or not AuxiliaryTopic(self._log, name).may_be_ours()
            ]
        gone = {topic for topic, _ in self._gone}
        partitions = dict.fromkeys({*listed, *known} - gone, 0)
        for place in set(map(_place, last.values())) - self._gone:
            if place[0] in partitions:
                partitions[place[0]] = max(partitions[place[0]], place[1] + 1)
        topics = self._log.describe_surely(partitions)
        topics.update(self._log.describe(gone & {*listed, *known}))
        for name in listed:
            if (
                name not in topics
                and name not in known
                and not isinstance(source.topics, re.Pattern)
            ):
                raise UnknownTopicError(
                    f"{source.cluster.owner}: there is no topic {name!r} at {source.cluster.servers}\n  Check the name, or make the topic first."
                )
        return topics

    def _check_not_compacted(self, topics: Iterable[str]) -> None:
        if self._source.is_opaque or self._source.compacted:
            return
        for topic in _compacted(self._log, topics):
            raise errors.SetupError(
                f"{self._source.cluster.owner}: topic {topic} is compacted, so a replay may have fewer records than the first attempt\n"
                "  Use OpaqueKafkaTransactionalSpout with opaque stores, or give compacted=True, if every key is written once."
            )

    def _readable(self) -> list[Partition]:
        return partitions_of(self._topics)

    # -- positions --------------------------------------------------------------------------------

    def _has_more(self, last: Mapping[int, Any]) -> bool:
        """Whether a batch after ``last`` would move a position, or stop the run."""
        places = {_place(metadata): metadata for metadata in last.values()}
        return not places.keys() >= set(self._readable()) or any(
            self._change(place, metadata) or self._ends[place].offset > metadata["end"]
            for place, metadata in places.items()
            if place not in self._gone
        )

    def _positions(
        self, last: Mapping[int, Any]
    ) -> tuple[dict[Partition, Offset], dict[Partition, dict[str, Any]]]:
        """Where each partition in ``last`` goes on, and the loss there, if records were lost and
        the spout may go on."""
        positions, lost = {}, {}
        for metadata in last.values():
            place = _place(metadata)
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
                    lost[place] = {
                        "from": metadata["end"],
                        "to": change.position.offset,
                        "offsets": change.count,
                        "why": change.event,
                    }
        return positions, lost

    def _change(self, place: Partition, metadata: Mapping[str, Any]) -> _Change | None:
        """How the log at ``place`` has changed under its position, ``None`` if unchanged."""
        topic = self._topics.get(place[0])
        beginning = self._beginnings.get(place)
        end = self._ends.get(place)
        if topic is None:
            return _Change("the topic was deleted")
        if topic.id != metadata["id"]:
            return _Change(
                "the topic was deleted and made again",
                None if beginning is None else Offset(beginning.offset, -1),
            )
        if beginning is None or end is None:
            return _Change(f"the topic has fewer partitions now: {topic.partitions}")
        if beginning.offset > metadata["end"]:
            deleted = "records were deleted before they were read, by retention or by hand"
            return _Change(
                deleted, Offset(beginning.offset, -1), beginning.offset - metadata["end"]
            )
        if (end.offset < metadata["end"] or end.epoch != metadata["epoch"]) and self._is_truncated(
            place, metadata, end.epoch
        ):
            cut = self._log.where_cut(place, Offset(metadata["end"], metadata["epoch"]))
            goes_on = min(end.offset, metadata["end"]) if cut is None else cut
            return _Change(
                f"the log was truncated, and ends at offset {end.offset}", Offset(goes_on, -1)
            )
        return None

    def _is_truncated(self, place: Partition, metadata: Mapping[str, Any], epoch: int) -> bool:
        """Whether the log ends, or had once ended, before the position. Asks the leader once for
        each position and epoch. An end that lags behind after a leader change is no truncation."""
        question = (metadata["end"], metadata["epoch"], epoch)
        if self._intact.get(place) == question:
            return False
        if self._log.is_truncated(place, Offset(metadata["end"], metadata["epoch"])):
            return True
        self._intact[place] = question
        return False

    def _stop_or_skip(self, place: Partition, metadata: Mapping[str, Any], change: _Change) -> None:
        source = self._source
        changed = f"{source.cluster.owner}: topic {place[0]}, partition {place[1]}, read up to offset {metadata['end']}: {change.event}"
        if not source.is_opaque or source.lost == "stop":
            begins = (
                ""
                if change.position is None
                else f", and the next offset to read there is {change.position.offset}"
            )
            skip = f"To go on with the records that are left, {'give ' if source.is_opaque else 'use an opaque spout, opaque stores and '}lost='skip'"
            leave = ", or leave the topic out of topics" if change.position is None else ""
            raise LogChangedError(
                f"{changed}{begins}\n  {skip}{leave}. Or count everything anew: {self._reset}."
            )
        goes_on = (
            "no longer read"
            if change.position is None
            else f"going on at offset {change.position.offset}"
        )
        loss = (
            "how much is lost is not known"
            if change.count is None
            else f"{change.count} offsets are lost"
        )
        LOGGER.warning("%s; %s; %s", changed, goes_on, loss)

    def _range(
        self,
        place: Partition,
        start: Offset,
        count: int,
        before: Mapping[str, Any] | None,
        lost: dict[str, Any] | None,
    ) -> dict[str, Any]:
        end = self._ends[place]
        planned = {
            "topic": place[0],
            "partition": place[1],
            "id": self._topics[place[0]].id,
            "start": start.offset,
            "end": start.offset + count,
            "epoch": end.epoch,
            "start_epoch": start.epoch,
        }
        total = (
            {}
            if before is None or "lost_offsets" not in before
            else {"lost_offsets": before["lost_offsets"]}
        )
        if lost is not None:
            planned["lost"] = lost
            earlier = total.get("lost_offsets", 0)
            total["lost_offsets"] = (
                None if earlier is None or lost["offsets"] is None else earlier + lost["offsets"]
            )
        return {**planned, **total}

    # -- where and how much -----------------------------------------------------------------------

    def _starts(self, places: list[Partition], is_first: bool) -> dict[Partition, Offset]:
        """The first positions for ``places``. Partitions found later are read from their
        beginning."""
        if is_first and self._source.start != "earliest":
            new = [
                place
                for place in places
                if place in self._at_begin and place not in self._starts_chosen
            ]
            # A replay begins where the first attempt began.
            self._starts_chosen.update(
                {place: Offset(offset, -1) for place, offset in self._chosen_starts(new).items()}
            )
            chosen = self._starts_chosen
        else:
            chosen = {}
        return {
            place: chosen.get(place, Offset(self._beginnings[place].offset, -1)) for place in places
        }

    def _chosen_starts(self, places: list[Partition]) -> dict[Partition, int]:
        if not places:
            return {}
        start, owner = self._source.start, self._source.cluster.owner
        ends = {place: self._ends[place].offset for place in places}
        beginnings = {place: self._beginnings[place].offset for place in places}
        if start == "latest":
            return ends
        if isinstance(start, datetime.datetime):
            since = self._log.at_time(places, math.ceil(start.timestamp() * 1000))
            return {
                place: since[place].offset
                if 0 <= since[place].offset <= ends[place]
                else ends[place]
                for place in places
            }
        if isinstance(start, str):
            group = start.removeprefix(GROUP)
            offsets = self._log.committed(group, places)
            if not offsets:
                raise errors.InputError(
                    f"{owner}: start is {start!r}, and consumer group {group!r} has committed no offset in these topics\n"
                    "  Check the group, or give 'earliest' or 'latest'."
                )
        else:
            offsets = {
                (topic, partition): offset
                for topic, each in start.items()
                for partition, offset in each.items()
            }
            for topic, partition in offsets:
                if (topic, partition) not in ends:
                    raise errors.InputError(
                        f"{owner}: start names topic {topic!r}, partition {partition}, which does not exist\n  Mend start."
                    )
        chosen = {place: offsets.get(place, beginnings[place]) for place in places}
        for place, offset in chosen.items():
            if not beginnings[place] <= offset <= ends[place]:
                raise errors.InputError(
                    f"{owner}: start is offset {offset} in topic {place[0]}, partition {place[1]}, which has the offsets {beginnings[place]} to "
                    f"{ends[place]}\n  Give an offset in between, or 'earliest' or 'latest'."
                )
        return chosen

    def _counts(self, lags: Mapping[Partition, int], txid: int) -> dict[Partition, int]:
        """How many offsets each partition has in the batch."""
        most = self._source.records_per_batch
        counts = {place: lag if most is None else min(lag, most) for place, lag in lags.items()}
        bound, total = self._source.records_per_transaction, sum(counts.values())
        if bound is None or total <= bound:
            return counts
        # Shares follow the lags. Every waiting partition gets at least one offset, or small lags
        # would wait for large lags. If even one offset each is too much, the partitions take turns.
        waiting = [place for place, count in counts.items() if count]
        if len(waiting) >= bound:
            first = txid * bound % len(waiting)
            chosen = set((waiting + waiting)[first : first + bound])
            return {place: int(place in chosen) for place in counts}
        spare, rest = bound - len(waiting), total - len(waiting)
        shares = {
            place: min(count, 1) + max(0, count - 1) * spare // rest
            for place, count in counts.items()
        }
        # The rest from rounding goes to the largest lags.
        for place in sorted(counts, key=lambda place: shares[place] - counts[place])[
            : bound - sum(shares.values())
        ]:
            shares[place] += 1
        return shares


def _compacted(log: Log, topics: Iterable[str]) -> list[str]:
    """The compacted topics in ``topics``, sorted."""
    settings = log.settings_of(topics)
    return [topic for topic in sorted(settings) if "compact" in settings[topic]["cleanup.policy"]]


def _place(metadata: Mapping[str, Any]) -> Partition:
    return metadata["topic"], metadata["partition"]
