"""Runs one attempt's jobs in Spark: emission, processing and commit.

Runs on: driver, on the engine's threads. The coordinator decides when, and the engine calls.

Invariants: an attempt's results are released exactly once, by :meth:`Attempt.release`. A batch that
outgrew the way through the driver is pinned from then on, until it has been small again for a
while.
"""

from __future__ import annotations

import datetime
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from txtopo import errors
from txtopo.coordinator.messages import FailureKind
from txtopo.dataplane.job import COMMITTING, Batch, Job, Part, Run
from txtopo.dataplane.outcome import Failure, Tally
from txtopo.engine.batches import Batches, partitioned_metadata
from txtopo.engine.continuity import ExpectedStores
from txtopo.engine.jobs import JobLostError, JobResult, Jobs, Pinned, Source
from txtopo.engine.surroundings import Clock
from txtopo.plan.compiler import Plan, Plans
from txtopo.state.topology import TopologyState
from txtopo.topology.transaction import TransactionAttempt, first_attempt_id

_SMALL_AGAIN = 16
"""So many results in a row that would fit through the driver end the pinning."""

_ZOMBIE_POLL_S = 0.05


class AttemptFailedError(Exception):
    """The attempt cannot go on. ``error`` ends the run if ``kind`` is fatal."""

    def __init__(
        self,
        kind: FailureKind,
        text: str,
        error: errors.TxtopoError | None = None,
        failure: Failure | None = None,
    ) -> None:
        super().__init__(kind, text)
        self.kind, self.text, self.error = kind, text, error
        self.failure = failure
        """The failure of user code, if a task reported one."""


