"""A run's status, and the counts behind it."""

from __future__ import annotations

import datetime
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from txtopo.engine.observer import EndedAttempt, Observer
from txtopo.engine.spout_hooks import SourceProgress

RunState = Literal["standby", "starting", "running", "paused", "draining", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run's snapshot. Times are in seconds."""

    topology_id: str
    name: str
    state: RunState = "starting"
    generation: str = ""
    epoch: int = 0
    current: int = 1
    """The next txid to commit."""
    active: tuple[tuple[int, int, str], ...] = ()
    """(txid, attempt id, status) for every transaction in flight, ascending."""
    waiting_to_commit: int = 0
    """How many transactions are processed and wait for their turn. The wait counts towards no
    time-out (R8)."""
    idle: bool = False
    """No transaction is in flight, and the spout had no new input when last asked."""
    asked: int = 0
    """How often the spout was asked whether a new transaction may begin."""
    idle_at: int = 0
    """The number of the last question that found the run idle. All input before that question is
    committed."""
    committed: int = 0
    """Transactions committed by this run."""
    replays: int = 0
    """Replayed attempts: this run's attempts that failed or were discarded, and an earlier run's
    attempt that had sealed its transaction."""
    failed: int = 0
    """This run's attempts that failed. Attempts with results too large for the driver do not
    count."""
    behind: int = 0
    """This run's attempts that were discarded because an earlier transaction's attempt failed."""
    pinned_replays: int = 0
    """Replays only because the results were too large for the driver."""
    tuples: int = 0
    """Tuples that the spout emitted in this run's committed transactions."""
    tuples_per_s: float = 0.0
    """Such tuples per second, over the last ten seconds. If the commit before the last is longer
    ago, since that commit."""
    fraction_done: float | None = None
    """The committed fraction of the source, from 0 to 1. ``None`` if the spout does not say."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """By source partition, such as ``orders/3``, how much was not committed when the spout was last
    asked. Empty if the spout does not say."""
    lost: Mapping[str, int | None] = field(default_factory=dict)
    """By source partition with losses, how much was lost before it was read, since the state began.
    ``None`` if the amount is not known. Only a spout that may go on over a loss has entries."""
    last_commit_latency_s: float | None = None
    """From opening to commit, for the newest committed transaction."""
    last_error: str | None = None
    """The newest failed attempt's error, or the error that ended the run. The error stays when the
    run goes on: see ``standing_error``."""
    last_error_txid: int | None = None
    """The transaction that ``last_error`` is about. ``None``: the whole run."""
    last_error_at: datetime.datetime | None = None
    """When ``last_error`` happened, in UTC."""
    is_error_over: bool = False
    """The run has got past ``last_error``: the transaction is committed, or was opened after
    all."""

    @property
    def standing_error(self) -> str | None:
        """``last_error``, until the run has got past the error."""
        return None if self.is_error_over else self.last_error


class StatusBoard(Observer):
    """The live status, which any thread may read or wait for."""

    _RATE_WINDOW_S = 10.0

    def __init__(self, status: RunStatus, clock: Callable[[], float] | None = None) -> None:
        self._status, self._clock = status, clock or time.monotonic
        self._changed = threading.Condition()
        self._recent: deque[tuple[float, int]] = deque([(self._clock(), 0)])
        """Commits: the time, and the tuple count. The window begins at the first commit, whose own
        tuples came before."""
        self._recent_tuples = 0
        """All tuples in the window, so that frequent readers need not add up the commits."""
        self._unanswered: int | None = None
        """The transaction that the spout could not answer about."""

    def update(self, **changes: Any) -> None:
        """Change fields and wake all waiting threads."""
        with self._changed:
            self._status = replace(self._status, **changes)
            status = self._status
            if (
                status.last_error_txid is not None
                and status.current > status.last_error_txid
                and not status.is_error_over
            ):
                self._status = replace(status, is_error_over=True)
            self._changed.notify_all()

    def failed(self, error: str, txid: int | None, **changes: Any) -> None:
        """Note an error, and change fields. Transaction ``txid`` could not be opened, or its
        attempt has failed. ``None``: the run has failed, or waits for its ZooKeeper, which cannot
        be started now."""
        now = datetime.datetime.now(datetime.UTC)
        self.update(
            last_error=error,
            last_error_txid=txid,
            last_error_at=now,
            is_error_over=False,
            **changes,
        )

    # -- from the run -----------------------------------------------------------------------------

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        # The run's tuples are counted from now on.
        with self._changed:
            self._recent = deque([(self._clock(), 0)])
            self._recent_tuples = 0
        self.update(
            state="running",
            generation=generation,
            epoch=epoch,
            current=current,
            replays=int(is_resumed),
        )

    def question(self, number: int) -> None:
        is_resumed = {"state": "running"} if self._status.state == "paused" else {}
        self.update(asked=number, **is_resumed)

    def answered(self, txid: int, progress: SourceProgress) -> None:
        with self._changed:
            is_over = (
                {"is_error_over": True}
                if self._unanswered == self._status.last_error_txid == txid
                else {}
            )
            self.update(
                fraction_done=progress.fraction_done,
                lag=progress.lag,
                lost=progress.lost,
                **is_over,
            )

    def open_failed(self, txid: int, error: BaseException) -> None:
        self._unanswered = txid
        self.failed(f"opening txid {txid}: {error}", txid)

    def idle(self, number: int) -> None:
        self.update(idle_at=number)

    def in_flight(
        self, current: int, active: Sequence[tuple[int, int, str]], is_idle: bool
    ) -> None:
        waiting = sum(status == "processed" for _, _, status in active)
        self.update(current=current, active=tuple(active), waiting_to_commit=waiting, idle=is_idle)

    def attempt_ended(self, ended: EndedAttempt) -> None:
        if ended.failure is not None:
            self.failed(ended.failure.text, ended.attempt.txid)
        status, outcome = self._status, ended.outcome
        self.update(
            replays=status.replays + ended.is_replayed,
            pinned_replays=status.pinned_replays + (ended.is_replayed and outcome == "outgrown"),
            failed=status.failed + (outcome not in ("behind", "abandoned", "outgrown")),
            behind=status.behind + (outcome == "behind"),
        )

    def committed(self, ended: EndedAttempt) -> None:
        now = self._clock()
        with self._changed:
            self._recent.append((now, ended.tuples))
            self._recent_tuples += ended.tuples
            self._forget_old(now)
            status = self._status
            self._status = replace(
                status,
                committed=status.committed + 1,
                tuples=status.tuples + ended.tuples,
                last_commit_latency_s=ended.latency_s,
            )
            self._changed.notify_all()

    def paused(self) -> None:
        self.update(state="paused")

    def draining(self) -> None:
        self.update(state="draining")

    def ended(self, error: BaseException | None) -> None:
        if error is None:
            self.update(state="stopped", active=())
        else:
            self.failed(str(error), None, state="failed", active=())

    # -- for readers ------------------------------------------------------------------------------

    def snapshot(self) -> RunStatus:
        now = self._clock()
        with self._changed:
            self._forget_old(now)
            begin, _ = self._recent[0]
            return replace(self._status, tuples_per_s=self._recent_tuples / max(now - begin, 0.1))

    def _forget_old(self, now: float) -> None:
        # The newest commit always counts: if each commit takes longer than the window, the rate is
        # the last commit's.
        while len(self._recent) > 2 and now - self._recent[1][0] > self._RATE_WINDOW_S:
            self._recent.popleft()
            self._recent_tuples -= self._recent[0][1]

    def wait(self, timeout_s: float) -> None:
        """Wait until a field changes, or ``timeout_s`` have passed."""
        with self._changed:
            self._changed.wait(timeout_s)
