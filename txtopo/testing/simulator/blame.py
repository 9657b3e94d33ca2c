"""Finds the first component that differs: transaction by transaction, and in each from the spout
downstream.

In a transaction, a component's results are its tuples and its writes to stores. The first component
with other results from the same input is at fault. Differences downstream, or in later
transactions, may follow from the first. If the input came in another order, or at other tasks, the
component upstream that changed the order or chose the tasks is at fault.

``diagnosis`` names the mistake, and ``judge`` finds that results differ.

Invariants: two recordings are from runs with the same batches.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from txtopo.testing.emissions import Emission, in_rows
from txtopo.testing.simulator.outcome import Difference, short, shown
from txtopo.topology.graph import TopologyGraph

Place = tuple[int, str, int]
"""(txid, component, task)."""

Fault = Literal["output", "order", "routing"]
"""Different tuples or results · equal tuples in a different order · equal tuples at different
tasks."""


@dataclass(slots=True)
class Recording:
    """Each task's tuples, taken and emitted, in order, and each component's rows after each
    committed transaction: all as text."""

    taken: Mapping[Place, list[str]] = field(default_factory=dict)
    emitted: Mapping[Place, list[str]] = field(default_factory=dict)
    stored: Mapping[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    """Per txid and component, the values by place."""


@dataclass(frozen=True, slots=True)
class Blame:
    """``component`` is the first that differs in transaction ``txid``, as ``differences`` show."""

    component: str
    fault: Fault
    txid: int
    differences: tuple[Difference, ...]


def recording(
    executed_by_txid: Mapping[int, Sequence[Any]],
    emitted_by_txid: Mapping[int, Sequence[Emission]],
    stored_by_txid: Mapping[int, Mapping[str, tuple[str, str]]],
) -> Recording:
    """Make the recording of a watched schedule."""
    taken: dict[Place, list[str]] = defaultdict(list)
    emitted: dict[Place, list[str]] = defaultdict(list)
    stored: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    for txid, tuples in executed_by_txid.items():
        for component, task, source, stream, values in tuples:
            taken[txid, component, task].append(f"{source}/{stream}: {shown(values)}")
    for txid, emissions in emitted_by_txid.items():
        for component, task, stream, values in in_rows(emissions):
            emitted[txid, component, task].append(f"{stream}: {shown(values)}")
    for txid, values_by_place in stored_by_txid.items():
        for place, (component, value) in values_by_place.items():
            stored[txid, component][place] = value
    return Recording(dict(taken), dict(emitted), dict(stored))


def first_to_differ(
    graph: TopologyGraph, recorded: Recording, expected: Recording, also_routes: bool = False
) -> Blame | None:
    """Find the component to blame: ``None`` if every component made equal results from equal input.
    With ``also_routes`` tuples at different tasks count even if all results are equal."""
    return next(_suspects(graph, recorded, expected, also_routes), None)


def _suspects(
    graph: TopologyGraph, recorded: Recording, expected: Recording, also_routes: bool
) -> Iterator[Blame]:
    everywhere = {*recorded.taken, *recorded.emitted, *expected.taken, *expected.emitted}
    for txid in sorted(
        {place[0] for place in (*recorded.taken, *recorded.emitted)}
        & {place[0] for place in (*expected.taken, *expected.emitted)}
    ):
        disordered: list[Blame] = []
        for component in graph.components:
            places = sorted(place for place in everywhere if place[:2] == (txid, component))
            differing = tuple(_outputs(places, recorded, expected)) or tuple(
                _stored_differences(txid, component, recorded, expected)
            )
            if differing and _same(places, recorded.taken, expected.taken):
                yield Blame(component, "output", txid, differing)
                continue
            dealt = list(_routing(graph, places, recorded, expected))
            if differing or (also_routes and dealt):
                has_all = _all_rows(places, recorded.taken) == _all_rows(places, expected.taken)
                upstream = [
                    each for each in disordered if has_all and _follows(graph, component, each)
                ]
                yield from [*upstream, *dealt][:1]
            elif _same(places, recorded.taken, expected.taken) and (
                differing := tuple(_outputs(places, recorded, expected, in_order=True))
            ):
                disordered.append(Blame(component, "order", txid, differing))


def _follows(graph: TopologyGraph, component: str, blamed: Blame) -> bool:
    sources = {subscription.source for subscription in graph.components[component].inputs}
    return blamed.component in sources or any(_follows(graph, source, blamed) for source in sources)


def _same(
    places: Sequence[Place],
    recorded: Mapping[Place, list[str]],
    expected: Mapping[Place, list[str]],
) -> bool:
    return all(recorded.get(place, []) == expected.get(place, []) for place in places)


def _all_rows(places: Sequence[Place], rows: Mapping[Place, list[str]]) -> list[str]:
    """All tasks' rows, sorted: under a shuffle grouping, the order decides the task."""
    return sorted(itertools.chain(*(rows.get(place, ()) for place in places)))


def _emissions(txid: int, component: str, recording: Recording) -> list[str]:
    """All tuples of ``component`` in transaction ``txid``, sorted."""
    places = [place for place in recording.emitted if place[:2] == (txid, component)]
    return _all_rows(places, recording.emitted)


def _routing(
    graph: TopologyGraph, places: Sequence[Place], recorded: Recording, expected: Recording
) -> Iterator[Blame]:
    """Find the sources whose equal tuples come to other tasks."""
    for subscription in graph.components[places[0][1]].inputs if places else ():
        source, prefix = subscription.source, f"{subscription.source}/{subscription.stream}: "
        if _emissions(places[0][0], source, recorded) != _emissions(places[0][0], source, expected):
            continue
        differing = []
        for place in places:
            ours, theirs = (
                [row.removeprefix(prefix) for row in taken.get(place, ()) if row.startswith(prefix)]
                for taken in (recorded.taken, expected.taken)
            )
            if sorted(ours) != sorted(theirs):
                where = f"what task {place[2]} of {place[1]!r} gets of the same tuples of {source!r} in transaction {place[0]}"
                differing.append(Difference(where, listed(ours), listed(theirs), place[1]))
        if differing:
            yield Blame(source, "routing", places[0][0], tuple(differing))


def _outputs(
    places: Sequence[Place], recorded: Recording, expected: Recording, in_order: bool = False
) -> Iterator[Difference]:
    for place in places:
        ours, theirs = recorded.emitted.get(place, []), expected.emitted.get(place, [])
        if ours != theirs if in_order else sorted(ours) != sorted(theirs):
            emitted = "the order in which" if in_order else "what"
            where = f"{emitted} task {place[2]} of {place[1]!r} emitted in transaction {place[0]}"
            yield Difference(where, listed(ours), listed(theirs), place[1])


def _stored_differences(
    txid: int, component: str, recorded: Recording, expected: Recording
) -> Iterator[Difference]:
    ours = recorded.stored.get((txid, component), {})
    theirs = expected.stored.get((txid, component), {})
    for place in sorted(ours.keys() | theirs.keys()):
        if ours.get(place) != theirs.get(place):
            yield Difference(
                f"{place} after transaction {txid}",
                ours.get(place, "absent"),
                theirs.get(place, "absent"),
                component,
            )


def listed(rows: Sequence[str]) -> str:
    """Join ``rows`` in one line, cut to a readable length."""
    return short(", ".join(row.removeprefix("default: ") for row in rows) or "nothing")
