"""Tests a whole topology: its parts, a comparison between processes, then schedules, in turn or in
several processes. A trial adds order, duration and progress to ``simulation``.

Invariants: a trial that was stopped reports its results so far, and never that all schedules were
played.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txtopo import config, errors
from txtopo.dataplane import worker
from txtopo.testing.simulator import current, parallel
from txtopo.testing.simulator.schedule import StoppedError
from txtopo.testing.simulator.simulation import Simulation, SimulationReport
from txtopo.topology.graph import TopologyGraph

UNBOUNDED = 1 << 30
"""So many schedules, where only time is bounded."""


@dataclass(slots=True)
class TrialProgress:
    """A trial's progress. Another thread may read it."""

    stage: str = "a run without failures"
    seeds: int = 0
    """How many schedules to play."""
    report: SimulationReport | None = None
    began: float = dataclasses.field(default_factory=time.monotonic)
    schedules_began: float = 0.0

    def __str__(self) -> str:
        report = self.report
        if report is None:
            return f"{self.stage}{_commits_so_far()}"
        passed_s = max(time.monotonic() - self.schedules_began, 1e-9)
        parts = [
            f"{report.schedules:,} schedules"
            if self.seeds >= UNBOUNDED
            else f"{report.schedules:,} of {self.seeds:,} schedules"
        ]
        if report.schedules:
            rate = report.schedules / passed_s
            parts.append(
                f"{rate:,.0f} a second"
                if rate >= 10
                else f"{passed_s / report.schedules:,.1f} s each"
            )
            if self.seeds < UNBOUNDED:
                parts.append(f"about {_duration((self.seeds - report.schedules) / rate)} left")
        parts.append(f"{report.faults.total():,} faults")
        parts.append(
            "no violation so far"
            if report.violation is None
            else "a violation, which is made shorter"
        )
        return ", ".join(parts) + _commits_so_far()


def _require_steady(effects: Callable[[], Any] | None, reset: Callable[[], None] | None) -> None:
    """Refuse functions that raise before the first transaction, and effects that change without a
    write."""
    name = "reset()"
    try:
        if reset is not None:
            reset()
        name = "effects()"
        is_steady = effects is None or effects() == effects()
    except Exception as error:
        raise errors.UsageError(
            f"{name} raised {type(error).__name__}: {error}\n  Correct the function first: -v shows the place."
        ) from error
    if not is_steady:
        raise errors.UsageError(
            "effects() returns another value at every call, although nothing was written in between\n"
            "  Return the written values as plain data: dicts, lists, texts and numbers, without a value that depends on the time."
        )


def _commits_so_far() -> str:
    """Tell how far the running schedule has come."""
    world = current.world_or_none()
    if world is None:
        return ""
    commits = world.commits
    return f"; in this one {commits} transaction{'s'[: commits != 1]} committed"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@dataclass(slots=True)
class Trial:
    """``topology`` under test. ``time_s`` bounds its schedules, after the first ``seeds_min``.
    ``should_stop`` is asked all the time. ``processes`` play schedules side by side."""

    topology: TopologyGraph
    conf: config.Config | Mapping[str, Any] | None
    options: Mapping[str, Any]
    """As for :class:`Simulation`."""
    seeds: int
    first_seed: int = 0
    time_s: float | None = None
    seeds_min: int = 0
    processes: int = 1
    should_stop: Callable[[], bool] = lambda: False
    progress: TrialProgress = dataclasses.field(default_factory=TrialProgress)

    def run(self) -> SimulationReport:
        """Run the whole test, up to the first violation."""
        if self.processes > 1 and (
            self.options.get("effects") is not None or self.options.get("reset") is not None
        ):
            raise errors.UsageError(
                "effects() and reset() belong to one place outside, which several processes would change at once\n  Leave out -j."
            )
        _require_steady(self.options.get("effects"), self.options.get("reset"))
        deadline = float("inf")

        def goes_on() -> bool:
            is_time = time.monotonic() < deadline or report.schedules < self.seeds_min
            return is_time and not self.should_stop()

        self.progress.seeds = self.seeds
        with (
            worker.seldom_collected(),
            Simulation(self.topology, self.conf, **self.options) as simulation,
        ):
            report = simulation.report()
            try:
                simulation.subject.goes_on = goes_on
                self.progress.stage = "the contracts of its parts"
                report.violation = simulation.check_parts()
                if report.violation is None:
                    self.progress.stage = "two processes with different hash seeds"
                    report.violation = simulation.recompute()
            except StoppedError:
                report.is_partial = True
            if report.violation is not None or report.is_partial:
                return report
            self.progress.schedules_began, self.progress.report = time.monotonic(), report
            if self.time_s is not None:
                deadline = time.monotonic() + self.time_s
            if self.processes == 1:
                simulation.run(self.seeds, self.first_seed, report)
            else:
                parallel.run(
                    simulation,
                    self.conf,
                    self.options,
                    report,
                    self.seeds,
                    self.first_seed,
                    self.processes,
                    goes_on,
                )
            if self.seeds >= UNBOUNDED and not self.should_stop():
                report.is_partial = False
            return report


def check_topology(
    topology: TopologyGraph,
    conf: config.Config | Mapping[str, Any] | None = None,
    *,
    seeds: int = 100,
    first_seed: int = 0,
    processes: int = 1,
    time_s: float | None = None,
    may_be_unseen: bool = False,
    **options: Any,
) -> SimulationReport:
    """Do the same as ``txtopo test``: check the parts, compare two other processes, play ``seeds``
    schedules for at most ``time_s`` seconds.

    ``options`` are those of :class:`txtopo.testing.Simulation`: ``transactions``, ``effects``,
    ``reset``, ``vary_parallelism``.

    :raises AssertionError: a violation, with the verdict as text, or effects that the simulator
        cannot see, unless they ``may_be_unseen``.
    :raises errors.UsageError: without any failure the topology ends with an error, or its source
        gives no batch.
    """
    report = Trial(topology, conf, options, seeds, first_seed, time_s, processes).run()
    if report.violation is not None:
        raise AssertionError(str(report.violation))
    if report.unseen and not may_be_unseen:
        cure = "  Or leave these effects out of the verdict: may_be_unseen=True."
        raise AssertionError("\n".join([*map(str, report.unseen), cure]))
    return report
