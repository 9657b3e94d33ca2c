"""Levels: the components that share a Spark stage.

A component's level is one above its furthest source's level. If every tuple from there can stay in
the process that emitted the tuple, the component is *fused* into the source's level, and an emit is
a function call. On one slot, every grouping fuses.

Tasks are packed onto *slots*, because each Python task in Spark has a fixed cost. Task ``t`` of
every component runs on slot ``t mod slots`` of its level.

Routing never depends on the slot count (see :func:`local_task`), so that plans for two and for
eight cores send every tuple to the same task.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from txtopo.topology.graph import Component, Subscription, TopologyGraph

FusedEdge = tuple[str, str, str]
"""(source component, stream, receiving component)."""


@dataclass(frozen=True, slots=True)
class Level:
    """One Spark stage: its components, in topological order, and its slot count (Spark
    partitions)."""

    components: tuple[str, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class Levels:
    """One job's levels, in order. On ``fused`` edges, tuples never leave their process."""

    levels: tuple[Level, ...] = ()
    fused: frozenset[FusedEdge] = frozenset()

    def level_of(self, component: str) -> int | None:
        """The level that ``component`` runs in, or ``None`` if the job does not run it."""
        return next(
            (i for i, level in enumerate(self.levels) if component in level.components), None
        )

    def __bool__(self) -> bool:
        return bool(self.levels)


def local_task(sending_task: int, receiving_tasks: int) -> int:
    """The task that receives every tuple from ``sending_task`` under none and local_or_shuffle
    grouping."""
    return sending_task % receiving_tasks


def _stays_local(
    source: Component, subscription: Subscription, receiver: Component, slots: int
) -> bool:
    if slots == 1:
        return True
    if not subscription.grouping.traits.stays_local:
        return False
    return all(
        local_task(task, receiver.parallelism) % slots == task % slots
        for task in range(source.parallelism)
    )


def _slots(components: Collection[Component], cores: int) -> int:
    return min(cores, max(component.parallelism for component in components))


def _fused_edges(
    graph: TopologyGraph, members: Collection[str], silent: frozenset[str]
) -> dict[FusedEdge, tuple[Component, Subscription, Component]]:
    return {
        (subscription.source, subscription.stream, id): (
            graph.components[subscription.source],
            subscription,
            graph.components[id],
        )
        for id in members
        for subscription in graph.components[id].inputs
        if subscription.source in members and subscription.source not in silent
    }


def _can_hold(
    graph: TopologyGraph, members: Collection[str], cores: int, silent: frozenset[str]
) -> bool:
    """Whether ``members`` may share one level: every edge among them stays local on the slots that
    they would have."""
    slots = _slots([graph.components[id] for id in members], cores)
    return all(_stays_local(*edge, slots) for edge in _fused_edges(graph, members, silent).values())


def assign_levels(
    graph: TopologyGraph,
    components: Collection[str],
    cores: int,
    silent: frozenset[str] = frozenset(),
) -> Levels:
    """Assign levels to ``components`` of ``graph``, greedily, in topological order. Only edges
    among ``components`` count, and no edges from ``silent`` components.

    A component joins its furthest source's level if every edge within the level then stays local.
    Otherwise the component goes to the first later level where this holds.
    """
    levels: list[list[str]] = []
    level_of: dict[str, int] = {}
    for id, component in graph.components.items():
        if id not in components:
            continue
        furthest = max(
            (
                level_of[s.source]
                for s in component.inputs
                if s.source in level_of and s.source not in silent
            ),
            default=None,
        )
        if furthest is None:
            level = 0
        else:
            level = (
                furthest
                if _can_hold(graph, [*levels[furthest], id], cores, silent)
                else furthest + 1
            )
        while level < len(levels) and not _can_hold(graph, [*levels[level], id], cores, silent):
            level += 1
        if level == len(levels):
            levels.append([])
        levels[level].append(id)
        level_of[id] = level
    stages = tuple(
        Level(tuple(members), _slots([graph.components[id] for id in members], cores))
        for members in levels
    )
    fused = frozenset(edge for members in levels for edge in _fused_edges(graph, members, silent))
    return Levels(stages, fused)
