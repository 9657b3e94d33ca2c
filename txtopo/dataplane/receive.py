"""A slot's input: merged, complete, and from one computation.

Spark delivers a shuffle's chunks in any order and, after a loss, may mix chunks from two
computations of a stage. ``receive`` puts the chunks in order. If a chunk is missing, doubled or
from another computation, the attempt fails (R33). Storm counts coordinated tuples for the same
purpose.

An input may break off: the driver was killed, the task was cancelled, or the input could not be
read to its end. Then PySpark gives the worker a shorter input, and no error. So every input tells
its size: chunks bring a total, a pinned result ends with its report, and input from the driver is
one record.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

from txtopo.dataplane import wire
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import Failure, Tally
from txtopo.dataplane.spill import Handle, SpillBuffer
from txtopo.dataplane.wire import ChunkHeader, Frame

_READ_BYTES = 64 * 1024

LaneKey = tuple[str, int]
"""(source component, source task)."""


Stored = tuple[Frame, Handle]
"""A frame without its payload, and the payload's handle."""


class MixedEmissionsError(Exception):
    """The attempt's data is incomplete or from several computations. The attempt cannot be used."""


@dataclass(slots=True)
class Received:
    """One slot's input on one level. Payloads are handles into ``buffer``."""

    buffer: SpillBuffer
    lanes: dict[tuple[str, int], dict[LaneKey, list[Handle]]] = field(default_factory=dict)
    held: dict[tuple[str, int], list[Handle]] = field(default_factory=dict)
    before: Tally = field(default_factory=Tally)
    """The counts and metadata from all earlier levels."""
    failure: Failure | None = None
    """An earlier level's failure."""
    lineage: dict[tuple[int, int], int] = field(default_factory=dict)

    def store(self, frames: list[Frame]) -> list[Stored]:
        """Keep the payloads, in memory or on disk, until their place in the order is known."""
        return [(Frame(*frame[:-1], b""), self.buffer.append(frame.payload)) for frame in frames]

    def add(self, stored: Stored) -> None:
        frame, handle = stored
        address = (frame.receiver, frame.task)
        if frame.kind == "rows":
            self.lanes.setdefault(address, {}).setdefault(
                (frame.source, frame.source_task), []
            ).append(handle)
        else:
            self.held.setdefault(address, []).append(handle)

    def held_file(self, component: str, task: int) -> IO[bytes] | None:
        handles = self.held.get((component, task))
        return (
            None
            if handles is None
            else io.BufferedReader(wire.PieceReader(map(self.buffer.read, handles)), _READ_BYTES)
        )

    def frames_not_for(self, receivers: frozenset[str]) -> Iterator[Frame]:
        """Frames for components on other levels, to be sent onward. Each lane stays in order."""
        for (receiver, task), lanes in self.lanes.items():
            if receiver not in receivers:
                for (source, source_task), handles in lanes.items():
                    for handle in handles:
                        yield Frame(
                            "rows", receiver, task, source, source_task, self.buffer.read(handle)
                        )
        for (receiver, task), handles in self.held.items():
            if receiver not in receivers:
                for handle in handles:
                    yield Frame("held", receiver, task, "", -1, self.buffer.read(handle))


@dataclass(slots=True)
class _Sender:
    """One slot of the level before, as seen by its chunks so far."""

    headers: list[ChunkHeader] = field(default_factory=list)
    early: dict[int, list[Stored]] = field(default_factory=dict)
    next_number: int = 0

    def take(self, header: ChunkHeader, frames: list[Stored]) -> list[Stored]:
        """Note a chunk. Returns the frames that are now in order."""
        self.headers.append(header)
        self.early[header.number] = frames
        ready: list[Stored] = []
        while self.next_number in self.early:
            ready += self.early.pop(self.next_number)
            self.next_number += 1
        return ready

    def check_complete(self, where: str) -> None:
        if len({header.task_attempt for header in self.headers}) > 1:
            raise MixedEmissionsError(f"{where} was computed more than once")
        totals = [header.total for header in self.headers if header.total]
        numbers = sorted(header.number for header in self.headers)
        if len(totals) != 1 or numbers != list(range(totals[0])):
            raise MixedEmissionsError(
                f"{where} sent chunks {numbers} of {totals[0] if totals else 'an unknown number'}"
            )


def receive(
    job: Job,
    level: int,
    sending_slots: int,
    expected_task_attempt: int | None,
    incoming: Iterator[bytes],
    buffer: SpillBuffer,
) -> Received:
    """Drain and check ``incoming``. ``sending_slots`` is 0 for a first level, which takes seeds or
    pinned results instead of chunks."""
    received = Received(buffer)
    senders: dict[int, _Sender] = {}
    name = job.name
    reports = seeds = 0
    for data in incoming:
        tag = bytes(data[:1])
        if tag == wire.CHUNK:
            header, frames = wire.unpack_chunk(data)
            if header.job != name or header.level != level - 1:
                raise MixedEmissionsError(
                    f"{name}, level {level}: a chunk of {header.job}, level {header.level}, arrived"
                )
            ready = senders.setdefault(header.slot, _Sender()).take(header, received.store(frames))
        elif tag == wire.REPORT:
            reports += 1
            ready = []
            task_attempt = wire.unpack_report(data).task_attempt
            if task_attempt != expected_task_attempt:
                raise MixedEmissionsError(
                    f"{name}: a pinned result was made by task attempt {task_attempt}, not by {expected_task_attempt}"
                )
        else:
            seeds += 1
            ready = received.store(wire.unpack_frames(data)) if data else []
        for stored in ready:
            received.add(stored)
    if expected_task_attempt is not None and reports != 1:
        raise MixedEmissionsError(f"{name}: {reports} reports with a pinned result, not 1")
    if expected_task_attempt is None and not sending_slots and not senders and seeds != 1:
        raise MixedEmissionsError(f"{name}: {seeds} records came from the driver, not 1")
    if set(senders) != set(range(sending_slots)):
        raise MixedEmissionsError(
            f"{name}: level {level - 1} has {sending_slots} slots, but chunks came from {sorted(senders)}"
        )
    for slot in range(sending_slots):
        senders[slot].check_complete(f"{name}: slot {slot} of level {level - 1}")
    _merge(received, [header for slot in range(sending_slots) for header in senders[slot].headers])
    return received


def _merge(received: Received, headers: list[ChunkHeader]) -> None:
    """Unite the senders' lineages. If two disagree, a slot was computed twice."""
    reports = [(header, header.report) for header in headers if header.report is not None]
    for header, report in reports:
        merge_lineage(received.lineage, report.lineage)
        merge_lineage(received.lineage, {(header.level, header.slot): header.task_attempt})
        received.before.add(report.own)
        received.failure = received.failure or report.failure
    if reports:
        received.before.add(reports[0][1].before)


def merge_lineage(into: dict[tuple[int, int], int], lineage: Mapping[tuple[int, int], int]) -> None:
    """Unite two lineages. :class:`MixedEmissionsError` if they name different computations of one
    slot."""
    for place, task_attempt in lineage.items():
        if into.setdefault(place, task_attempt) != task_attempt:
            raise MixedEmissionsError(
                f"level {place[0]}, slot {place[1]} was computed twice: as task attempts {into[place]} and {task_attempt}"
            )
