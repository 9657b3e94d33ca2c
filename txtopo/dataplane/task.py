"""One task of one component in one job: a bolt instance, or a spout's emitter, between its inbox
and its collector.

Every call into user code goes through :meth:`Guard.call`: whatever it raises becomes a recorded
failure, which no ``try``/``except`` of an upstream bolt can undo (R7).
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping
from sys import getrefcount
from typing import IO, Any, NoReturn

from txtopo import errors
from txtopo.dataplane import collector as emit
from txtopo.dataplane import columns, emission, hold, out_of_resources, route, wire
from txtopo.dataplane.inbox import Lane
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import AbortedError, Failure, describe, user_traceback
from txtopo.dataplane.route import Row, Send
from txtopo.dataplane.worker import WorkerRun
from txtopo.stores import conflicts
from txtopo.topology.context import Phase, TopologyContext
from txtopo.topology.graph import Component
from txtopo.topology.metadata import NotJsonError
from txtopo.topology.stream import Fields, Tuple, TupleSource

_MISTAKES: dict[type[BaseException], type[errors.UserCodeError]] = {
    emit.EmitMistakeError: errors.EmitError,
    route.WrongTaskError: errors.EmitError,
    columns.ColumnMistakeError: errors.EmitError,
    MemoryError: errors.OutOfMemoryError,
    hold.CannotHoldError: errors.HeldStateError,
    emission.EmissionMistakeError: errors.MetadataError,
    NotJsonError: errors.MetadataError,
    conflicts.StoreConflict: errors.StoreConflictError,
}
"""What an exception of ours becomes when it reaches the driver."""


class Guard:
    """Runs user code for one slot; remembers the first failure for good.

    Invariants: once ``has_failed``, no further hook returns normally. A failed emit, or store, is
    noted at once, and recorded when the hook it happened in ends, because only then is its
    traceback complete.
    """

    def __init__(self, job: Job, phase: Phase) -> None:
        self._job, self._phase = job, phase
        self.failure: Failure | None = None
        self.has_failed = False
        self.on_failure: list[Callable[[], None]] = []
        """What is to be stopped at once."""
        self._noted: tuple[str, int, BaseException] | None = None

    def call(self, component: str, task: int, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``; :class:`AbortedError` if it fails, or if something it called has
        failed."""
        try:
            result = function(*args)
        except AbortedError:
            self.abort(hook)
        except BaseException as error:
            self.record(component, task, hook, error)
            raise AbortedError from None
        if self.has_failed:
            self.abort(hook)
        return result

    def note(self, component: str, task: int, error: BaseException) -> None:
        """An emit or a store failed with ``error``, which its bolt may yet swallow."""
        self._stop()
        if self._noted is None:
            self._noted = (component, task, error)

    def _stop(self) -> None:
        if not self.has_failed:
            self.has_failed = True
            for stop in self.on_failure:
                stop()

    def abort(self, hook: str) -> NoReturn:
        """Unwind ``hook`` after a failure: it is noted, and user code may have swallowed it, or
        have run into what a failure has stopped."""
        if self.failure is None and self._noted is not None:
            component, task, error = self._noted
            self.record(component, task, hook, error)
        raise AbortedError

    def record(self, component: str, task: int, hook: str, error: BaseException) -> None:
        """Remember ``error`` as the failure of this slot, unless there is one already, or it came
        in the place of a noted FailedException."""
        self._stop()
        if self.failure is not None:
            return
        if self._noted is not None and isinstance(self._noted[2], errors.FailedException):
            component, task, error = self._noted
        cause: bytes | None = None
        kind: Any = "error"
        if isinstance(error, errors.StaleAttemptError):
            kind = "stale"
        elif isinstance(error, errors.FailedException):
            kind = "failed"
        elif isinstance(error, errors.TxtopoError):
            cause = _pickled(error)
        elif type(error) in _MISTAKES:
            cause = pickle.dumps(_MISTAKES[type(error)])
        described = out_of_resources.of(error) or (str(error) if type(error) in _MISTAKES else describe(error))
        self.failure = Failure(kind, component, task, self._job.attempt, self._phase, hook, described, user_traceback(error), cause)


def _pickled(error: errors.TxtopoError) -> bytes | None:
    """``error`` as bytes, or ``None`` if a user's subclass of ours does not survive that."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data


class Task:
    """What spout and bolt tasks share: identity, context, collector."""

    def __init__(self, worker: WorkerRun, job: Job, guard: Guard, component: Component, index: int, phase: Phase) -> None:
        self.worker, self.job, self.guard, self.component, self.index = worker, job, guard, component, index
        self.used_resources: set[str] = set()
        self.executed = 0
        self.context = TopologyContext(
            worker.run.graph.id, worker.run.generation, component.id, index, job.task_counts, phase, self._resource,
            worker.run.local_master, job.known_stores, job.first_attempt, job.opened_at,
            job.expected_stores.get(component.id), worker.run.limits.stores_max,
        )  # fmt: skip
        self.conf = worker.confs[component.id]
        self.collector = emit.Collector(component.id, job.attempt, component.outputs, worker.run.token)
        self.collector.on_failure = self.context.on_failure = functools.partial(guard.note, component.id, index)

    def _resource(self, name: str, factory: Callable[[], Any]) -> Any:
        self.used_resources.add(name)
        return self.worker.resources.get(name, factory)

    def call(self, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a hook of this task under the guard."""
        return self.guard.call(self.component.id, self.index, hook, function, *args)

    @property
    def bindings(self) -> dict[hold.Reference, Any]:
        """What references in a held instance are bound to."""
        return {"collector": self.collector, "context": self.context, "conf": self.conf}


