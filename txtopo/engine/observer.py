"""The port through which a run tells its events to observers: its status, its log lines.

Runs on: driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from txtopo.engine.attempts import AttemptFailedError
from txtopo.topology.transaction import TransactionAttempt

LOGGER = logging.getLogger("txtopo")
"""If the program sets no handler, Python writes only warnings and errors, to standard error."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far the source has been read, if the spout says so. See ``status.RunStatus``."""

    fraction_done: float | None = None
    lag: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int | None] = field(default_factory=dict)


class Observer:
    """Listens to a run. The run's loop makes the calls, one after the other. A method that is not
    overridden does nothing."""

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

    def attempt_ended(
        self, attempt: TransactionAttempt, failure: AttemptFailedError | None, is_replayed: bool
    ) -> None:
        """An attempt ended without a commit. Without a ``failure``, the attempt was discarded.
        Attempts that live when the run is killed are not told."""

    def committed(self, attempt: TransactionAttempt, tuples: int, latency_s: float) -> None:
        """An attempt is committed. ``tuples`` counts the spout's tuples, ``latency_s`` is the time
        since the opening."""

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
