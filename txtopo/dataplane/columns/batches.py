"""Turns RecordBatches into bytes and into rows, and back.

Only workers that meet columns import this module, because it imports pyarrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from txtopo.dataplane.columns import values
from txtopo.dataplane.row_encoding import Row

MERGED_BYTES = 4 * 1024 * 1024
"""Consecutive small RecordBatches are merged before they travel, up to about this size."""
_COMPRESSED_FROM_BYTES = 64 * 1024
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)
_COMPRESSED = pa.ipc.IpcWriteOptions(
    compression="lz4" if pa.Codec.is_available("lz4") else None, use_threads=False
)
_ENVELOPE_BYTES = 256
"""A run and its frame add about so many bytes to a stream."""


# -- bytes ---------------------------------------------------------------------------------------


def dumped(batches: Iterable[pa.RecordBatch], bound: int | None) -> list[bytes]:
    """Write ``batches``, in order, as Arrow IPC streams. Each stream has at most ``bound`` bytes,
    unless a single row has more."""
    room = None if bound is None else max(1, bound - _ENVELOPE_BYTES)
    merged_max = MERGED_BYTES if room is None else min(MERGED_BYTES, room)
    streams: list[bytes] = []
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and (
            size + batch.nbytes > merged_max
            or not batch.schema.equals(waiting[0].schema, check_metadata=True)
        ):
            _flush(waiting, room, streams)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    _flush(waiting, room, streams)
    return streams


def _flush(waiting: list[pa.RecordBatch], room: int | None, streams: list[bytes]) -> None:
    for batch in waiting if len(waiting) < 2 else merged(waiting):
        _split(batch, room, streams)


def _split(batch: pa.RecordBatch, room: int | None, streams: list[bytes]) -> None:
    """Append ``batch`` as one stream, or as several if one would exceed ``room``."""
    if room is not None and batch.nbytes > room:
        batch = compacted(batch)
    pieces = 1 if room is None else min(batch.num_rows, 1 + batch.nbytes // room)
    if pieces > 1:
        bounds = [batch.num_rows * i // pieces for i in range(pieces + 1)]
        for begin, end in itertools.pairwise(bounds):
            _append(batch.slice(begin, end - begin), room, streams)
    else:
        _append(batch, room, streams)


def _append(batch: pa.RecordBatch, room: int | None, streams: list[bytes]) -> None:
    stream = to_stream(batch)
    if room is not None and len(stream) > room:
        compact = compacted(batch)
        if compact is not batch:
            stream = to_stream(compact)
        if len(stream) > room and batch.num_rows > 1:
            half = batch.num_rows // 2
            _append(compact.slice(0, half), room, streams)
            _append(compact.slice(half), room, streams)
            return
    streams.append(stream)


def to_stream(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Write ``rows`` as an Arrow IPC stream. A slice is written without the rest of its batch. A
    large stream is compressed, because many processes copy the bytes on their way."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink,
        rows.schema,
        options=_COMPRESSED if rows.nbytes >= _COMPRESSED_FROM_BYTES else _PLAIN,
    ) as writer:
        writer.write(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def loaded(stream: bytes) -> list[pa.RecordBatch]:
    """Read the RecordBatches in an Arrow IPC stream. They share the stream's memory."""
    with pa.ipc.open_stream(stream) as reader:
        return list(reader)


def reduced(value: Any) -> tuple[Any, ...]:
    """Reduce ``value``, which holds columns, for pickle: without the memory that a slice was cut
    from."""
    if isinstance(value, pa.RecordBatch):
        return _restored_batch, (to_stream(value),)
    if isinstance(value, pa.Table):
        return _restored_table, (to_stream(value),)
    if isinstance(value, pa.Array):
        return _restored_array, (to_stream(pa.RecordBatch.from_arrays([value], names=[""])),)
    return _restored_chunks, (to_stream(pa.Table.from_arrays([value], names=[""])),)


