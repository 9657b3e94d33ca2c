"""Passes on the standard error of a JVM that this process starts, without a useless warning.

The JVM writes into a pipe that this process reads, and not to the terminal. When a driver is
killed, its JVM writes to a pipe without a reader. Complaints about the lost driver then do not
reach a terminal on which the next command is being typed.

Runs on: driver, and where ``txtopo submit`` is typed. Each pipe has its own thread.

Invariants: every byte outside ``UNWANTED`` lines is passed on, in order, without waiting for the
line's end, unless :attr:`PassedOn.is_muted`. The JVM never waits for a reader: this process reads
until the JVM has closed its end.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading

from txtopo.state import directory

UNWANTED = (b"WARNING: Using incubator modules: jdk.incubator.vector",)
"""Lines that are left out. Spark adds this module to every JVM it starts, and Java warns each
time."""

_CHUNK_BYTES = 64 * 1024
_STDERR = 2
_FINISH_S = 5.0


class LineFilter:
    """Takes bytes in pieces and returns the bytes to show."""

    def __init__(self) -> None:
        self._kept = b""
        """A line's beginning, which may yet become an unwanted line."""
        self._in_line = False
        """The present line's beginning was given back already."""

    def passed(self, chunk: bytes) -> bytes:
        """The bytes that may be shown after ``chunk``."""
        shown: list[bytes] = []
        for line in (
            (self._kept + chunk).splitlines(keepends=True)
            if b"\n" in chunk
            else [self._kept + chunk]
        ):
            self._kept = b""
            if self._in_line or not any(_may_be(line, unwanted) for unwanted in UNWANTED):
                shown.append(line)
                self._in_line = not line.endswith(b"\n")
            elif not line.endswith(b"\n"):
                self._kept = line
        return b"".join(shown)

    def rest(self) -> bytes:
        """The bytes that were kept back, when the stream has ended."""
        kept, self._kept = self._kept, b""
        return b"" if kept in UNWANTED else kept


def _may_be(line: bytes, unwanted: bytes) -> bool:
    """Whether ``line``, which may not be at its end yet, is ``unwanted``, or could become it."""
    return line.rstrip(b"\r\n") == unwanted if line.endswith(b"\n") else unwanted.startswith(line)


class PassedOn:
    """A context manager around the start of one process.

    Gives the file descriptor for the process's standard error, which is passed on until the process
    ends.
    """

    is_muted = False
    """Whether output is dropped: while Spark stops, it complains about each task in flight."""

    def __init__(self) -> None:
        # The present standard error, as a child would have inherited it: the program may replace
        # standard error later. Another file may have number 2 if standard error was closed before
        # this program began (`2>&-`).
        descriptor = os.open(os.devnull, os.O_WRONLY) if sys.__stderr__ is None else os.dup(_STDERR)
        shown = io.FileIO(descriptor, "w")
        descriptor, self._writes = os.pipe()
        reads = io.FileIO(descriptor, "r")
        for file in (shown, reads):
            directory.keep_from_forks(file)
        self._reader = threading.Thread(
            target=self._pass_on, args=(reads, shown), name="txtopo-jvm-output", daemon=True
        )
        self._reader.start()

    def __enter__(self) -> int:
        return self._writes

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        os.close(self._writes)
        if isinstance(error, Exception):
            # The process's last lines are the reason.
            self.finish()

    def finish(self) -> None:
        """Once the process has ended: wait until its last line is passed on."""
        self._reader.join(_FINISH_S)

    def _pass_on(self, reads: io.FileIO, shown: io.FileIO) -> None:
        lines = LineFilter()
        try:
            while chunk := reads.read(_CHUNK_BYTES):
                passed = lines.passed(chunk)
                if not self.is_muted:
                    _write(shown, passed)
            _write(shown, lines.rest())
        finally:
            reads.close()
            shown.close()


def _write(shown: io.FileIO, data: bytes) -> None:
    # A terminal that is gone must not keep the JVM waiting for a reader.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(shown.fileno(), data) :]
