"""Lines that show a run to a person: begin, progress and end. A terminal has a single line, which
is rewritten. Elsewhere there are few plain lines.

``status`` has the facts. This module only formats.

Runs on: driver, one thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from txtopo.engine import logged
from txtopo.engine.status import RunStatus

INTERVAL_S = 5.0
"""Pause between plain lines about progress."""

REWRITE_S = 0.1
"""Shortest pause between rewrites of a terminal's line."""

COLUMNS_MAX = 100
"""How wide the first lines may be."""

_PREFIX = "txtopo: "
_SHORT_GENERATION = 8


def open_closed_streams() -> None:
    """Open standard streams that were closed before this program began (``2>&-``), on the null
    device. Otherwise the next file would get a closed stream's number, and with the number all that
    is written to the stream."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    streams = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (
        open(os.devnull, "w") if getattr(stream, "closed", stream is None) else stream  # noqa: SIM115
        for stream in streams
    )


def _number_of(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _replays(status: RunStatus) -> str:
    counts = f" ({status.failed:,} failed, {status.behind:,} behind)"
    return _number_of(status.replays, "replay") + counts * (status.failed + status.behind > 0)


def describe(status: RunStatus) -> str:
    """A run's progress, in one line."""
    parts = [
        f"txid {status.current - 1} committed" if status.current > 1 else "nothing committed yet"
    ]
    if status.fraction_done is not None:
        # Rounded down: 100 % means all input.
        parts.append(f"{math.floor(status.fraction_done * 100)} % of the input")
    parts.append(f"{len(status.active)} in flight")
    parts.append(f"{status.tuples_per_s:,.0f} tuples/s")
    if status.last_commit_latency_s is not None:
        parts.append(f"last transaction took {status.last_commit_latency_s:.2f} s")
    parts.append(_replays(status))
    if status.state == "draining":
        parts.append("stopping")
    elif status.state == "paused":
        parts.append("paused")
    elif status.idle:
        parts.append("waiting for input")
    if status.standing_error:
        parts.append(f"last error: {logged.first_line(status.standing_error)}")
    return ", ".join(parts)


def should_show(asked: bool | None) -> bool:
    """Whether to show progress on standard error: as ``asked``. If ``asked`` is ``None``, where
    standard error is a terminal."""
    return sys.stderr.isatty() if asked is None else asked


