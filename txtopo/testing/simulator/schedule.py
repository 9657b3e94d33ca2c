"""One schedule: from nothing committed to everything committed, through whatever its decisions make
happen.

Theory of operation. At any moment several things may happen next: a driver's loop takes an answer,
one of its threads goes on, a job computes one more slot, a task that nobody wants any more runs
after all. Decisions say which. When nothing can happen, (virtual) time passes until a timer goes
off; so what never answers ends as a time-out. When a driver dies another one starts; a suspended
one wakes up when it is too late.

Invariants: the schedule depends on its decisions and the user's code alone. Executors' code runs on
this thread, one slot at a time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from txtopo import errors
from txtopo.dataplane import worker
from txtopo.engine.surroundings import Action
from txtopo.plan import compiler
from txtopo.state import memory
from txtopo.testing.simulator import clocks, current
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.driver import Driver, DriverDied, is_expected
from txtopo.testing.simulator.executors import Executors
from txtopo.testing.simulator.outcome import Outcome, shown
from txtopo.testing.simulator.subject import Subject
from txtopo.topology.transaction import TransactionAttempt

TURNS_MAX = 100_000
"""A schedule that takes more steps than this goes round in circles."""

STORE_FAULTS = ("before it began", "after it committed")


class StoppedError(BaseException):
    """Unwinds a schedule that is not to be played to its end. Not an ``Exception``, so that it is
    not one of the schedule's."""


class Watch(Protocol):
    """Looks at what every hook changes; see ``diagnosis``."""

    def around(
        self, schedule: Schedule, component: str, task: int, hook: str, phase: str, attempt: TransactionAttempt
    ) -> AbstractContextManager[None]:
        """A hook runs while this lasts."""


class LookingOn:
    """A watch that has the schedule write everything down."""

    def around(
        self, schedule: Schedule, component: str, task: int, hook: str, phase: str, attempt: TransactionAttempt
    ) -> AbstractContextManager[None]:
        """Nothing more."""
        return _UNWATCHED


