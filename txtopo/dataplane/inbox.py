"""The inbox of one task: its lanes in order, executed as early as the order allows.

A task sees its tuples by source component, source task and emission (R17), whether they come through a shuffle or from a fused neighbour.
Lanes that came through the shuffle are complete. A lane of a fused neighbour is *live*: while it is the first open one, an emit is a direct
call into the bolt; until then its rows wait.

Invariants: every lane before ``_head`` is executed completely, none after it at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txtopo.dataplane import columns, wire
from txtopo.dataplane.receive import LaneKey
from txtopo.dataplane.route import Row, Send
from txtopo.dataplane.spill import Handle, SpillBuffer
from txtopo.topology.stream import TupleSource

Execute = Callable[[Row, TupleSource], None]
ExecuteColumns = Callable[[Any, TupleSource], None]
"""Takes a RecordBatch."""

_WAITING_ROWS_MAX = 4096


class _Lane:
    __slots__ = ("closed", "handles", "has_columns", "live", "waiting", "waiting_rows")

    def __init__(self, handles: list[Handle], live: bool) -> None:
        self.handles, self.live, self.closed = handles, live, not live
        self.waiting: wire.Runs = []
        self.waiting_rows = 0
        self.has_columns = False


class Inbox:
    """``order`` ranks source components; ``source`` names a lane's tuples per stream; ``execute`` takes a row, ``execute_columns`` a RecordBatch."""

    def __init__(
        self,
        arrived: Mapping[LaneKey, list[Handle]],
        live: set[LaneKey],
        order: Mapping[str, int],
        buffer: SpillBuffer,
        source: Callable[[LaneKey, str], TupleSource],
        execute: Execute,
        run: str,
        execute_columns: ExecuteColumns | None = None,
    ) -> None:
        keys = sorted({*arrived, *live}, key=lambda key: (order[key[0]], key[1]))
        self._lanes = {key: _Lane(list(arrived.get(key, ())), key in live) for key in keys}
        self._keys = keys
        self._head = 0
        self._buffer, self._source, self._execute, self._run = buffer, source, execute, run
        self._execute_columns = execute_columns

    def sender(self, key: LaneKey, stream: str) -> Send:
        """The function by which a fused neighbour delivers rows of ``stream``."""
        lane = self._lanes[key]
        source = self._source(key, stream)
        keys, execute = self._keys, self._execute

        def send(row: Row) -> None:
            if keys[self._head] == key:
                execute(row, source)
            else:
                self._wait(lane, stream, row)

        return send

    def batch_sender(self, key: LaneKey, stream: str) -> Callable[[Any], None]:
        """The function by which a fused neighbour delivers RecordBatches of ``stream``."""
        lane, source = self._lanes[key], self._source(key, stream)
        lane.has_columns = True

        def send(batch: Any) -> None:
            if self._keys[self._head] == key:
                self._take(batch, source)
            else:
                self._wait(lane, stream, batch)

        return send

    def _take(self, batch: Any, source: TupleSource) -> None:
        assert self._execute_columns is not None, "columns for a task that was not connected to any"
        self._execute_columns(batch, source)

    def _wait(self, lane: _Lane, stream: str, row: Row) -> None:
        if not lane.waiting or lane.waiting[-1][0] != stream:
            lane.waiting.append((stream, []))
        lane.waiting[-1][1].append(row)
        lane.waiting_rows += 1
        if lane.waiting_rows >= _WAITING_ROWS_MAX:
            self._pack(lane)

    def pack(self) -> None:
        """Turn the rows that wait into bytes, which may spill: they are heavy."""
        for lane in self._lanes.values():
            if lane.waiting:
                self._pack(lane)

    def _pack(self, lane: _Lane) -> None:
        runs = columns.packed(lane.waiting) if lane.has_columns else lane.waiting
        lane.handles.append(self._buffer.append(wire.dump_values(runs, self._run)))
        lane.waiting, lane.waiting_rows = [], 0

    def close(self, key: LaneKey) -> None:
        """The neighbour behind ``key`` will deliver no more."""
        if key in self._lanes:
            self._lanes[key].closed = True
            self.advance()

    def advance(self) -> None:
        """Execute all that is in order; the first lane that is still open becomes direct."""
        while self._head < len(self._keys):
            key = self._keys[self._head]
            lane = self._lanes[key]
            self._drain(key, lane)
            if not lane.closed:
                return
            self._head += 1

    def _drain(self, key: LaneKey, lane: _Lane) -> None:
        handles, lane.handles = lane.handles, []
        waiting, lane.waiting, lane.waiting_rows = lane.waiting, [], 0
        for handle in handles:
            self._execute_runs(key, wire.load_values(self._buffer.read(handle)))
        self._execute_runs(key, columns.told_apart(waiting) if lane.has_columns else waiting)

    def _execute_runs(self, key: LaneKey, runs: wire.Runs) -> None:
        execute = self._execute
        for stream, rows in runs:
            if columns.is_run(stream):
                source = self._source(key, columns.stream_of(stream))
                for batch in (batch for item in rows for batch in columns.unpacked(item)):
                    self._take(batch, source)
                continue
            source = self._source(key, stream)
            for row in rows:
                execute(row, source)

    @property
    def complete(self) -> bool:
        """Everything has been executed."""
        return self._head == len(self._keys)