@dataclass(slots=True)
class Attempt:
    """One attempt's work so far. ``pinned`` lists the results to give back."""

    attempt: TransactionAttempt
    task_counts: Mapping[str, int]
    plan: Plan
    opened_at: float
    result: JobResult | None = None
    emission: JobResult | None = None
    metadata: Any = None
    batch: Batch | None = None
    pinned: list[Pinned] = field(default_factory=list)
    groups: dict[str, Part] = field(default_factory=dict)
    stores: Mapping[str, int] = field(default_factory=dict)
    """By ``component/store`` name, how many store transactions its tasks have committed (R34)."""
    tuples: int = 0
    counts: Tally = field(default_factory=Tally)
    """Tuples and user code's counters so far. An emission's tuples do not count, because they are
    emitted again."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """How long its tasks were at work, by phase."""
    batch_opened_at: datetime.datetime | None = None
    """When the transaction was opened. None before the first job."""
    discarded: bool = False
    failure: AttemptFailedError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, result: JobResult) -> JobResult:
        """Note the pinned blocks of ``result``, or give them back at once if the attempt is
        gone.
        """
        if result.pinned is not None:
            with self.lock:
                if not self.discarded:
                    self.pinned.append(result.pinned)
                    return result
            result.pinned.release()
        return result

    def release(self) -> None:
        """Give back pinned results. Later results are given back at once."""
        with self.lock:
            self.discarded = True
            pinned, self.pinned = self.pinned, []
        for each in pinned:
            each.release()


@dataclass(slots=True)
class _Pinning:
    """Whether one kind of job pins its results."""

    on: bool = False
    small_in_a_row: int = 0

    def observe(self, result: JobResult, bound: int) -> None:
        if result.outgrown:
            self.on, self.small_in_a_row = True, 0
        elif self.on:
            self.small_in_a_row = (
                self.small_in_a_row + 1 if result.result_bytes <= bound // 2 else 0
            )
            self.on = self.small_in_a_row < _SMALL_AGAIN


class AttemptRunner:
    """Runs the jobs of attempts. ``submitted`` gets the attempt when a job goes to Spark: then the
    time-out begins (R8)."""

    def __init__(
        self,
        run: Run,
        jobs: Jobs,
        batches: Batches,
        state: TopologyState,
        on_error: Literal["stop", "replay"],
        submitted: Callable[[TransactionAttempt], None],
        clock: Clock,
        expected_stores: ExpectedStores | None = None,
        plans: Plans | None = None,
    ) -> None:
        self._expected_stores = expected_stores or {}
        self._run = run
        self._jobs = jobs
        self._batches = batches
        self._state = state
        self._on_error = on_error
        self._submitted = submitted
        self._clock = clock
        self._pinning = {"emission": _Pinning(), "processing": _Pinning()}
        self._plans = plans or Plans(run.graph)
        self._zombies: list[str] = []
        self.resumed_txid: int | None = None
        """The transaction that was sealed when this run began. Only for this transaction may an
        earlier run's attempt have effects."""

    def begin(
        self, attempt: TransactionAttempt, task_counts: Mapping[str, int], cores: int
    ) -> Attempt:
        """A new attempt, with nothing done, that will use so many ``cores`` at once."""
        return Attempt(
            attempt, task_counts, self._plans.under(task_counts, cores), self._clock.now()
        )

    def use_cores(self, work: Attempt, cores: int) -> None:
        """Plan attempts without a begun job for so many ``cores``."""
        work.plan = self._plans.under(work.task_counts, cores)

    def emit(self, work: Attempt) -> None:
        """The emission job: learn the batch's metadata."""
        batch = self._batches.new_batch(work.attempt.txid)
        work.emission = self.run_job(work, "emission", batch)
        tally = work.emission.tally
        counts = tally.partition_counts or {batch.num_partitions}
        if len(counts) > 1:
            raise AttemptFailedError(
                "failed",
                f"the tasks of spout {self._run.graph.spout.id!r} saw different numbers of partitions: {sorted(counts)}",
            )
        work.metadata = partitioned_metadata(counts.pop(), tally.metadata)

    def plan(self, work: Attempt) -> None:
        """Plan an opaque batch for this attempt."""
        work.metadata = self._batches.plan(work.attempt.txid)

    def process(self, work: Attempt) -> None:
        """The processing job, and the late job if held bolts emitted while executing."""
        if work.emission is not None:
            batch, source = Batch("recorded"), work.emission.source
        else:
            batch, source = self._batches.batch(work.attempt.txid, work.metadata), ()
            work.batch = batch
        result = self.run_job(work, "processing", batch, source)
        work.tuples = result.tally.emitted.get(self._run.graph.spout.id, 0)
        if result.late_rows:
            result = self.run_job(work, "late", None, result.source)
        work.result = result
        # The emission's result is taken by now, and this reference would keep the result alive.
        work.emission = None

    def apply(self, work: Attempt, zombie_wait_s: float) -> None:
        """Run the commit job and, for an unprocessed attempt, processing too. First waits until no
        task from an earlier, broken commit job runs (R33)."""
        if work.result is not None and not work.plan.commit:
            return
        self._await_zombies(zombie_wait_s)
        if work.result is not None:
            result = self.run_job(work, "commit", None, work.result.source)
        else:
            self.use_cores(work, 1)
            work.batch = self._batches.batch(work.attempt.txid, work.metadata)
            result = self.run_job(work, "whole", work.batch)
            work.tuples = result.tally.emitted.get(self._run.graph.spout.id, 0)
        work.stores = dict(result.tally.stores)

    def cancel(self, work: Attempt) -> None:
        """Stop the attempt's jobs and give back its pinned results."""
        # First: a job that is about to begin notes its group, and then looks whether it still may.
        work.discarded = True
        for group, part in list(work.groups.items()):
            self._jobs.cancel(group)
            if part in COMMITTING:
                self._zombies.append(group)
        work.release()

    def run_job(
        self, work: Attempt, part: Part, batch: Batch | None, source: Source = ()
    ) -> JobResult:
        """Run one job of ``work`` on what ``source`` holds. Commit jobs run on the thread that
        records, so the state does not change meanwhile."""
        pinning = self._pinning["emission" if part == "emission" else "processing"]
        pinned = part not in COMMITTING and pinning.on
        first = 0 if work.attempt.txid == self.resumed_txid else first_attempt_id(work.attempt)
        job = Job(
            self._run.token,
            part,
            work.attempt,
            work.task_counts,
            self._state.known_stores,
            self._state.current - 1,
            batch,
            work.plan.cores,
            pinned,
            first_attempt=first,
            opened_at=self._batches.opened_at(work.attempt.txid),
            expected_stores=self._expected_stores,
        )
        work.batch_opened_at = job.opened_at
        group = self._jobs.group(job)
        work.groups[group] = part
        if work.discarded:
            raise AttemptFailedError("failed", "discarded")
        self._submitted(work.attempt)
        try:
            result = work.keep(
                self._jobs.run(
                    job,
                    work.plan,
                    source,
                    f"{self._run.graph.id} txid {work.attempt.txid} attempt {work.attempt.attempt_id} {part}",
                )
            )
        except JobLostError as error:
            if part in COMMITTING:
                self._zombies.append(group)
            raise AttemptFailedError("crash", str(error)) from None
        if part == "emission":
            # The emitter's hooks are not called again.
            work.counts.add(Tally(counters=result.tally.counters, work_s=result.tally.work_s))
        else:
            work.counts.add(result.tally)
        if result.failure is not None:
            raise self._error_of(result.failure)
        for phase, busy_s in result.tally.busy_s.items():
            work.busy_s[phase] = work.busy_s.get(phase, 0.0) + busy_s
        if part not in COMMITTING:
            pinning.observe(result, self._run.limits.inline_bytes_max)
        if result.outgrown:
            raise AttemptFailedError(
                "outgrown",
                f"the {part} results outgrew inline_bytes_max = {self._run.limits.inline_bytes_max} and will stay on the executors",
            )
        return result

    def _error_of(self, failure: Failure) -> AttemptFailedError:
        if failure.kind == "failed":
            return AttemptFailedError("failed", str(failure), failure=failure)
        if failure.kind == "stale":
            text = (
                f"{failure.error}\n  in component {failure.component!r}, attempt {failure.attempt}, the newest: the store is ahead of ZooKeeper"
                "\n  ZooKeeper was probably restored from an older copy. Nothing was overwritten. Compare the store with\n"
                f"  `txtopo state show {shlex.quote(self._run.graph.id)}`."
            )
            return AttemptFailedError("fatal", text, errors.StateMismatchError(text), failure)
        error = failure.to_error()
        if (
            self._on_error == "replay"
            and isinstance(error, errors.UserCodeError)
            and not isinstance(error, errors.HeldStateError)
        ):
            return AttemptFailedError("failed", str(failure), failure=failure)
        return AttemptFailedError("fatal", str(failure), error, failure)

    def _await_zombies(self, bound_s: float) -> None:
        deadline = self._clock.now() + bound_s
        while self._zombies and self._clock.now() < deadline:
            if self._jobs.is_running(self._zombies[0]):
                self._clock.sleep(_ZOMBIE_POLL_S)
            else:
                self._zombies.pop(0)
        self._zombies.clear()
