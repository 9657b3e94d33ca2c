"""The bytes that travel between tasks, and from phase to phase: rows, frames, chunks, and pieces of
held bolts.

*Rows* are the value tuples of one lane (one sending task to one receiving task), as runs of
``(stream, [values, …])`` so that the order of emission across streams is kept (R17). A *frame* is
addressed rows or a piece of a held bolt. A *chunk* is a header with the frames for one slot; its
receiver can tell from the headers whether all chunks have arrived and stem from one computation
(R33).

Classes defined in ``__main__`` cannot be imported by a worker. These classes came with the
topology, so they are named by their place in its table.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """``number`` counts from 0; ``total`` is 0 but in the last chunk, which also brings the
    sender's report."""

    job: str
    level: int
    slot: int
    task_attempt: int
    number: int
    total: int = 0
    report: Report | None = None


CHUNK, SEED, REPORT, FRAMES = b"C", b"S", b"R", b"F"
"""First byte of what travels: a chunk of a shuffle · frames from the driver · a terminal slot's
report · a terminal slot's frames."""


_classes: dict[str, tuple[type, ...]] = {}


def register_classes(run: str, classes: tuple[type, ...]) -> None:
    """Make the table of ``run``'s classes known to this process."""
    _classes[run] = classes


def forget_classes(run: str) -> None:
    """Drop the table of ``run``."""
    _classes.pop(run, None)


def topology_class(run: str, index: int) -> type:
    """The class at ``index`` of ``run``'s table."""
    return _classes[run][index]


class ReferencePickler(pickling.Pickler):
    """Pickles anything cloudpickle can, naming the topology's own classes instead of carrying their
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
    """User values as bytes: by C pickle, or with the topology's classes by reference where that
    cannot."""
    try:
        return pickle.dumps(value, PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        buffer = io.BytesIO()
        ReferencePickler(buffer, run).dump(value)
        return buffer.getvalue()


def load_values(data: bytes) -> Any:
    """The inverse of :func:`dump_values`."""
    return pickle.loads(data)


def pack_runs(runs: Runs, run: str) -> bytes:
    """``runs`` as bytes."""
    return dump_values(
        [
            (name, len(rows), rows if column_runs.is_run(name) else row_encoding.columns_of(rows))
            for name, rows in runs
        ],
        run,
    )


def unpack_runs(data: bytes) -> list[tuple[str, Iterator[Row]]]:
    """The inverse of :func:`pack_runs`; rows are made when they are asked for."""
    return [
        (name, iter(packed) if column_runs.is_run(name) else row_encoding.rows_of(count, packed))
        for name, count, packed in load_values(data)
    ]


def split_runs(runs: Runs) -> tuple[Runs, Runs]:
    """Two halves of ``runs``, in order."""
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
    """``runs`` as one payload, or several in order if one would exceed ``bound`` bytes; a single
    row beyond it is an error."""
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
    """A file to pickle into, of which ``take`` gets pieces of at most ``bound`` bytes, so that
    there is never the whole of it; one piece, possibly empty, at least."""

    def __init__(self, bound: int, take: Callable[[bytes], None]) -> None:
        self._bound, self._take = bound, take
        self._waiting = bytearray()
        self._has_taken = False

    def write(self, data: bytes) -> int:
        """Part of a pickle."""
        left = memoryview(data)
        while left:
            part = left[: self._bound - len(self._waiting)]
            self._waiting += part
            left = left[len(part) :]
            if len(self._waiting) == self._bound:
                self._hand_on()
        return len(data)

    def close(self) -> None:
        """The pickle is complete."""
        if self._waiting or not self._has_taken:
            self._hand_on()

    def _hand_on(self) -> None:
        self._take(bytes(self._waiting))
        self._waiting.clear()
        self._has_taken = True


class PieceReader(io.RawIOBase):
    """The file that a :class:`PieceWriter` was given, from its pieces."""

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
    """One chunk."""
    return CHUNK + pickle.dumps((header, [tuple(frame) for frame in frames]), PROTOCOL)


def unpack_chunk(data: bytes) -> tuple[ChunkHeader, list[Frame]]:
    """The inverse of :func:`pack_chunk`."""
    header, frames = pickle.loads(memoryview(data)[1:])
    return header, [Frame(*frame) for frame in frames]


def pack_report(report: Report) -> bytes:
    """A terminal slot's report."""
    return REPORT + pickle.dumps(report, PROTOCOL)


def unpack_report(data: bytes) -> Report:
    """The inverse of :func:`pack_report`."""
    report: Report = pickle.loads(memoryview(data)[1:])
    return report


def pack_frames(frames: Sequence[Frame], tag: bytes = FRAMES) -> bytes:
    """Frames without a header: results of a terminal slot, or (``SEED``) input from the driver for
    a first level."""
    return tag + pickle.dumps([tuple(frame) for frame in frames], PROTOCOL)


def unpack_frames(data: bytes) -> list[Frame]:
    """The inverse of :func:`pack_frames`."""
    return [Frame(*frame) for frame in pickle.loads(memoryview(data)[1:])]
