"""The port that runs jobs, by Spark in a run and by the simulator in tests, and the results of
jobs.

Runs on: driver.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txtopo.dataplane import receive, wire
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import Failure, Report, Tally
from txtopo.dataplane.wire import Frame
from txtopo.plan.compiler import Plan
from txtopo.plan.levels import Levels


class JobLostError(Exception):
    """The job did not run to its end: a worker or executor died, a block was lost, or the job was
    cancelled."""


@dataclass(frozen=True, slots=True)
class Pinned(abc.ABC):
    """Results on the executors as ``blocks``, without lineage, so that a lost block fails its
    reader."""

    blocks: Any
    task_attempts: tuple[int, ...]

    @abc.abstractmethod
    def release(self) -> None:
        """Give the blocks back."""


Source = Sequence[Frame] | Pinned


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's outcome. Its results are ``frames``, or ``pinned`` if they stayed in Spark."""

    tally: Tally
    failure: Failure | None = None
    frames: tuple[Frame, ...] = ()
    pinned: Pinned | None = None
    outgrown: bool = False
    result_bytes: int = 0
    late_rows: bool = False

    @property
    def source(self) -> Source:
        """The results, for the next job."""
        return self.pinned if self.pinned is not None else self.frames


class Jobs(Protocol):
    """Runs one run's jobs."""

    def run(self, job: Job, plan: Plan, source: Source = (), description: str = "") -> JobResult:
        """Run ``job`` on the results in ``source``. :class:`JobLostError` if the job did not run to
        its end. User code's failure is in the result."""

    def group(self, job: Job) -> str:
        """The group by which ``job`` is cancelled."""

    def cancel(self, group: str) -> None:
        """Cancel the jobs in ``group``, also jobs not yet submitted. Returns before their tasks
        have stopped."""

    def is_running(self, group: str) -> bool:
        """Whether a task in ``group`` still runs, as far as Spark tells."""

    def places(self, group: str) -> str:
        """Where the tasks in ``group`` are, for the end of a message about their time-out."""


def reading(job: Job, levels: Levels, source: Source) -> Job:
    """``job`` with the facts about its input in ``source``."""
    if not isinstance(source, Pinned):
        return job
    slots = len(source.task_attempts)
    return dataclasses.replace(
        job,
        expected=source.task_attempts,
        forwarding_slots=slots if slots != levels.levels[0].slots else 0,
    )


def result_of(
    job: Job,
    records: Iterable[bytes],
    slots: int,
    pinned: Callable[[tuple[int, ...]], Pinned] | None = None,
) -> JobResult:
    """Unite the last level's records, and check that all come from one computation (R33). If
    results stayed on the executors, ``pinned`` makes their stand-in from the task attempts that
    made them."""
    reports: list[Report] = []
    frames: list[Frame] = []
    for record in records:
        if bytes(record[:1]) == wire.REPORT:
            reports.append(wire.unpack_report(record))
        else:
            frames.extend(wire.unpack_frames(record))
    if sorted(report.slot for report in reports) != list(range(slots)) or any(
        report.job != job.name for report in reports
    ):
        raise receive.MixedEmissionsError(
            f"{job.name}: {len(reports)} reports came from {slots} slots"
        )
    reports.sort(key=lambda report: report.slot)
    lineage: dict[tuple[int, int], int] = {}
    tally = Tally()
    tally.add(reports[0].before)
    for report in reports:
        receive.merge_lineage(lineage, report.lineage)
        tally.add(report.own)
    failure = next((report.failure for report in reports if report.failure is not None), None)
    outgrown = any(report.outgrown for report in reports)
    size = sum(report.result_bytes for report in reports)
    late_rows = any(report.late_rows for report in reports)
    kept = None if pinned is None else pinned(tuple(report.task_attempt for report in reports))
    return JobResult(
        tally, failure, () if outgrown else tuple(frames), kept, outgrown, size, late_rows
    )
