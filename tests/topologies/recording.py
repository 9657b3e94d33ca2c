"""Small spouts and bolts that note their calls, and the jobs of an attempt without Spark.

A bolt's notes go into a list of this process, by topology id: no compared value passes through the
tested code.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from txtopo import (
    BaseBasicBolt,
    BaseBatchBolt,
    BasePartitionedTransactionalSpout,
    BasicOutputCollector,
    BatchOutputCollector,
    CoordinatorContext,
    Fields,
    ICommitter,
    OutputFieldsDeclarer,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.dataplane import wire
from txtopo.dataplane.job import Batch, Job, Limits, Part, Run
from txtopo.dataplane.outcome import Failure, Report
from txtopo.dataplane.wire import Frame
from txtopo.dataplane.worker import WorkerRun
from txtopo.engine.jobs import JobResult
from txtopo.testing import in_process
from txtopo.topology.graph import TopologyGraph

FIRST = TransactionAttempt(1, 0)
ROOMY = Limits(inline_bytes_max=1 << 40)

Streams = Mapping[str, Sequence[str]]
VALUE: Streams = {"default": ("tx", "value")}


class Event(NamedTuple):
    """One call of a hook."""

    component: str
    task: int
    phase: str
    hook: str
    details: tuple[Any, ...] = ()


journals: dict[str, list[Event]] = {}
"""What happened, by topology id."""

_ids = itertools.count()


def note(context: TopologyContext, hook: str, *details: Any) -> None:
    """Write down a call: here, or in a worker of Spark, which knows nothing of this process's
    lists, in the file that a test has made. A call after the end of that test is noted nowhere."""
    noted = Event(context.component_id, context.task_index, context.phase, hook, details)
    journal = journals.get(context.topology_id)
    if journal is not None:
        journal.append(noted)
    else:
        with (
            contextlib.suppress(FileNotFoundError),
            os.fdopen(
                os.open(journal_file(context.topology_id), os.O_WRONLY | os.O_APPEND), "a"
            ) as file,
        ):
            file.write(json.dumps(noted) + "\n")


def journal_file(topology_id: str) -> Path:
    """The file in which workers of Spark note the calls in ``topology_id``; its test makes and
    removes the file."""
    return Path(tempfile.gettempdir()) / f"txtopo-journal-{topology_id}"


def origin(tup: Tuple) -> tuple[str, int, str, tuple[Any, ...]]:
    """Source component, source task, stream, and the values after the attempt."""
    return tup.source_component, tup.source_task, tup.source_stream_id, tup.values[1:]


def _declare(declarer: OutputFieldsDeclarer, streams: Streams) -> None:
    for stream, fields in streams.items():
        declarer.declare_stream(stream, Fields(fields))


class NotingBolt(BaseBatchBolt):
    """Notes every call; ``on_prepare(bolt)``, ``on_execute(bolt, tup)`` and ``on_finish(bolt)`` are
    its further deeds."""

    context: TopologyContext
    collector: BatchOutputCollector
    conf: TopologyConf
    attempt: TransactionAttempt

    def __init__(
        self,
        on_execute: Callable[[Any, Tuple], None] | None = None,
        on_finish: Callable[[Any], None] | None = None,
        on_prepare: Callable[[Any], None] | None = None,
        streams: Streams = VALUE,
    ) -> None:
        self.on_execute, self.on_finish, self.on_prepare, self.streams = (
            on_execute,
            on_finish,
            on_prepare,
            streams,
        )
        self.seen: list[Any] = []

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.conf, self.context, self.collector, self.attempt = conf, context, collector, attempt
        note(context, "prepare")
        if self.on_prepare is not None:
            self.on_prepare(self)

    def execute(self, tup: Tuple) -> None:
        note(self.context, "execute", *origin(tup))
        self.seen.append(tup.values[1:])
        if self.on_execute is not None:
            self.on_execute(self, tup)

    def finish_batch(self) -> None:
        note(self.context, "finish_batch", *self.seen)
        if self.on_finish is not None:
            self.on_finish(self)

    def emit(self, *values: Any, stream: str = "default") -> None:
        """Emit ``values`` behind the attempt."""
        self.collector.emit([self.attempt, *values], stream)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        _declare(declarer, self.streams)


class NotingCommitter(NotingBolt, ICommitter):
    """The same as a committer."""


class NotingBasicBolt(BaseBasicBolt):
    """The same without a batch; ``on_execute(bolt, tup, collector)``."""

    context: TopologyContext

    def __init__(
        self,
        on_execute: Callable[[Any, Tuple, BasicOutputCollector], None] | None = None,
        streams: Streams = VALUE,
    ) -> None:
        self.on_execute, self.streams = on_execute, streams

    def prepare(self, conf: TopologyConf, context: TopologyContext) -> None:
        self.context = context
        note(context, "prepare")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        note(self.context, "execute", *origin(tup))
        if self.on_execute is not None:
            self.on_execute(self, tup, collector)

    def cleanup(self) -> None:
        note(self.context, "cleanup")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        _declare(declarer, self.streams)


def pass_on(bolt: NotingBolt, tup: Tuple) -> None:
    """Emit the tuple's values again."""
    bolt.emit(*tup.values[1:])


