"""Describes a topology's guarantees for each store and sink, by spout, kind of values, and
grouping.

A topology that cannot keep its guarantees is refused when it is built (``topology.soundness``), or
when its master is known. So no line warns.
"""

from __future__ import annotations

from txtopo.plan import compiler
from txtopo.topology.destination import Guarantee
from txtopo.topology.graph import Component, TopologyGraph


def lines(graph: TopologyGraph) -> list[str]:
    """One line per component and destination, and per reason for a local master, below a line about
    the spout. No lines if there are none."""
    held = compiler.held_components(graph)
    width = max(len(id) for id in graph.components)
    promises = [
        f"  {id:<{width}}  {text}"
        for id, component in graph.components.items()
        if id in held
        for text in _of(graph, component)
    ]
    reasons: dict[str, list[str]] = {}
    for id, reason in graph.local_only:
        reasons.setdefault(reason, []).append(id)
    local = [
        f"  needs a local master: {reason} ({', '.join(ids)})" for reason, ids in reasons.items()
    ]
    return [f"guarantees, for {_batches(graph)}:", *promises, *local] if promises or local else []


def _batches(graph: TopologyGraph) -> str:
    if graph.spout_traits.is_opaque:
        return "batches that a replay may change (opaque spout)"
    return "batches that a replay repeats exactly (transactional spout)"


def _of(graph: TopologyGraph, component: Component) -> list[str]:
    if component.writes.destinations:
        return [
            f"{written.name}, {written.holds}: {_promise(graph, component, written)}"
            for written in component.writes.destinations
        ]
    if writes_elsewhere(component):
        return [
            "no store or sink is known in it: it is called again on a replay, and must write once by itself"
        ]
    return []


def writes_elsewhere(component: Component) -> bool:
    """Whether ``component`` commits without a known store or sink."""
    return component.committer and not component.writes.destinations


def _promise(graph: TopologyGraph, component: Component, written: Guarantee) -> str:
    parts = [written.promise]
    if graph.spout_traits.is_opaque:
        parts.append("what a failed attempt wrote is taken back")
    if written.is_keyed:
        parts.append(f"a key has one writer, {_one_writer(component)}")
    return "; ".join(parts)


def _one_writer(component: Component) -> str:
    """The reason why no two tasks write the same key."""
    if component.parallelism == 1:
        return "for there is one task"
    if component.writes.has_own_keys:
        return f"as {component.type_name} says of its keys"
    groupings = [subscription.grouping for subscription in component.inputs]
    if any(grouping.traits.sender_chooses for grouping in groupings):
        return "if the sender sees to it; two are refused when they meet"
    by_key = {str(grouping) for grouping in groupings if grouping.traits.by_key}
    return f"by {', '.join(sorted(by_key))}" if by_key else "for one task gets all"
