"""Runs user code under faults: a hook may fail before or after its work, and its process may die
there.

Here is all that stands between the data plane and a user's hook: the slots and their guard, and the
spout coordinator on the driver. Emissions are recorded on the way.

Invariants: without a fault, user code runs exactly as in Spark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from txtopo.dataplane import column_runs
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.job import Job
from txtopo.dataplane.receive import Received
from txtopo.dataplane.route import Row
from txtopo.dataplane.slot import SlotRun
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask
from txtopo.dataplane.worker import WorkerRun
from txtopo.testing import emissions
from txtopo.testing.contracts import probe
from txtopo.testing.simulator import current
from txtopo.topology import pickling
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, Phase
from txtopo.topology.transaction import TransactionAttempt

_HOOK = re.compile(r"\w+(, partition \d+)?")
_is_hook = functools.lru_cache(_HOOK.fullmatch)
"""Whether a text is a hook's name. Each schedule asks hundreds of times, for the same few texts."""
_BEFORE, _AFTER = "before it is called", "after it was called"
_ASKED_MAX = 30
"""So often a patient schedule asks a source that is not ready, before the source counts as
exhausted."""

_TUPLES = {f"at tuple number {number}": number for number in (1, 2, 3)}
"""Where an ``execute`` may fail."""


class HookGuard(Guard):
    """Runs user code for one slot, or fails it."""

    worker_died = False
    """Whether the failure stands for the process's death."""

    def __init__(self, job: Job, phase: Phase) -> None:
        super().__init__(job, phase)
        self._world = world = current.world()
        self.may_be_struck = world.is_watching or world.decisions.may_strike("hook", "worker")
        """Whether a fault may strike here, or a watch is on. If not, thousands of hooks need no
        name."""

    def call(
        self, component: str, task: int, hook: str, function: Callable[..., Any], *args: Any
    ) -> Any:
        if not self.may_be_struck or not _is_hook(hook):
            return super().call(component, task, hook, function, *args)
        when = self.fault_at(
            f"{hook} of {component!r} task {task}, attempt {self._job.attempt}", (_BEFORE, _AFTER)
        )
        if when == _BEFORE:
            function, args = _fail, ()
        with self._world.watched(component, task, hook, self._phase, self._job.attempt):
            result = super().call(component, task, hook, function, *args)
        return super().call(component, task, hook, _fail) if when == _AFTER else result

    def fault_at(self, where: str, ways: tuple[Any, ...]) -> Any:
        """Decide how a fault strikes at ``where``, if one does."""
        decisions = self._world.decisions
        how = decisions.strike("hook", where, ways)
        if how is None:
            how = decisions.strike("worker", where, ways)
            self.worker_died = self.worker_died or how is not None
        return how


def _fail() -> Any:
    raise probe.ToldToFailError("told to fail by the simulator")


class SimulatedSlot(SlotRun):
    """A slot whose hooks may fail. Emissions are recorded where the schedule needs them."""

    def __init__(
        self, worker: WorkerRun, job: Job, level: int, slot: int, task_attempt: int
    ) -> None:
        super().__init__(worker, job, level, slot, task_attempt)
        self.guard: HookGuard = HookGuard(job, self.phase)
        self.emitted: list[emissions.Emission] = []
        self.executed: list[tuple[str, int, str, str, Row]] = []
        """(component, task, source component, stream, values after the attempt), recorded in
        watched schedules only."""

    def connect(self, task: BoltTask | SpoutTask) -> None:
        super().connect(task)
        world = current.world()
        # Most emissions are never read.
        is_read = world.is_watching or task.component.id in world.reported
        if self.job.part != "emission" and is_read:
            emissions.listen(task, self.emitted.append)

    def begin_tasks(self, received: Received) -> None:
        super().begin_tasks(received)
        for (component, index), bolt in self.bolts.items():
            self._let_fail(component, index, bolt)

    def _let_fail(self, component: str, index: int, bolt: BoltTask) -> None:
        """Let ``execute`` fail at a chosen tuple, and be watched."""
        world, user_execute = current.world(), bolt._execute
        if not self.guard.may_be_struck:
            return
        where = f"execute of {component!r} task {index}, {self.job.part} job of attempt {self.job.attempt}"
        fatal = _TUPLES.get(self.guard.fault_at(where, tuple(_TUPLES)))
        if fatal is None and not world.is_watching:
            return
        count = 0

        def execute_or_fail(taken: Any, *collector: Any) -> None:
            nonlocal count
            count += 1
            if count == fatal:
                _fail()
            if world.is_watching:
                self.executed.extend((component, index, *row) for row in _rows_taken(bolt, taken))
            with world.watched(component, index, "execute", self.phase, self.job.attempt):
                user_execute(taken, *collector)

        bolt._execute = execute_or_fail


def _rows_taken(bolt: BoltTask, taken: Any) -> list[tuple[str, str, Row]]:
    """List (source component, stream, values after the attempt) for a tuple, or for each row in a
    RecordBatch."""
    source = bolt.context.source
    if source is None:
        return [(taken.source_component, taken.source_stream_id, taken.values[1:])]
    return [
        (source.component, source.stream, row[1:])
        for row in column_runs.load_batches().rows(taken, None)
    ]


class FaultySpout:
    """Stands for the spout on the simulated driver: its coordinator's hooks may fail. The driver
    calls ``get_coordinator`` alone."""

    def __init__(self, template: bytes) -> None:
        self._spout = pickling.loads(template)
        self._template = template
        self.metadata_type = self._spout.metadata_type

    def __reduce__(self) -> tuple[Any, ...]:
        return FaultySpout, (self._template,)

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> FaultyCoordinator:
        """The user's coordinator, whose hooks may fail."""
        return FaultyCoordinator(self._spout.get_coordinator(conf, context), context.component_id)


_FOR_DASHBOARDS = ("lag", "lost")
"""Hooks that no result depends on. These hooks are not called: a coordinator may publish the
positions in their arguments, and simulated positions must not be published."""


class FaultyCoordinator:
    """The user's spout coordinator. Every call may raise FailedException before or after the call
    is made."""

    def __init__(self, coordinator: Any, component: str) -> None:
        self._coordinator, self._component = coordinator, component
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        if name in _FOR_DASHBOARDS:
            raise AttributeError(name)
        member = getattr(self._coordinator, name)
        if not callable(member) or name == "close":
            return member

        def call(*args: Any) -> Any:
            self._calls += 1
            world = current.world()
            where = f"{name} of the coordinator of {self._component!r}, call {self._calls} of driver {world.driver_number}"
            when = world.decisions.strike("coordinator", where, (_BEFORE, _AFTER))
            if when == _BEFORE:
                _fail()
            txid = args[0] if args and isinstance(args[0], int) else 0
            with world.watched(self._component, 0, name, "opening", TransactionAttempt(txid, 0)):
                result = member(*args)
                if name == "is_ready" and world.is_patient and not result:
                    world.is_asking_again = True
                    try:
                        result = any(member() for _ in range(_ASKED_MAX - 1))
                    finally:
                        world.is_asking_again = False
                    world.source_paused = world.source_paused or result
            world.step_aside(f"{name} has returned")
            return _fail() if when == _AFTER else result

        return call