def _restored_batch(stream: bytes) -> pa.RecordBatch:
    return loaded(stream)[0]


def _restored_table(stream: bytes) -> pa.Table:
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def _restored_array(stream: bytes) -> pa.Array:
    return loaded(stream)[0].column(0)


def _restored_chunks(stream: bytes) -> pa.ChunkedArray:
    return _restored_table(stream).column(0)


def merged(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Merge RecordBatches with one schema, if Arrow can. Arrow cannot unite dictionaries that have
    nulls or would need larger indices."""
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowException:
        return batches


def compacted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop dictionary entries and memory that the rows do not use. A slice has its batch's whole
    dictionaries, and all memory behind string views."""
    columns = [_compacted(column) for column in batch.columns]
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _compacted(column: pa.Array) -> pa.Array:
    type = column.type
    if pa.types.is_dictionary(type) and len(column.dictionary) > len(column):
        try:
            return column.dictionary_decode().dictionary_encode(null_encoding="mask").cast(type)
        except pa.ArrowNotImplementedError:
            return column
    if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
        return column.cast(
            pa.large_binary() if pa.types.is_binary_view(type) else pa.large_string()
        ).cast(type)
    return column


def select(batch: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
    """Select from ``batch`` the rows with the numbers ``rows``, in this order."""
    try:
        return batch.take(rows)
    except pa.ArrowNotImplementedError:
        numbers = rows.to_pylist()
        return pa.RecordBatch.from_arrays(
            [_select(column, rows, numbers) for column in batch.columns], schema=batch.schema
        )


def _select(column: pa.Array, rows: pa.Array, numbers: list[int]) -> pa.Array:
    """Select from one column. Arrow cannot take rows from string views and run-end-encoded columns,
    so such columns are taken row by row."""
    try:
        return column.take(rows)
    except pa.ArrowNotImplementedError:
        return pa.concat_arrays([column.slice(number, 1) for number in numbers])


# -- rows ----------------------------------------------------------------------------------------


ROWS_AT_ONCE = 4096
"""So many rows at most are Python objects at once, when columns become rows."""


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut ``batch`` into slices with at most ``ROWS_AT_ONCE`` rows."""
    for begin in range(0, batch.num_rows, ROWS_AT_ONCE):
        yield batch.slice(begin, ROWS_AT_ONCE)


def rows(batch: pa.RecordBatch, attempt: Any) -> list[Row]:
    """Turn ``batch`` into rows, each with ``attempt`` as its first value."""
    columns = [
        values.values(column, name)
        for column, name in zip(batch.columns, batch.schema.names, strict=True)
    ]
    return (
        list(zip(itertools.repeat(attempt, batch.num_rows), *columns, strict=True))
        if columns
        else [(attempt,)] * batch.num_rows
    )


def read_schema(serialized: bytes) -> pa.Schema:
    """The schema that a stream declares."""
    return pa.ipc.read_schema(pa.py_buffer(serialized))


def from_rows(
    rows: Sequence[Row],
    names: Sequence[str],
    schema: pa.Schema | None,
    where: str,
    is_declared: bool = True,
) -> pa.RecordBatch:
    """Turn ``rows``, without their first value, into columns ``names``. Their types are from
    ``schema`` or, without a schema, inferred by Arrow.

    ``is_declared``: the user declared ``schema``. Otherwise ``schema`` was inferred from earlier
    rows on the stream. :class:`ColumnMistakeError`, beginning with ``where``, if a column would
    change a value (R38).
    """
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = list(zip(*rows, strict=True))[1:]
    wanted = [None] * len(names) if schema is None else schema.types
    arrays = [
        values.array(column, name, type, is_declared, where)
        for column, name, type in zip(columns, names, wanted, strict=True)
    ]
    return (
        pa.RecordBatch.from_arrays(arrays, schema=schema)
        if schema is not None
        else pa.RecordBatch.from_arrays(arrays, names=list(names))
    )
