"""A schedule's executors: they compute jobs slot by slot, and run tasks whose jobs were given up.

``jobs`` has the driver's side. ``schedule`` only asks for the possible next steps.

Invariants: executors' code runs on the schedule's thread, one slot at a time, in the slot's worker
process. Every listed job has a driver that waits.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from txtopo import errors
from txtopo.dataplane.job import COMMITTING
from txtopo.engine.jobs import JobLostError, JobResult
from txtopo.engine.surroundings import Action
from txtopo.testing.in_process import Computed
from txtopo.testing.simulator import clocks, fault_kinds, jobs
from txtopo.testing.simulator.hooks import SimulatedSlot
from txtopo.testing.simulator.jobs import Running, Submitter, Zombie
from txtopo.testing.simulator.world import World
from txtopo.topology import transaction

ATTEMPTS_MAX = 60
"""With so few faults, a transaction that needs more tries from one driver is replayed for ever."""


class Executors:
    """A schedule's executors in ``world``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._running: list[Running] = []
        self._zombies: list[Zombie] = []
        self._applied = 0
        """How many commit jobs have ended well."""

    def add_job_steps(self, steps: list[tuple[Any, Action]]) -> None:
        """Add steps for jobs whose driver waits, without stuck jobs."""
        for running in self._running:
            if running.fault is None:
                steps.append((None, functools.partial(self._step, running)))

    def add_zombie_steps(self, steps: list[tuple[Any, Action]]) -> None:
        """Add steps for tasks whose job was given up, and whose time has come."""
        for zombie in self._zombies:
            if zombie.after <= self._applied:
                steps.append((None, functools.partial(self._run_zombie, zombie)))

    def launch(self, running: Running) -> None:
        """Take a job that a driver has submitted."""
        if transaction.try_of(running.job.attempt) > ATTEMPTS_MAX:
            self._world.ended_with(
                errors.TxtopoError(f"transaction {running.job.attempt.txid} is replayed for ever")
            )
        self._running.append(running)
        self._world.decisions.shuffled(running.state.waiting, running.job.name)
        self._world.note(f"driver {running.driver.number} submits the {running.name}")
        jump = self._world.decisions.strike("clock", running.name, tuple(clocks.JUMPS))
        if jump is not None:
            self._world.let_clock_jump(jump)

    def _step(self, running: Running) -> None:
        """Compute one slot, unless a fault strikes the job."""
        state = running.state
        slot = state.waiting[0]
        where = f"{running.name}, level {state.level}, slot {slot}"
        fault = (
            None
            if running.is_cancelled
            else self._world.decisions.strike("job", where, fault_kinds.JOB_FAULTS)
        )
        if fault is not None:
            self._world.note(f"{running.name}: {fault}")
            running.fault = fault
            if not fault.is_slow:
                self._lose(running, "lost, as the simulator asked", fault.tasks)
            return
        if running.driver.is_struck(where):
            return
        try:
            self._compute(running, slot, where)
        except JobLostError as error:
            self._lose(running, str(error), fault_kinds.RunsOn())
        else:
            if state.is_done and running in self._running:
                self._finish(running)

    def _compute(self, running: Running, slot: int, where: str) -> None:
        state = running.state
        again = (
            None
            if state.is_last_level
            else self._world.decisions.strike("recomputed", where, fault_kinds.RECOMPUTED)
        )
        computed = self._on_worker(running, slot)
        if isinstance(computed, JobResult):
            self._answer(running, computed)
            return
        if again is not None:
            second = self._on_worker(running, slot)
            if isinstance(second, JobResult):
                self._answer(running, second)
                return
            computed = jobs.merge_recomputed(computed, second, again)
        outputs = computed.outputs
        if not state.is_last_level:
            damage = self._world.decisions.strike("chunk", where, fault_kinds.CHUNK_FAULTS)
            if damage is not None:  # the first chunk is lost, or there twice
                is_lost = damage == fault_kinds.CHUNK_FAULTS[0]
                outputs = outputs[1:] if is_lost else [outputs[0], *outputs]
        for run in computed.runs:
            if isinstance(run, SimulatedSlot):
                running.emitted.extend(run.emitted)
                running.executed.extend(run.executed)
        level = state.level
        state.deliver(slot, outputs)
        if not state.is_done and state.level != level:
            self._world.decisions.shuffled(state.waiting, f"{running.job.name}/{state.level}")
            for number, arriving in enumerate(state.inputs):
                self._world.decisions.shuffled(
                    arriving, f"{running.job.name}/{state.level}/{number}"
                )

    def _on_worker(self, running: Running, slot: int) -> Computed | JobResult:
        name = f"worker {slot % jobs.WORKERS}"
        process = self._world.processes.switch_to(name)
        running.worker.resources = process.resources
        try:
            return jobs.compute(running, slot)
        except JobLostError:
            if running.slot is not None and running.slot.guard.worker_died:
                self._world.note(f"{name} dies")
                self._world.processes.end(name)
            raise

    def _finish(self, running: Running) -> None:
        try:
            result = running.jobs.result_of(running)
        except JobLostError as error:
            self._lose(running, str(error), fault_kinds.RunsOn())
            return
        if result.failure is None and running.job.part != "emission":
            running.driver.emitted.setdefault(running.job.attempt, []).extend(running.emitted)
            running.driver.executed.setdefault(running.job.attempt, []).extend(running.executed)
        if result.failure is None and running.job.part in COMMITTING:
            self._applied += 1
        self._answer(running, result)

    def _answer(self, running: Running, result: object) -> None:
        if isinstance(result, JobResult):
            failed = result.failure is not None
            self._world.note(
                f"the {running.name} {'fails: ' + result.failure.error.splitlines()[0] if failed and result.failure else 'is done'}"
            )
        self._running.remove(running)
        running.driver.ready.append((running.carrier, result))

    def _lose(self, running: Running, why: str, tasks: fault_kinds.RunsOn) -> None:
        self._world.note(f"the {running.name} is lost: {why.splitlines()[0]}")
        self._answer(running, JobLostError(why))
        self._keep_tasks(running, tasks)

    def _keep_tasks(self, running: Running, tasks: fault_kinds.RunsOn) -> None:
        if tasks.after is not None and not running.state.is_done:
            self._zombies.append(
                Zombie(running, self._applied + tasks.after, is_visible=tasks.after == 0)
            )

    def cancel(self, group: str) -> None:
        """Give up the jobs in ``group``, whose driver no longer waits."""
        for running in [running for running in self._running if running.group == group]:
            if running.fault is not None and running.fault.answers:
                # The cancellation comes too late: the waiting thread gets an answer that its
                # attempt no longer needs.
                running.fault, running.is_cancelled = None, True
            elif running.fault is not None:
                self._lose(running, "cancelled", running.fault.tasks)
            else:
                self._lose(running, "cancelled", self._tasks_of(running, "when it is cancelled"))

    def lose_driver(self, driver: Submitter) -> None:
        """Give up all jobs that the dead ``driver`` has submitted."""
        for running in [running for running in self._running if running.driver is driver]:
            self._running.remove(running)
            tasks = self._tasks_of(running, f"when driver {driver.number} dies")
            self._keep_tasks(running, tasks if running.fault is None else running.fault.tasks)

    def _tasks_of(self, running: Running, when: str) -> fault_kinds.RunsOn:
        """Decide whether a job's tasks run on after the job was given up."""
        where = f"{running.name}, {when}"
        struck = self._world.decisions.strike("cancel", where, fault_kinds.RUNS_ON)
        return struck or fault_kinds.RunsOn()

    def is_running(self, group: str) -> bool:
        """Whether the driver can see a task in ``group`` run."""
        return any(zombie.running.group == group and zombie.is_visible for zombie in self._zombies)

    def _run_zombie(self, zombie: Zombie) -> None:
        running = zombie.running
        slot = running.state.waiting.pop(0)
        if not running.state.waiting:
            self._zombies.remove(zombie)
        self._world.note(
            f"a task of the given up {running.name} runs on: level {running.state.level}, slot {slot}"
        )
        with contextlib.suppress(JobLostError):
            self._on_worker(running, slot)

    def run_leftover_tasks(self) -> None:
        """After the run, run the remaining tasks whose jobs were given up."""
        while self._zombies and self._world.error is None:
            self._run_zombie(self._zombies[0])
