"""A worker process's memory between tasks: its runs, their plans and templates, and the users'
resources (R12).

Invariants: a kept object only saves time, and never changes a task's result. At most ``_RUNS_MAX``
runs are kept.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from txtopo.dataplane import hold, wire
from txtopo.dataplane.job import Run
from txtopo.plan import compiler
from txtopo.plan.compiler import Plan
from txtopo.topology import pickling
from txtopo.topology.conf import TopologyConf

_RUNS_MAX = 8


class Resources:
    """Users' connections and clients, by name. One set per process and run.

    Invariants: after a fork, a process does not use, close or drop the resources made before. Their
    sockets belong to the parent too, and dropping a resource may close its sockets.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, dict[str, Any]] = {}

    @property
    def _of_process(self) -> dict[str, Any]:
        return self._by_process.setdefault(os.getpid(), {})

    def get(self, name: str, factory: Callable[[], Any]) -> Any:
        """The resource ``name``. ``factory`` makes it if there is none yet."""
        resources = self._of_process
        if name not in resources:
            resources[name] = factory()
        return resources[name]

    def close(self) -> None:
        """Close and drop every resource."""
        self.discard(set(self._of_process))

    def discard(self, names: set[str]) -> None:
        """Close and drop ``names``, which a failing task has used: they may have caused the
        failure."""
        resources = self._of_process
        for name in names & resources.keys():
            close = getattr(resources.pop(name), "close", None)
            if callable(close):
                with contextlib.suppress(Exception):
                    close()


def _no_clock() -> float:
    return 0.0


class WorkerRun:
    """A run, with this process's plans, templates and resources."""

    def __init__(self, run: Run, clock: Callable[[], float] = _no_clock) -> None:
        """``clock`` measures, in seconds, how long tasks are at work."""
        self.run, self.clock = run, clock
        self.resources = Resources()
        wire.register_classes(run.token, run.graph.by_value)
        self._plans = compiler.Plans(run.graph)
        self._templates: dict[str, bytes] = {}
        self._only_streams: dict[str, dict[str, str]] = {}
        self.confs = {
            id: TopologyConf(run.conf).overlaid(component.config)
            for id, component in run.graph.components.items()
        }

    def plan(self, task_counts: Mapping[str, int], cores: int | None = None) -> Plan:
        """The plan under ``task_counts`` for ``cores``, or for the run's cores."""
        return self._plans.under(task_counts, cores or self.run.cores)

    def only_streams(self, component: str) -> dict[str, str]:
        """By receiver, the stream that the receiver takes from ``component``, for receivers with
        only one such stream."""
        if component not in self._only_streams:
            graph = self.run.graph
            listened = [
                (receiver.id, stream)
                for stream in graph.components[component].outputs
                for receiver, _ in graph.receivers(component, stream)
            ]
            receivers = [receiver for receiver, _ in listened]
            self._only_streams[component] = {
                receiver: stream for receiver, stream in listened if receivers.count(receiver) == 1
            }
        return self._only_streams[component]

    def fresh(self, component: str, bindings: dict[hold.Reference, Any]) -> Any:
        """Make a fresh copy of ``component``'s template."""
        if component not in self._templates:
            self._templates[component] = hold.dump(
                pickling.loads(self.run.graph.components[component].template), self.run.token
            )
        return hold.load(io.BytesIO(self._templates[component]), bindings)


_YOUNG_MAX = 50_000


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let Python look for garbage in cycles less often. Millions of rows come and go in a task,
    some thousands wait, and no row is in a cycle. By default, Python would look at the waiting rows
    again after every 700 new objects."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _YOUNG_MAX), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


_runs: OrderedDict[str, WorkerRun] = OrderedDict()
_warm = False


def worker_run(
    token: str, load: Callable[[], bytes], clock: Callable[[], float] = _no_clock
) -> WorkerRun:
    """The run ``token``. ``load`` gets the run's pickle if this process does not know the run
    yet."""
    global _warm
    if token in _runs:
        _runs.move_to_end(token)
        return _runs[token]
    known = WorkerRun(pickling.loads(load()), clock)
    _runs[token] = known
    while len(_runs) > _RUNS_MAX:
        forgotten, run = _runs.popitem(last=False)
        run.resources.close()
        wire.forget_classes(forgotten)
    if not _warm:
        # PySpark collects garbage after every task. After this freeze, modules imported by now are
        # not examined again.
        gc.collect()
        gc.freeze()
        _warm = True
    return known
