"""Compiles a topology's plan: the components of each phase, and their levels.

Committers and all components downstream are *held*: in the processing phase they execute the tuples
that reach them, and in the commit phase they finish (R12). If a held component emits tuples while
*executing*, they too are executed downstream in the processing phase. Few topologies do so. So the
processing job leaves out components that only such tuples can reach. If there are such tuples, a
*late* job in the same phase runs these components.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txtopo.plan import levels
from txtopo.plan.levels import Level, Levels
from txtopo.topology import soundness
from txtopo.topology.graph import TopologyGraph


@dataclass(frozen=True, slots=True)
class Plan:
    """An attempt's Spark jobs.

    ``processing`` always runs. ``late`` runs after it if a held component emitted while executing.
    ``commit`` runs when the transaction's turn has come. It has no levels if no component is held.
    ``emission`` holds the spout alone, for spouts that learn their metadata by emitting.
    """

    graph: TopologyGraph
    cores: int
    held: frozenset[str]
    emission: Levels
    processing: Levels
    late: Levels
    commit: Levels

    @property
    def whole(self) -> Levels:
        """Processing, late and commit job as one task, on one slot."""
        return Levels((Level(tuple(self.graph.components), 1),))

    def levels_of(self, part: str) -> Levels:
        """The levels of the job ``part``: emission, processing, late, commit or whole."""
        levels: Levels = getattr(self, part)
        return levels


def held_components(graph: TopologyGraph) -> frozenset[str]:
    """The held components: committers and all components downstream. A committer spout is held too,
    but holds no component downstream, because the spout emits only in the processing phase."""
    sources = {
        id: [subscription.source for subscription in component.inputs]
        for id, component in graph.components.items()
    }
    committers = [id for id, component in graph.components.items() if component.committer]
    return frozenset(soundness.held_components(sources, committers, graph.spout.id))


def _late_components(graph: TopologyGraph, held: frozenset[str]) -> frozenset[str]:
    """Held components with only held sources and only late receivers."""
    late: set[str] = set()
    for id in reversed(list(graph.components)):
        component = graph.components[id]
        fed_by_held = id in held and all(
            subscription.source in held - {graph.spout.id} for subscription in component.inputs
        )
        receivers = [
            other.id
            for other in graph.components.values()
            if any(s.source == id for s in other.inputs)
        ]
        if fed_by_held and component.inputs and all(receiver in late for receiver in receivers):
            late.add(id)
    return frozenset(late)


def compile_plan(graph: TopologyGraph, cores: int) -> Plan:
    """The plan of ``graph`` for ``cores`` (≥ 1) parallel Python tasks."""
    held = held_components(graph)
    late = _late_components(graph, held)
    processing = levels.assign_levels(
        graph, [id for id in graph.components if id not in late], cores
    )
    return Plan(
        graph=graph,
        cores=cores,
        held=held,
        emission=Levels((Level((graph.spout.id,), processing.levels[0].slots),)),
        processing=processing,
        late=levels.assign_levels(graph, late, cores),
        commit=levels.assign_levels(graph, held, cores, silent=frozenset({graph.spout.id})),
    )


class Plans:
    """One graph's plans, by task counts and cores. Each is compiled once."""

    def __init__(self, graph: TopologyGraph) -> None:
        self.graph = graph
        self._plans: dict[tuple[int, tuple[tuple[str, int], ...]], Plan] = {}

    def under(self, task_counts: Mapping[str, int], cores: int) -> Plan:
        """The plan under ``task_counts`` for ``cores``."""
        key = (cores, tuple(sorted(task_counts.items())))
        if key not in self._plans:
            self._plans[key] = compile_plan(self.graph.with_task_counts(task_counts), cores)
        return self._plans[key]
