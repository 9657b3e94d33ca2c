"""A schedule's world: the state that its drivers, jobs, hooks and stores share.

A ``Schedule`` makes the world and hands it out. Modules below ``schedule`` know the world instead
of the schedule, so that no import runs in a circle. ``subject`` outlives a schedule, and is built
from stores and hooks that ask for the world.

Invariants: ``now`` and ``commits`` never decrease.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from txtopo.state import memory
from txtopo.stores import base
from txtopo.testing.simulator.clocks import JUMPS, Clocks
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.fault_kinds import STORE_FAULTS
from txtopo.testing.simulator.processes import Processes
from txtopo.topology.transaction import TransactionAttempt

_UNWATCHED: AbstractContextManager[None] = contextlib.nullcontext()

Watch: TypeAlias = Callable[
    ["World", str, int, str, str, TransactionAttempt], AbstractContextManager[None]
]
"""Observes a hook while the context lasts: called with the world, and the hook's component, task,
name, phase and attempt. See ``diagnosis``."""


def null_watch(*hook: object) -> AbstractContextManager[None]:
    """A watch without effect, whose presence alone makes the schedule record everything."""
    return _UNWATCHED


class World:
    """``processes``, ``clocks`` and ``stores`` are the subject's. Emissions from the components
    ``reported`` are always recorded. ``trace`` gets each event as a line of text. ``watch``
    observes every hook. The user's clock is ``clock_s`` ahead.

    In an ``is_patient`` world the source is asked again when it has no batch: see ``hooks``.
    """

    def __init__(
        self,
        decisions: Decisions,
        processes: Processes,
        clocks: Clocks,
        stores: Sequence[base.Store],
        reported: Collection[str] = (),
        *,
        trace: Callable[[str], None] | None = None,
        watch: Watch | None = None,
        clock_s: float = 0.0,
        is_patient: bool = False,
    ) -> None:
        self.decisions = decisions
        self.processes = processes
        self.stores = stores
        self.reported = reported
        self._clocks, self._trace, self._watch, self._clock_s = clocks, trace, watch, clock_s
        self.is_patient = is_patient
        self.is_asking_again = False
        """Whether a patient schedule asks the source again. No fault strikes meanwhile, because an
        impatient schedule does not ask at this point."""
        self.source_paused = False
        """Whether a patient schedule has seen the source not ready, and ready afterwards."""
        self.now = 0.0
        """Virtual time, in seconds."""
        self.commits = 0
        """How many transactions are committed."""
        self.server = memory.MemoryServer()
        """ZooKeeper."""
        self.task_attempts = itertools.count()
        self.driver_number = 0
        """The number of the driver whose code runs, or ran last."""
        self.step_aside: Callable[[str], None] = lambda when: None
        """Lets the driver's thread wait for other threads: see ``driver``."""
        self.store_reads = 0
        """How often a store was read outside of a transaction."""
        self.error: str | None = None
        """The first error that no fault explains, as text: the schedule is over."""
        self.error_component: str | None = None
        self._store_transactions = 0

    def note(self, event: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now:8.2f} s  {event}")

    def ended_with(self, error: BaseException) -> None:
        """End the schedule with ``error``, which no fault explains."""
        self.error = self.error or f"{type(error).__name__}: {error}"
        self.error_component = self.error_component or getattr(error, "component", None)

    def set_clocks(self) -> None:
        """Shift the user code's clocks as far as they are ahead."""
        self._clocks.shift(self._clock_s)

    def let_clock_jump(self, jump: str) -> None:
        """Make the user code's clocks jump. For the engine no time passes."""
        self.note(jump)
        self._clock_s += JUMPS[jump]
        self.set_clocks()

    def store_transaction(self, address: str) -> str | None:
        """Begin a store transaction, and return how it fails, if a fault strikes."""
        self._store_transactions += 1
        how: str | None = self.decisions.strike(
            "store",
            f"transaction {self._store_transactions} of the schedule on store {address}",
            STORE_FAULTS,
        )
        return how

    @property
    def is_watching(self) -> bool:
        """Whether hooks are watched closely."""
        return self._watch is not None

    def watched(
        self, component: str, task: int, hook: str, phase: str, attempt: TransactionAttempt
    ) -> AbstractContextManager[None]:
        """A user's hook runs while this context lasts."""
        return (
            _UNWATCHED
            if self._watch is None
            else self._watch(self, component, task, hook, phase, attempt)
        )
