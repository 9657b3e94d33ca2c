"""Spark jobs: runs the plan's jobs as RDD chains with one raw shuffle per level.

Runs on: driver. Every RDD has exactly one consumer: Spark computes a shared RDD twice,
concurrently, even when the RDD is persisted.

Invariants: a job's shuffle files and persisted blocks are released when the results have been read,
or with :meth:`Pinned.release`. Pools, threads and broadcasts do not become more as transactions go
by.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark import RDD, StorageLevel
from pyspark.serializers import NoOpSerializer
from pyspark.traceback_utils import SCCallSiteSync

from txtopo import errors
from txtopo.dataplane import out_of_resources, outcome, receive, wire
from txtopo.dataplane.job import COMMITTING, Job, Run
from txtopo.dataplane.outcome import Tally
from txtopo.dataplane.wire import Frame
from txtopo.engine.jobs import JobLostError, JobResult, Pinned, Source, reading, result_of
from txtopo.plan.compiler import Plan
from txtopo.spark import imports, late_tasks, sockets, task
from txtopo.spark.resident_task import ResidentTasks, TaskLostError
from txtopo.topology import pickling


def _one_to_one(key: int) -> int:
    """Identifies the partitioner. A module-level function, because Spark compares partitioners by
    the function's id."""
    return key


_GONE = (Py4JNetworkError, ConnectionError)
"""Raised by a call to the driver's JVM after the JVM has ended."""


@dataclass(frozen=True, slots=True)
class PinnedBlocks(Pinned):
    """A persisted RDD's blocks."""

    def release(self) -> None:
        with contextlib.suppress(*_GONE):  # then there are no blocks any more
            self.blocks.unpersist(blocking=False)


