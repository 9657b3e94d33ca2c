"""``txtopo reset TARGET``: begin with the first batch again, with the state and every store that
the topology knows.

Apart from ``maintain``, which changes one state or one store that a person names: here the topology
itself names its stores.

Runs on: driver.

Invariants:
- Nothing is changed unless everything can be: a run that holds the topology, and rows in a table of
  the user, are found before the first change.
- The state goes first, in one atomic write that the lease of a run refuses. If the reset dies
  half-way, each remaining store has a generation that no state has: a run refuses the store (R27),
  and counts nothing twice. A second reset removes the remaining stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from txtopo import errors
from txtopo.command import maintain, show_state
from txtopo.connectors.sinks.sql import ledger as sql_ledger
from txtopo.plan import guarantees
from txtopo.state import administration, layout, opening
from txtopo.stores import Store
from txtopo.topology import destination, pickling
from txtopo.topology.graph import Component, TopologyGraph


@dataclass(slots=True)
class Places:
    """Where the components of a topology write."""

    stores: list[Store] = field(default_factory=list)
    """Stores, and the ledgers of sinks: each once."""
    names: set[str] = field(default_factory=set)
    """The names in the state: ``component/store``."""
    elsewhere: list[str] = field(default_factory=list)
    """The stores and sinks that cannot be reset here, in words."""


def places_of(graph: TopologyGraph) -> Places:
    """Every store and sink in the components of ``graph``."""
    places = Places()
    for component in graph.components.values():
        for part in _destinations(component):
            if not isinstance(part, Store):
                command = getattr(part, "command", None)
                forget = f"; forget its transactions there with `{command('clear', graph.id)}`" if command else ""
                places.elsewhere.append(f"what component {component.id!r} wrote to {part.guarantee().name}, which only you can empty{forget}")
                continue
            places.names.add(f"{component.id}/{part.guarantee().known_as}")
            if not any(_is_same(part, known) for known in places.stores):
                places.stores.append(part)
        if guarantees.writes_elsewhere(component):
            places.elsewhere.append(f"what component {component.id!r} wrote: no store or sink is known in it")
    return places


def _destinations(component: Component) -> Iterator[destination.Destination]:
    parts: list[Any] = []
    instance = pickling.loads(component.template)
    pickling.dumps_with_classes(instance, parts.append)
    parts.extend(getattr(type(instance), name, None) for cls in type(instance).__mro__ for name in vars(cls))
    yield from (part for part in parts if isinstance(part, destination.Destination))


def _is_same(one: Store, other: Store) -> bool:
    # Sinks of one database share a ledger, and write to tables of their own.
    return (one.address, getattr(one, "target", None)) == (other.address, getattr(other, "target", None))


def reset(graph: TopologyGraph, opened: opening.Opened | None, where: str, leave_rows: bool, execute: bool) -> list[str]:
    """Reset state and stores of ``graph``. Returns a line per change, done or to do. ``opened`` is
    the state in ``where``.

    :raises FencedError: a run holds the topology. Nothing was changed.
    :raises UsageError: a store does not answer; or tables of sinks may hold rows of the topology,
        and ``leave_rows`` does not say that they may stay. Nothing was changed.
    """
    places = places_of(graph)
    if opened is not None:
        maintain.require_stopped(opened, graph.id)
    filled = [store for store in places.stores if isinstance(store, sql_ledger.Ledger) and store.may_hold_rows(graph.id)]
    if execute and filled and not leave_rows:
        raise errors.UsageError(_filled_text(graph.id, filled))
    # Sinks of one database share a ledger, whose rows and fences go at once.
    distinct = {store.address: store for store in places.stores}.values()
    changes = [store.clear(graph.id, dry_run=True) for store in distinct]
    removed, stays = ("removed", "stays") if execute else ("would remove", "would stay")
    committed, unknown = _state(graph.id, opened, places, execute)
    if committed is None:
        lines = [f"there is no state of topology {graph.id!r} in {where}"]
    else:
        lines = [f"{removed} from {where}: the state of topology {graph.id!r}, which has committed {committed} transactions"]
    for store, change in zip(distinct, changes, strict=True):
        done = store.clear(graph.id) if execute else change
        lines.append(f"{removed} from {store.address}: {maintain.change_text(done)}")
    lines.extend(dict.fromkeys(f"{stays}: the rows in {ledger.sink}, which are yours; the next run writes them again" for ledger in filled))
    lines.extend(f"{stays}: {text}" for text in [*places.elsewhere, *unknown])
    if filled and not execute and not leave_rows:
        lines.append("--execute is refused until these tables are empty, or --leave-rows says that their rows may stay")
    return lines


def _state(topology_id: str, opened: opening.Opened | None, places: Places, execute: bool) -> tuple[str | None, list[str]]:
    """How many transactions the state, which was or would be removed, has committed, ``None`` if
    there is no state; and the stores that it knows and the topology does not, in words."""
    if opened is None or opened.store.get(layout.Layout(topology_id).top) is None:
        return None, []
    stores = administration.show(opened.store, topology_id)["stores"]
    committed = show_state.plain(show_state.status_of(opened, topology_id)["committed"])
    if execute:
        maintain.remove_state(opened, topology_id)
    unknown = [name.partition("/") for name in stores if name not in places.names] if isinstance(stores, list) else []
    return committed, [
        f"what component {component!r} wrote to {name!r}, a store that this topology does not have: "
        f"`txtopo store clear PATH {name} --topology {topology_id}`"
        for component, _, name in unknown
    ]


def _filled_text(topology_id: str, filled: list[sql_ledger.Ledger]) -> str:
    tables = "".join(dict.fromkeys(f"    {ledger.sink}\n" for ledger in filled))
    return (
        f"tables that topology {topology_id!r} has written rows to are not empty, and are yours: nothing was changed\n"
        f"{tables}"
        "  Empty them first. Or say with --leave-rows that the rows may stay: then the next run writes them once more. Say it, too, after emptying\n"
        "  the table of a statement that does not begin with INSERT INTO: txtopo does not know its name."
    )


__all__ = ["Places", "places_of", "reset"]
