"""A task's tuples come by source component, source task and emission, as early as that order
allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from txtopo import Fields
from txtopo.dataplane import inbox, wire
from txtopo.dataplane.inbox import Inbox, Lane
from txtopo.dataplane.receive import LaneKey
from txtopo.dataplane.route import Row, Send
from txtopo.dataplane.row_encoding import Runs
from txtopo.dataplane.spill import Handle, SpillBuffer
from txtopo.topology.stream import TupleSource

pytestmark = pytest.mark.rule(17)

ORDER = {"spout": 0, "a": 1, "b": 2}


class Task:
    """A task with notes of all executed tuples."""

    def __init__(
        self, arrived: dict[LaneKey, list[Runs]], live: set[LaneKey], spill_bytes: int = 1 << 20
    ) -> None:
        self.buffer = SpillBuffer(spill_bytes)
        self.executed: list[str] = []
        self.sources: dict[tuple[LaneKey, str], TupleSource] = {}
        handles: dict[LaneKey, list[Handle]] = {}
        for key, of_lane in arrived.items():
            handles[key] = [self.buffer.append(wire.pack_runs(runs, "run")) for runs in of_lane]
        self.inbox = Inbox(handles, live, ORDER, self.buffer, self.source, self, "run")

    def source(self, key: LaneKey, stream: str) -> TupleSource:
        return self.sources.setdefault(
            (key, stream), TupleSource(key[0], key[1], stream, Fields("value"))
        )

    def execute_all(self, rows: Iterable[Row], source: TupleSource) -> None:
        self.executed.extend(
            f"{source.component}{source.task}.{source.stream}.{row[0]}" for row in rows
        )

    def execute_columns(self, batch: object, source: TupleSource) -> None:
        raise AssertionError("nobody here emits columns")

    def sender(self, source: TupleSource, lane: Lane, wait: Send) -> Send:
        return lambda row: self.execute_all([row], source) if lane.is_first else wait(row)


@pytest.fixture(autouse=True)
def _bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "_WAITING_ROWS_MAX", 3)


def test_tuples_of_a_shuffle_are_executed_lane_by_lane() -> None:
    task = Task(
        {
            ("b", 0): [[("s", [(1,)])]],
            ("a", 10): [[("s", [(1,)])]],
            ("a", 9): [[("s", [(1,)]), ("t", [(2,)])], [("s", [(3,)])]],
        },
        set(),
    )
    assert not task.inbox.complete
    task.inbox.advance()
    assert task.executed == ["a9.s.1", "a9.t.2", "a9.s.3", "a10.s.1", "b0.s.1"], (
        "tasks by number, not by name"
    )
    assert task.inbox.complete


def test_the_first_open_lane_of_a_neighbour_is_a_direct_call() -> None:
    task = Task({}, {("a", 0), ("b", 0)})
    task.inbox.advance()
    task.inbox.sender(("a", 0), "s")((1,))
    assert task.executed == ["a0.s.1"]


def test_a_later_neighbour_waits_until_every_earlier_one_is_done() -> None:
    task = Task({}, {("a", 0), ("a", 1), ("b", 0)})
    task.inbox.advance()
    task.inbox.sender(("b", 0), "s")((1,))
    task.inbox.sender(("a", 1), "s")((1,))
    assert task.executed == []
    task.inbox.close(("a", 1))
    assert task.executed == []
    task.inbox.sender(("a", 0), "s")((1,))
    task.inbox.close(("a", 0))
    assert task.executed == ["a0.s.1", "a1.s.1", "b0.s.1"]
    task.inbox.sender(("b", 0), "s")((2,))
    assert task.executed[-1] == "b0.s.2", "it has become direct"
    task.inbox.close(("b", 0))
    assert task.inbox.complete


def test_arrived_lanes_wait_for_an_earlier_neighbour() -> None:
    task = Task({("spout", 0): [[("s", [(1,)])]], ("b", 0): [[("s", [(1,)])]]}, {("a", 0)})
    task.inbox.advance()
    assert task.executed == ["spout0.s.1"]
    task.inbox.sender(("a", 0), "s")((1,))
    task.inbox.close(("a", 0))
    assert task.executed == ["spout0.s.1", "a0.s.1", "b0.s.1"]


@pytest.mark.parametrize("spill_bytes", [0, 1 << 20])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 9])
def test_many_waiting_rows_go_through_the_buffer_in_order_across_streams(
    rows: int, spill_bytes: int
) -> None:
    task = Task({}, {("a", 0), ("b", 0)}, spill_bytes)
    task.inbox.advance()
    senders: dict[str, Any] = {stream: task.inbox.sender(("b", 0), stream) for stream in "st"}
    for i in range(rows):
        senders["st"[i % 3 == 1]]((i,))
    assert (task.buffer._end > 0) == (spill_bytes == 0 and rows >= 3), (
        "beyond three rows they wait in the buffer"
    )
    task.inbox.close(("a", 0))
    assert task.executed == [f"b0.{'st'[i % 3 == 1]}.{i}" for i in range(rows)]
    task.buffer.close()


def test_closing_an_unknown_lane_is_fine_because_not_every_neighbour_sends_to_every_task() -> None:
    task = Task({}, {("a", 0)})
    task.inbox.close(("b", 7))
    assert not task.inbox.complete


def test_an_inbox_without_lanes_is_complete() -> None:
    assert Task({}, set()).inbox.complete


def test_tuples_of_one_lane_and_stream_share_their_source() -> None:
    task = Task({("a", 0): [[("s", [(1,), (2,)])]]}, set())
    task.inbox.advance()
    assert len(task.sources) == 1
