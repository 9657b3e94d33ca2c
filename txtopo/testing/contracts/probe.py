"""Probes around bolts: a probe writes down emits, and makes the bolt fail at any point in its
``finish_batch``.

A worker may die, or a ``FailedException`` may arise, at a point: before and after ``finish_batch``,
at a request for a resource, after a store transaction's commit, at an emit (a receiver in the same
process may fail). A probe travels with the bolt, is pickled while the bolt is held, and works in
the bolt's process.

Invariants: until it is struck, a bolt runs as without a probe. A process has one observer at a
time.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.dataplane import column_runs, wire
from txtopo.plan import compiler
from txtopo.topology import bolt, pickling
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.stream import DEFAULT_STREAM, OutputFieldsDeclarer, Tuple
from txtopo.topology.transaction import TransactionAttempt


class Emitted(NamedTuple):
    """One emit: ``direct`` is the receiving task, ``values`` are the values after the attempt."""

    component: str
    stream: str
    direct: int | None
    values: tuple[Any, ...]


class Point(NamedTuple):
    """A place in a ``finish_batch``, in words."""

    component: str
    task: int
    place: str

    def __str__(self) -> str:
        return f"{self.place} of {self.component!r} task {self.task}"


class ToldToFailError(errors.FailedException):
    """A failure that the check asked for."""


class Observer:
    """Watches one job, and strikes at the point numbered ``strike``, if given."""

    def __init__(self, strike: int | None = None) -> None:
        self._strike = strike
        self.emitted: list[Emitted] = []
        self.points: list[Point] = []

    def reach(self, point: Point) -> None:
        """A bolt is at ``point``."""
        self.points.append(point)
        if len(self.points) - 1 == self._strike:
            raise ToldToFailError(f"told to fail {point}")


_observer = Observer()


@contextlib.contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """``observer`` watches inside the block."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before


def _reach_for_good(point: Point, on_failure: Callable[[BaseException], None]) -> None:
    """Be at ``point``. If the observer strikes here, the attempt fails even if the bolt swallows
    the error, as after a failed emit (R7) or a store's failure (R39)."""
    try:
        _observer.reach(point)
    except ToldToFailError as error:
        on_failure(error)
        raise


class ProbedBolt(bolt.BaseTransactionalBolt):
    """``inner``, observed."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: bolt.BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.component, self.task = context.component_id, context.task_index
        self.inner.prepare(
            conf,
            _ProbedContext(context),
            _ProbedCollector(collector, self.component, self.task, context),
            attempt,
        )

    def execute(self, tup: Tuple) -> None:
        self.inner.execute(tup)

    def execute_batch(self, batch: Any) -> None:
        """Where the bolt takes columns."""
        self.inner.execute_batch(batch)

    def finish_batch(self) -> None:
        _observer.reach(Point(self.component, self.task, "before finish_batch"))
        self.inner.finish_batch()
        _observer.reach(Point(self.component, self.task, "after finish_batch"))

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        self.inner.declare_output_fields(declarer)


class ProbedBasicBolt(bolt.BaseBasicBolt):
    """``inner``, whose emits are written down. A basic bolt has no ``finish_batch``, and so no
    points."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def prepare(self, conf: TopologyConf, context: TopologyContext) -> None:
        self.context = context
        self.inner.prepare(conf, context)

    def execute(self, tup: Tuple, collector: bolt.BasicOutputCollector) -> None:
        self.inner.execute(
            tup,
            _NotingCollector(
                collector, self.context.component_id, self.context.task_index, self.context
            ),
        )

    def cleanup(self) -> None:
        self.inner.cleanup()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        self.inner.declare_output_fields(declarer)


