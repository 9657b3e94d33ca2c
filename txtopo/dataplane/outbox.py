"""A slot's outbox: emitted rows wait for the shuffle, and leave as chunks.

Rows arrive here checked, frozen and routed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from txtopo.dataplane import column_runs, wire
from txtopo.dataplane.job import Limits
from txtopo.dataplane.outcome import Report
from txtopo.dataplane.route import Row, Send
from txtopo.dataplane.row_encoding import Runs
from txtopo.dataplane.spill import Handle, SpillBuffer
from txtopo.dataplane.wire import ChunkHeader, Frame


class OutLane:
    """Rows and RecordBatches from one sending task to one receiving task, in the order of emits,
    until the outbox packs them.

    Invariants: ``rows`` stays the same list, so that its ``append`` can be handed out. ``_begins``
    has pairs of an index in ``rows`` and the stream that the rows from there on belong to.
    """

    __slots__ = (
        "_begins",
        "_has_columns",
        "_only",
        "receiver",
        "rows",
        "source",
        "source_task",
        "task",
    )

    def __init__(
        self, receiver: str, task: int, source: str, source_task: int, only: str | None
    ) -> None:
        self.receiver = receiver
        self.task = task
        self.source = source
        self.source_task = source_task
        self.rows: list[Any] = []
        self._only = only
        self._begins: list[tuple[int, str]] = []
        self._has_columns = False

    def batch_sender(self, stream: str) -> Callable[[Any], None]:
        """A function that appends RecordBatches on ``stream``."""
        self._has_columns = True
        return self.sender(stream)

    def sender(self, stream: str) -> Send:
        """A function that appends rows on ``stream``."""
        if self._only is not None:
            assert stream == self._only
            return self.rows.append

        def send(row: Row) -> None:
            if not self._begins or self._begins[-1][1] != stream:
                self._begins.append((len(self.rows), stream))
            self.rows.append(row)

        return send

    def take(self, bound: int) -> Runs:
        """Take all rows out. Columns among them become streams with at most ``bound`` bytes."""
        begins = [(0, self._only)] if self._only is not None else self._begins
        ends = [*(begin for begin, _ in begins[1:]), len(self.rows)]
        runs = [
            (stream, self.rows[begin:end])
            for (begin, stream), end in zip(begins, ends, strict=True)
        ]
        self.rows.clear()
        self._begins.clear()
        return column_runs.packed(runs, bound) if self._has_columns else runs


class Outbox:
    """The rows and held bolts that a slot sends, in chunks per receiving slot.

    Invariants: about ``rows_max`` rows wait unpacked at most. ``rows_max`` follows the row size, so
    that the waiting rows are about ``PACK_BYTES``. Waiting rows are counted after every ``_MANY``
    rows from a task, and a sender with heavy rows packs earlier. A chunk is closed at
    ``PACK_BYTES``. Chunks spill beyond ``spill_bytes``. Every receiving slot gets at least one
    chunk, even an empty one, because silence would look like loss. The last chunk has the report.
    """

    PACK_BYTES = 4 * 1024 * 1024
    _ROWS_MIN, _ROWS_START, _ROWS_MAX = 16, 4096, 16_384
    _ROWS_PER_LANE = 64

    def __init__(
        self,
        job: str,
        level: int,
        slot: int,
        task_attempt: int,
        receiving_slots: int,
        run: str,
        limits: Limits,
    ) -> None:
        self._identity = (job, level, slot, task_attempt)
        self._receiving_slots = receiving_slots
        self._run, self._blob_bytes_max = run, limits.blob_bytes_max
        self._buffer = SpillBuffer(limits.spill_bytes)
        self._chunks: list[list[Handle]] = [[] for _ in range(receiving_slots)]
        self._frames: list[list[Frame]] = [[] for _ in range(receiving_slots)]
        self._frame_bytes = [0] * receiving_slots
        self._lanes: list[OutLane] = []
        self._waiting: list[list[Row]] = []
        self.rows_max = self._ROWS_START

    def lane(
        self, receiver: str, task: int, source: str, source_task: int, only: str | None = None
    ) -> OutLane:
        """Add a lane, whose rows go to the slot with ``task``. A lane for ``only`` one stream keeps
        no account of streams, and is faster."""
        lane = OutLane(receiver, task, source, source_task, only)
        self._lanes.append(lane)
        self._waiting.append(lane.rows)
        return lane

    def add(self, frame: Frame) -> None:
        """Send ``frame`` to its task's slot."""
        slot = frame.task % self._receiving_slots
        if (
            self._frames[slot]
            and self._frame_bytes[slot] + len(frame.payload) > self._blob_bytes_max
        ):
            self._close_chunk(slot)
        self._frames[slot].append(frame)
        self._frame_bytes[slot] += len(frame.payload)
        if self._frame_bytes[slot] >= self.PACK_BYTES:
            self._close_chunk(slot)

    def pack_if_many(self) -> None:
        if sum(map(len, self._waiting)) >= self.rows_max:
            self.pack()

    def pack(self) -> None:
        """Turn the waiting rows into frames, and full groups of frames into chunks."""
        size = 0
        waiting = sum(map(len, self._waiting))
        for lane in self._lanes:
            if lane.rows:
                for payload in wire.dump_runs(
                    lane.take(self._blob_bytes_max),
                    self._run,
                    self._blob_bytes_max,
                    f"component {lane.source!r}",
                ):
                    size += len(payload)
                    self.add(
                        Frame(
                            "rows", lane.receiver, lane.task, lane.source, lane.source_task, payload
                        )
                    )
        if waiting:
            fitting = int(self.PACK_BYTES / max(1.0, size / waiting))
            # More rows would have left the processor's caches when they are packed. But each lane
            # should have enough rows to be worth a pack.
            most = max(self._ROWS_MAX, self._ROWS_PER_LANE * len(self._lanes))
            self.rows_max = min(most, max(self._ROWS_MIN, fitting))

    def _close_chunk(self, slot: int) -> None:
        header = ChunkHeader(*self._identity, number=len(self._chunks[slot]))
        self._chunks[slot].append(self._buffer.append(wire.pack_chunk(header, self._frames[slot])))
        self._frames[slot], self._frame_bytes[slot] = [], 0

    def chunks(self, report: Report) -> Iterator[tuple[int, bytes]]:
        """Yield every (receiving slot, chunk), or only the report if it has a failure. The outbox
        is empty afterwards."""
        is_of_use = report.failure is None
        if is_of_use:
            self.pack()
        for slot in range(self._receiving_slots):
            handles, frames = (self._chunks[slot], self._frames[slot]) if is_of_use else ([], [])
            for handle in handles:
                yield slot, self._buffer.read(handle)
            last = wire.pack_chunk(
                ChunkHeader(
                    *self._identity, number=len(handles), total=len(handles) + 1, report=report
                ),
                frames,
            )
            yield slot, last
        self.close()

    def frames(self) -> Iterator[list[Frame]]:
        """Yield all frames in groups of bounded size, for a last level. The outbox is empty
        afterwards."""
        self.pack()
        for slot in range(self._receiving_slots):
            for handle in self._chunks[slot]:
                yield wire.unpack_chunk(self._buffer.read(handle))[1]
            if self._frames[slot]:
                yield self._frames[slot]
        self.close()

    def close(self) -> None:
        """Give the disk space back. No chunk can be read any more."""
        self._buffer.close()
