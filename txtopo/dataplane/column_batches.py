"""RecordBatches as bytes, from rows, and as rows.

Apart from what moves them because here alone Arrow's types meet Python's. Imported where columns are met and nowhere else: importing it
imports pyarrow.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from txtopo.dataplane.columns import ColumnMistakeError
from txtopo.dataplane.transposed import Row

MERGED_BYTES = 4 * 1024 * 1024
"""Small RecordBatches that follow each other are merged, on their way, up to about this size."""
_COMPRESSED_FROM_BYTES = 64 * 1024
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None, use_threads=False)
_ENVELOPE_BYTES = 256
"""What a run and its frame put around a stream."""


# -- bytes ---------------------------------------------------------------------------------------------------------------------------


def dumped(batches: Iterable[pa.RecordBatch | bytes], bound: int | None) -> list[bytes]:
    """``batches``, in order, as Arrow IPC streams of at most ``bound`` bytes each, unless a single row has more."""
    room = None if bound is None else max(1, bound - _ENVELOPE_BYTES)
    merged_max = MERGED_BYTES if room is None else min(MERGED_BYTES, room)
    streams: list[bytes] = []
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if isinstance(batch, bytes):
            _flush(waiting, room, streams)
            streams.append(batch)
            waiting, size = [], 0
            continue
        if waiting and (size + batch.nbytes > merged_max or not batch.schema.equals(waiting[0].schema, check_metadata=True)):
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
    """Append ``batch`` as one stream, or as several if one would not fit into ``room``."""
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


def to_stream(batch: pa.RecordBatch) -> bytes:
    """``batch`` as an Arrow IPC stream: of a slice, the slice alone. A large one is compressed: what travels passes through many hands."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED if batch.nbytes >= _COMPRESSED_FROM_BYTES else _PLAIN) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def loaded(stream: bytes) -> list[pa.RecordBatch]:
    """The RecordBatches in an Arrow IPC stream, which share its memory."""
    with pa.ipc.open_stream(stream) as reader:
        return list(reader)


def reduced(value: Any) -> tuple[Any, ...]:
    """How ``value``, which holds columns, is pickled: without what it was cut from."""
    if isinstance(value, pa.RecordBatch):
        return _restored_batch, (to_stream(value),)
    if isinstance(value, pa.Table):
        return _restored_table, (_table_stream(value),)
    if isinstance(value, pa.Array):
        return _restored_array, (to_stream(pa.RecordBatch.from_arrays([value], names=[""])),)
    return _restored_chunks, (_table_stream(pa.Table.from_arrays([value], names=[""])),)


def _table_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


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
    """RecordBatches of one schema as one, if Arrow can: it cannot unite dictionaries with nulls in them, or that would need larger indices."""
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowException:
        return batches


