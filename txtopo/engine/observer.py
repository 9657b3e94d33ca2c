"""The port through which a run tells how it goes: to its status, to log lines.

Apart from the engine so that one more listener touches none of its code.

Runs on: driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from txtopo.engine.attempts import AttemptFailedError
from txtopo.topology.transaction import TransactionAttempt

LOGGER = logging.getLogger("txtopo")
"""Without a handler of the program's, Python writes warnings and errors to standard error, and
nothing else."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the source has been read, where the spout says so; see ``status.RunStatus``."""

    fraction_done: float | None = None
    lag: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int | None] = field(default_factory=dict)


class Observer:
    """Listens to a run. The loop of the run makes each call, one after the other; a method that is
    not overridden does nothing."""

    def began(self, generation: str, epoch: int, current: int, is_resumed: bool) -> None:
        """The run works from now on. ``is_resumed``: its first transaction was sealed by an earlier
        run, and is replayed."""

    def asked(self, number: int) -> None:
        """The spout is asked whether a new transaction may begin, for the ``number``-th time."""

    def answered(self, txid: int, progress: Progress) -> None:
        """The spout has answered about ``txid``, which is opened or must wait."""

    def open_failed(self, txid: int, error: BaseException) -> None:
        """The spout could not answer about ``txid``, and is asked again."""

    def idle(self, number: int) -> None:
        """Nothing is in flight, and the spout had nothing at its ``number``-th question."""

    def moved(self, current: int, active: Sequence[tuple[int, int, str]], is_idle: bool) -> None:
        """Transactions in flight: (txid, attempt id, status), ascending; ``current`` commits next."""

    def attempt_ended(
        self, attempt: TransactionAttempt, failure: AttemptFailedError | None, is_replayed: bool
    ) -> None:
        """An attempt ended without a commit; without a ``failure`` because one before it did."""

    def committed(self, attempt: TransactionAttempt, tuples: int, latency_s: float) -> None:
        """An attempt is committed: the spout's tuples in it, and the time since it was opened."""

    def draining(self) -> None:
        """No new transaction begins; commits in flight are finished."""

    def ended(self, error: BaseException | None) -> None:
        """The run has ended, with this error if there was one."""


def tell(observers: Sequence[Observer], call: Callable[[Observer], None]) -> None:
    """Call each of ``observers``. An error of one is logged: the run goes on, and the others hear
    the same."""
    for observer in observers:
        try:
            call(observer)
        except Exception:
            LOGGER.exception("%s failed; the run goes on", type(observer).__name__)


__all__ = ["LOGGER", "Observer", "Progress", "tell"]
