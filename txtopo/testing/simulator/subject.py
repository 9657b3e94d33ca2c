"""A simulation's subject: a topology, with everything that all schedules share.

A subject is made once and used thousands of times: substitutes replace the stores, plans are
compiled, threads are started, and the user's variables are found.

Invariants: between two schedules the stores are empty, ``reset`` has been called, and no simulated
process lives.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txtopo import config
from txtopo.dataplane import wire
from txtopo.dataplane.job import Limits, Run
from txtopo.dataplane.worker import WorkerRun
from txtopo.plan.compiler import Plans
from txtopo.testing.simulator import clocks, hooks, substitutes, turns
from txtopo.testing.simulator.clues import Clue, clues_in
from txtopo.testing.simulator.decisions import FAULTS_MAX
from txtopo.testing.simulator.processes import Processes, classes_of
from txtopo.topology import pickling
from txtopo.topology.graph import TopologyGraph

GENERATION = "simulated"
CORES = 2
TRANSACTIONS = 12
"""The default bound for a schedule's transactions."""

_POLL_S = 10.0
"""A source that is not ready is asked again after this virtual time, so that it is not asked three
hundred times until a phase times out."""

_OPAQUE_FACTOR = 5
"""An opaque spout's batches may be smaller in a replay, so that a schedule may need more batches."""

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Settings:
    """A driver's settings. ``task_counts`` are pairs (component, tasks)."""

    max_spout_pending: int
    cores: int
    inline_bytes_max: int
    task_counts: tuple[tuple[str, int], ...]
    small_transaction_s: float
    """In a simulation work takes no time, so every transaction is small unless this is 0."""

    def __str__(self) -> str:
        tasks = ", ".join(f"{component}={count}" for component, count in self.task_counts)
        settings = f"max_spout_pending={self.max_spout_pending}, small_transaction_s={self.small_transaction_s}"
        return f"{settings}, {self.cores} cores, inline_bytes_max={self.inline_bytes_max}, tasks {tasks}"


