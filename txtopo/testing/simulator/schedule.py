"""Plays one schedule from the first transaction to the last, through all the faults that its
decisions let strike.

Theory of operation. At any moment several steps are possible: a driver's loop takes an answer, a
driver's thread goes on, a job computes one more slot, a cancelled job's task runs after all.
Decisions choose the step. When no step is possible, virtual time passes until a timer goes off, so
that a missing answer ends as a time-out. When a driver dies, a new driver starts. A suspended
driver wakes up when it is too late.

Invariants: the schedule depends on its decisions and the user's code alone. Executors' code runs on
this thread, one slot at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.dataplane import worker
from txtopo.engine.surroundings import Action
from txtopo.plan import compiler
from txtopo.testing.simulator import blame, current
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.driver import Driver, DriverDied
from txtopo.testing.simulator.executors import Executors
from txtopo.testing.simulator.outcome import Outcome, shown
from txtopo.testing.simulator.subject import Subject
from txtopo.testing.simulator.world import Watch, World

TURNS_MAX = 100_000
"""A schedule that takes more steps goes round in circles."""


class StoppedError(BaseException):
    """Unwinds a schedule that must not be played to its end. Not an ``Exception``, so that the
    schedule does not take it for a failure in its own run."""


class Schedule:
    """``trace`` gets the schedule's events, line by line. ``watch`` observes every hook. The user's
    clock is ``clock_s`` ahead.

    A schedule that ``is_patient`` does not end when the source is empty for a moment: see
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
        self.subject, self.began_s = subject, clock_s
        self.outcome = Outcome()
        self.reported = [
            subject.graph.spout.id,
            *sorted(compiler.held_components(subject.graph) - {subject.graph.spout.id}),
        ]
        """The components whose emissions the outcome contains."""
        self.world = World(
            decisions,
            subject.processes,
            subject.clocks,
            subject.stores,
            self.reported,
            trace=trace,
            watch=watch,
            clock_s=clock_s,
            is_patient=is_patient,
        )
        self.executed: dict[int, list[Any]] = {}
        """Per txid, the tuples executed in the committed attempt, in watched schedules only."""
        self.emitted: dict[int, list[Any]] = {}
        """Per txid, the tuples emitted in the committed attempt: by every component in watched
        schedules, else by the reported components."""
        self.stored: dict[int, dict[str, tuple[str, str]]] = {}
        """Per txid, all stores' rows after the commit, each with its writer and value, in watched
        schedules only."""
        self._drivers: list[Driver] = []
        self.executors = Executors(self.world)

    # -- the whole --------------------------------------------------------------------------------

    def play(self) -> Outcome:
        with current.running(self.world), worker.seldom_collected():
            self.subject.begin()
            try:
                self.world.set_clocks()
                self._start_driver()
                self._turn_until_over()
                self.executors.run_leftover_tasks()
                self.subject.clocks.restore()
                self._require_exhausted()
                self.subject.processes.leave()
                self.outcome.committed = self.world.commits
                self.outcome.read_stores(self.subject.stores)
                if self.subject.effects is not None:
                    self.outcome.effects = self.subject.effects()
            except Exception as error:
                self.world.ended_with(error)
            finally:
                for driver in self._drivers:
                    if not driver.is_closed:
                        driver.discard()
                self.subject.clocks.restore()
                self.subject.processes.end_all()
        self.outcome.error = self.world.error
        self.outcome.error_component = self.world.error_component
        if self.world.is_watching and self.world.error is not None:
            self._keep_uncommitted()
        return self.outcome

    def _turn_until_over(self) -> None:
        for _ in range(TURNS_MAX):
            if not self.subject.goes_on():
                raise StoppedError
            self._settle()
            alive = [
                driver for driver in self._drivers if not driver.is_dead and not driver.is_closed
            ]
            if not alive or self.world.error is not None:
                return
            possible = self._possible(alive)
            if possible:
                self._do(*possible[self.world.decisions.pick(len(possible))])
            elif (
                not any(driver.loop.resume_aside() for driver in alive)
                and not self._let_time_pass()
            ):
                raise errors.TxtopoError("no step is possible any more, and the run has not ended")
        raise errors.TxtopoError(f"the run has not ended after {TURNS_MAX} steps")

    def _possible(self, alive: list[Driver]) -> list[tuple[Driver | None, Action]]:
        """List the possible next steps, each with its driver. A schedule without decisions takes
        the first."""
        steps: list[tuple[Driver | None, Action]] = []
        self.executors.add_zombie_steps(steps)
        for driver in alive:
            if driver.sleeps_until is None:
                driver.loop.add_steps(steps)
        self.executors.add_job_steps(steps)
        return steps

    def _do(self, driver: Driver | None, action: Action) -> None:
        if driver is None:
            action()
            return
        self.world.driver_number, self.world.step_aside = driver.number, driver.loop.step_aside
        self.subject.processes.switch_to(f"driver {driver.number}")
        try:
            action()
        except DriverDied:
            driver.is_dead = True

    def _let_time_pass(self) -> bool:
        due = [
            driver.loop.due
            for driver in self._drivers
            if driver.is_active and driver.loop.due is not None
        ]
        if due:
            self.world.now = max(self.world.now, min(due))
        if self.world.now > self.subject.time_max_s:
            time_max, commits = f"{self.subject.time_max_s:g} s of virtual time", self.world.commits
            raise errors.TxtopoError(
                f"the run has not ended after {time_max}; committed: 1 to {commits}"
            )
        return bool(due)

    def _settle(self) -> None:
        """Follow the last step's consequences: ends, deaths, awakenings, successors."""
        left = [driver for driver in self._drivers if not driver.is_closed]
        if left == self._drivers[-1:] and left[0].is_active and not left[0].has_ended:
            return
        for driver in self._drivers:
            if driver.is_dead and not driver.is_closed:
                self._discard(driver)
            elif driver.has_ended:
                self._close(driver)
        self._wake_up()
        while self._drivers[-1].is_dead or self._drivers[-1].sleeps_until is not None:
            if self._drivers[-1].is_dead and not self._drivers[-1].is_closed:
                self._discard(self._drivers[-1])
            self._start_driver()
        if self._drivers[-1].is_closed:
            # A successor without any transaction left is gone at once.
            self._wake_up()

    def _wake_up(self) -> None:
        """Wake up drivers whose time has come, and the last driver alive."""
        is_alone = not any(driver.is_active for driver in self._drivers)
        for driver in self._drivers[:-1]:
            if (
                driver.sleeps_until is not None
                and not driver.is_closed
                and (is_alone or driver.sleeps_until <= self.world.commits)
            ):
                driver.sleeps_until = None
                self.world.note(f"driver {driver.number} wakes up")

    # -- drivers ----------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        number = len(self._drivers) + 1
        variant = self.world.decisions.strike(
            "settings", f"driver {number} starts with other settings", self.subject.variants
        )
        settings = variant or self.subject.variants[0]
        driver = Driver(
            self.world, self.subject, self.executors, number, settings, self._has_committed
        )
        self._drivers.append(driver)
        self.world.note(f"driver {number} starts")
        self._do(driver, driver.begin)

    def _discard(self, driver: Driver) -> None:
        self.world.note(f"driver {driver.number} dies")
        self._do(driver, driver.discard)
        driver.is_closed = True
        self.executors.lose_driver(driver)
        self.subject.processes.end(f"driver {driver.number}")

    def _close(self, driver: Driver) -> None:
        error: list[BaseException | None] = []
        self._do(driver, lambda: error.append(driver.close()))
        if driver.is_dead:
            return
        self.world.note(
            f"driver {driver.number} ends"
            + (f": {str(error[0]).splitlines()[0]}" if error[0] is not None else "")
        )
        # Another driver has taken over (R26), also if a store says so before ZooKeeper does.
        is_displaced = driver is not self._drivers[-1] and isinstance(error[0], errors.FencedError)
        if error[0] is not None and not is_displaced:
            self.world.ended_with(error[0])
        elif driver.jobs is not None and any(
            not blocks.is_released for blocks in driver.jobs.pinned
        ):
            self.world.ended_with(
                errors.TxtopoError(
                    f"driver {driver.number} ended with results still pinned on the executors"
                )
            )
        self.subject.processes.end(f"driver {driver.number}")

    def _require_exhausted(self) -> None:
        if (
            self.subject.is_opaque
            and self.world.error is None
            and self.world.commits >= self.subject.transactions_max
        ):
            raise errors.TxtopoError(
                f"the source is not exhausted after {self.world.commits} transactions"
            )

    def _has_committed(self, driver: Driver, txid: int, metadata: Any) -> None:
        """Take the news that ``driver`` has recorded ``txid`` as committed in ZooKeeper, with
        ``metadata``."""
        if txid <= self.world.commits:
            return
        self.world.commits = txid
        self.world.note(f"transaction {txid} is committed by driver {driver.number}")
        attempts = [attempt for attempt in driver.emitted if attempt.txid == txid]
        emissions = driver.emitted[max(attempts)] if attempts else []
        self.outcome.add_emissions(txid, emissions, self.reported)
        self.outcome.batches[txid] = metadata
        self.emitted[txid] = emissions
        if self.world.is_watching:
            self.executed[txid] = driver.executed.get(max(attempts), []) if attempts else []
            self.stored[txid] = self._values()

    def _values(self) -> dict[str, tuple[str, str]]:
        """Write all stores' rows as text."""
        now = Outcome()
        now.read_stores(self.subject.stores)
        values = {
            f"key {key!r} of store {address}": (now.writers.get((address, key), ""), shown(value))
            for address, held in now.stores.items()
            for key, value in held.items()
        }
        rows = {
            f"row {row} of sink {sink}": (now.row_writers.get((sink, row), ""), str(count))
            for sink, held in now.rows.items()
            for row, count in held.items()
        }
        return values | rows

    def recording(self) -> blame.Recording:
        """Make the recording of every task's tuples. It is complete only if the schedule was
        watched."""
        return blame.recording(self.executed, self.emitted, self.stored)

    def _keep_uncommitted(self) -> None:
        """Keep the tuples from the last attempts at the transaction in which the run ended with an
        error."""
        for driver in self._drivers:
            for attempt in sorted(driver.emitted.keys() | driver.executed.keys()):
                if attempt.txid > self.world.commits:
                    self.emitted[attempt.txid] = driver.emitted.get(attempt, [])
                    self.executed[attempt.txid] = driver.executed.get(attempt, [])
