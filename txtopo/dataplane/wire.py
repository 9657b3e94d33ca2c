"""The bytes that travel between tasks and phases: rows, frames, chunks, and pieces of held bolts.

*Rows* are a lane's value tuples (from one sending task to one receiving task). They travel as runs
``(stream, [values, …])``, which keep the order of emits across streams (R17). A *frame* is
addressed rows, or a piece of a held bolt. A *chunk* is a header with the frames for one slot. From
the headers, the receiver sees whether all chunks have arrived and stem from one computation (R33).

A worker cannot import classes from ``__main__``. Such classes came with the topology, so pickles
name them by their index in the topology's table.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from txtopo import errors
from txtopo.dataplane import column_runs, row_encoding
from txtopo.dataplane.outcome import Report
from txtopo.dataplane.row_encoding import Row, Runs
from txtopo.topology import pickling

PROTOCOL = 5

FrameKind = Literal["rows", "held"]


class Frame(NamedTuple):
    """``payload`` for task ``task`` of component ``receiver``, from task ``source_task`` of
    ``source``."""

    kind: FrameKind
    receiver: str
    task: int
    source: str
    source_task: int
    payload: bytes


class ChunkHeader(NamedTuple):
    """``number`` counts from 0. ``total`` is 0 except in the last chunk, which also has the
    sender's report."""

    job: str
    level: int
    slot: int
    task_attempt: int
    number: int
    total: int = 0
    report: Report | None = None


CHUNK, SEED, REPORT, FRAMES = b"C", b"S", b"R", b"F"
"""The first byte: a shuffle's chunk · frames from the driver · a terminal slot's report · a
terminal slot's frames."""


_classes: dict[str, tuple[type, ...]] = {}


def register_classes(run: str, classes: tuple[type, ...]) -> None:
    """Make ``run``'s table of classes known to this process."""
    _classes[run] = classes


def forget_classes(run: str) -> None:
    """Drop ``run``'s table."""
    _classes.pop(run, None)


def topology_class(run: str, index: int) -> type:
    """The class at ``index`` in ``run``'s table."""
    return _classes[run][index]


class ReferencePickler(pickling.Pickler):
    """Pickles as cloudpickle does, but names the topology's own classes instead of carrying their
    code."""

    def __init__(self, file: io.BytesIO | PieceWriter, run: str) -> None:
        super().__init__(file, protocol=PROTOCOL)
        self._run = run
        self._indices = {cls: i for i, cls in enumerate(_classes.get(run, ()))}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in self._indices:
            return topology_class, (self._run, self._indices[obj])
        return super().reducer_override(obj)


def dump_values(value: Any, run: str) -> bytes:
    """Pickle user values: by C pickle or, where that fails, with the topology's classes by
    reference."""
    try:
        return pickle.dumps(value, PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        buffer = io.BytesIO()
        ReferencePickler(buffer, run).dump(value)
        return buffer.getvalue()


def load_values(data: bytes) -> Any:
    """Invert :func:`dump_values`."""
    return pickle.loads(data)


def pack_runs(runs: Runs, run: str) -> bytes:
    """Pickle ``runs``."""
    return dump_values(
        [
            (name, len(rows), rows if column_runs.is_run(name) else row_encoding.columns_of(rows))
            for name, rows in runs
        ],
        run,
    )


def unpack_runs(data: bytes) -> list[tuple[str, Iterator[Row]]]:
    """Invert :func:`pack_runs`. Rows are made on demand."""
    return [
        (name, iter(packed) if column_runs.is_run(name) else row_encoding.rows_of(count, packed))
        for name, count, packed in load_values(data)
    ]


def split_runs(runs: Runs) -> tuple[Runs, Runs]:
    """Split ``runs`` into two halves, in order."""
    half = sum(len(rows) for _, rows in runs) // 2
    first: Runs = []
    second: Runs = []
    for stream, rows in runs:
        taken, half = rows[:half], half - min(half, len(rows))
        if taken:
            first.append((stream, taken))
        if len(taken) < len(rows):
            second.append((stream, rows[len(taken) :]))
    return first, second


def dump_runs(runs: Runs, run: str, bound: int, sender: str) -> list[bytes]:
    """Pickle ``runs`` as one payload or, beyond ``bound`` bytes, as several in order.

    :raises errors.BatchTooLargeError: a single row exceeds ``bound``.
    """
    payload = pack_runs(runs, run)
    if len(payload) <= bound:
        return [payload]
    if sum(len(rows) for _, rows in runs) == 1:
        cure = "Emit smaller tuples, or raise blob_bytes_max."
        raise errors.BatchTooLargeError(
            f"one tuple from {sender}", len(payload), bound, "blob_bytes_max", cure
        )
    first, second = split_runs(runs)
    return dump_runs(first, run, bound, sender) + dump_runs(second, run, bound, sender)


class PieceWriter:
    """A file to pickle into. ``take`` gets pieces with at most ``bound`` bytes, so that the whole
    pickle is never in memory. There is at least one piece, possibly empty."""

    def __init__(self, bound: int, take: Callable[[bytes], None]) -> None:
        self._bound, self._take = bound, take
        self._waiting = bytearray()
        self._has_taken = False

    def write(self, data: bytes) -> int:
        """Take a part of the pickle."""
        left = memoryview(data)
        while left:
            part = left[: self._bound - len(self._waiting)]
            self._waiting += part
            left = left[len(part) :]
            if len(self._waiting) == self._bound:
                self._hand_on()
        return len(data)

    def close(self) -> None:
        """Hand on the pickle's last piece."""
        if self._waiting or not self._has_taken:
            self._hand_on()

    def _hand_on(self) -> None:
        self._take(bytes(self._waiting))
        self._waiting.clear()
        self._has_taken = True


class PieceReader(io.RawIOBase):
    """Reads a :class:`PieceWriter`'s pieces as one file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__()
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        part = self._left[: len(buffer)]
        buffer[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)


def pack_chunk(header: ChunkHeader, frames: Sequence[Frame]) -> bytes:
    """Pack one chunk."""
    return CHUNK + pickle.dumps((tuple(header), [tuple(frame) for frame in frames]), PROTOCOL)


def unpack_chunk(data: bytes) -> tuple[ChunkHeader, list[Frame]]:
    """Invert :func:`pack_chunk`."""
    header, frames = pickle.loads(memoryview(data)[1:])
    return ChunkHeader(*header), [Frame(*frame) for frame in frames]


def pack_report(report: Report) -> bytes:
    """Pack a terminal slot's report."""
    return REPORT + pickle.dumps(report, PROTOCOL)


def unpack_report(data: bytes) -> Report:
    """The inverse of :func:`pack_report`."""
    report: Report = pickle.loads(memoryview(data)[1:])
    return report


def pack_frames(frames: Sequence[Frame], tag: bytes = FRAMES) -> bytes:
    """Pack frames without a header: a terminal slot's results or, with ``SEED``, input from the
    driver for a first level."""
    return tag + pickle.dumps([tuple(frame) for frame in frames], PROTOCOL)


def unpack_frames(data: bytes) -> list[Frame]:
    """Invert :func:`pack_frames`."""
    return [Frame(*frame) for frame in pickle.loads(memoryview(data)[1:])]