class Subject:
    """``topology`` as simulated, under ``conf`` without the settings that end a run early."""

    def __init__(
        self,
        topology: TopologyGraph,
        conf: config.Config | Mapping[str, Any] | None = None,
        *,
        transactions: int = TRANSACTIONS,
        effects: Callable[[], Any] | None = None,
        reset: Callable[[], None] | None = None,
        vary_parallelism: bool = False,
    ) -> None:
        settings = conf if isinstance(conf, config.Config) else config.Config(conf or {})
        self.topology, self.transactions = topology, transactions
        self.effects, self.reset = effects, reset
        self.conf = settings.replaced(
            until="exhausted",
            max_attempts=None,
            max_crashes=1_000_000,
            max_transactions=None,
            poll_interval_s=max(settings.poll_interval_s, _POLL_S),
        )
        slowest_s = (
            self.conf.message_timeout_s
            + self.conf.backoff_max_s
            + self.conf.zombie_wait_s
            + self.conf.poll_interval_s
        )
        self.time_max_s = slowest_s * (FAULTS_MAX + transactions + 2)
        """A schedule that takes longer, in virtual time, does not end at all."""
        self._substitutes = substitutes.Substitutes(topology, has_reset=reset is not None)
        self.graph = self._substitutes.graph
        self.stores = self._substitutes.stores
        self.uncompared = self._substitutes.uncompared
        """Components with a destination that is no store, and so has no substitute."""
        self.is_opaque = topology.spout_traits.is_opaque
        self.transactions_max = transactions * (_OPAQUE_FACTOR if self.is_opaque else 1)
        """A schedule ends after so many transactions, even if the source has more."""
        self.goes_on: Callable[[], bool] = lambda: True
        """Asked at every step in a schedule: the schedule stops there if the answer is false."""
        self.carriers = turns.Carriers()
        self._workers: dict[tuple[int, int], WorkerRun] = {}
        self._driver_plans: dict[tuple[tuple[str, int], ...], Plans] = {}
        self._mapping = self.conf.as_mapping()
        templates = [
            pickling.loads(component.template) for component in self.graph.components.values()
        ]
        groupings = [
            subscription.grouping.custom
            for component in self.graph.components.values()
            for subscription in component.inputs
        ]
        self.processes = Processes(
            [*classes_of([*templates, *filter(None, groupings)]), *self.graph.by_value]
        )
        self.clocks = clocks.Clocks(self.processes.variables.namespaces)
        """The clocks in user code."""
        self.variants = self._variants(vary_parallelism)
        """Settings that a driver may start with, the topology's own first."""

    @contextlib.contextmanager
    def of(self, graph: TopologyGraph) -> Iterator[Subject]:
        """Copy the subject with ``graph`` in the topology's place."""
        other = copy.copy(self)
        other.graph, other._workers, other._driver_plans = graph, {}, {}
        other.is_opaque = graph.spout_traits.is_opaque
        try:
            yield other
        finally:
            for worker in other._workers.values():
                wire.forget_classes(worker.run.token)

    def clues_of(self, component: str) -> dict[Clue, str]:
        return clues_in(classes_of([pickling.loads(self.graph.components[component].template)]))

    def begin(self) -> None:
        self._substitutes.empty()
        if self.reset is not None:
            self.reset()

    def close(self) -> None:
        for worker in self._workers.values():
            wire.forget_classes(worker.run.token)
        self._substitutes.close()
        self.carriers.close()

    def worker(self, settings: Settings) -> WorkerRun:
        """The topology as a worker process knows it."""
        key = (settings.cores, settings.inline_bytes_max)
        if key not in self._workers:
            self._workers[key] = WorkerRun(self._run(self.graph, settings))
        return self._workers[key]

    def driver_run(self, settings: Settings) -> tuple[Run, Plans]:
        """The topology as a driver knows it: with these task counts, and a spout coordinator that
        may fail."""
        if settings.task_counts not in self._driver_plans:
            graph = self.graph.with_task_counts(dict(settings.task_counts))
            faulty = pickling.dumps(hooks.FaultySpout(graph.spout.template))
            spout = dataclasses.replace(graph.spout, template=faulty)
            self._driver_plans[settings.task_counts] = Plans(
                TopologyGraph(graph.id, {**graph.components, spout.id: spout}, graph.by_value)
            )
        plans = self._driver_plans[settings.task_counts]
        return self._run(plans.graph, settings), plans

    def _run(self, graph: TopologyGraph, settings: Settings) -> Run:
        mapping = {
            **self._mapping,
            "topology.name": graph.id,
            "topology.transactional.id": graph.id,
        }
        limits = Limits(
            self.conf.blob_bytes_max,
            self.conf.spill_bytes,
            settings.inline_bytes_max,
            self.conf.stores_max,
        )
        return Run(
            f"simulated-{next(_ids)}", graph, settings.cores, mapping, GENERATION, True, limits
        )

    def _variants(self, vary_parallelism: bool) -> list[Settings]:
        counts = tuple(self.graph.task_counts.items())
        small_s = self.conf.small_transaction_s
        own = Settings(
            self.conf.max_spout_pending, CORES, self.conf.inline_bytes_max, counts, small_s
        )
        variants = [own, dataclasses.replace(own, small_transaction_s=0.0)]
        for pending in sorted({1, 2, self.conf.max_spout_pending + 2}):
            for cores, inline, small in (
                (1, own.inline_bytes_max, small_s),
                (3, own.inline_bytes_max, 0.0),
                (CORES, 0, 0.0),
            ):
                variants.append(Settings(pending, cores, inline, counts, small))
                if vary_parallelism:
                    more = tuple((component, count + 1) for component, count in counts)
                    fewer = tuple((component, max(1, count - 1)) for component, count in counts)
                    variants.extend(
                        Settings(pending, cores, inline, changed, small)
                        for changed in (more, fewer)
                    )
        return variants
