"""What a person sees of a run: where it begins, how it goes, how it ended. One line that is rewritten on a terminal, else few plain lines.

Apart from ``status`` (what there is to know) because this is only how it looks.

Runs on: driver, one thread.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import TextIO

from txtopo.runtime.status import RunStatus

INTERVAL_S = 5.0
"""How often a plain line may say how it goes."""

_PREFIX = "txtopo: "
_SHORT_GENERATION = 8


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def describe(status: RunStatus) -> str:
    """How it goes, in one line."""
    parts = [f"txid {status.current - 1} committed" if status.current > 1 else "nothing committed yet"]
    parts.append(f"{len(status.active)} in flight")
    parts.append(f"{status.tuples_per_s:,.0f} tuples/s")
    if status.last_commit_latency_s is not None:
        parts.append(f"last commit took {status.last_commit_latency_s:.2f} s")
    parts.append(_counted(status.replays, "replay"))
    if status.state == "draining":
        parts.append("stopping")
    elif status.idle:
        parts.append("waiting for input")
    if status.last_error:
        parts.append(f"last error: {status.last_error.splitlines()[0]}")
    return ", ".join(parts)


class Progress:
    """Writes to ``stream``, by default at most a line every ``INTERVAL_S`` and none that says what the one before said."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, is_terminal: bool | None = None) -> None:
        self._stream, self._clock = stream, clock
        self._rewrites = stream.isatty() and os.environ.get("TERM") != "dumb" if is_terminal is None else is_terminal
        self._shown = ""
        self._shown_at = clock()
        self._state = "running"

    def started(self, began: RunStatus, zookeeper: str, master: str) -> None:
        """The run has its topology. ``began`` is its status before anything ran."""
        begins = "begins" if began.epoch == 1 else "resumes"
        generation = f"generation {began.generation[:_SHORT_GENERATION]}, epoch {began.epoch}"
        self.say(f"{began.topology_id} {begins} at txid {began.current} ({generation}); ZooKeeper {zookeeper}; Spark {master}")

    def standing_by(self, why: str) -> None:
        """The run waits until what another process holds is free."""
        self.say(f"standing by: {why.splitlines()[0] if why else 'held by another process'}")

    def update(self, status: RunStatus) -> None:
        """Show ``status``, if it is time to."""
        text = describe(status)
        if self._rewrites:
            width = max(shutil.get_terminal_size().columns - 1, 20)
            self._write(f"\r{text[:width]}\x1b[K")
            self._shown = text
            return
        is_due = self._clock() - self._shown_at >= INTERVAL_S or status.state != self._state
        self._state = status.state
        if is_due and text != self._shown:
            self._shown, self._shown_at = text, self._clock()
            self.say(text)

    def stopping(self) -> None:
        """The first signal has come."""
        self.say("stopping: finishing commits in flight (again to stop now)")

    def ended(self, status: RunStatus, how: str) -> None:
        """The run is over; ``how`` is a word."""
        counts = f"{_counted(status.committed, 'transaction')} committed, {_counted(status.tuples, 'tuple')}, {_counted(status.replays, 'replay')}"
        self.say(f"{status.topology_id} {how}: {counts}; the next run begins at txid {status.current}")

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._rewrites and self._shown:
            self._write("\r\x1b[K")
            self._shown = ""
        self._write(f"{_PREFIX}{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
