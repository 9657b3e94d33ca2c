"""A component's task in a job: a bolt instance between its inbox and its collector."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from sys import getrefcount
from typing import IO, Any, NoReturn

from txtopo.dataplane import collector as emit
from txtopo.dataplane import column_runs, hold, wire
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.inbox import Lane
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import AbortedError
from txtopo.dataplane.route import Row, Send
from txtopo.dataplane.worker import WorkerRun
from txtopo.topology.context import Phase, TopologyContext
from txtopo.topology.graph import Component
from txtopo.topology.stream import Fields, Tuple, TupleSource


class Task:
    """The part that spout and bolt tasks share: identity, context, collector."""

    def __init__(
        self,
        worker: WorkerRun,
        job: Job,
        guard: Guard,
        component: Component,
        index: int,
        phase: Phase,
    ) -> None:
        self.worker = worker
        self.job = job
        self.guard = guard
        self.component = component
        self.index = index
        self.used_resources: set[str] = set()
        self.executed = 0
        self.context = TopologyContext(
            worker.run.graph.id,
            worker.run.generation,
            component.id,
            index,
            job.task_counts,
            phase,
            functools.partial(_resource, worker, self.used_resources),
            worker.run.local_master,
            job.known_stores,
            job.first_attempt,
            job.opened_at,
            job.expected_stores.get(component.id),
            worker.run.limits.stores_max,
        )
        self.context.attempt = job.attempt
        self.conf = worker.confs[component.id]
        self.collector = emit.Collector(
            component.id, job.attempt, component.outputs, worker.run.token
        )
        self.collector.on_failure = self.context.on_failure = functools.partial(
            guard.note, component.id, index
        )

    def call(self, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a hook of this task under the guard."""
        return self.guard.call(self.component.id, self.index, hook, function, *args)

    @property
    def bindings(self) -> dict[hold.Reference, Any]:
        """The objects for the references in a held instance."""
        return {"collector": self.collector, "context": self.context, "conf": self.conf}


def _resource(worker: WorkerRun, used: set[str], name: str, factory: Callable[[], Any]) -> Any:
    used.add(name)
    return worker.resources.get(name, factory)


class BoltTask(Task):
    """A bolt instance: fresh (``prepare`` is called), or restored from ``held``."""

    def begin(self, held: IO[bytes] | None) -> None:
        """Make the instance ready for its first tuple."""
        if held is not None:
            self.instance = self.call("restoring the held bolt", hold.load, held, self.bindings)
        else:
            self.instance = self.call(
                "making a copy of the bolt", self.worker.fresh, self.component.id, self.bindings
            )
            extra = () if self.component.kind == "basic" else (self.collector, self.job.attempt)
            self.call("prepare", self.instance.prepare, self.conf, self.context, *extra)
        self._execute = self.entry()
        self.guard.on_failure.append(self.stop)

    def entry(self) -> Callable[..., None]:
        """The hook that takes the bolt's input."""
        hook: Callable[..., None] = self.instance.execute
        return hook

    def execute_columns(self, batch: Any, source: TupleSource) -> None:
        """Give a RecordBatch's rows to the bolt, tuple by tuple."""
        arrow = column_runs.load_batches()
        for part in arrow.slices(batch):
            self.execute_all(
                self.call("turning columns into tuples", arrow.rows, part, self.job.attempt), source
            )

    def stop(self) -> None:
        """Execute no more tuples: this slot has failed, though an upstream bolt may go on
        emitting."""
        self._execute = _abort

    def execute_all(self, rows: Iterable[Row], source: TupleSource) -> None:
        """Give arrived tuples to the bolt, in order."""
        guard, is_basic, collector = self.guard, self.component.kind == "basic", self.collector
        tup = Tuple((), source)
        try:
            for row in rows:
                self.executed += 1
                if getrefcount(tup) != _ALONE_IN_LOCAL:
                    tup = Tuple((), source)
                tup.values = row
                execute = self._execute
                if is_basic:
                    execute(tup, collector)
                else:
                    execute(tup)
                if guard.has_failed:
                    guard.abort("execute")
        except AbortedError:
            guard.abort("execute")
        except BaseException as error:
            guard.record(self.component.id, self.index, "execute", error)
            raise AbortedError from None

    def sender(self, source: TupleSource, lane: Lane, wait: Send) -> Send:
        """A function that gives a neighbour's row to the bolt at once, while ``lane`` is the first.

        One function does all the work between emit and bolt: one more call would cost as much as a
        bolt that counts.
        """
        guard, is_basic, collector = self.guard, self.component.kind == "basic", self.collector
        tup = Tuple((), source)

        def send(row: Row) -> None:
            nonlocal tup
            if not lane.is_first:
                wait(row)
                return
            self.executed += 1
            if getrefcount(tup) != _ALONE_IN_CELL:
                tup = Tuple((), source)
            tup.values = row
            execute = self._execute
            try:
                if is_basic:
                    execute(tup, collector)
                else:
                    execute(tup)
            except AbortedError:
                if execute is not _abort:
                    guard.abort("execute")
                raise
            except BaseException as error:
                guard.record(self.component.id, self.index, "execute", error)
                raise AbortedError from None
            if guard.has_failed:
                guard.abort("execute")

        return send

    def finish(self) -> None:
        if self.component.kind == "basic":
            self.call("cleanup", self.instance.cleanup)
        else:
            self.call("finish_batch", self.instance.finish_batch)

    def hold(self, pieces: wire.PieceWriter) -> None:
        """Pickle the instance into ``pieces``, for the commit phase."""
        self.call(
            "holding the bolt between the phases",
            hold.dump_held,
            self.instance,
            self.worker.run.token,
            pieces,
        )


def _references() -> tuple[int, int]:
    """``getrefcount`` for an object that only one variable refers to: a local variable, and an
    enclosing function's variable.

    Most bolts drop their tuple, and such a bolt gets the same object with the next row: making a
    new tuple takes as long as the rest of the way to the bolt. Each version of Python counts a
    variable and an argument in its own way. So the counts are measured here, by the same
    expressions.
    """
    tup = Tuple((), TupleSource("", 0, "", Fields()))
    local = getrefcount(tup)
    of_cell = Tuple((), TupleSource("", 0, "", Fields()))

    def from_within() -> int:
        nonlocal of_cell
        count = getrefcount(of_cell)
        of_cell = Tuple((), TupleSource("", 0, "", Fields()))
        return count

    return local, from_within()


_ALONE_IN_LOCAL, _ALONE_IN_CELL = _references()


def _abort(*ignored: Any) -> NoReturn:
    raise AbortedError