class Schedule:
    """``trace``, if given, is told what happens, line by line; ``watch`` looks at every hook; the
    user's clock is ``clock_s`` ahead.

    A schedule that ``is_patient`` does not end because the source has nothing at one moment: see
    ``hooks``.
    """

    def __init__(
        self,
        subject: Subject,
        decisions: Decisions,
        trace: Callable[[str], None] | None = None,
        watch: Watch | None = None,
        clock_s: float = 0.0,
        is_patient: bool = False,
    ) -> None:
        self._clock_s = self.began_s = clock_s
        self.is_patient = is_patient
        self.is_asking_again = False
        """A patient schedule asks the source once more: nothing strikes, because in a schedule that
        is not patient this does not happen."""
        self.source_paused = False
        """The source was not ready, and then it was, seen by a patient schedule."""
        self.subject, self.decisions, self._trace, self._watch = subject, decisions, trace, watch
        self.now = 0.0
        self.commits = 0
        """How many transactions are committed."""
        self.server = memory.MemoryServer()
        self.task_attempts = itertools.count()
        self.driver_number = 0
        """Of the driver whose code runs, or ran last."""
        self.outcome = Outcome()
        self.reported = [subject.graph.spout.id, *sorted(compiler.held_components(subject.graph) - {subject.graph.spout.id})]
        """The components whose emissions are part of the outcome."""
        self.executed: dict[int, list[Any]] = {}
        """Per txid, what was executed in the attempt that committed, where it is watched."""
        self.emitted: dict[int, list[Any]] = {}
        """Per txid, what was emitted in the attempt that committed: by every component where it is
        watched, else by those reported."""
        self.stored: dict[int, dict[str, tuple[str, str]]] = {}
        """Per txid, what stores held when it was committed: by place (component that wrote it,
        value), where it is watched."""
        self.store_reads = 0
        """How often a store was read outside of a transaction."""
        self._drivers: list[Driver] = []
        self.executors = Executors(self)
        self._store_transactions = 0

    # -- the whole -----------------------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """From beginning to end."""
        with current.running(self), worker.seldom_collected():
            self.subject.begin()
            try:
                self.subject.clocks.shift(self._clock_s)
                self._start_driver()
                self._turn_until_over()
                self.executors.run_out()
                self.subject.clocks.restore()
                self._require_exhausted()
                self.subject.processes.leave()
                self.outcome.committed = self.commits
                self.outcome.read_stores(self.subject.stores)
                if self.subject.effects is not None:
                    self.outcome.effects = self.subject.effects()
            except Exception as error:
                self.ended_with(error)
            finally:
                for driver in self._drivers:
                    if not driver.is_closed:
                        driver.bury()
                self.subject.clocks.restore()
                self.subject.processes.end_all()
        if self.is_watching and self.outcome.error is not None:
            self._take_down_what_did_not_commit()
        return self.outcome

    def _turn_until_over(self) -> None:
        for _ in range(TURNS_MAX):
            if not self.subject.goes_on():
                raise StoppedError
            self._settle()
            alive = [driver for driver in self._drivers if not driver.is_dead and not driver.is_closed]
            if not alive or self.outcome.error is not None:
                return
            possible = self._possible()
            if possible:
                self._do(*possible[self.decisions.pick(len(possible))])
            elif not any(driver.go_on() for driver in alive) and not self._let_time_pass():
                raise errors.TxtopoError("nothing can happen any more, and the run has not ended")
        raise errors.TxtopoError(f"the run has not ended after {TURNS_MAX} steps")

    def _possible(self) -> list[tuple[Driver | None, Action]]:
        """What may happen next, and in which driver, in the order in which it would if nothing
        special were decided."""
        found: list[tuple[Driver | None, Action]] = []
        found.extend((None, action) for action in self.executors.unwanted())
        for driver in self._drivers:
            if driver.is_active:
                found.extend((driver, action) for action in driver.actions())
        found.extend((None, action) for action in self.executors.wanted())
        return found

    def _do(self, driver: Driver | None, action: Action) -> None:
        """Let ``action`` happen, in the process of ``driver`` if it is given."""
        if driver is None:
            action()
            return
        self.driver_number = driver.number
        self.subject.processes.switch_to(f"driver {driver.number}")
        try:
            action()
        except DriverDied:
            driver.is_dead = True

    def _let_time_pass(self) -> bool:
        due = [driver.due for driver in self._drivers if driver.is_active and driver.due is not None]
        if due:
            self.now = max(self.now, min(due))
        if self.now > self.subject.time_max_s:
            raise errors.TxtopoError(f"the run has not ended after {self.subject.time_max_s:g} s of virtual time; committed: 1 to {self.commits}")
        return bool(due)

    def _settle(self) -> None:
        """What follows at once from what has just happened: ends, deaths, awakenings, successors.
        """
        if len(self._drivers) == 1 and self._drivers[0].is_active and not self._drivers[0].has_ended:
            return
        for driver in self._drivers:
            if driver.is_dead and not driver.is_closed:
                self._bury(driver)
            elif driver.has_ended:
                self._close(driver)
        self._wake_up()
        while self._drivers[-1].is_dead or self._drivers[-1].sleeps_until is not None:
            if self._drivers[-1].is_dead and not self._drivers[-1].is_closed:
                self._bury(self._drivers[-1])
            self._start_driver()
        if self._drivers[-1].is_closed:
            # A successor that finds nothing left to do is gone at once.
            self._wake_up()

    def _wake_up(self) -> None:
        """Those whose time has come, or who are the only ones left."""
        is_alone = not any(driver.is_active for driver in self._drivers)
        for driver in self._drivers[:-1]:
            if driver.sleeps_until is not None and not driver.is_closed and (is_alone or driver.sleeps_until <= self.commits):
                driver.sleeps_until = None
                self.note(f"driver {driver.number} wakes up")

    # -- drivers -------------------------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        number = len(self._drivers) + 1
        which = self.decisions.strike("settings", f"driver {number} starts with other settings", self.subject.variants)
        settings = which or self.subject.variants[0]
        driver = Driver(self, number, settings)
        self._drivers.append(driver)
        self.note(f"driver {number} starts")
        self._do(driver, driver.begin)

    def _bury(self, driver: Driver) -> None:
        self.note(f"driver {driver.number} dies")
        self._do(driver, driver.bury)
        driver.is_closed = True
        self.executors.bereave(driver)
        self.subject.processes.end(f"driver {driver.number}")

    def _close(self, driver: Driver) -> None:
        error: list[BaseException | None] = []
        self._do(driver, lambda: error.append(driver.close()))
        if driver.is_dead:
            return
        self.note(f"driver {driver.number} ends" + (f": {str(error[0]).splitlines()[0]}" if error[0] is not None else ""))
        if error[0] is not None and not (driver is not self._drivers[-1] and is_expected(error[0])):
            self.ended_with(error[0])
        elif driver.jobs is not None and any(not blocks.is_released for blocks in driver.jobs.pinned):
            self.ended_with(errors.TxtopoError(f"driver {driver.number} ended without giving back all that was pinned on the executors"))
        self.subject.processes.end(f"driver {driver.number}")

    def ended_with(self, error: BaseException) -> None:
        """Something went wrong that no fault explains: the schedule is over."""
        self.outcome.error = self.outcome.error or f"{type(error).__name__}: {error}"
        self.outcome.error_component = self.outcome.error_component or getattr(error, "component", None)

    def _require_exhausted(self) -> None:
        if self.subject.is_opaque and self.outcome.error is None and self.commits >= self.subject.transactions_max:
            raise errors.TxtopoError(f"its input is not exhausted after {self.commits} transactions")

    def has_committed(self, driver: Driver, txid: int, metadata: Any) -> None:
        """ZooKeeper has it from ``driver`` that ``txid`` is committed, and what it consisted of."""
        if txid <= self.commits:
            return
        self.commits = txid
        self.note(f"transaction {txid} is committed by driver {driver.number}")
        attempts = [attempt for attempt in driver.emitted if attempt.txid == txid]
        emissions = driver.emitted[max(attempts)] if attempts else []
        self.outcome.add_emissions(txid, emissions, self.reported)
        self.outcome.batches[txid] = metadata
        self.emitted[txid] = emissions
        if self.is_watching:
            self.executed[txid] = driver.executed.get(max(attempts), []) if attempts else []
            self.stored[txid] = self._values()

    def _values(self) -> dict[str, tuple[str, str]]:
        """What the stores hold now, as text."""
        now = Outcome()
        now.read_stores(self.subject.stores)
        values = {
            f"key {key!r} of store {address}": (now.writers.get((address, key), ""), shown(value))
            for address, held in now.stores.items() for key, value in held.items()
        }  # fmt: skip
        rows = {
            f"row {row} of sink {sink}": (now.row_writers.get((sink, row), ""), str(count))
            for sink, held in now.rows.items() for row, count in held.items()
        }  # fmt: skip
        return values | rows

    def _take_down_what_did_not_commit(self) -> None:
        """Of the transaction in which the run ended with an error: what the last attempt that got
        so far took and emitted."""
        for driver in self._drivers:
            for attempt in sorted(driver.emitted.keys() | driver.executed.keys()):
                if attempt.txid > self.commits:
                    self.emitted[attempt.txid] = driver.emitted.get(attempt, [])
                    self.executed[attempt.txid] = driver.executed.get(attempt, [])

    def step_aside(self, when: str) -> None:
        """A thread of the driver whose code runs may let others go first; see there."""
        self._drivers[self.driver_number - 1].step_aside(when)

    def let_clock_jump(self, jump: str) -> None:
        """For the user's code it is later from now on; for the engine no time passes."""
        self.note(jump)
        self._clock_s += clocks.JUMPS[jump]
        self.subject.clocks.shift(self._clock_s)

    # -- the user's code -----------------------------------------------------------------------------------------------------

    def store_transaction(self, address: str) -> str | None:
        """A store transaction begins; how it fails, if it does."""
        self._store_transactions += 1
        how: str | None = self.decisions.strike("store", f"transaction {self._store_transactions} of the schedule on store {address}", STORE_FAULTS)
        return how

    def wants_emissions_of(self, component: str) -> bool:
        """Whether what ``component`` emits is to be written down: nobody asks for the rest, and it
        is most of it."""
        return self.is_watching or component in self.reported

    @property
    def is_watching(self) -> bool:
        """Whether hooks are looked at closely."""
        return self._watch is not None

    def watched(self, component: str, task: int, hook: str, phase: str, attempt: TransactionAttempt) -> AbstractContextManager[None]:
        """A hook of the user's runs while this lasts."""
        return _UNWATCHED if self._watch is None else self._watch.around(self, component, task, hook, phase, attempt)

    def note(self, what: str) -> None:
        """Tell the trace."""
        if self._trace is not None:
            self._trace(f"{self.now:8.2f} s  {what}")


_UNWATCHED: AbstractContextManager[None] = contextlib.nullcontext()
