"""Routes columns: for each stream, a function splits a RecordBatch and sends the parts to the
receiving tasks.

A row goes to the same tasks as it would as a tuple, with one exception: shuffle hands out slices
instead of single rows, still in equal counts. A sender's turns and counts between emits are the
same for rows and columns. Each distinct key is encoded once, as in tuples
(``txtopo.topology.grouping``). This module imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txtopo.dataplane import route
from txtopo.dataplane.columns import batches
from txtopo.dataplane.columns import values as column_values
from txtopo.topology import grouping as groupings
from txtopo.topology.grouping import Grouping
from txtopo.topology.stream import Fields

SendBatch = Callable[[pa.RecordBatch], None]


def make_send(
    grouping: Grouping,
    fields: Fields,
    sending_task: int,
    attempt: Any,
    lanes: Sequence[SendBatch],
    memory: route.SenderMemory,
) -> SendBatch:
    """A function that sends a RecordBatch's rows to the right ``lanes`` (one per receiving
    task)."""
    ways: route.Ways[SendBatch] = {
        "shuffle": lambda _: _in_slices(lanes, memory),
        "all": lambda _: route.to_all(lanes),
        "fields": lambda positions: _by_key(lanes, _columns_at(positions), attempt),
        "partial_key": lambda positions: _by_two_tasks(
            lanes, _columns_at(positions), attempt, memory
        ),
        "custom": lambda _: _by_choice(lanes, memory, sending_task, attempt),
    }
    return route.send_by(grouping, fields, sending_task, lanes, ways)


def _columns_at(positions: Sequence[int]) -> list[int]:
    """Turn field positions into column numbers. The first field, the attempt, is no column and
    becomes -1."""
    return [position - 1 for position in positions]


def _in_slices(lanes: Sequence[SendBatch], memory: route.SenderMemory) -> SendBatch:
    """Send the same number of neighbouring rows to every lane. Each remaining row goes to the lane
    whose turn has come."""

    def send(batch: pa.RecordBatch) -> None:
        share, left = divmod(batch.num_rows, len(lanes))
        counts = [share] * len(lanes)
        for _ in range(left):
            counts[next(memory.turns)] += 1
        begin = 0
        for lane, count in zip(lanes, counts, strict=True):
            if count:
                lane(batch.slice(begin, count))
                begin += count

    return send


def _by_key(lanes: Sequence[SendBatch], positions: Sequence[int], attempt: Any) -> SendBatch:
    """Send equal values to the same lane."""
    remembered: dict[Any, int] = {}

    def task_of(key: tuple[Any, ...]) -> int:
        return groupings.task_for_key(key, len(lanes))

    def send(batch: pa.RecordBatch) -> None:
        if len(lanes) == 1 and all(
            position < 0 or _is_plain(batch.schema.types[position]) for position in positions
        ):
            lanes[0](batch)
            return
        codes, keys = distinct_keys(batch, positions, attempt)
        tasks = _find_all(keys, remembered, task_of)
        deal(batch, tasks if codes is None else pa.array(tasks, pa.int32()).take(codes), lanes)

    return send


def _by_two_tasks(
    lanes: Sequence[SendBatch], positions: Sequence[int], attempt: Any, memory: route.SenderMemory
) -> SendBatch:
    """Send each row to the key's task that got fewer rows from this sender. If both got as many,
    the first task."""
    remembered: dict[Any, tuple[int, int]] = {}

    def tasks_of(key: tuple[Any, ...]) -> tuple[int, int]:
        return groupings.two_tasks_for_key(key, len(lanes))

    def send(batch: pa.RecordBatch) -> None:
        codes, keys = distinct_keys(batch, positions, attempt)
        pairs = _find_all(keys, remembered, tasks_of)
        sent = memory.sent
        tasks: list[int] = []
        for pair in pairs if codes is None else map(pairs.__getitem__, codes.to_pylist()):
            first, second = pair
            task = first if sent[first] <= sent[second] else second
            sent[task] += 1
            tasks.append(task)
        deal(batch, tasks, lanes)

    return send


def _by_choice(
    lanes: Sequence[SendBatch], memory: route.SenderMemory, sending_task: int, attempt: Any
) -> SendBatch:
    custom = memory.custom
    assert custom is not None

    def send(batch: pa.RecordBatch) -> None:
        chosen: list[list[int]] = [[] for _ in lanes]
        number = 0
        for piece in batches.slices(batch):
            for row in batches.rows(piece, attempt):
                for task in custom.choose_tasks(sending_task, row):
                    route.check_choice(custom, task, len(lanes), memory.edge)
                    chosen[task].append(number)
                number += 1
        for lane, rows in zip(lanes, chosen, strict=True):
            if rows:
                lane(
                    batch
                    if rows == list(range(batch.num_rows))
                    else batches.select(batch, pa.array(rows, pa.int64()))
                )

    return send


# -- keys ----------------------------------------------------------------------------------------


def _is_plain(type: pa.DataType) -> bool:
    """Whether every value with ``type`` can be a key, and Arrow can find the distinct values."""
    if pa.types.is_dictionary(type):
        return _is_plain(type.value_type)
    of_kind = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_date,
        pa.types.is_timestamp,
        pa.types.is_null,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
    )
    return any(is_kind(type) for is_kind in of_kind)


def distinct_keys(
    batch: pa.RecordBatch, positions: Sequence[int], attempt: Any
) -> tuple[pa.Array | None, list[tuple[Any, ...]]]:
    """Each row's index into the keys, and the keys in ``batch``, each at least once. ``None``
    instead of the indices if key ``i`` belongs to row ``i``."""
    constant = tuple(attempt for position in positions if position < 0)
    if len(constant) == len(positions):
        return pa.nulls(batch.num_rows, pa.int32()).fill_null(0), [constant]
    columns = [
        (batch.column(position), batch.schema.names[position])
        for position in positions
        if position >= 0
    ]
    if not all(_is_plain(column.type) for column, _ in columns):
        return None, _keys_by_row(columns, positions, attempt)
    try:
        codes, keys = _distinct(columns)
    except pa.ArrowNotImplementedError:
        # decimal32 and decimal64: Arrow has the types, but cannot find their distinct values.
        return None, _keys_by_row(columns, positions, attempt)
    return codes, [_with_attempts(key, positions, attempt) for key in keys] if constant else keys


def _keys_by_row(
    columns: Sequence[tuple[pa.Array, str]], positions: Sequence[int], attempt: Any
) -> list[tuple[Any, ...]]:
    lists = [column_values.values(_in_utc(column), name) for column, name in columns]
    return [_with_attempts(key, positions, attempt) for key in zip(*lists, strict=True)]


def _distinct(columns: Sequence[tuple[pa.Array, str]]) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    codes, keys = _codes_and_values(*columns[0])
    for column, name in columns[1:]:
        more, values = _codes_and_values(column, name)
        pairs = pc.dictionary_encode(
            pc.add(pc.multiply(codes.cast(pa.int64()), len(values)), more.cast(pa.int64()))
        )
        codes = pairs.indices
        keys = [
            keys[pair // len(values)] + values[pair % len(values)]
            for pair in pairs.dictionary.to_pylist()
        ]
    return codes, keys


def _with_attempts(key: tuple[Any, ...], positions: Sequence[int], attempt: Any) -> tuple[Any, ...]:
    values = iter(key)
    return tuple(attempt if position < 0 else next(values) for position in positions)


def _codes_and_values(column: pa.Array, name: str) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """Each row's index into the distinct values, and the values."""
    if pa.types.is_dictionary(column.type) and len(column.dictionary) > len(column):
        column = column.dictionary_decode()
    if not pa.types.is_dictionary(column.type):
        if pa.types.is_null(column.type):
            column = column.cast(pa.int8())
        column = pc.dictionary_encode(column, null_encoding="encode")
    codes, dictionary = column.indices, column.dictionary
    values = column_values.values(_in_utc(dictionary), name)
    if codes.null_count:
        codes = codes.cast(pa.int64()).fill_null(len(values))
        values.append(None)
    return codes, [(value,) for value in values]


