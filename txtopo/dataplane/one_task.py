"""Runs a whole transaction in one task: the processing, late and commit parts, one after the other,
each as a slot run.

Once a small transaction's turn to commit has come, a Spark job costs more than all the
transaction's work. So the transaction gets one job instead of two or three. On one slot nothing is
shuffled, and a part's results never leave the process. A task is one computation, so two
computations cannot be mixed (R33). Still, results are handed on as pinned results are, with every
check: bolts are held and restored (R12), and the reading part checks which task attempt made the
results.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from txtopo.dataplane import wire
from txtopo.dataplane.job import Job, Part
from txtopo.dataplane.outcome import Report
from txtopo.dataplane.slot import SlotRun
from txtopo.dataplane.spill import Handle, SpillBuffer
from txtopo.dataplane.worker import WorkerRun

SlotFactory = Callable[[WorkerRun, Job, int, int, int], SlotRun]


class WholeRun:
    """As :class:`~txtopo.dataplane.slot.SlotRun`, for a ``whole`` job. ``parts`` are the slot
    runs so far."""

    def __init__(
        self, worker: WorkerRun, job: Job, task_attempt: int, slot_run: SlotFactory = SlotRun
    ) -> None:
        self.worker, self.job, self.task_attempt = worker, job, task_attempt
        self.report = Report(job.name, 0, task_attempt)
        self.parts: list[SlotRun] = []
        self._slot_run = slot_run
        self._plan = worker.plan(job.task_counts, job.cores)

    def run(self, incoming: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """Run all parts. Yields one report for all parts together."""
        with contextlib.closing(SpillBuffer(self.worker.run.limits.spill_bytes)) as buffer:
            handles = self._part("processing", incoming, buffer)
            if handles is not None and self.parts[-1].report.late_rows:
                handles = self._part("late", map(buffer.read, handles), buffer)
            if handles is not None and self._plan.commit:
                self._part("commit", map(buffer.read, handles), buffer)
        yield 0, wire.pack_report(self.report)

    def _part(
        self, part: Part, incoming: Iterator[bytes], buffer: SpillBuffer
    ) -> list[Handle] | None:
        """The part's results, or ``None`` if the part failed."""
        expected = (self.task_attempt,) if self.parts else None
        job = dataclasses.replace(
            self.job,
            part=part,
            batch=None if self.parts else self.job.batch,
            pinned=part != "commit",
            expected=expected,
        )
        slot = self._slot_run(self.worker, job, 0, 0, self.task_attempt)
        self.parts.append(slot)
        handles = [buffer.append(data) for _, data in slot.run(incoming)]
        self.report.own.add(slot.report.before)
        self.report.own.add(slot.report.own)
        self.report.failure = slot.report.failure
        return handles if self.report.failure is None else None


def computation(
    worker: WorkerRun,
    job: Job,
    level: int,
    slot: int,
    task_attempt: int,
    slot_run: SlotFactory = SlotRun,
) -> SlotRun | WholeRun:
    """The run that computes ``slot`` on ``level`` of ``job``."""
    if job.part == "whole":
        return WholeRun(worker, job, task_attempt, slot_run)
    return slot_run(worker, job, level, slot, task_attempt)
