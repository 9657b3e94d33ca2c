"""Changing what stopped topologies have stored: start a state over, empty a store, or make a store
and a state fit again (R27).

Without ``execute`` a function changes nothing: it tells the change, and the command that does the
change.

Apart from ``show_state``, which only reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from txtopo import errors
from txtopo.command import show_state
from txtopo.state import acceptance, administration, base, layout, opening
from txtopo.topology.kept import Kept, StoreChange


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def require_stopped(opened: opening.Opened, topology_id: str) -> None:
    """:class:`FencedError` naming the coordinator, if the topology runs."""
    lease = opening.holder(opened, topology_id)
    if lease is not None:
        raise errors.FencedError(
            f"topology {topology_id!r} is running: {show_state.holder_text(lease)}\n  Stop it first: nothing was changed."
        )


# -- the state -----------------------------------------------------------------------------------


def reset_state(opened: opening.Opened, topology_id: str, execute: bool) -> str:
    """Remove the state of a topology, so that its next run begins with the first batch. Returns
    the list of removed things, as text; without ``execute``, of things to remove."""
    shown = administration.show(opened.store, topology_id)
    require_stopped(opened, topology_id)
    status = show_state.status_of(opened, topology_id)
    stores = shown["stores"] if isinstance(shown["stores"], list) else []
    removed = [
        f"generation {show_state.plain(status['generation'])}, which has committed {show_state.plain(status['committed'])} transactions",
        _counted(len(shown["records"]), "transaction record"),
        f"the positions of {_counted(len(shown['positions']), 'partition')} of the source",
    ]
    lines = [
        f"{'removed' if execute else 'would remove'} from {opened.where}, of topology {topology_id!r}:",
        *(f"  {part}" for part in removed),
    ]
    if stores:
        lines.append(
            "these stores and sinks hold its results, which stay; until they are cleared or adopted, the next run refuses to write there."
        )
        lines.append(
            "`txtopo reset TARGET` knows where they are, and clears them all; or one by one:"
        )
        id = shlex.quote(topology_id)
        for component, _, name in (store.partition("/") for store in stores):
            lines.append(
                f"  {name}, written by {component}: `txtopo store clear ADDRESS {shlex.quote(name)} --topology {id}`"
            )
    if execute:
        remove_state(opened, topology_id)
    return "\n".join(lines)


def remove_state(opened: opening.Opened, topology_id: str) -> None:
    """Remove the state of a topology that no run holds, atomically."""
    _remove_dead_lease(opened, topology_id)
    administration.reset(opened.store, topology_id)


def restored_state(opened: opening.Opened, topology_id: str, execute: bool) -> str:
    """Give the attempts of the next run numbers above all that a restored copy may have forgotten.
    Returns a text about the change."""
    shown = administration.show(opened.store, topology_id)
    require_stopped(opened, topology_id)
    if execute:
        _remove_dead_lease(opened, topology_id)
        administration.restored(opened.store, topology_id)
    return (
        f"the next run of topology {topology_id!r} {'begins' if execute else 'would begin'} with transaction {show_state.plain(shown['current'])}, "
        "in attempts whose numbers no run before can have used"
    )


def accept_state(
    opened: opening.Opened, topology_id: str, accepted: acceptance.Accepted, execute: bool
) -> str:
    """Have the next run of a topology accepted although the topology has changed. Returns a text
    about the accepted changes."""
    administration.show(opened.store, topology_id)
    require_stopped(opened, topology_id)
    if execute:
        _remove_dead_lease(opened, topology_id)
    lines = acceptance.accept(opened.store, topology_id, accepted, execute)
    return "\n".join(
        [
            f"{'accepted' if execute else 'would accept'} of topology {topology_id!r}:",
            *(f"  {line}" for line in lines),
        ]
    )


def _remove_dead_lease(opened: opening.Opened, topology_id: str) -> None:
    """In a server that runs for us alone, a lease is that of a coordinator that was killed; it
    would outlive every visit as short as ours."""
    path = layout.Layout(topology_id).lease
    if not opened.is_live and opened.store.get(path) is not None:
        opened.store.multi([base.Delete(path)])


# -- stores --------------------------------------------------------------------------------------


def clear_store(store: Kept, topology_id: str, components: Sequence[str], execute: bool) -> str:
    """Remove the results of a topology from a store. Returns a text about the removed rows."""
    written = [
        fence
        for fence in store.fences()
        if fence.topology_id == topology_id and fence.component in (components or [fence.component])
    ]
    change = store.clear(topology_id, components or None, dry_run=not execute)
    lines = [
        f"{'removed' if execute else 'would remove'} from {store.address}, of topology {topology_id!r}: {change_text(change)}"
    ]
    lines.extend(
        f"  component {fence.component}: at transaction {fence.txid} of generation {fence.generation}"
        for fence in written
    )
    if not change.rows and not change.fences:
        lines.append(f"  {_topologies_text(store)}")
    else:
        lines.append(
            f"the state is apart: `txtopo state reset {topology_id}` has the next run begin with the first batch"
        )
    return "\n".join(lines)


def adopt_store(
    store: Kept,
    opened: opening.Opened,
    topology_id: str,
    components: Sequence[str],
    from_topology: str | None,
    execute: bool,
) -> str:
    """Have a topology go on from the contents of a store, whichever topology wrote them. Returns a
    text about the change."""
    require_stopped(opened, topology_id)
    shown = administration.show(opened.store, topology_id)
    generation, current, stores = shown["generation"], shown["current"], shown["stores"]
    if not isinstance(generation, str) or not isinstance(current, int):
        raise errors.StateMismatchError(
            f"the state of topology {topology_id!r} cannot be read\n  Look at it: `txtopo state show {topology_id}`."
        )
    chosen = sorted(
        components
        or {*_writers(store, from_topology or topology_id), *_known_writers(store, stores)}
    )
    if not chosen:
        raise errors.UsageError(
            f"it is not known which components of {topology_id!r} write to {store.address}\n"
            f"  Name them with --component ID, which may be repeated. {_topologies_text(store)}"
        )
    is_new = not store.exists()
    change = store.adopt(
        topology_id,
        generation,
        current - 1,
        chosen,
        from_topology=from_topology,
        dry_run=not execute,
    )
    return (
        f"{'adopted' if execute else 'would adopt'} {store.address}, for component{'s' if len(chosen) > 1 else ''} {', '.join(chosen)}"
        f" of topology {topology_id!r}: {change_text(change)}\n"
        f"{'there was no such store: it begins empty' + chr(10) if is_new else ''}"
        f"what it holds {'counts' if execute else 'would count'} as the result of all transactions before {current}, generation {generation}"
    )


def _writers(store: Kept, topology_id: str) -> set[str]:
    return {fence.component for fence in store.fences() if fence.topology_id == topology_id}


def _known_writers(store: Kept, stores: Any) -> set[str]:
    named = [name.partition("/") for name in stores] if isinstance(stores, list) else []
    return {component for component, _, table in named if table == store.name}


def change_text(change: StoreChange) -> str:
    """How much was, or would be, changed."""
    return f"{_counted(change.rows, 'row')}, {_counted(change.fences, 'fence')}"


def _topologies_text(store: Kept) -> str:
    known = sorted({fence.topology_id for fence in store.fences()})
    return f"It holds results of {', '.join(map(repr, known)) or 'no topology'}."
