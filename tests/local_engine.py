"""Whole runs in this process: the engine and its state as in a real run, with the data plane in
place of Spark. For tests of restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.servers.clusters import fast
from txtopo.dataplane import outcome, wire
from txtopo.dataplane.job import Job, Limits, Run
from txtopo.dataplane.outcome import Tally
from txtopo.dataplane.worker import WorkerRun
from txtopo.engine.engine import Engine
from txtopo.engine.jobs import JobResult, Source, result_of
from txtopo.engine.observer import Observer
from txtopo.engine.surroundings import Surroundings
from txtopo.faults import FaultPoint
from txtopo.plan.compiler import Plan
from txtopo.spark.machine import Machine
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.testing.in_process import InProcessJob
from txtopo.topology.graph import TopologyGraph

CORES = 2


POINTS = [
    f"{step}.{when}"
    for step in ("seal", "apply", "record", "forget")
    for when in ("before", "after")
]
"""The fault points between the steps of a commit."""


class Died(Exception):
    """The driver dies."""


class Dying(Machine):
    """A machine that dies when ``point`` is reached for ``txid``; never if that is None."""

    def __init__(self, point: str | None, txid: int) -> None:
        super().__init__("topology")
        self.point, self.txid = point, txid

    def reach(self, point: FaultPoint, txid: int) -> None:
        if (point, txid) == (self.point, self.txid):
            raise Died(point)


class LocalJobs:
    """Runs every job at once, slot by slot."""

    def __init__(self, run: Run) -> None:
        self.worker = WorkerRun(run)

    def run(self, job: Job, plan: Plan, source: Source = (), description: str = "") -> JobResult:
        assert isinstance(source, list | tuple), "nothing is pinned here"
        running = InProcessJob(self.worker, job, source)
        slots = running.levels[-1].slots
        while not running.is_done:
            try:
                running.deliver(running.waiting[0], running.compute(running.waiting[0]).outputs)
            except outcome.FailureInTaskError as error:
                return JobResult(Tally(), outcome.from_text(str(error), self.worker.run.secret))
        return result_of(job, running.records, 1 if job.part == "whole" else slots)

    def group(self, job: Job) -> str:
        return job.name

    def cancel(self, group: str) -> None:
        """There is nothing to cancel: a job has ended when its caller goes on."""

    def is_running(self, group: str) -> bool:
        return False

    def places(self, group: str) -> str:
        return ""


def run_to_idle(
    graph: TopologyGraph,
    store: MemoryStateStore,
    surroundings: Surroundings | None = None,
    observers: Sequence[Observer] = (),
    begins: Callable[[Engine], None] = lambda engine: None,
    **settings: Any,
) -> int:
    """Run ``graph`` until its input is exhausted. Raises the error that ended the run. Returns the
    next txid."""
    state = TopologyState.open(store, graph.id, Holder("host", 1, "now"), displaces=True)
    try:
        conf = fast(**{"until": "exhausted", "message_timeout_s": 3600.0, **settings})
        limits = Limits(inline_bytes_max=1 << 30, stores_max=conf.stores_max)
        run = Run(
            f"run-{random.random()}",
            graph,
            CORES,
            conf.as_mapping(),
            state.generation,
            limits=limits,
        )
        jobs = LocalJobs(run)
        try:
            engine = Engine(
                run,
                conf,
                jobs,
                state,
                observers,
                random.Random(1),
                lambda: None,
                surroundings or Machine(graph.id),
            )
            begins(engine)
            engine.run()
        finally:
            wire.forget_classes(run.token)
        return state.current
    finally:
        state.close()
