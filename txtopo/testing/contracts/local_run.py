"""One run of a topology, transaction by transaction: its caller chooses process and moment of each
step.

Apart from the engine because a checker does unlikely things on purpose: it replays a committed
attempt, commits a replaced attempt, or runs the spout alone. The parts of a real run do the work;
the run chooses their order. ``engine.attempts`` turns failures into texts for a log, where a
checker needs the failed hook, so the steps of an attempt are here once more.

Invariants: the attempts of a txid are numbered as in a real run, and never twice.
``engine.batches`` decides the contents of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txtopo import config
from txtopo.dataplane import column_runs, outcome, wire
from txtopo.dataplane.job import Batch, Job, Part, Run
from txtopo.dataplane.wire import Frame
from txtopo.engine import batches
from txtopo.plan import compiler
from txtopo.state import memory
from txtopo.state.topology import Holder, TopologyState
from txtopo.testing.contracts import probe, processes
from txtopo.topology import transaction
from txtopo.topology.context import SOME_TIME
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt

CORES = 2
"""Slots per level, if nothing else is said: several, so that tasks share processes as in Spark."""

_HOLDER = Holder("localhost", 0, "1970-01-01T00:00:00+00:00", "contract")
_tokens = itertools.count(1)
_ids = itertools.count(1)

EmittedRow = tuple[str, tuple[Any, ...]]
"""Stream, and values after the attempt. A direct emit has the task in its stream."""


class HookFailedError(Exception):
    """A hook of the user's raised: ``failure`` says which, and what."""

    def __init__(self, failure: outcome.Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class PartitionCountError(Exception):
    """The tasks of one attempt of an opaque spout saw different numbers of partitions."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        super().__init__(counts)
        self.counts = counts


@dataclass(slots=True)
class Work:
    """One attempt so far. ``frames`` are the results of its last job: held instances, recorded
    rows. ``metadata`` is in the stored form."""

    attempt: TransactionAttempt
    task_counts: Mapping[str, int]
    frames: Sequence[Frame]
    batch: Batch
    metadata: Any = None
    stores: Mapping[str, int] = field(default_factory=dict)
    rows: dict[int, list[EmittedRow]] = field(default_factory=dict)
    """The rows that each task of the spout emitted, in order; only where the spout was run
    alone."""
    probed: list[probe.Emitted] = field(default_factory=list)
    """The tuples of the probed bolts, from jobs that ended well."""
    points: list[probe.Point] = field(default_factory=list)
    """The points that probed bolts passed in the commit phase."""

    @property
    def emitted(self) -> list[EmittedRow]:
        """What all tasks together emitted."""
        return [row for task in sorted(self.rows) for row in self.rows[task]]


class LocalRun:
    """A run over the state kept in ``server``; a new run over the same server is a restart. Close
    the old run before."""

    def __init__(
        self,
        graph: TopologyGraph,
        server: memory.MemoryServer,
        make_processes: Callable[[Run], list[processes.Process]],
        conf: Mapping[str, Any] | None = None,
        more_tasks: Mapping[str, int] | None = None,
        cores: int = CORES,
    ) -> None:
        """``more_tasks`` are components that are not in ``graph``, but known to contexts; ``cores``
        are the slots of a level."""
        self._more_tasks = dict(more_tasks or {})
        settings = config.Config(conf or {}).as_mapping()
        self.graph = graph
        self.state = TopologyState.open(
            memory.MemoryStateStore(server),
            graph.id,
            _HOLDER,
            displaces=True,
            new_id=lambda: f"id-{next(_ids)}",
        )
        self.batches = batches.Batches(graph, settings, self.state, lambda txid: SOME_TIME)
        self._tries: dict[int, int] = {}
        sealed = self.state.sealed()
        self._sealed = (0, {}) if sealed is None else (sealed.txid, dict(sealed.tasks or {}))
        self.run = Run(f"contract-{next(_tokens)}", graph, cores, settings, self.state.generation)
        try:
            self.processes = make_processes(self.run)
        except BaseException:
            self.processes = []
            self.close()
            raise

    def close(self) -> None:
        """End the run; its state remains."""
        self.state.abandon()
        for process in self.processes:
            process.close()
        self.batches.close()

    def next_attempt(self, txid: int) -> TransactionAttempt:
        """A new attempt of ``txid``, larger than all before."""
        n = self._tries[txid] = self._tries.get(txid, -1) + 1
        return TransactionAttempt(txid, transaction.attempt_id(self.state.epoch, n))

    def task_counts(self, txid: int, **wanted: int) -> dict[str, int]:
        """The numbers of tasks ``txid`` runs under: the sealed ones if it is sealed, else the
        topology's, overlaid by ``wanted`` (R23)."""
        sealed_txid, sealed = self._sealed
        return {
            **self._more_tasks,
            **self.graph.task_counts,
            **(sealed if txid == sealed_txid else wanted),
        }

    # -- an attempt, step by step -----------------------------------------------------------------

    def emit(
        self, attempt: TransactionAttempt, counts: Mapping[str, int], process: processes.Process
    ) -> Work:
        """Run the spout alone, and keep its rows. Metadata learnt by emitting becomes the attempt's
        metadata, now in use."""
        batch = self._batch(attempt)
        done = self._emission(attempt, counts, process, batch)
        work = Work(
            attempt, counts, [frame for frame in done.frames if frame.kind == "held"], batch
        )
        if batch.mode in ("new", "opaque"):
            work.metadata = dict(self.batches.batch(attempt.txid).partitions)
        else:
            work.metadata = batch.metadata if batch.mode == "whole" else dict(batch.partitions)
        work.rows = {task: [] for task in range(counts[self.graph.spout.id])}
        for frame in done.frames:
            if frame.kind == "rows":
                runs = column_runs.in_rows(wire.unpack_runs(frame.payload), attempt)
                work.rows[frame.task].extend(
                    (stream, row[1:]) for stream, rows in runs for row in rows
                )
        return work

    def _emission(
        self,
        attempt: TransactionAttempt,
        counts: Mapping[str, int],
        process: processes.Process,
        batch: Batch,
    ) -> processes.Done:
        """The emission job; metadata that the job learns is put to use."""
        done = self._job("emission", attempt, counts, process, batch)
        if batch.mode in ("new", "opaque"):
            tally = outcome.Tally()
            for report in done.reports:
                tally.add(report.own)
            seen = tally.partition_counts or {batch.num_partitions}
            if len(seen) > 1:
                raise PartitionCountError(tuple(sorted(seen)))
            self.batches.learnt(attempt, batches.partitioned_metadata(seen.pop(), tally.metadata))
        return done

    def process(self, attempt: TransactionAttempt, process: processes.Process) -> Work:
        """The processing phase of the whole topology."""
        counts, batch, seeds = self.task_counts(attempt.txid), self._batch(attempt), list[Frame]()
        if batch.mode in ("new", "opaque"):
            emission = self._emission(attempt, counts, process, batch)
            batch, seeds = Batch("recorded"), emission.frames
        done = self._job("processing", attempt, counts, process, batch, seeds)
        emitted = list(done.emitted)
        if any(report.late_rows for report in done.reports):
            done = self._job("late", attempt, counts, process, None, done.frames)
            emitted += done.emitted
        return Work(attempt, counts, done.frames, batch, probed=emitted)

    def apply(self, work: Work, process: processes.Process, strike: int | None = None) -> None:
        """The commit phase; may be run again, as a task that is late would. A probed bolt fails at
        its ``strike``-th point."""
        if not compiler.compile_plan(
            self.graph.with_task_counts(work.task_counts), self.run.cores
        ).commit:
            return
        done = self._job(
            "commit", work.attempt, work.task_counts, process, None, work.frames, strike
        )
        tally = outcome.Tally()
        # The same in every report, of all levels before the last.
        tally.add(done.reports[0].before)
        for report in done.reports:
            tally.add(report.own)
        work.stores = dict(tally.stores)
        work.probed, work.points = work.probed + done.emitted, done.points

    def seal(self, work: Work) -> None:
        """Make durable that effects of the attempt may exist."""
        txid = work.attempt.txid
        self.state.seal(
            work.attempt,
            work.task_counts,
            self.batches.metadata(txid),
            self.batches.opened_at(txid),
        )

    def record(self, work: Work) -> None:
        """Make the commit of the attempt durable."""
        self.state.record(work.attempt, self.batches.moves(work.attempt.txid), work.stores)
        self.batches.discard(work.attempt)

    def _batch(self, attempt: TransactionAttempt) -> Batch:
        txid = attempt.txid
        if self.batches.is_opaque and not self.batches.emits_metadata:
            self.batches.learnt(attempt, self.batches.plan(txid))
        elif self.batches.emits_metadata and (
            self.batches.is_opaque or not self.state.txids.has_cache(txid)
        ):
            return self.batches.new_batch(txid)
        return self.batches.batch(txid)

    def _job(
        self,
        part: Part,
        attempt: TransactionAttempt,
        counts: Mapping[str, int],
        process: processes.Process,
        batch: Batch | None,
        seeds: Sequence[Frame] = (),
        strike: int | None = None,
    ) -> processes.Done:
        known, opened_at = self.state.known_stores, self.batches.opened_at(attempt.txid)
        job = Job(
            self.run.token,
            part,
            attempt,
            counts,
            known,
            self.state.current - 1,
            batch,
            pinned=True,
            opened_at=opened_at,
        )
        done = process.run(job, seeds, strike)
        failure = next(
            (report.failure for report in done.reports if report.failure is not None), None
        )
        if failure is not None:
            raise HookFailedError(failure)
        return done