def _in_utc(column: pa.Array) -> pa.Array:
    """Convert times to UTC, so that an instant is one key in every time zone. In local time, Python
    takes two different hours for equal when a clock is set back."""
    is_encoded = pa.types.is_dictionary(column.type) or pa.types.is_run_end_encoded(column.type)
    type = column.type.value_type if is_encoded else column.type
    if not pa.types.is_timestamp(type) or type.tz is None:
        return column
    return (pc.run_end_decode(column) if pa.types.is_run_end_encoded(column.type) else column).cast(
        pa.timestamp(type.unit, "UTC")
    )


def _find_all(
    keys: list[tuple[Any, ...]], remembered: dict[Any, Any], find: Callable[[tuple[Any, ...]], Any]
) -> list[Any]:
    """Call ``find`` for each key that is not remembered. Keys from columns that are equal in Python
    have equal encodings."""
    results: list[Any] = []
    for key in keys:
        try:
            known = remembered.get(key)
        except TypeError:
            results.append(find(key))
            continue
        if known is None:
            known = find(key)
            if not any(
                isinstance(value, str | bytes) and len(value) > route.KEY_LENGTH_MAX
                for value in key
            ):
                if len(remembered) >= route.KEYS_REMEMBERED_MAX:
                    remembered.clear()
                remembered[key] = known
        results.append(known)
    return results


# -- dealing out ---------------------------------------------------------------------------------


def deal(batch: pa.RecordBatch, tasks: pa.Array | list[int], lanes: Sequence[SendBatch]) -> None:
    """Give each row to its task's lane, in the order of ``batch``."""
    of_row = tasks if isinstance(tasks, pa.Array) else pa.array(tasks, pa.int32())
    counts = sorted(
        (entry["values"], entry["counts"]) for entry in of_row.value_counts().to_pylist()
    )
    if len(counts) == 1:
        lanes[counts[0][0]](batch)
        return
    # Arrow sorts one array stably, and counts where values are few.
    by_task = batches.select(batch, pc.array_sort_indices(of_row))
    begin = 0
    for task, count in counts:
        lanes[task](by_task.slice(begin, count))
        begin += count
