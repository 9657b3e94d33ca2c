"""One schedule: from nothing committed to everything committed, through whatever its decisions make happen.

Theory of operation. At any moment several things may happen next: a driver's loop takes an answer, one of its threads goes on, a job computes
one more slot, a task that nobody wants any more runs after all. Decisions say which. When nothing can happen, (virtual) time passes until a
timer goes off; so what never answers ends as a time-out. When a driver dies another one starts; a suspended one wakes up when it is too late.

Invariants: the schedule depends on its decisions and the user's code alone. Executors' code runs on this thread, one slot at a time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from txtopo import errors
from txtopo.plan import compiler
from txtopo.runtime.jobs import JobLostError, JobResult
from txtopo.runtime.surroundings import Action
from txtopo.state import memory
from txtopo.testing.simulator import current, jobs
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.driver import DRIVER_FAULTS, SUSPENSIONS, Driver, DriverDied, is_expected
from txtopo.testing.simulator.hooks import SimulatedSlot
from txtopo.testing.simulator.jobs import Running, Zombie
from txtopo.testing.simulator.outcome import Outcome
from txtopo.testing.simulator.subject import Subject
from txtopo.topology import transaction
from txtopo.topology.transaction import TransactionAttempt

ATTEMPTS_MAX = 60
"""With so few faults, a transaction that one driver tries more often than this is replayed for ever."""

STORE_FAULTS = ("before it began", "after it committed")


class Watch(Protocol):
    """Looks at what every hook changes; see ``diagnosis``."""

    def around(
        self, schedule: Schedule, component: str, task: int, hook: str, phase: str, attempt: TransactionAttempt
    ) -> AbstractContextManager[None]:
        """A hook runs while this lasts."""


class Schedule:
    """``trace``, if given, is told what happens, line by line; ``watch`` looks at every hook."""

    def __init__(self, subject: Subject, decisions: Decisions, trace: Callable[[str], None] | None = None, watch: Watch | None = None) -> None:
        self.subject, self.decisions, self._trace, self._watch = subject, decisions, trace, watch
        self.now = 0.0
        self.commits = 0
        """How many transactions are committed."""
        self.server = memory.MemoryServer()
        self.task_attempts = itertools.count()
        self.driver_number = 0
        """Of the driver whose code runs, or ran last."""
        self.outcome = Outcome()
        self.held = compiler.held_components(subject.graph)
        self.executed: dict[int, list[Any]] = {}
        """Per txid, what was executed in the attempt that committed, where it is watched."""
        self.emitted: dict[int, list[Any]] = {}
        """Per txid, everything that was emitted in the attempt that committed."""
        self._drivers: list[Driver] = []
        self._running: list[Running] = []
        self._zombies: list[Zombie] = []
        self._store_transactions = 0

    # -- the whole -----------------------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """From beginning to end."""
        with current.running(self):
            self.subject.begin()
            try:
                self._start_driver()
                self._turn_until_over()
                self._let_zombies_end()
                self._require_exhausted()
                self.subject.processes.leave()
                self.outcome.committed = self.commits
                self.outcome.read_stores(self.subject.stores)
                if self.subject.effects is not None:
                    self.outcome.effects = self.subject.effects()
            except Exception as error:
                self._ended_with(error)
            finally:
                for driver in self._drivers:
                    if not driver.is_closed:
                        driver.bury()
                self.subject.processes.end_all()
        return self.outcome

    def _turn_until_over(self) -> None:
        while True:
            self._settle()
            alive = [driver for driver in self._drivers if not driver.is_dead and not driver.is_closed]
            if not alive or self.outcome.error is not None:
                return
            possible = self._possible()
            if possible:
                possible[self.decisions.pick(len(possible))]()
            elif not self._let_time_pass():
                raise errors.TxtopoError("nothing can happen any more, and the run has not ended")

    def _possible(self) -> list[Action]:
        """What may happen next, in the order in which it would if nothing special were decided."""
        found: list[Action] = []
        for driver in self._drivers:
            if driver.is_active:
                found.extend(self._as_driver(driver, action) for action in driver.actions())
        found.extend(self._stepping(running) for running in self._running if running.fault is None)
        found.extend(self._haunting(zombie) for zombie in self._zombies if zombie.commits <= self.commits)
        return found

    def _let_time_pass(self) -> bool:
        due = [driver.due for driver in self._drivers if driver.is_active and driver.due is not None]
        if due:
            self.now = max(self.now, min(due))
        if self.now > self.subject.time_max_s:
            raise errors.TxtopoError(f"the run has not ended after {self.subject.time_max_s:g} s of virtual time; committed: 1 to {self.commits}")
        return bool(due)

    def _settle(self) -> None:
        """What follows at once from what has just happened: ends, deaths, awakenings, successors."""
        for driver in self._drivers:
            if driver.is_dead and not driver.is_closed:
                self._bury(driver)
            elif driver.has_ended:
                self._close(driver)
        is_alone = not any(driver.is_active for driver in self._drivers)
        for driver in self._drivers[:-1]:
            if driver.sleeps_until is not None and not driver.is_closed and (is_alone or driver.sleeps_until <= self.commits):
                driver.sleeps_until = None
                self.note(f"driver {driver.number} wakes up")
        while self._drivers[-1].is_dead or self._drivers[-1].sleeps_until is not None:
            if self._drivers[-1].is_dead and not self._drivers[-1].is_closed:
                self._bury(self._drivers[-1])
            self._start_driver()

    # -- drivers -------------------------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        number = len(self._drivers) + 1
        which = self.decisions.strike("settings", f"driver {number} starts with other settings", self.subject.variants)
        settings = which or self.subject.variants[0]
        driver = Driver(self, number, settings)
        self._drivers.append(driver)
        self.note(f"driver {number} starts")
        self._as_driver(driver, driver.begin)()

    def _as_driver(self, driver: Driver, action: Action) -> Action:
        def act() -> None:
            self.driver_number = driver.number
            self.subject.processes.switch_to(f"driver {driver.number}")
            try:
                action()
            except DriverDied:
                driver.is_dead = True

        return act

    def _bury(self, driver: Driver) -> None:
        self.note(f"driver {driver.number} dies")
        self._as_driver(driver, driver.bury)()
        driver.is_closed = True
        for running in [running for running in self._running if running.driver is driver]:
            self._give_up(running, f"{running.name}, when driver {driver.number} dies")
        self.subject.processes.end(f"driver {driver.number}")

    def _close(self, driver: Driver) -> None:
        error: list[BaseException | None] = []
        self._as_driver(driver, lambda: error.append(driver.close()))()
        if driver.is_dead:
            return
        self.note(f"driver {driver.number} ends" + (f": {str(error[0]).splitlines()[0]}" if error[0] is not None else ""))
        if error[0] is not None and not (driver is not self._drivers[-1] and is_expected(error[0])):
            self._ended_with(error[0])
        elif driver.jobs is not None and any(not blocks.is_released for blocks in driver.jobs.pinned):
            self._ended_with(errors.TxtopoError(f"driver {driver.number} ended without giving back all that was pinned on the executors"))
        self.subject.processes.end(f"driver {driver.number}")

    def _ended_with(self, error: BaseException) -> None:
        self.outcome.error = self.outcome.error or f"{type(error).__name__}: {error}"
        self.outcome.error_component = self.outcome.error_component or getattr(error, "component", None)

    def has_committed(self, driver: Driver, txid: int) -> None:
        """ZooKeeper has it from ``driver`` that ``txid`` is committed."""
        if txid <= self.commits:
            return
        self.commits = txid
        self.note(f"transaction {txid} is committed by driver {driver.number}")
        attempts = [attempt for attempt in driver.emitted if attempt.txid == txid]
        emissions = driver.emitted[max(attempts)] if attempts else []
        self.outcome.add_emissions(txid, emissions, self.held)
        if self.is_watching:
            self.emitted[txid] = emissions
            self.executed[txid] = driver.executed.get(max(attempts), []) if attempts else []

    # -- jobs ----------------------------------------------------------------------------------------------------------------

    def launch(self, running: Running) -> None:
        """A driver has submitted a job."""
        if running.job.attempt.attempt_id % transaction.ATTEMPTS_PER_EPOCH > ATTEMPTS_MAX:
            self._ended_with(errors.TxtopoError(f"transaction {running.job.attempt.txid} is replayed for ever"))
        self._running.append(running)
        self.decisions.shuffled(running.state.waiting, running.job.name)
        self.note(f"driver {running.driver.number} submits the {running.name}")

    def _stepping(self, running: Running) -> Action:
        return lambda: self._step(running)

    def _step(self, running: Running) -> None:
        """Compute one slot, or have the job struck."""
        state = running.state
        slot = state.waiting[0]
        where = f"{running.name}, level {state.level}, slot {slot}"
        fault = None if running.is_cancelled else self.decisions.strike("job", where, jobs.JOB_FAULTS)
        if fault is not None:
            self.note(f"{running.name}: {fault}")
            running.fault = fault
            if not fault.is_slow:
                self._lose(running, "lost, as the simulator asked", fault.tasks)
            return
        if self._driver_is_struck(running.driver, where):
            return
        try:
            self._compute(running, slot, where)
        except JobLostError as error:
            self._lose(running, str(error), jobs.RunsOn())
        else:
            if state.is_done and running in self._running:
                self._finish(running)

    def _driver_is_struck(self, driver: Driver, where: str) -> bool:
        """Whether ``driver`` dies, or is suspended, at this moment."""
        if not driver.is_active:
            return False
        how = self.decisions.strike("driver", f"before {where}, in driver {driver.number}", DRIVER_FAULTS)
        if how in SUSPENSIONS:
            driver.suspend(SUSPENSIONS[how])
        elif how is not None:
            driver.is_dead = True
        return how is not None

    def _compute(self, running: Running, slot: int, where: str) -> None:
        state = running.state
        again = None if state.is_last_level else self.decisions.strike("recomputed", where, jobs.RECOMPUTED)
        computed = self._on_worker(running, slot)
        if isinstance(computed, JobResult):
            self._answer(running, computed)
            return
        if again is not None:
            second = self._on_worker(running, slot)
            if isinstance(second, JobResult):
                self._answer(running, second)
                return
            computed = jobs.recomputed(computed, second, again)
        outputs = computed.outputs
        if not state.is_last_level:
            damage = self.decisions.strike("chunk", where, jobs.CHUNK_FAULTS)
            outputs = outputs if damage is None else jobs.damaged(outputs, damage)
        if isinstance(computed.run, SimulatedSlot):
            running.emitted.extend(computed.run.emitted)
            running.executed.extend(computed.run.executed)
        level = state.level
        state.deliver(slot, outputs)
        if not state.is_done and state.level != level:
            self.decisions.shuffled(state.waiting, f"{running.job.name}/{state.level}")
            for number, arriving in enumerate(state.inputs):
                self.decisions.shuffled(arriving, f"{running.job.name}/{state.level}/{number}")

    def _on_worker(self, running: Running, slot: int) -> Any:
        """Compute ``slot`` in a worker process."""
        name = f"worker {slot % jobs.WORKERS}"
        process = self.subject.processes.switch_to(name)
        running.worker.resources = process.resources
        try:
            return jobs.compute(running, slot)
        except JobLostError:
            if running.slot is not None and running.slot.guard.worker_died:
                self.note(f"{name} dies")
                self.subject.processes.end(name)
            raise
        finally:
            self.subject.processes.leave()

    def _finish(self, running: Running) -> None:
        assert running.driver.jobs is not None
        try:
            result = running.driver.jobs.result_of(running)
        except JobLostError as error:
            self._lose(running, str(error), jobs.RunsOn())
            return
        if result.failure is None and running.job.part != "emission":
            running.driver.emitted.setdefault(running.job.attempt, []).extend(running.emitted)
            running.driver.executed.setdefault(running.job.attempt, []).extend(running.executed)
        self._answer(running, result)

    def _answer(self, running: Running, result: object) -> None:
        if isinstance(result, JobResult):
            failed = result.failure is not None
            self.note(f"the {running.name} {'fails: ' + result.failure.error.splitlines()[0] if failed and result.failure else 'is done'}")
        self._running.remove(running)
        running.driver.ready.append((running.carrier, result))

    def _lose(self, running: Running, why: str, tasks: jobs.RunsOn) -> None:
        self.note(f"the {running.name} is lost: {why.splitlines()[0]}")
        self._answer(running, JobLostError(why))
        self._haunt(running, tasks)

    def _haunt(self, running: Running, tasks: jobs.RunsOn) -> None:
        if tasks.after_commits is not None and not running.state.is_done:
            at = self.commits + tasks.after_commits
            self._zombies.append(Zombie(running, at, is_visible=tasks.after_commits == 0))

    def cancel(self, group: str) -> None:
        """A driver gives up the jobs of ``group``."""
        for running in [running for running in self._running if running.group == group]:
            if running.fault is not None and running.fault.answers:
                # The cancellation comes too late: whoever waits for the answer will get it, though nobody wants it any more.
                running.fault, running.is_cancelled = None, True
            elif running.fault is not None:
                self._lose(running, "cancelled", running.fault.tasks)
            else:
                tasks = self.decisions.strike("cancel", f"{running.name}, when it is cancelled", jobs.RUNS_ON) or jobs.RunsOn()
                self._lose(running, "cancelled", tasks)

    def _give_up(self, running: Running, where: str) -> None:
        """Its driver is dead: nobody waits for it."""
        self._running.remove(running)
        tasks = self.decisions.strike("cancel", where, jobs.RUNS_ON) or jobs.RunsOn()
        self._haunt(running, tasks if running.fault is None else running.fault.tasks)

    def is_running(self, group: str) -> bool:
        """Whether a task of ``group`` can be seen to run."""
        return any(zombie.running.group == group and zombie.is_visible for zombie in self._zombies)

    # -- tasks nobody wants any more -----------------------------------------------------------------------------------------

    def _haunting(self, zombie: Zombie) -> Action:
        return lambda: self._run_zombie(zombie)

    def _run_zombie(self, zombie: Zombie) -> None:
        running = zombie.running
        slot = running.state.waiting.pop(0)
        if not running.state.waiting:
            self._zombies.remove(zombie)
        self.note(f"a task of the given up {running.name} runs on: level {running.state.level}, slot {slot}")
        with contextlib.suppress(JobLostError):
            self._on_worker(running, slot)

    def _require_exhausted(self) -> None:
        if self.subject.is_opaque and self.outcome.error is None and self.commits >= self.subject.transactions_max:
            raise errors.TxtopoError(f"its input is not exhausted after {self.commits} transactions")

    def _let_zombies_end(self) -> None:
        while self._zombies and self.outcome.error is None:
            self._run_zombie(self._zombies[0])

    # -- the user's code -----------------------------------------------------------------------------------------------------

    def store_transaction(self, address: str) -> str | None:
        """A store transaction begins; how it fails, if it does."""
        self._store_transactions += 1
        how: str | None = self.decisions.strike("store", f"transaction {self._store_transactions} of the schedule on store {address}", STORE_FAULTS)
        return how

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
