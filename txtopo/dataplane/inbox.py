"""A task's inbox: its lanes in order, executed as early as the order allows.

A task takes its tuples in the order of source component, source task and emit (R17), whether they
come through a shuffle or from a fused neighbour. Lanes from the shuffle are complete. A fused
neighbour's lane is *live*: while the lane is the first open lane, an emit calls the bolt directly.
Until then the lane's rows wait.

Invariants: every lane before ``_head`` is executed completely, and no lane after ``_head`` at all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from txtopo.dataplane import column_runs, wire
from txtopo.dataplane.receive import LaneKey
from txtopo.dataplane.route import Row, Send
from txtopo.dataplane.row_encoding import Runs
from txtopo.dataplane.spill import Handle, SpillBuffer
from txtopo.topology.stream import TupleSource

_WAITING_ROWS_MAX = 4096


class Lane:
    """Rows from one sending task. ``is_first``: every earlier lane is executed, so a neighbour's
    emit may be executed at once."""

    __slots__ = ("closed", "handles", "has_columns", "is_first", "waiting", "waiting_rows")

    def __init__(self, handles: list[Handle], live: bool) -> None:
        self.handles, self.closed, self.is_first = handles, not live, False
        self.waiting: Runs = []
        self.waiting_rows = 0
        self.has_columns = False


class Bolt(Protocol):
    """The bolt task behind an inbox."""

    def execute_all(self, rows: Iterable[Row], source: TupleSource) -> None:
        """Execute rows that arrived."""

    def execute_columns(self, batch: Any, source: TupleSource) -> None:
        """Execute the rows in a RecordBatch."""

    def sender(self, source: TupleSource, lane: Lane, wait: Send) -> Send:
        """A function that executes a fused neighbour's rows while ``lane`` is the first. Otherwise
        the rows ``wait``."""


class Inbox:
    """``order`` ranks source components. ``source`` names a lane's tuples per stream. ``bolt``
    takes the rows."""

    def __init__(
        self,
        arrived: Mapping[LaneKey, list[Handle]],
        live: set[LaneKey],
        order: Mapping[str, int],
        buffer: SpillBuffer,
        source: Callable[[LaneKey, str], TupleSource],
        bolt: Bolt,
        run: str,
    ) -> None:
        keys = sorted({*arrived, *live}, key=lambda key: (order[key[0]], key[1]))
        self._lanes = {key: Lane(list(arrived.get(key, ())), key in live) for key in keys}
        self._keys = keys
        self._head = 0
        self._buffer, self._source, self._bolt, self._run = buffer, source, bolt, run
        self._go_to(0)

    def sender(self, key: LaneKey, stream: str) -> Send:
        """A function that takes a fused neighbour's rows on ``stream``."""
        lane = self._lanes[key]
        return self._bolt.sender(
            self._source(key, stream), lane, functools.partial(self._wait, lane, stream)
        )

    def batch_sender(self, key: LaneKey, stream: str) -> Callable[[Any], None]:
        """A function that takes a fused neighbour's RecordBatches on ``stream``."""
        lane = self._lanes[key]
        source = self._source(key, stream)
        execute = self._bolt.execute_columns
        lane.has_columns = True

        def send(batch: Any) -> None:
            if lane.is_first:
                execute(batch, source)
            else:
                self._wait(lane, stream, batch)

        return send

    def _wait(self, lane: Lane, stream: str, row: Any) -> None:
        if not lane.waiting or lane.waiting[-1][0] != stream:
            lane.waiting.append((stream, []))
        lane.waiting[-1][1].append(row)
        lane.waiting_rows += 1
        if lane.waiting_rows >= _WAITING_ROWS_MAX:
            self._pack(lane)

    def pack(self) -> None:
        """Turn heavy waiting rows into bytes, which may spill."""
        for lane in self._lanes.values():
            if lane.waiting:
                self._pack(lane)

    def _pack(self, lane: Lane) -> None:
        runs = column_runs.packed(lane.waiting) if lane.has_columns else lane.waiting
        lane.handles.append(self._buffer.append(wire.pack_runs(runs, self._run)))
        lane.waiting, lane.waiting_rows = [], 0

    def close(self, key: LaneKey) -> None:
        """Note that the neighbour behind ``key`` delivers no more rows."""
        if key in self._lanes:
            self._lanes[key].closed = True
            self.advance()

    def advance(self) -> None:
        """Execute every row that is in order. The first open lane becomes direct."""
        while self._head < len(self._keys):
            key = self._keys[self._head]
            lane = self._lanes[key]
            self._drain(key, lane)
            if not lane.closed:
                return
            self._go_to(self._head + 1)

    def _go_to(self, head: int) -> None:
        if self._head < len(self._keys):
            self._lanes[self._keys[self._head]].is_first = False
        self._head = head
        if head < len(self._keys):
            self._lanes[self._keys[head]].is_first = True

    def _drain(self, key: LaneKey, lane: Lane) -> None:
        handles, lane.handles = lane.handles, []
        waiting, lane.waiting, lane.waiting_rows = lane.waiting, [], 0
        for handle in handles:
            self._execute_runs(key, wire.unpack_runs(self._buffer.read(handle)))
        self._execute_runs(key, column_runs.told_apart(waiting) if lane.has_columns else waiting)

    def _execute_runs(self, key: LaneKey, runs: Iterable[tuple[str, Iterable[Row]]]) -> None:
        for stream, rows in runs:
            if column_runs.is_run(stream):
                source = self._source(key, column_runs.stream_of(stream))
                for batch in column_runs.unpacked(rows):
                    self._bolt.execute_columns(batch, source)
            else:
                self._bolt.execute_all(rows, self._source(key, stream))

    @property
    def complete(self) -> bool:
        """Whether every lane has been executed."""
        return self._head == len(self._keys)
