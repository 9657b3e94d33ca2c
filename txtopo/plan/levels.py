"""Levels: the components that share a Spark stage.

A component's level is one more than that of its furthest source, unless every tuple it takes from
there can stay in the process that emitted it: then it is *fused* into the same level, and an emit
is a function call. Where there is one slot, every grouping fuses.

Tasks are packed onto *slots*, because a Python task of Spark costs the same however little it does:
task ``t`` of every component runs on slot ``t mod slots`` of its level.

Routing never depends on the number of slots (see :func:`local_task`), so that a plan for two cores
and one for eight send every tuple to the same task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from txtopo.topology.graph import Component, Subscription, TopologyGraph

FusedEdge = tuple[str, str, str]
"""(source component, stream, receiving component)."""


@dataclass(frozen=True, slots=True)
class Level:
    """The components of one Spark stage, in topological order, and how many slots (Spark
    partitions) it has."""

    components: tuple[str, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of one job, in order; ``fused`` are the edges whose tuples never leave their
    process."""

    levels: tuple[Level, ...] = ()
    fused: frozenset[FusedEdge] = frozenset()

    def level_of(self, component: str) -> int | None:
        """The level ``component`` runs in, or ``None`` if it has no part in this job."""
        return next(
            (i for i, level in enumerate(self.levels) if component in level.components), None
        )

    def __bool__(self) -> bool:
        return bool(self.levels)


def local_task(sending_task: int, receiving_tasks: int) -> int:
    """The receiver of everything task ``sending_task`` emits under none and local_or_shuffle
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
    """Whether ``members`` may share one level: with the slots they would have, every edge among
    them stays local."""
    slots = _slots([graph.components[id] for id in members], cores)
    return all(_stays_local(*edge, slots) for edge in _fused_edges(graph, members, silent).values())


def assign_levels(
    graph: TopologyGraph,
    components: Collection[str],
    cores: int,
    silent: frozenset[str] = frozenset(),
) -> Levels:
    """Level ``components`` of ``graph``, given that only tuples among them move, and none from
    ``silent`` ones; greedy, in topological order.

    A component joins the level of its furthest source if all of that level can then still stay
    local, otherwise the next one.
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


def order_of(graph: TopologyGraph) -> Mapping[str, int]:
    """The rank of every component in topological order: the first key tuples are sorted by (R17)."""
    return {id: rank for rank, id in enumerate(graph.components)}
