"""Routing: for each stream, functions that send a row to the receiving tasks.

Every choice depends only on the row, the sending task and the txid, so that a task computed again
sends the same rows to the same tasks (R17). Under shuffle, a sender's first turn depends on txid
and task, so that small batches do not all land on task 0.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from txtopo.dataplane import row_encoding
from txtopo.plan import levels
from txtopo.topology import grouping as groupings
from txtopo.topology.grouping import CustomGrouping, Grouping, GroupingKind
from txtopo.topology.stream import Fields

Row = row_encoding.Row
Send = Callable[[Row], None]

KEYS_REMEMBERED_MAX = 100_000
KEY_LENGTH_MAX = 64
"""Longer keys are not remembered: so many long keys would need a batch's memory."""


def fixed_task(grouping: Grouping, sending_task: int, receiving_tasks: int) -> int | None:
    """The task that receives every row from this sender, or ``None`` where the row decides."""
    if grouping.traits.stays_local:
        return levels.local_task(sending_task, receiving_tasks)
    return (
        0
        if grouping.traits.one_task or (receiving_tasks == 1 and not grouping.traits.sender_chooses)
        else None
    )


class Edge(NamedTuple):
    """An edge in the topology, for errors: from a component and its stream to a receiving
    component."""

    sender: str
    stream: str
    receiver: str


class SenderMemory:
    """A sender's memory between emits, for one receiver. Rows and columns share the memory."""

    def __init__(
        self, grouping: Grouping, sending_task: int, txid: int, tasks: int, edge: Edge | None = None
    ) -> None:
        self.edge = edge or Edge("sender", "default", "receiver")
        start = (sending_task + txid) % tasks
        self.turns = itertools.cycle([*range(start, tasks), *range(start)])
        """The next tasks in turn, under shuffle grouping."""
        self.sent = [0] * tasks
        """How many rows each task was sent, under partial key grouping."""
        self.custom = None if grouping.custom is None else copy.deepcopy(grouping.custom)


S = TypeVar("S")
Ways = Mapping[GroupingKind, Callable[[Sequence[int]], S]]
"""Makes a send function, for each kind of grouping that needs more than one fixed lane. Gets the
positions of the key's values, where 0 is the attempt."""


def make_send(
    grouping: Grouping,
    fields: Fields,
    sending_task: int,
    lanes: Sequence[Send],
    memory: SenderMemory,
) -> Send:
    """A function that sends a row to the right ``lanes`` (one per receiving task)."""
    ways: Ways[Send] = {
        "shuffle": lambda _: _round_robin(lanes, memory),
        "all": lambda _: to_all(lanes),
        "fields": lambda positions: _by_key(lanes, positions),
        "partial_key": lambda positions: _by_two_tasks(lanes, positions, memory.sent),
        "custom": lambda _: _by_choice(lanes, memory, sending_task),
    }
    return send_by(grouping, fields, sending_task, lanes, ways)


def send_by(
    grouping: Grouping, fields: Fields, sending_task: int, lanes: Sequence[S], ways: Ways[S]
) -> S:
    """The lane that receives every row or, if there is none, the function from the way of
    ``grouping``. For rows and for columns."""
    only = fixed_task(grouping, sending_task, len(lanes))
    if only is not None and not grouping.traits.by_key:
        return lanes[only]
    way = ways.get(grouping.kind)
    if way is None:
        raise AssertionError(f"route.Ways has no way for {grouping} grouping")
    return way([fields.index(name) for name in grouping.fields or ()])


def _round_robin(lanes: Sequence[Send], memory: SenderMemory) -> Send:
    turn = map(lanes.__getitem__, memory.turns).__next__

    def send(row: Row) -> None:
        turn()(row)

    return send


def to_all(lanes: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
    """A function that sends a row, or a RecordBatch, to every one of ``lanes``."""

    def send(row: Any) -> None:
        for lane in lanes:
            lane(row)

    return send


def _by_key(lanes: Sequence[Send], positions: Sequence[int]) -> Send:
    """Equal values to the same lane. Only exact str and int keys are remembered: 1, 1.0 and True
    share a dict entry, enums may equal ints."""
    remembered: dict[Any, Send] = {}
    tasks = len(lanes)
    if len(positions) == 1:
        position = positions[0]

        def send_by_one(row: Row) -> None:
            key = row[position]
            kind = type(key)
            if kind is str or kind is int:
                try:
                    lane = remembered[key]
                except KeyError:
                    lane = lanes[groupings.task_for_key((key,), tasks)]
                    if kind is int or len(key) <= KEY_LENGTH_MAX:
                        if len(remembered) >= KEYS_REMEMBERED_MAX:
                            remembered.clear()
                        remembered[key] = lane
                lane(row)
            else:
                lanes[groupings.task_for_key((key,), tasks)](row)

        return send_by_one

    def send_by_several(row: Row) -> None:
        lanes[groupings.task_for_key([row[position] for position in positions], tasks)](row)

    return send_by_several


def _by_two_tasks(lanes: Sequence[Send], positions: Sequence[int], sent: list[int]) -> Send:
    """Send each row to the key's task that got fewer rows from this sender. If both got as many,
    the first task."""

    def send(row: Row) -> None:
        first, second = groupings.two_tasks_for_key(
            [row[position] for position in positions], len(lanes)
        )
        task = first if sent[first] <= sent[second] else second
        sent[task] += 1
        lanes[task](row)

    return send


def _by_choice(lanes: Sequence[Send], memory: SenderMemory, sending_task: int) -> Send:
    custom = memory.custom
    assert custom is not None

    def send(row: Row) -> None:
        for task in custom.choose_tasks(sending_task, row):
            check_choice(custom, task, len(lanes), memory.edge)
            lanes[task](row)

    return send


def check_choice(grouping: CustomGrouping, task: Any, tasks: int, edge: Edge) -> None:
    """:class:`WrongTaskError` if ``grouping`` chose a task that the receiver does not have."""
    if not hasattr(task, "__index__") or not 0 <= task < tasks:
        raise WrongTaskError(
            f"component {edge.sender!r} emits on stream {edge.stream!r} to {edge.receiver!r}: {type(grouping).__qualname__}.choose_tasks "
            f"chose task {task!r}, but {edge.receiver!r} has tasks 0 … {tasks - 1}\n  Choose among these, or give {edge.receiver!r} more tasks."
        )


class WrongTaskError(Exception):
    """A tuple was sent to a task that does not exist. Becomes :class:`txtopo.errors.EmitError`."""
