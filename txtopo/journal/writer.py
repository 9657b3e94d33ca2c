"""Writes records to a journal's files, in a thread of its own.

Runs on: driver. A journal is a directory with *segments*: files with rising numbers, each one
eighth of the bound. Every segment begins with the record of the run's beginning.

Invariants: :meth:`Writer.put` never waits and never raises. The segments together stay below the
bound: the oldest are removed first. If the disk refuses to write, such as a full disk, the writer
tries again every ``AGAIN_S`` and counts the records that it drops meanwhile. Another error ends the
journal. Neither ends the run. A record is written at most ``PAUSE_S`` after ``put``, and then
survives the process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from txtopo.engine.observer import LOGGER
from txtopo.journal import records

PAUSE_S = 0.05
"""How long records are gathered for one write."""

IDLE_S = 0.2
"""How long the thread sleeps if there is no record."""

WAITING_MAX = 1000
"""How many records may wait for the disk. Further ones are dropped, and counted in the journal."""

AGAIN_S = 10.0
"""How long the thread waits after the disk has refused to write."""

END_S = 5.0
"""How long a run's end waits for the last write."""

SEGMENTS = 8
"""The bound on all segments, divided by the bound on one."""

SUFFIX = ".jsonl"

_OPEN_TRIES_MAX = 100


class Writer:
    """The journal of one run, in ``path``, with at most ``bytes_max`` bytes. ``head`` is the first
    record in every segment. ``between`` is called between writes, at least every ``IDLE_S``, with
    the number of dropped records, and whether that is the last call."""

    def __init__(
        self,
        topology_id: str,
        path: Path,
        bytes_max: int,
        head: records.Record,
        between: Callable[[int, bool], None] = lambda dropped, is_last: None,
    ) -> None:
        self._topology_id, self._path, self._head = topology_id, path, head
        self._between = between
        self._segment_max = bytes_max // SEGMENTS
        self._bytes_max = bytes_max
        self._waiting: deque[Callable[[], records.Record]] = deque()
        self._refused = self._lost = self._in_hand = self._told = 0
        self._reasons: set[str] = set()
        """Errors that were told."""
        self._continued: records.Record = {}
        self._wake, self._closing = threading.Event(), threading.Event()
        self._has_ended = False
        self._file: int | None = None
        self._segment, self._size, self._head_size = path, 0, 0
        self._thread = threading.Thread(
            target=self._run, name=f"txtopo-journal-{topology_id}", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # there is no thread left
            self._lose(error)
        else:
            self._wake.set()

    def put(self, record: Callable[[], records.Record]) -> None:
        """Have ``record()`` written. It is called on the writer's thread."""
        if self._has_ended:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._refused += 1
            return
        self._waiting.append(record)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what waits, and end. Waits for a slow disk at most ``END_S``."""
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._lose(TimeoutError(f"the disk has not answered for {END_S:g} s"))
        self._has_ended = True

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                self._wake.wait(IDLE_S)
                # In this order: a call of close() during the pause wakes the thread once more.
                self._wake.clear()
                is_last = self._closing.wait(PAUSE_S)
                is_written = self._try_to(self._write_waiting)
                self._try_to(functools.partial(self._between, self._dropped, is_last))
                if not is_written and not is_last:
                    self._closing.wait(AGAIN_S)
        except BaseException as error:
            self._lose(error)
        finally:
            self._close_file()

    @property
    def _dropped(self) -> int:
        return self._refused + self._lost

    def _try_to(self, write: Callable[[], None]) -> bool:
        """Whether the disk has let us ``write``. Each kind of error is told once."""
        try:
            write()
        except OSError as error:
            self._lost, self._in_hand = self._lost + self._in_hand, 0
            reason = error.strerror or str(error)
            if reason not in self._reasons:
                self._reasons.add(reason)
                LOGGER.warning(
                    "topology %r cannot write all of its journal now, but the run goes on: %s: %s\n"
                    "  Make room there, and the journal goes on. Or choose another directory with data_dir; journal=off does without.",
                    self._topology_id,
                    self._path,
                    reason,
                )
            return False
        return True

    def _lose(self, error: BaseException) -> None:
        """End the journal because of ``error``."""
        if not self._has_ended:
            self._has_ended = True
            self._waiting.clear()
            LOGGER.warning(
                "topology %r keeps no journal from now on, but the run goes on: %s: %s\n"
                "  Look after the disk, or choose another directory with data_dir, and start the run again. journal=off does without.",
                self._topology_id,
                self._path,
                f"{type(error).__name__}: {error}",
            )

    def _write_waiting(self) -> None:
        if self._file is None:
            self._open()
        lines: list[bytes] = []
        size = 0
        for _ in range(len(self._waiting)):
            line = _line(self._waiting.popleft(), self._segment_max)
            self._in_hand += 1
            if self._size + size + len(line) > self._segment_max:
                self._write(lines)
                self._in_hand = 1
                self._open()
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        dropped = self._dropped
        if dropped > self._told:
            lines.append(records.encode({"kind": "dropped", "records": dropped - self._told}))
        self._write(lines)
        self._in_hand, self._told = 0, dropped

    def _write(self, lines: list[bytes]) -> None:
        data, begin = b"".join(lines), self._size
        rest = memoryview(data)
        try:
            while rest:
                assert self._file is not None
                written = os.write(self._file, rest)
                self._size += written
                rest = rest[written:]
        except OSError:
            self._close_file()  # a line may be cut off in the middle
            whole = data.count(b"\n", 0, len(data) - len(rest))
            self._in_hand = max(self._in_hand - whole, 0)
            if not whole and begin <= self._head_size:  # else each try would leave a segment
                self._segment.unlink(missing_ok=True)
            raise

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _open(self) -> None:
        """Begin a segment, and remove the oldest so that a whole segment has room."""
        self._close_file()
        make_private(self._path)
        paths = segments(self._path)
        sizes = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # another coordinator writes here
                sizes[path] = path.stat().st_size
        for path in [*sizes]:
            if sum(sizes.values()) + self._segment_max <= self._bytes_max:
                break
            path.unlink(missing_ok=True)
            del sizes[path]
        number = int(paths[-1].name.removesuffix(SUFFIX)) if paths else 0
        for _ in range(_OPEN_TRIES_MAX):
            number += 1
            self._segment = self._path / f"{number:010d}{SUFFIX}"
            with contextlib.suppress(FileExistsError):  # another coordinator writes here
                self._file = os.open(
                    self._segment,
                    os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC,
                    0o600,
                )
                break
        self._size = self._head_size = 0
        self._write([records.encode(self._head | self._continued)])
        self._head_size = self._size
        self._continued = {"continued": True}


def _line(record: Callable[[], records.Record], bytes_max: int) -> bytes:
    """The line for ``record()``. Without metadata, if they cannot be kept."""
    fields = record()
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        line = records.encode(fields)
        if len(line) <= bytes_max:
            return line
    return records.encode({**fields, "meta": None, "meta_left_out": True})


def make_private(path: Path) -> None:
    """Make ``path`` and its missing parents, for this user only."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def segments(path: Path) -> list[Path]:
    """The segments in ``path``, the oldest first. Empty without a journal."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    numbers = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
    numbers = [each for each in numbers if each.isdecimal() and len(each) == 10]
    return [path / f"{each}{SUFFIX}" for each in sorted(numbers)]
