"""Routing: for each stream of a task, the functions that take a row to the tasks it is meant for.

Every choice follows from the row, the sending task and the txid alone, so that a task computed again sends the same rows the same way (R17).
A count that a sender keeps (shuffle) starts at a place given by txid and task, so that small batches do not all land on task 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from txtopo.plan import levels
from txtopo.topology import grouping as groupings
from txtopo.topology.grouping import Grouping
from txtopo.topology.stream import Fields

Row = tuple[Any, ...]
Send = Callable[[Row], None]

_KEYS_REMEMBERED_MAX = 100_000


def fixed_task(grouping: Grouping, sending_task: int, receiving_tasks: int) -> int | None:
    """The one task that receives everything this sender emits, or ``None`` where that depends on the row."""
    if grouping.kind == "global":
        return 0
    if grouping.kind in ("none", "local_or_shuffle"):
        return levels.local_task(sending_task, receiving_tasks)
    return 0 if receiving_tasks == 1 else None


def make_send(grouping: Grouping, fields: Fields, sending_task: int, txid: int, lanes: Sequence[Send]) -> Send:
    """A function that sends a row to the right ones of ``lanes`` (one per receiving task)."""
    only = fixed_task(grouping, sending_task, len(lanes))
    if only is not None and grouping.kind != "fields":
        return lanes[only]
    if grouping.kind == "shuffle":
        return _round_robin(lanes, sending_task + txid)
    if grouping.kind == "all":
        return _to_all(lanes)
    assert grouping.fields is not None
    return _by_key(lanes, [fields.index(name) for name in grouping.fields])


def _round_robin(lanes: Sequence[Send], start: int) -> Send:
    position = start % len(lanes)

    def send(row: Row) -> None:
        nonlocal position
        lanes[position](row)
        position = position + 1 if position + 1 < len(lanes) else 0

    return send


def _to_all(lanes: Sequence[Send]) -> Send:
    def send(row: Row) -> None:
        for lane in lanes:
            lane(row)

    return send


def _by_key(lanes: Sequence[Send], positions: Sequence[int]) -> Send:
    """Equal values to the same lane. Only exact str and int keys are remembered: 1, 1.0 and True share a dict entry, enums may equal ints."""
    remembered: dict[Any, Send] = {}
    tasks = len(lanes)
    if len(positions) == 1:
        position = positions[0]

        def send_by_one(row: Row) -> None:
            key = row[position]
            if type(key) is str or type(key) is int:
                lane = remembered.get(key)
                if lane is None:
                    if len(remembered) >= _KEYS_REMEMBERED_MAX:
                        remembered.clear()
                    lane = remembered[key] = lanes[groupings.task_for_key((key,), tasks)]
                lane(row)
            else:
                lanes[groupings.task_for_key((key,), tasks)](row)

        return send_by_one

    def send_by_several(row: Row) -> None:
        lanes[groupings.task_for_key([row[position] for position in positions], tasks)](row)

    return send_by_several
