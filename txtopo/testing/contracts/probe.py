"""Probes around bolts: a probed slot writes down emits, and makes a bolt fail at any point in its
``finish_batch``.

A worker may die, or a ``FailedException`` may arise, at a point: before and after ``finish_batch``,
at a request for a resource, after a store transaction's commit, at an emit (a receiver in the same
process may fail).

Invariants: until it is struck, a bolt runs as without a probe.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.dataplane import slot
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask
from txtopo.testing import emissions


class ToldToFailError(errors.FailedException):
    """A failure that the check asked for."""


class Observer:
    """Watches one job, and strikes at the point numbered ``strike``, if given."""

    def __init__(self, strike: int | None = None) -> None:
        self._strike = strike
        self.emitted: list[emissions.Emission] = []
        self.points = 0
        """How many points bolts have passed."""

    def reach(self, component: str, task: int, place: str) -> None:
        number, self.points = self.points, self.points + 1
        if number == self._strike:
            raise ToldToFailError(f"told to fail {place} of {component!r} task {task}")


class ProbedSlot(slot.SlotRun):
    """A slot where every bolt that finishes in the commit phase is observed. A basic bolt has no
    ``finish_batch``, and so no points."""

    def __init__(self, observer: Observer, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._observer = observer
        self.guard = _ProbedGuard(self, observer)

    def connect(self, task: BoltTask | SpoutTask) -> None:
        super().connect(task)
        component = task.component
        if component.kind == "spout" or component.id not in self.plan.held:
            return
        if component.kind == "basic":
            emissions.listen(task, self._observer.emitted.append)
            return
        reach = functools.partial(self._observer.reach, component.id, task.index)

        def hear(emission: emissions.Emission) -> None:
            reach("where finish_batch emits")
            self._observer.emitted.append(emission)

        emissions.listen(task, hear)
        context, give = task.context, task.context._resources

        def resource(name: str, factory: Callable[[], Any]) -> Any:
            reach(f"where finish_batch asks for the resource {name!r}")
            return give(name, factory)

        def committed(name: str) -> None:
            # The attempt fails even if the bolt swallows the error, as after a store's failure (R39).
            try:
                reach(f"after a transaction of the store {name!r}")
            except ToldToFailError as error:
                context.on_failure(error)
                raise

        context._resources, context.touched_stores = resource, _AnnouncingDict(committed)


class _ProbedGuard(Guard):
    def __init__(self, probed: ProbedSlot, observer: Observer) -> None:
        super().__init__(probed.job, probed.phase)
        self._observer = observer

    def call(
        self, component: str, task: int, hook: str, function: Callable[..., Any], *args: Any
    ) -> Any:
        if hook != "finish_batch":
            return super().call(component, task, hook, function, *args)

        def between_points() -> None:
            self._observer.reach(component, task, "before finish_batch")
            function(*args)
            self._observer.reach(component, task, "after finish_batch")

        return super().call(component, task, hook, between_points)


class _AnnouncingDict(dict[str, int]):
    """Calls ``on_set`` for each new count. Stores count when their transaction has committed."""

    def __init__(self, on_set: Callable[[str], None]) -> None:
        super().__init__()
        self._on_set = on_set

    def __setitem__(self, name: str, count: int) -> None:
        super().__setitem__(name, count)
        self._on_set(name)