class TerminalLine:
    """The last line of ``stream``: rewritten on a terminal, elsewhere a new line each time."""

    def __init__(self, stream: TextIO, is_terminal: bool | None = None) -> None:
        self._stream, self._is_shown = stream, False
        can_rewrite = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.rewrites = can_rewrite if is_terminal is None else is_terminal

    def rewrite(self, text: str) -> None:
        """Show ``text`` in place of the line, cut to the terminal's width."""
        if not self.rewrites:
            self.write(text)
            return
        width = max(shutil.get_terminal_size().columns - 1, 20)
        self._put(f"\r{text[:width]}\x1b[K")
        self._is_shown = True

    def clear(self) -> None:
        """Take the rewritten line from the terminal."""
        if self._is_shown:
            self._put("\r\x1b[K")
            self._is_shown = False

    def write(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._put(f"{text}\n")

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class ProgressLine:
    """Writes to ``stream``: on a terminal a line that is rewritten, elsewhere at most a line every
    ``INTERVAL_S``, and no line twice in a row."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        is_terminal: bool | None = None,
    ) -> None:
        self._line, self._clock = TerminalLine(stream, is_terminal), clock
        self._shown = ""
        self._shown_at = clock()
        self._state = "running"

    def started(self, began: RunStatus, zookeeper: str, master: str) -> None:
        """Announce a run that has its topology. ``began`` is the status before the first attempt."""
        begins = "begins" if began.epoch == 1 else "resumes"
        generation = f"generation {began.generation[:_SHORT_GENERATION]}, epoch {began.epoch}"
        self._say_parts(
            f"{began.topology_id} {begins} at txid {began.current} ({generation})",
            f"ZooKeeper {zookeeper}",
            f"Spark {master}",
        )

    def standing_by(self, why: str) -> None:
        """Announce a run that waits for a topology or a directory held by another process."""
        self.say(f"standing by: {why.splitlines()[0] if why else 'held by another process'}")

    def update(self, status: RunStatus) -> None:
        """Show ``status``, if it is time."""
        text = describe(status)
        if self._line.rewrites:
            self._line.rewrite(text)
            return
        is_due = self._clock() - self._shown_at >= INTERVAL_S or status.state != self._state
        self._state = status.state
        if is_due and text != self._shown:
            self._shown, self._shown_at = text, self._clock()
            self.say(text)

    def stopping(self) -> None:
        """Announce the stop, after the first signal."""
        self.say("stopping: finishing commits in flight (again to stop now)")

    def ended(self, status: RunStatus, how: str) -> None:
        """Announce the run's end. ``how`` is a word."""
        counts = f"{_number_of(status.committed, 'transaction')} committed, {_number_of(status.tuples, 'tuple')}, {_replays(status)}"
        if status.is_error_over and status.last_error and status.last_error_at:
            when = status.last_error_at.astimezone().strftime("%H:%M:%S")
            self.say(
                f"the last attempt that failed was of txid {status.last_error_txid}, at {when}: {logged.first_line(status.last_error)}"
            )
        self.say(
            f"{status.topology_id} {how}: {counts}; the next run begins at txid {status.current}"
        )

    def _say_parts(self, *parts: str) -> None:
        """Write lines that stay, of at most ``COLUMNS_MAX`` where the parts allow it. No part is
        broken."""
        lines = [parts[0]]
        for part in parts[1:]:
            if len(f"{_PREFIX}{lines[-1]}; {part}") <= COLUMNS_MAX:
                lines[-1] += f"; {part}"
            else:
                lines.append(part)
        for line in lines:
            self.say(line)

    def pause(self) -> None:
        """Take the rewritten line from the terminal: the terminal is the program's again."""
        self._line.clear()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._line.write(f"{_PREFIX}{text}")


class Warnings(logging.Handler):
    """Shows logged warnings among a command's lines. The command itself tells errors."""

    def __init__(self, progress: ProgressLine) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Show ``record``, unless the terminal is gone: code that warns must not fail because of a
        terminal."""
        if record.levelno < logging.ERROR:
            with contextlib.suppress(OSError, ValueError):
                self._progress.say(self.format(record))


class ShownRun:
    """Shows one run of a program while the program waits for the run, and no oftener than a person
    can read.

    Invariants: may be called from any thread. A run is announced once, when it has its topology,
    and ends once. A terminal that has gone ends the showing, and nothing else.
    """

    def __init__(
        self,
        progress: ProgressLine,
        zookeeper: str,
        master: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._zookeeper = zookeeper
        self._master = master
        self._clock = clock
        self._lock = threading.Lock()
        self._announced = self._ended = False
        self._updated_at: float | None = None

    def update(self, status: RunStatus, began: RunStatus | None) -> None:
        """Show ``status``. ``began`` is the status before anything ran, ``None`` while the run
        stands by."""
        with self._showing():
            now = self._clock()
            if self._ended or (self._updated_at is not None and now - self._updated_at < REWRITE_S):
                return
            if began is not None and not self._announced:
                self._announced = True
                self._progress.started(began, self._zookeeper, self._master)
            elif began is None and self._updated_at is None:
                self._progress.standing_by(status.last_error or "")
            elif began is not None:
                self._progress.update(status)
            self._updated_at = now

    def pause(self) -> None:
        """Take the rewritten line away: the program no longer waits."""
        with self._showing():
            if not self._ended:
                self._progress.pause()

    def ended(self, status: RunStatus, how: str) -> None:
        """Announce the run's end. ``how`` is a word."""
        with self._showing():
            if not self._ended:
                self._ended = True
                self._progress.ended(status, how)

    @contextlib.contextmanager
    def _showing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (OSError, ValueError):
                self._ended = True