class BoltTask(Task):
    """A bolt instance: fresh (``prepare`` is called), or restored from ``held``."""

    def begin(self, held: IO[bytes] | None) -> None:
        """Make the instance ready for its first tuple."""
        if held is not None:
            self.instance = self.call("restoring the held bolt", hold.load, held, self.bindings)
        else:
            self.instance = self.call("making a copy of the bolt", self.worker.fresh, self.component.id, self.bindings)
            extra = () if self.component.kind == "basic" else (self.collector, self.job.attempt)
            self.call("prepare", self.instance.prepare, self.conf, self.context, *extra)
        self._execute = self.entry()
        self.guard.on_failure.append(self.stop)

    def entry(self) -> Callable[..., None]:
        """The hook that takes what is meant for the bolt."""
        hook: Callable[..., None] = self.instance.execute
        return hook

    def execute_columns(self, batch: Any, source: TupleSource) -> None:
        """Give the rows of a RecordBatch to the bolt, tuple by tuple."""
        arrow = columns.load_batches()
        for part in arrow.slices(batch):
            self.execute_all(self.call("turning columns into tuples", arrow.rows, part, self.job.attempt), source)

    def stop(self) -> None:
        """Execute nothing more: something in this slot has failed, though a bolt upstream may go on
        emitting."""
        self._execute = _abort

    def execute_all(self, rows: Iterable[Row], source: TupleSource) -> None:
        """Give tuples that arrived to the bolt, one after the other."""
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
        """A function that gives one row of a neighbour to the bolt at once, while ``lane`` is the
        first.

        One function for all of it, from the emit to the bolt: each call in between would cost as
        much as a bolt that counts.
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
        """The batch is over for this task."""
        if self.component.kind == "basic":
            self.call("cleanup", self.instance.cleanup)
        else:
            self.call("finish_batch", self.instance.finish_batch)

    def hold(self, pieces: wire.PieceWriter) -> None:
        """The instance into ``pieces``, for the commit phase."""
        self.call("holding the bolt between the phases", hold.dump_held, self.instance, self.worker.run.token, pieces)


def _references() -> tuple[int, int]:
    """What ``getrefcount`` says of an object that only a variable of ours refers to: a local one,
    and one of the function around.

    A bolt that is done with its tuple, as nearly all are, gets the same object with the next row,
    because making one takes as long as all the rest of the way to the bolt. How many references a
    variable and an argument are is for each version of Python to say, so it is measured, by the
    expressions that are used.
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


class SpoutTask(Task):
    """A spout's emitter: made, one emit, closed; that of a committer spout is held between the emit
    and its commit (R22)."""

    metadata: Mapping[int, Any] = {}
    """What this task learnt by emitting, by partition."""
    num_partitions: int | None = None
    """How many partitions this task saw, where emitters are asked."""

    def emit(self, pieces: wire.PieceWriter) -> None:
        """Emit this task's part of the batch; the emitter, if it is to be held, goes into
        ``pieces``."""
        assert self.job.batch is not None
        spout = self.call("making a copy of the spout", self.worker.fresh, self.component.id, self.bindings)
        emitter = self.call("get_emitter", spout.get_emitter, self.conf, self.context)
        is_held = False
        try:
            self.metadata = emission.emit_batch(self, spout, emitter, self.job.batch)
            if self.component.committer:
                self.call("holding the emitter between the phases", hold.dump_held, emitter, self.worker.run.token, pieces)
                is_held = True
        finally:
            if not is_held:
                self.guard_close(emitter)

    def commit(self, held: IO[bytes]) -> None:
        """Commit what the held emitter emitted, and close it."""
        emitter = self.call("restoring the held emitter", hold.load, held, self.bindings)
        try:
            self.call("commit", emitter.commit, self.job.attempt)
            self.call("commit", emission.refuse_late_emits, self.collector.emitted)
        finally:
            self.guard_close(emitter)

    def guard_close(self, emitter: Any) -> None:
        """Close the emitter; a failure here must not hide one of the emit."""
        try:
            emitter.close()
        except BaseException as error:
            self.guard.record(self.component.id, self.index, "close", error)
        if self.guard.has_failed:
            self.guard.abort("close")

    def replay(self, runs: Iterable[tuple[str, Iterable[Row]]]) -> None:
        """Send what the emission job recorded."""
        for stream, rows in runs:
            if columns.is_run(stream):
                for batch in columns.unpacked(rows):
                    self.collector.send_recorded_batch(columns.stream_of(stream), batch)
                continue
            for row in rows:
                self.collector.send_recorded(stream, row)
