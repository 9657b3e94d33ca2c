"""Run a topology step by step: the caller chooses each step's process and moment.

The engine is no use to checkers, which do unlikely things on purpose: they replay a committed
attempt, commit a replaced attempt, or run the spout alone. The parts of a real run, such as
``engine.attempts``, do the work. Only their order is new. A hook's failure reaches the caller
unchanged, because a checker names the hook.

Invariants: a txid's attempts are numbered as in a real run, and never twice. ``engine.batches``
decides a batch's contents.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txtopo import config
from txtopo.dataplane import column_runs, outcome, wire
from txtopo.dataplane.job import Batch, Job, Limits, Run
from txtopo.engine import batches
from txtopo.engine.attempts import Attempt, AttemptRunner
from txtopo.engine.jobs import JobResult, Pinned, Source
from txtopo.plan import compiler
from txtopo.state import memory
from txtopo.state.topology import Holder, TopologyState
from txtopo.testing import emissions
from txtopo.testing.contracts import processes
from txtopo.topology import transaction
from txtopo.topology.context import SOME_TIME
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import TransactionAttempt

CORES = 2
"""Slots per level by default: several, so that tasks share processes as in Spark."""

_HOLDER = Holder("localhost", 0, "1970-01-01T00:00:00+00:00", "contract")
_UNBOUNDED = Limits(inline_bytes_max=sys.maxsize)
_tokens = itertools.count(1)
_ids = itertools.count(1)

EmittedRow = tuple[str, tuple[Any, ...]]
"""Stream, and values after the attempt. A direct emit's stream includes the task."""


class HookFailedError(Exception):
    """A user's hook raised. ``failure`` has the hook and the error."""

    def __init__(self, failure: outcome.Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(slots=True)
class Work(Attempt):
    """An attempt under way, with the results that checkers compare."""

    batch: Batch = field(init=False, repr=False)
    """The emitted batch, only after :meth:`LocalRun.emit`."""
    rows: dict[int, list[EmittedRow]] = field(default_factory=dict)
    """The rows that each spout task emitted, in order, only after :meth:`LocalRun.emit`."""
    probed: list[emissions.Emission] = field(default_factory=list)
    """The tuples that probed bolts emitted, from jobs that ended well."""
    points: int = 0
    """How many points probed bolts passed in the commit phase."""

    @property
    def emitted(self) -> list[EmittedRow]:
        return [row for task in sorted(self.rows) for row in self.rows[task]]


class _Jobs:
    """Runs the jobs of ``engine.attempts`` in a process. No time passes. A job ends before ``run``
    returns, so that the engine cancels no job and waits for none."""

    def use(self, process: processes.Process, strike: int | None = None) -> None:
        self._process, self._strike = process, strike
        self.emitted: list[emissions.Emission] = []
        self.points = 0

    def run(
        self, job: Job, plan: compiler.Plan, source: Source = (), description: str = ""
    ) -> JobResult:
        assert not isinstance(source, Pinned)
        done = self._process.run(job, source, self._strike)
        if done.result.failure is not None:
            raise HookFailedError(done.result.failure)
        self.emitted, self.points = self.emitted + done.emitted, done.points
        return done.result

    def group(self, job: Job) -> str:
        return job.name

    def cancel(self, group: str) -> None:
        pass

    def is_running(self, group: str) -> bool:
        return False

    def places(self, group: str) -> str:
        return ""

    def now(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        pass


class LocalRun:
    """A run over the state kept in ``server``. To restart, close the run and make a new run over
    the same server."""

    def __init__(
        self,
        graph: TopologyGraph,
        server: memory.MemoryServer,
        make_processes: Callable[[Run], list[processes.Process]],
        conf: Mapping[str, Any] | None = None,
        more_tasks: Mapping[str, int] | None = None,
        cores: int = CORES,
    ) -> None:
        """``more_tasks`` are task counts of components that contexts know, but ``graph`` lacks.
        ``cores`` are a level's slots."""
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
        token, generation = f"contract-{next(_tokens)}", self.state.generation
        self.run = Run(token, graph, cores, settings, generation, limits=_UNBOUNDED)
        self._plans, self._jobs = compiler.Plans(graph), _Jobs()
        self._runner = AttemptRunner(
            self.run,
            self._jobs,
            self.batches,
            self.state,
            "stop",
            lambda attempt: None,
            self._jobs,
        )
        self._runner.resumed_txid = self._sealed[0]
        try:
            self.processes = make_processes(self.run)
        except BaseException:
            self.processes = []
            self.close()
            raise

    def close(self) -> None:
        """End the run. The state remains."""
        self.state.abandon()
        for process in self.processes:
            process.close()
        self.batches.close()

    def next_attempt(self, txid: int) -> TransactionAttempt:
        """A new attempt for ``txid``, larger than all earlier attempts."""
        n = self._tries[txid] = self._tries.get(txid, -1) + 1
        return TransactionAttempt(txid, transaction.attempt_id(self.state.epoch, n))

    def task_counts(self, txid: int, **wanted: int) -> dict[str, int]:
        """The task counts for ``txid``: the sealed counts if ``txid`` is sealed, else the
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
        """Run the spout alone, and keep its rows. If emitting learns metadata, the attempt uses the
        metadata from now on."""
        work = self._begin(attempt, counts, process)
        work.batch = self.batches.batch(attempt.txid)
        work.result = work.emission or self._runner.run_job(work, "emission", work.batch)
        work.rows = {task: [] for task in range(counts[self.graph.spout.id])}
        for frame in work.result.frames:
            if frame.kind == "rows":
                runs = column_runs.in_rows(wire.unpack_runs(frame.payload), attempt)
                work.rows[frame.task].extend(
                    (stream, row[1:]) for stream, rows in runs for row in rows
                )
        return work

    def process(self, attempt: TransactionAttempt, process: processes.Process) -> Work:
        """Run the whole topology's processing phase."""
        work = self._begin(attempt, self.task_counts(attempt.txid), process)
        self._runner.process(work)
        work.probed = self._jobs.emitted
        return work

    def apply(self, work: Work, process: processes.Process, strike: int | None = None) -> None:
        """Run the commit phase, perhaps again, as a late task would. A probed bolt fails at its
        ``strike``-th point."""
        self._jobs.use(process, strike)
        self._runner.apply(work, zombie_wait_s=0)
        work.probed, work.points = work.probed + self._jobs.emitted, self._jobs.points

    def seal(self, work: Work) -> None:
        """Make durable that the attempt may have effects."""
        txid = work.attempt.txid
        self.state.seal(
            work.attempt,
            work.task_counts,
            self.batches.metadata(txid),
            self.batches.opened_at(txid),
        )

    def record(self, work: Work) -> None:
        """Make the attempt's commit durable."""
        self.state.record(work.attempt, self.batches.moves(work.attempt.txid), work.stores)
        self.batches.discard(work.attempt)

    def _begin(
        self, attempt: TransactionAttempt, counts: Mapping[str, int], process: processes.Process
    ) -> Work:
        """A new attempt with metadata. ``process`` emits the batch if emitting learns the metadata."""
        self._jobs.use(process)
        work = Work(attempt, counts, self._plans.under(counts, self.run.cores), 0.0)
        if self.batches.emits_metadata and (
            self.batches.is_opaque or not self.state.txids.has_cache(attempt.txid)
        ):
            self._runner.emit(work)
        elif self.batches.is_opaque:
            self._runner.plan(work)
        else:
            return work
        self.batches.learnt(attempt, work.metadata)
        return work
