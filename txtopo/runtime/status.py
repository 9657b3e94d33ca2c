"""What a run can tell about itself, and how the engine keeps count."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Literal

RunState = Literal["standby", "starting", "running", "draining", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A snapshot of a run. Times are in seconds."""

    topology_id: str
    name: str
    state: RunState = "starting"
    generation: str = ""
    epoch: int = 0
    current: int = 1
    """The next txid to commit."""
    active: tuple[tuple[int, int, str], ...] = ()
    """(txid, attempt id, status) of every transaction in flight, ascending."""
    waiting_to_commit: int = 0
    """How many of them are processed and wait for their turn; that time counts towards no time-out (R8)."""
    idle: bool = False
    """Nothing is in flight, and the spout had nothing when it was last asked."""
    asked: int = 0
    """How often the spout was asked whether a new transaction may begin."""
    idle_at: int = 0
    """Which of these questions last found the run idle; what the source got before it was asked is committed."""
    committed: int = 0
    """Transactions committed by this run."""
    replays: int = 0
    """Attempts of this run that failed or were discarded."""
    pinned_replays: int = 0
    """Of these, those that only outgrew the way through the driver."""
    tuples: int = 0
    """Tuples the spout emitted in committed transactions of this run."""
    tuples_per_s: float = 0.0
    """The same per second, over the last ten seconds."""
    last_commit_latency_s: float | None = None
    """From opening to commit, for the newest committed transaction."""
    last_error: str | None = None
    """What made the newest failed attempt fail, or ended the run."""


class StatusBoard:
    """The live status: written by the engine, read and waited for by anyone."""

    _RATE_WINDOW_S = 10.0

    def __init__(self, status: RunStatus) -> None:
        self._status = status
        self._changed = threading.Condition()
        self._recent: deque[tuple[float, int]] = deque()

    def update(self, **changes: Any) -> None:
        """Change fields and wake who waits."""
        with self._changed:
            self._status = replace(self._status, **changes)
            self._changed.notify_all()

    def count_commit(self, tuples: int, latency_s: float | None) -> None:
        """One more transaction is committed."""
        now = time.monotonic()
        with self._changed:
            self._recent.append((now, tuples))
            self._forget_old(now)
            status = self._status
            changed = replace(status, committed=status.committed + 1, tuples=status.tuples + tuples, last_commit_latency_s=latency_s)
            self._status = changed
            self._changed.notify_all()

    def snapshot(self) -> RunStatus:
        """The status now."""
        now = time.monotonic()
        with self._changed:
            self._forget_old(now)
            rate = 0.0
            if self._recent:
                span = max(now - self._recent[0][0], 0.1)
                rate = sum(tuples for _, tuples in self._recent) / span
            return replace(self._status, tuples_per_s=rate)

    def _forget_old(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > self._RATE_WINDOW_S:
            self._recent.popleft()

    def wait(self, timeout_s: float) -> None:
        """Until something changes, or ``timeout_s`` have passed."""
        with self._changed:
            self._changed.wait(timeout_s)
