"""Jobs in this process: the data plane without Spark.

Spark's workers and this module run the same ``SlotRun``, level after level, and pickle the data
between processes. The caller computes a job slot by slot, decides about each next step, and may
reorder or lose the chunks that a slot has sent.

Invariants: a level begins when every slot of the level before has delivered. A slot delivers once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from txtopo.dataplane import one_task, outcome, wire
from txtopo.dataplane.job import Job
from txtopo.dataplane.slot import SlotRun, forward
from txtopo.dataplane.wire import Frame
from txtopo.dataplane.worker import WorkerRun
from txtopo.engine import jobs
from txtopo.engine.jobs import JobResult

Outputs = list[tuple[int, bytes]]
"""The chunks that a slot sends: (receiving slot, bytes)."""

FORWARDING = -1
"""The level that sends pinned results on, if the reading job has a different slot count."""


@dataclass(slots=True)
class Computed:
    """A slot, computed once. ``runs`` are the parts, none if the slot only forwards."""

    outputs: Outputs
    runs: Sequence[SlotRun] = ()


class InProcessJob:
    """A job under way. ``pinned`` are the records of pinned results, by slot. Without ``pinned``
    the job begins from ``seeds``."""

    def __init__(
        self,
        worker: WorkerRun,
        job: Job,
        seeds: Sequence[Frame] = (),
        pinned: Sequence[Sequence[bytes]] | None = None,
        task_attempts: Iterator[int] | None = None,
        slot_run: one_task.SlotFactory = SlotRun,
    ) -> None:
        self.worker, self.job = worker, job
        self.levels = worker.plan(job.task_counts, job.cores).levels_of(job.part).levels
        self._task_attempts = itertools.count() if task_attempts is None else task_attempts
        self._slot_run = slot_run
        if pinned is not None:
            self.inputs = [list(records) for records in pinned]
            self.level = FORWARDING if job.forwarding_slots else 0
        else:
            self.inputs = [
                _seed_data(seeds, slot, self.levels[0].slots)
                for slot in range(self.levels[0].slots)
            ]
            self.level = 0
        self.waiting: list[int] = []
        """The current level's slots that have not delivered."""
        self._begin_level()

    @property
    def is_done(self) -> bool:
        """The last level has delivered: ``inputs`` holds its records, by slot."""
        return self.level == len(self.levels)

    @property
    def is_last_level(self) -> bool:
        """Slots deliver the job's results now."""
        return self.level + 1 == len(self.levels)

    @property
    def records(self) -> list[bytes]:
        return list(itertools.chain.from_iterable(self.inputs))

    def compute(self, slot: int) -> Computed:
        """Compute a slot of the current level, perhaps not for the first time. Raises the errors
        that a Spark task raises."""
        task_attempt = next(self._task_attempts)
        incoming = iter(self.inputs[slot])
        if self.level == FORWARDING:
            slots = self.levels[0].slots
            return Computed(
                list(forward(self.worker, self.job, slot, task_attempt, slots, incoming))
            )
        computation = one_task.computation(
            self.worker, self.job, self.level, slot, task_attempt, self._slot_run
        )
        outputs = list(computation.run(incoming))
        return Computed(
            outputs,
            computation.parts if isinstance(computation, one_task.WholeRun) else [computation],
        )

    def deliver(self, slot: int, outputs: Outputs) -> None:
        """Hand on the chunks that ``slot`` sent."""
        self.waiting.remove(slot)
        for receiver, data in outputs:
            self.outputs[receiver].append(data)
        if not self.waiting:
            self.inputs = self.outputs
            self.level += 1
            self._begin_level()

    def _begin_level(self) -> None:
        if self.is_done:
            return
        self.waiting = list(range(len(self.inputs)))
        receiving = self.levels[self.level if self.is_last_level else self.level + 1].slots
        self.outputs: list[list[bytes]] = [[] for _ in range(receiving)]
        """The chunks delivered so far to each slot on the next level."""


def _seed_data(seeds: Sequence[Frame], slot: int, slots: int) -> list[bytes]:
    seeded = [frame for frame in seeds if frame.task % slots == slot]
    return [wire.pack_frames(seeded, wire.SEED) if seeded else b""]


def run_to_end(running: InProcessJob) -> JobResult:
    """Run the slots in turn. All results come back."""
    while not running.is_done:
        slot = running.waiting[0]
        try:
            running.deliver(slot, running.compute(slot).outputs)
        except outcome.FailureInTaskError as error:
            return result_of_failure(running.worker, error)
    return jobs.result_of(running.job, running.records, running.levels[-1].slots)


def result_of_failure(worker: WorkerRun, error: outcome.FailureInTaskError) -> JobResult:
    """The result if failing user code has ended the job early."""
    return JobResult(outcome.Tally(), outcome.from_text(str(error), worker.run.secret))
