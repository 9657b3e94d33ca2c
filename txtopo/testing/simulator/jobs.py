"""Simulates Spark: computes jobs slot by slot when the schedule says so. Jobs may be lost, be slow,
or run on after they were cancelled.

The driver's side is the engine's port: the same code as for Spark merges and checks results, and
the calling thread parks until the job has ended. The executors' side is :class:`Running`, stepped
by :class:`~txtopo.testing.simulator.executors.Executors`, which decide when a fault strikes.

Invariants: a job that ended is not stepped any more. When a job was given up, only its launched
tasks run on: those in its current level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from txtopo.dataplane import outcome, receive, wire
from txtopo.dataplane.job import Job
from txtopo.dataplane.worker import WorkerRun
from txtopo.engine import jobs
from txtopo.engine.jobs import JobLostError, JobResult, Pinned, Source
from txtopo.plan.compiler import Plan
from txtopo.testing.emissions import Emission
from txtopo.testing.in_process import Computed, InProcessJob, result_of_failure
from txtopo.testing.simulator import turns
from txtopo.testing.simulator.fault_kinds import RECOMPUTED, JobFault
from txtopo.testing.simulator.hooks import SimulatedSlot
from txtopo.topology.transaction import TransactionAttempt

WORKERS = 2


@dataclass(eq=False)
class Blocks:
    """Results that stay with the executors, by slot."""

    records: list[list[bytes]]
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedPinned(Pinned):
    """A handle on :class:`Blocks`."""

    def release(self) -> None:
        self.blocks.is_released = True


class Submitter(Protocol):
    """A driver, as far as its jobs know the driver."""

    number: int
    ready: deque[tuple[turns.Carrier, object]]
    """Threads that may go on, each with its answer."""
    emitted: dict[TransactionAttempt, list[Emission]]
    executed: dict[TransactionAttempt, list[Any]]

    def require_alive(self) -> None:
        """Unwind the calling code if the driver is dead."""

    def is_struck(self, where: str) -> bool:
        """Let a fault strike the driver between two slots in a job, and return whether one does."""


@dataclass(eq=False)
class Running:
    """One job under way. ``carrier`` waits for its end."""

    jobs: SimulatedJobs
    job: Job
    group: str
    carrier: turns.Carrier
    state: InProcessJob = field(init=False)
    fault: JobFault | None = None
    """Stops the job until its driver gives the job up."""
    is_cancelled: bool = False
    """Whether the driver has given the job up, but will be answered all the same."""
    emitted: list[Emission] = field(default_factory=list)
    executed: list[Any] = field(default_factory=list)
    slot: SimulatedSlot | None = None
    """The computation under way, or the last computation."""

    @property
    def driver(self) -> Submitter:
        return self.jobs.driver

    @property
    def worker(self) -> WorkerRun:
        """The topology as worker processes know it."""
        return self.jobs.worker

    @property
    def name(self) -> str:
        return f"{self.job.part} job of attempt {self.job.attempt}"


@dataclass(eq=False)
class Zombie:
    """Tasks whose job was given up. They run when ``after`` commit jobs have ended well. The driver
    can see them if ``is_visible``."""

    running: Running
    after: int
    is_visible: bool


@dataclass(eq=False)
class SimulatedJobs:
    """The port that ``driver``'s engine takes for Spark's. ``_launch``, ``_cancel_tasks`` and
    ``is_running`` reach the executors."""

    driver: Submitter
    worker: WorkerRun
    _task_attempts: Iterator[int]
    _launch: Callable[[Running], None]
    _cancel_tasks: Callable[[str], None]
    is_running: Callable[[str], bool]
    _cancelled: set[str] = field(default_factory=set)
    pinned: list[Blocks] = field(default_factory=list)

    def run(self, job: Job, plan: Plan, source: Source = (), description: str = "") -> JobResult:
        """Park until the job has ended. Runs on: a carrier."""
        self.driver.require_alive()
        job = jobs.reading(job, plan.levels_of(job.part), source)
        group = self.group(job)
        if group in self._cancelled:
            raise JobLostError("the job was cancelled before its start")
        blocks = source.blocks.records if isinstance(source, Pinned) else None
        running = Running(self, job, group, turns.current())

        def slot_run(
            worker: WorkerRun, job: Job, level: int, slot: int, task_attempt: int
        ) -> SimulatedSlot:
            running.slot = SimulatedSlot(worker, job, level, slot, task_attempt)
            return running.slot

        seeds = () if isinstance(source, Pinned) else source
        running.state = InProcessJob(self.worker, job, seeds, blocks, self._task_attempts, slot_run)
        self._launch(running)
        result: JobResult = turns.park()
        return result

    def places(self, group: str) -> str:
        """Nothing: a simulated task cannot be looked at from outside."""
        return ""

    def group(self, job: Job) -> str:
        return f"{job.run}/{job.name}"

    def cancel(self, group: str) -> None:
        """Give up the jobs in ``group`` at once. Their tasks may run on."""
        self._cancelled.add(group)
        self._cancel_tasks(group)

    def result_of(self, running: Running) -> JobResult:
        """Make the result from all the job's records.

        :raises JobLostError: the records do not fit together.
        """
        job, state = running.job, running.state
        keep: Callable[[tuple[int, ...]], Pinned] | None = None
        records = state.records
        if job.pinned:
            blocks = Blocks(state.inputs)
            self.pinned.append(blocks)
            records = [record for record in records if record[:1] == wire.REPORT]

            def keep(task_attempts: tuple[int, ...]) -> Pinned:
                return SimulatedPinned(blocks, task_attempts)

        try:
            return jobs.result_of(job, records, state.levels[-1].slots, keep)
        except receive.MixedEmissionsError as error:
            if job.pinned:
                blocks.is_released = True
            raise JobLostError(str(error)) from None


def compute(running: Running, slot: int) -> Computed | JobResult:
    """Compute one slot. If user code fails so that the task ends, the result is the job's failure.

    :raises JobLostError: Spark would lose the job here.
    """
    computed: Computed | JobResult
    try:
        computed = running.state.compute(slot)
    except outcome.FailureInTaskError as error:
        computed = result_of_failure(running.worker, error)
    except receive.MixedEmissionsError as error:
        raise JobLostError(str(error)) from None
    if running.slot is not None and running.slot.guard.worker_died:
        raise JobLostError("a worker died")
    return computed


def merge_recomputed(first: Computed, second: Computed, how: str) -> Computed:
    """Choose the computation whose results arrive. Or mix both: each receiver gets one
    computation's results, and a single receiver gets both."""
    if how == RECOMPUTED[0]:
        return first
    if how == RECOMPUTED[1]:
        return second
    if len({receiver for receiver, _ in first.outputs}) == 1:
        return Computed([*first.outputs, *second.outputs], second.runs)
    even = [output for output in first.outputs if output[0] % 2 == 0]
    return Computed([*even, *(output for output in second.outputs if output[0] % 2)], second.runs)
