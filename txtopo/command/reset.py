"""``txtopo reset TARGET``: resets a topology's state, and every store that the topology knows.

In ``maintain`` a person names one state or one store. Here the topology itself names its stores.

Runs on: driver.

Invariants:
- Nothing is changed unless everything can be: a run that holds the topology, and rows in a user's
  table, are found before the first change.
- The state goes first, in one atomic write that a run's lease refuses. If the reset dies half-way,
  each remaining store has a generation that no state has. A run refuses such a store (R27), and
  counts nothing twice. A second reset removes the remaining stores.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from txtopo import errors
from txtopo.command import maintain, show_state
from txtopo.plan import guarantees
from txtopo.state import administration, layout, opening
from txtopo.topology import destination, pickling
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.kept import Kept


@dataclass(slots=True)
class Places:
    """The places to which a topology's components write."""

    destinations: list[destination.Destination] = field(default_factory=list)
    """Stores and sinks. A store that several components hold comes several times."""
    kept: dict[tuple[str, str], Kept] = field(default_factory=dict)
    """The records in stores and sinks, by address and name: a database's sinks share some."""
    names: set[str] = field(default_factory=set)
    """The names in the state: ``component/store``."""
    elsewhere: list[str] = field(default_factory=list)
    """The writes that cannot be reset here, as text."""

    def rows_left(self, topology_id: str) -> list[str]:
        """Where the user's tables hold rows that the topology may have written."""
        return list(
            dict.fromkeys(
                place for part in self.destinations if (place := part.rows_left(topology_id))
            )
        )


def places_of(graph: TopologyGraph) -> Places:
    """Every store and sink in the components of ``graph``."""
    places = Places()
    for component in graph.components.values():
        instance, search = pickling.loads(component.template), destination.Search()
        pickling.dumps_with_classes(instance, search.visit)
        search.writes(instance)
        for guarantee, part in search.destinations:
            places.destinations.append(part)
            places.names.add(f"{component.id}/{guarantee.known_as}")
            kept = part.kept(graph.id, component.id)
            if kept is None:
                places.elsewhere.append(
                    f"the rows of component {component.id!r} in {guarantee.name}, which only you can empty"
                )
            else:
                places.kept.setdefault((kept.address, kept.name), kept)
        if guarantees.writes_elsewhere(component):
            places.elsewhere.append(
                f"the writes of component {component.id!r}: no store or sink is known in it"
            )
    return places


def reset(
    graph: TopologyGraph, opened: opening.Opened | None, where: str, leave_rows: bool, execute: bool
) -> list[str]:
    """Reset the state and the stores of ``graph``. Returns a line per change, done or to do.
    ``opened`` is the state in ``where``.

    :raises FencedError: a run holds the topology. Nothing was changed.
    :raises UsageError: a destination does not answer, or the user's tables may hold rows from the
        topology, and ``leave_rows`` is false. Nothing was changed.
    """
    places = places_of(graph)
    if opened is not None:
        maintain.require_stopped(opened, graph.id)
    filled = places.rows_left(graph.id)
    if execute and filled and not leave_rows:
        raise errors.UsageError(_filled_text(graph.id, filled))
    changes = {place: kept.clear(graph.id, dry_run=True) for place, kept in places.kept.items()}
    removed, stays = ("removed", "stays") if execute else ("would remove", "would stay")
    committed, unknown = _state(graph.id, opened, places, execute)
    if committed is None:
        lines = [f"there is no state of topology {graph.id!r} in {where}"]
    else:
        lines = [
            f"{removed} from {where}: the state of topology {graph.id!r}, which has committed {committed} transactions"
        ]
    for place, kept in places.kept.items():
        done = kept.clear(graph.id) if execute else changes[place]
        lines.append(f"{removed} from {kept.address}: {maintain.change_text(done)}")
    lines.extend(
        f"{stays}: the rows in {place}, which are yours (the next run writes them again)"
        for place in filled
    )
    lines.extend(f"{stays}: {text}" for text in [*places.elsewhere, *unknown])
    if filled and not execute and not leave_rows:
        lines.append(
            "--execute is refused until these places are empty, or with --leave-rows their rows may stay"
        )
    return lines


def _state(
    topology_id: str, opened: opening.Opened | None, places: Places, execute: bool
) -> tuple[str | None, list[str]]:
    """Remove the state if ``execute``. Returns how many transactions it has committed, or ``None``
    without a state, and as text each store that the state knows and the topology does not."""
    if opened is None or opened.store.get(layout.Layout(topology_id).top) is None:
        return None, []
    stores = administration.show(opened.store, topology_id)["stores"]
    committed = show_state.plain(show_state.status_of(opened, topology_id)["committed"])
    if execute:
        maintain.remove_state(opened, topology_id)
    unknown = (
        [name.partition("/") for name in stores if name not in places.names]
        if isinstance(stores, list)
        else []
    )
    return committed, [
        f"the rows of component {component!r} in {name!r}, a store that this topology does not have: "
        f"`txtopo store clear ADDRESS {shlex.quote(name)} --topology {shlex.quote(topology_id)}`"
        for component, _, name in unknown
    ]


def _filled_text(topology_id: str, filled: list[str]) -> str:
    places = "".join(f"    {place}\n" for place in filled)
    return (
        f"places that topology {topology_id!r} has written rows to are not empty, and are yours: nothing was changed\n"
        f"{places}"
        "  Empty these places first. Or give --leave-rows, and the rows stay: then the next run writes them once more. Give --leave-rows, too,\n"
        "  after emptying the table of a statement that does not begin with INSERT INTO: txtopo does not know the table's name."
    )
