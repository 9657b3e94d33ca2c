"""The port through which a run tells its events to observers: its status, its log lines.

Runs on: driver.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from txtopo.coordinator.messages import FailureKind
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.spout_hooks import SourceProgress
from txtopo.topology.transaction import TransactionAttempt

LOGGER = logging.getLogger("txtopo")
"""If the program sets no handler, Python writes only warnings and errors, to standard error."""


Outcome = FailureKind | Literal["committed", "behind", "abandoned"]
"""How an attempt ended. behind: discarded, because an earlier transaction's attempt failed ·
abandoned: discarded, because the run stops."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended. Times are in seconds."""

    attempt: TransactionAttempt
    outcome: Outcome = "committed"
    failure: AttemptFailedError | None = None
    because_of: TransactionAttempt | None = None
    """The failed attempt that an attempt *behind* was discarded with."""
    is_replayed: bool = False
    """This run tries the transaction again."""
    tuples: int = 0
    """How many tuples the spout emitted."""
    latency_s: float = 0.0
    """Since the attempt began."""
    opened_at: datetime.datetime | None = None
    """When the transaction was opened. ``None`` if the attempt had no job yet."""
    steps: Sequence[tuple[str, float]] = ()
    """The attempt's statuses in their order, and how long each lasted."""
    tasks: Mapping[str, int] = field(default_factory=dict)
    """By component, how many tasks."""
    executed: Mapping[str, int] = field(default_factory=dict)
    """By component, how many tuples arrived."""
    emitted: Mapping[str, int] = field(default_factory=dict)
    """By component, how many tuples left."""
    widest: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By component with several tasks, the largest number of tuples that a task had in one job, and
    the task's index."""
    busy_s: Mapping[str, float] = field(default_factory=dict)
    """By phase, how long tasks were at work, all together."""
    work_s: Mapping[str, float] = field(default_factory=dict)
    """By component, how long its tasks were at work, all together. Only one transaction in
    sixty-four is measured."""
    stores: Mapping[str, int] = field(default_factory=dict)
    """By ``component/store`` name, how many store transactions were committed."""
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By component and name, how much ``context.count`` counted. Empty unless committed."""
    metadata: Any = None
    """The batch's metadata, as ZooKeeper keeps it."""


class Observer:
    """Listens to a run. The thread of the run's loop makes the calls, one after the other, and
    waits for them. A method that is not overridden does nothing. An observer that comes when the
    run has ended gets ``ended`` from the thread that brings it."""

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        """The run begins. ``is_resumed``: an earlier run sealed the first transaction, which is
        replayed."""

    def question(self, number: int) -> None:
        """The spout is asked whether a new transaction may begin, for the ``number``-th time."""

    def answered(self, txid: int, progress: SourceProgress) -> None:
        """The spout has answered about ``txid``, which is opened or must wait."""

    def open_failed(self, txid: int, error: BaseException) -> None:
        """The spout could not answer about ``txid``, and is asked again."""

    def idle(self, number: int) -> None:
        """No transaction is in flight, and at question ``number`` the spout had no new input."""

    def in_flight(
        self, current: int, active: Sequence[tuple[int, int, str]], is_idle: bool
    ) -> None:
        """Transactions in flight: (txid, attempt id, status), ascending. ``current`` commits next."""

    def attempt_ended(self, ended: EndedAttempt) -> None:
        """An attempt ended without a commit. Attempts that live when the run is killed are not
        told."""

    def committed(self, ended: EndedAttempt) -> None:
        """An attempt is committed."""

    def paused(self) -> None:
        """A pause was asked for, and nothing is in flight any more."""

    def draining(self) -> None:
        """No new transaction begins. Commits in flight are finished."""

    def ended(self, error: BaseException | None) -> None:
        """The run has ended, with ``error`` if there was one."""


def tell(observers: Sequence[Observer], call: Callable[[Observer], None]) -> None:
    """Call each of ``observers``. An observer's error is logged: the run goes on, and the next
    observers are called too."""
    for observer in observers:
        try:
            call(observer)
        except Exception:
            LOGGER.exception("%s failed, but the run goes on", type(observer).__name__)