class SparkJobs:
    """Runs the jobs of one run on one Spark context. Several threads may call it."""

    def __init__(self, context: Any, run: Run) -> None:
        if run.local_master:
            late = sockets.directory() / f"late-{run.token}"
            late.mkdir(exist_ok=True)
            run = dataclasses.replace(run, late_tasks=str(late))
        self._context, self._run = context, run
        self._broadcast = context.broadcast(
            (imports.shared_with(context) if run.local_master else None, pickling.dumps(run))
        )
        self._partitioners: dict[int, Any] = {}
        self._seeds: dict[int, Any] = {}
        self._thread = threading.local()
        self._resident: ResidentTasks | None = None
        if run.local_master:
            self._resident = ResidentTasks(
                run.token,
                run.cores,
                self._launch,
                self._cancel,
                slot_is_wanted=self._others_have_jobs,
            )

    def close(self) -> None:
        """Release the run's broadcasts, which its jobs shared.

        :raises SparkLostError: Spark's JVM has ended.
        """
        if self._resident is not None:
            self._resident.close()
        if self._run.late_tasks:
            shutil.rmtree(self._run.late_tasks, ignore_errors=True)
        try:
            self._broadcast.destroy()
        except _GONE as error:
            raise errors.SparkLostError(str(error)) from None

    def run(self, job: Job, plan: Plan, source: Source = (), description: str = "") -> JobResult:
        """Run ``job`` on the input in ``source``. The result has a failure if user code failed.

        :raises JobLostError: Spark could not run the job.
        """
        result = self._result(job, plan, source, description)
        failure = result.failure
        if (
            failure is not None
            and failure.kind == "error"
            and (error := imports.missed_by(failure.error, self._run.local_master)) is not None
        ):
            raise errors.SetupError(f"{error}\n{failure}")
        return result

    def _result(self, job: Job, plan: Plan, source: Source, description: str) -> JobResult:
        job = reading(job, plan.levels_of(job.part), source)
        if self._resident is not None:
            self._resident.raise_unexpected()
        try:
            if job.part == "whole" and self._resident is not None:
                answer = self._resident.ask(self.group(job), pickling.dumps(job))
                if answer is not None:
                    return result_of(job, pickle.loads(answer), 1)
            with (
                contextlib.nullcontext() if self._resident is None else self._resident.making_room()
            ):
                self._begin(
                    self.group(job), "commit" if job.part in COMMITTING else "process", description
                )
                rdd = self._chain(job, plan, source)
                levels = plan.levels_of(job.part).levels
                return self._collect(
                    job, rdd, levels[-1].slots, shuffles=len(levels) > 1 or job.forwarding_slots > 0
                )
        except receive.MixedEmissionsError as error:
            raise JobLostError(str(error)) from None
        except _GONE as error:
            raise errors.SparkLostError(str(error)) from None
        except Exception as error:
            text = str(error)
            if isinstance(error, TaskLostError) and isinstance(error.__cause__, _GONE):
                raise errors.SparkLostError(text) from None
            failure = outcome.from_text(text, self._run.secret)
            if failure is None:
                if (
                    unloaded := imports.error_of(_readable(text), self._run.local_master)
                ) is not None:
                    raise unloaded from None
                cure = out_of_resources.cure_of(text)
                raise JobLostError(
                    _readable(text) if cure is None else f"{cure}\nSpark says:\n{_readable(text)}"
                ) from None
            return JobResult(Tally(), failure)

    def group(self, job: Job) -> str:
        return f"{job.run}/{job.name}"

    def _begin(self, group: str, pool: str, description: str) -> None:
        # Properties belong to the thread, which runs only our jobs. Each job begins by setting the
        # properties again.
        self._context.setJobGroup(group, description, False)
        self._context.setLocalProperty("callSite.short", description)
        if getattr(self._thread, "pool", None) != pool:
            self._context.setLocalProperty("spark.scheduler.pool", pool)
            self._thread.pool = pool

    # -- the chain --------------------------------------------------------------------------------

    def _chain(self, job: Job, plan: Plan, source: Source) -> Any:
        levels = plan.levels_of(job.part).levels
        if isinstance(source, Pinned):
            rdd = source.blocks
            if job.forwarding_slots:
                rdd = self._shuffled(
                    rdd,
                    task.ForwardFunction(self._broadcast, job, levels[0].slots),
                    levels[0].slots,
                )
        else:
            rdd = self._seed(source, levels[0].slots)
        for index in range(len(levels) - 1):
            rdd = self._shuffled(
                rdd,
                task.LevelFunction(self._broadcast, job, index, is_last=False),
                levels[index + 1].slots,
            )
        return _raw(
            rdd.mapPartitionsWithIndex(
                task.LevelFunction(self._broadcast, job, len(levels) - 1, is_last=True)
            )
        )

    def _shuffled(self, rdd: Any, function: Any, slots: int) -> Any:
        sent = _raw(rdd.mapPartitionsWithIndex(function))
        jvm = self._context._jvm
        pairs = jvm.PairwiseRDD(sent._jrdd.rdd()).asJavaPairRDD()
        if slots not in self._partitioners:
            self._partitioners[slots] = jvm.PythonPartitioner(slots, id(_one_to_one))
        return RDD(
            jvm.PythonRDD.valueOfPair(pairs.partitionBy(self._partitioners[slots])),
            self._context,
            NoOpSerializer(),
        )

    def _seed(self, frames: Sequence[Frame], slots: int) -> Any:
        """One record per slot, with the frames for the slot's tasks. Without frames, one RDD per
        slot count serves every job."""
        if not frames and slots in self._seeds:
            return self._seeds[slots]
        records = [bytearray(b"")] * slots
        if frames:
            by_slot = [
                [frame for frame in frames if frame.task % slots == slot] for slot in range(slots)
            ]
            records = [bytearray(wire.pack_frames(frames, wire.SEED)) for frames in by_slot]
        values = self._context._jvm.java.util.ArrayList(slots)
        for record in records:
            values.add(record)
        rdd = RDD(self._context._jsc.parallelize(values, slots), self._context, NoOpSerializer())
        if not frames:
            self._seeds[slots] = rdd
        return rdd

    def _launch(self, group: str, address: str) -> None:
        """Run a job whose one task serves the listener at ``address``, until the listener hangs
        up."""
        self._begin(group, "commit", f"{self._run.graph.id} small transactions")
        _records_of(
            self._seed((), 1).mapPartitionsWithIndex(
                task.ResidentFunction(self._broadcast, self._run.token, group, address)
            )
        )

    def _others_have_jobs(self) -> bool:
        """Whether Spark has a job besides our resident task, also a job that is not txtopo's."""
        with contextlib.suppress(*_GONE):
            return len(self._context.statusTracker().getActiveJobsIds()) > 1
        return False

    # -- the results ------------------------------------------------------------------------------

    def _collect(self, job: Job, rdd: Any, slots: int, shuffles: bool) -> JobResult:
        # A checkpoint cuts the RDD off from its shuffles, so the shuffles are found from the RDD
        # before. Spark itself would remove the shuffle files only when the JVM collects garbage.
        # Large batches make no more garbage than small batches.
        shuffled = rdd.prev
        try:
            if not job.pinned:
                return result_of(job, _records_of(rdd), slots)
            # First serialized persistence, then the local checkpoint. In this order a lost or
            # recomputed block fails its reader.
            rdd.persist(StorageLevel.MEMORY_AND_DISK)
            rdd.localCheckpoint()
            try:
                records = _records_of(rdd.mapPartitionsWithIndex(task.reports_only))
                return result_of(job, records, slots, functools.partial(PinnedBlocks, rdd))
            except BaseException:
                rdd.unpersist(blocking=False)
                raise
        finally:
            if shuffles:
                shuffled._jrdd.rdd().cleanShuffleDependencies(False)

    # -- stopping ---------------------------------------------------------------------------------

    def cancel(self, group: str) -> None:
        """Cancel the jobs of ``group``, also jobs not yet submitted. Returns before their tasks
        have stopped."""
        if self._resident is not None:
            self._resident.cancel(group)
        self._cancel(group)

    def _cancel(self, group: str) -> None:
        with contextlib.suppress(*_GONE):  # then there is no job any more
            if self._context._jsc is not None:  # else the program has stopped the context
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def is_running(self, group: str) -> bool:
        """Whether a task of ``group`` still runs, as far as Spark knows."""
        group = (self._resident and self._resident.spark_group(group)) or group
        with contextlib.suppress(*_GONE):  # the next job finds out, and ends the run
            tracker = self._context.statusTracker()
            for id in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(id)
                for stage in info.stageIds if info is not None else ():
                    of_stage = tracker.getStageInfo(stage)
                    if of_stage is not None and of_stage.numActiveTasks > 0:
                        return True
        return False

    def places(self, group: str) -> str:
        """Where the tasks of ``group`` are, for the end of a message about their time-out."""
        job = group.partition("/")[2]
        try:
            return late_tasks.places(self._run, job, functools.partial(self.is_running, group))
        except Exception as error:  # the time-out counts, also without the place
            return f": where its tasks are is unknown, because of {error!r}"


def _raw(rdd: Any) -> Any:
    rdd._bypass_serializer = True
    return rdd


def _records_of(rdd: Any) -> Any:
    """The records of ``rdd``, by a job that keeps our name. PySpark would name it after a line of
    ours, as if no other function of PySpark had called."""
    SCCallSiteSync._spark_stack_depth += 1
    try:
        return _raw(rdd).collect()
    finally:
        SCCallSiteSync._spark_stack_depth -= 1


def _readable(text: str) -> str:
    """Spark's message without the Java stack trace below it."""
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith(("at ", "... "))
    ]
    return "\n".join(lines[:40])