def compacted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` without what its rows do not use: a slice brings the whole of a dictionary, or of the memory behind string views, along."""
    columns = [_compacted(column) for column in batch.columns]
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _compacted(column: pa.Array) -> pa.Array:
    type = column.type
    if pa.types.is_dictionary(type) and len(column.dictionary) > len(column):
        return column.dictionary_decode().dictionary_encode(null_encoding="mask").cast(type)
    if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
        return column.cast(pa.large_binary() if pa.types.is_binary_view(type) else pa.large_string()).cast(type)
    return column


# -- rows ----------------------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def python_type(type: pa.DataType) -> pa.DataType:
    """What ``type`` is read as, in order to become Python objects: nanoseconds as microseconds, which are what Python's datetime has.

    Arrow itself would give objects of pandas where that happens to be installed, and the same tuple would not be the same everywhere.
    """
    if pa.types.is_timestamp(type) and type.unit == "ns":
        return pa.timestamp("us", type.tz)
    if pa.types.is_duration(type) and type.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(type) and type.unit == "ns":
        return pa.time64("us")
    if pa.types.is_dictionary(type):
        return type if python_type(type.value_type) == type.value_type else python_type(type.value_type)
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(python_type(type.value_type)))
    if pa.types.is_large_list(type):
        return pa.large_list(type.value_field.with_type(python_type(type.value_type)))
    if pa.types.is_struct(type):
        return pa.struct([type.field(i).with_type(python_type(type.field(i).type)) for i in range(type.num_fields)])
    return type


def values(column: pa.Array, name: str) -> list[Any]:
    """``column`` as Python objects; :class:`ColumnMistakeError` naming it, if Python has none for some value."""
    wanted = python_type(column.type)
    try:
        found: list[Any] = (column if wanted == column.type else column.cast(wanted)).to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ColumnMistakeError(
            f"column {name!r} of type {column.type} holds a value that Python has no object for: {_first_line(error)}\n"
            "  Cast the column before it is emitted, for example to pa.timestamp('us') with safe=False."
        ) from None
    return found


ROWS_AT_ONCE = 4096
"""How many rows are Python objects at once, when columns are taken apart."""


def slices(batch: pa.RecordBatch, rows: int = ROWS_AT_ONCE) -> Iterator[pa.RecordBatch]:
    """``batch`` in slices of at most ``rows`` rows."""
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def rows(batch: pa.RecordBatch, attempt: Any) -> list[Row]:
    """The rows of ``batch``, each with ``attempt`` as its first value."""
    columns = [values(column, name) for column, name in zip(batch.columns, batch.schema.names, strict=True)]
    return list(zip(itertools.repeat(attempt, batch.num_rows), *columns, strict=True)) if columns else [(attempt,)] * batch.num_rows


def read_schema(serialized: bytes) -> pa.Schema:
    """The schema of a stream that declares one."""
    return pa.ipc.read_schema(pa.py_buffer(serialized))


def from_rows(rows: Sequence[Row], names: Sequence[str], schema: pa.Schema | None, where: str) -> pa.RecordBatch:
    """``rows`` without their first value as columns ``names``, of ``schema`` or, without one, of the types Arrow finds.

    :class:`ColumnMistakeError`, beginning with ``where``, if values of a column do not go together, or not with ``schema``.
    """
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = list(zip(*rows, strict=True))[1:]
    arrays = []
    for i, (name, column) in enumerate(zip(names, columns, strict=True)):
        wanted = None if schema is None else schema.field(i).type
        try:
            arrays.append(_array(column, wanted))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            fact = "cannot become a column" if wanted is None else f"cannot become a column of type {wanted}"
            raise ColumnMistakeError(
                f"{where}: values of field {name!r} {fact}: {_first_line(error)}\n"
                "  Declare the types of the columns together with the stream:"
                f" declarer.declare(Fields(...), schema=pa.schema([({name!r}, pa.float64()), ...]))."
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if schema is not None else pa.RecordBatch.from_arrays(arrays, names=list(names))


def _array(column: Sequence[Any], wanted: pa.DataType | None) -> pa.Array:
    """``column`` as an array, of the type ``wanted`` if its values are of that kind: Arrow alone would take 1.5 for the integer 1."""
    kind = None if wanted is None else _kind(wanted)
    if kind in ("integer", "decimal") and all(type(value) is int or value is None for value in column):
        return pa.array(column, wanted)
    made = pa.array(column)
    made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    if wanted is None or made.type == wanted:
        return made
    found = _kind(made.type)
    if found not in ("null", kind) and (found, kind) != ("integer", "number"):
        raise TypeError(f"Arrow finds {made.type} in them")
    return made.cast(wanted)


@functools.lru_cache(maxsize=1024)
def _kind(type: pa.DataType) -> str:
    """Types of one kind differ in how many values they can hold, and not in what these mean."""
    if pa.types.is_dictionary(type):
        return _kind(type.value_type)
    if pa.types.is_timestamp(type):
        return "timestamp" if type.tz is None else "instant"
    kinds = {
        "integer": (pa.types.is_integer,), "number": (pa.types.is_floating,), "decimal": (pa.types.is_decimal,), "date": (pa.types.is_date,),
        "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view), "time": (pa.types.is_time,),
        "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
        "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
        "duration": (pa.types.is_duration,), "struct": (pa.types.is_struct,), "null": (pa.types.is_null,), "bool": (pa.types.is_boolean,),
    }  # fmt: skip
    return next((kind for kind, tests in kinds.items() if any(is_kind(type) for is_kind in tests)), str(type))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