class _ProbedContext:
    """``context``, with points. Not a ``TopologyContext``, because a held bolt would get a new
    ``TopologyContext`` in its place."""

    def __init__(self, context: TopologyContext) -> None:
        self.context = context

    def __getattr__(self, name: str) -> Any:
        if name == "context":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.context, name)

    def resource(self, name: str, factory: Callable[[], Any]) -> Any:
        self._reach(f"where finish_batch asks for the resource {name!r}")
        return self.context.resource(name, factory)

    @property
    def touched_stores(self) -> MutableMapping[str, int]:
        return _AnnouncingDict(self.context.touched_stores, self._committed)

    def _committed(self, name: str) -> None:
        place = f"after a transaction of the store {name!r}"
        _reach_for_good(
            Point(self.context.component_id, self.context.task_index, place),
            self.context.on_failure,
        )

    def _reach(self, place: str) -> None:
        _observer.reach(Point(self.context.component_id, self.context.task_index, place))


class _AnnouncingDict(collections.UserDict[str, int]):
    """``counts``, calling ``on_set`` for each new count. Stores count when their transaction has
    committed."""

    def __init__(self, counts: dict[str, int], on_set: Callable[[str], None]) -> None:
        self.data, self._on_set = counts, on_set

    def __setitem__(self, name: str, count: int) -> None:
        self.data[name] = count
        self._on_set(name)


@dataclasses.dataclass(eq=False)
class _ProbedCollector(bolt.BatchOutputCollector):
    """Writes down every emit to ``_collector``."""

    _collector: bolt.BatchOutputCollector
    _component: str
    _task: int
    _context: TopologyContext

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._note(values, stream, None, lambda: self._collector.emit(values, stream))

    def emit_direct(
        self, task_index: int, values: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> None:
        self._note(
            values,
            stream,
            task_index,
            lambda: self._collector.emit_direct(task_index, values, stream),
        )

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        self._note_columns(batch, stream, None, lambda: self._collector.emit_batch(batch, stream))

    def emit_batch_direct(self, task_index: int, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        self._note_columns(
            batch,
            stream,
            task_index,
            lambda: self._collector.emit_batch_direct(task_index, batch, stream),
        )

    def _note_columns(
        self, batch: Any, stream: str, direct: int | None, emit: Callable[[], None]
    ) -> None:
        self._emit(emit)
        _observer.emitted.extend(
            Emitted(self._component, stream, direct, row[1:])
            for row in column_runs.load_batches().rows(batch, None)
        )

    def _note(
        self, values: Sequence[Any], stream: str, direct: int | None, emit: Callable[[], None]
    ) -> None:
        self._emit(emit)
        _observer.emitted.append(
            Emitted(
                self._component, stream, direct, pickling.loads(pickling.dumps(tuple(values)[1:]))
            )
        )

    def _emit(self, emit: Callable[[], None]) -> None:
        _reach_for_good(
            Point(self._component, self._task, "where finish_batch emits"), self._context.on_failure
        )
        emit()


class _NotingCollector(_ProbedCollector, bolt.BasicOutputCollector):
    """A probed collector without points."""

    def _emit(self, emit: Callable[[], None]) -> None:
        emit()


def probed(graph: TopologyGraph, token: str | None = None) -> TopologyGraph:
    """``graph`` with every bolt that finishes in the commit phase under observation.

    The graph's classes are pickled by value, as for workers. Classes registered for ``token`` are
    pickled by reference, so that loading does not make new classes.
    """
    components, by_value = dict(graph.components), list(graph.by_value)
    for id in compiler.held_components(graph):
        if components[id].kind != "spout":
            probe = ProbedBasicBolt if components[id].kind == "basic" else ProbedBolt
            bolt_observed = probe(pickling.loads(components[id].template))
            template, classes = (
                pickling.dumps_with_classes(bolt_observed)
                if token is None
                else (_by_reference(bolt_observed, token), ())
            )
            components[id] = dataclasses.replace(components[id], template=template)
            by_value.extend(cls for cls in classes if cls not in by_value)
    return TopologyGraph(graph.id, components, tuple(by_value), graph.local_only)


def _by_reference(observed: ProbedBolt | ProbedBasicBolt, token: str) -> bytes:
    buffer = io.BytesIO()
    wire.ReferencePickler(buffer, token).dump(observed)
    return buffer.getvalue()