def pass_on_basic(bolt: NotingBasicBolt, tup: Tuple, collector: BasicOutputCollector) -> None:
    """Emit the tuple again."""
    collector.emit(list(tup))


class NoCoordinator(PartitionedSpoutCoordinator):
    """Never asked: tests give the data plane its batches."""

    def num_partitions(self) -> int:
        raise AssertionError("the data plane asked a spout's coordinator")


class RowsSpout(BasePartitionedTransactionalSpout):
    """Emits its metadata: a list of ``[stream, [values after the attempt]]``. A new batch of
    partition p is ``fresh[p]``."""

    def __init__(self, fresh: Mapping[int, Any] | None = None, streams: Streams = VALUE) -> None:
        self.fresh, self.streams = dict(fresh or {}), streams

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return NoCoordinator()

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        note(context, "get_emitter")
        return RowsEmitter(self, context)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        _declare(declarer, self.streams)


class RowsEmitter(PartitionedSpoutEmitter):
    def __init__(self, spout: RowsSpout, context: TopologyContext) -> None:
        self.spout, self.context = spout, context

    def emit_partition_batch_new(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        note(self.context, "emit_partition_batch_new", partition, last_metadata)
        fresh = self.spout.fresh.get(partition)
        for stream, values in fresh or ():
            collector.emit([attempt, *values], stream)
        return fresh

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        note(self.context, "emit_partition_batch", partition, metadata)
        for stream, values in metadata:
            collector.emit([attempt, *values], stream)

    def close(self) -> None:
        note(self.context, "close")


def rows(*values: Any, stream: str = "default") -> list[Any]:
    """Metadata of :class:`RowsSpout`: one row per value."""
    return [[stream, [value]] for value in values]


def builder(spout: Any = None, parallelism: int = 1) -> TransactionalTopologyBuilder:
    """A builder of a topology with an id of its own and the spout ``"spout"``."""
    id = f"topology-{next(_ids)}"
    journals[id] = []
    return TransactionalTopologyBuilder(
        id, "spout", RowsSpout() if spout is None else spout, parallelism
    )


@dataclass
class Ran:
    """The results of the jobs of one attempt."""

    events: list[Event]
    failure: Failure | None = None
    failed_in: Part | None = None
    reports: dict[Part, list[Report]] = field(default_factory=dict)
    frames: dict[Part, list[Frame]] = field(default_factory=dict)

    def of(self, component: str, task: int | None = None) -> list[tuple[str, str]]:
        """(phase, hook) of the calls of ``component``, in order."""
        return [
            (event.phase, event.hook)
            for event in self.events
            if event.component == component and task in (None, event.task)
        ]

    def executed(self, component: str, task: int | None = None) -> list[Any]:
        """The first value after the attempt in each tuple that ``component`` executed, in order."""
        return [
            e.details[3][0]
            for e in self.events
            if e.component == component and e.hook == "execute" and task in (None, e.task)
        ]


class _Job(in_process.InProcessJob):
    """``rng``, if given, shuffles the order in which slots run and chunks arrive, as Spark would."""

    def __init__(self, rng: random.Random | None, *arguments: Any) -> None:
        self._rng = rng
        super().__init__(*arguments)

    def _begin_level(self) -> None:
        super()._begin_level()
        if self._rng is not None and not self.is_done:
            self._rng.shuffle(self.waiting)
            for chunks in self.inputs if self.level > 0 else ():
                self._rng.shuffle(chunks)


class InProcessJobs:
    """Runs jobs one at a time, shuffled by ``rng``, if given."""

    def __init__(self, worker: WorkerRun, rng: random.Random | None = None) -> None:
        self.worker = worker
        self._rng = rng
        self._task_attempts = itertools.count()
        self.records: list[bytes] = []
        """The results of the last job that no failure ended early."""

    def run(self, job: Job, seeds: Sequence[Frame] = ()) -> JobResult:
        """Run ``job``. All results come back."""
        running = _Job(self._rng, self.worker, job, seeds, None, self._task_attempts)
        result = in_process.run_to_end(running)
        if running.is_done:
            self.records = running.records
        return result


class InProcessTopology:
    """A topology whose attempts run here, through the same jobs as in Spark."""

    def __init__(
        self,
        graph: TopologyGraph,
        cores: int = 2,
        limits: Limits = ROOMY,
        rng: random.Random | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self.graph = graph
        self.worker = WorkerRun(
            Run(f"run-{next(_ids)}", graph, cores, conf or {}, "generation", limits=limits)
        )
        self.plan = self.worker.plan(graph.task_counts)
        self.jobs = InProcessJobs(self.worker, rng)

    def __enter__(self) -> InProcessTopology:
        return self

    def __exit__(self, *raised: object) -> None:
        wire.forget_classes(self.worker.run.token)

    def job(
        self,
        part: Part,
        attempt: TransactionAttempt = FIRST,
        batch: Batch | None = None,
        **more: Any,
    ) -> Job:
        """A job of this topology."""
        return Job(
            self.worker.run.token, part, attempt, self.graph.task_counts, batch=batch, **more
        )

    def run_job(self, job: Job, seeds: Sequence[Frame] = ()) -> tuple[list[Report], JobResult]:
        """The reports of the slots of the last level, unless a failure has ended the job before,
        and the result."""
        self.jobs.records = []
        result = self.jobs.run(job, seeds)
        records = [record for record in self.jobs.records if record[:1] == wire.REPORT]
        return [wire.unpack_report(record) for record in records], result

    def run(self, batch: Batch, attempt: TransactionAttempt = FIRST, whole: bool = False) -> Ran:
        """All jobs of one attempt, or all of it ``whole`` in one; an emission job first where
        the batch is new."""
        journal = journals[self.graph.id]
        journal.clear()
        ran = Ran(journal)
        seeds: list[Frame] = []
        parts: list[tuple[Part, Batch | None]] = [
            ("processing", batch),
            ("late", None),
            ("commit", None),
        ]
        if whole:
            parts = [("whole", batch)]
        elif batch.mode == "new":
            parts[:1] = [("emission", batch), ("processing", Batch("recorded"))]
        for part, of_part in parts:
            if part == "late" and not any(report.late_rows for report in ran.reports["processing"]):
                continue
            if part == "commit" and not self.plan.commit:
                continue
            job = self.job(part, attempt, of_part, cores=1 if whole else None)
            ran.reports[part], result = self.run_job(job, seeds)
            ran.frames[part] = seeds = list(result.frames)
            ran.failure = result.failure
            if ran.failure is not None:
                ran.failed_in = part
                break
        ran.events = list(journal)
        return ran


def planned(partitions: Mapping[int, Any]) -> Batch:
    """A batch that was planned on the driver."""
    return Batch("planned", partitions=dict(partitions), num_partitions=len(partitions))


def run_once(
    graph: TopologyGraph,
    partitions: Mapping[int, Any],
    attempt: TransactionAttempt = FIRST,
    **how: Any,
) -> Ran:
    """An attempt of a planned batch."""
    with InProcessTopology(graph, **how) as topology:
        return topology.run(planned(partitions), attempt)
