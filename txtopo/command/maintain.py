"""Changes the data that stopped topologies have stored: starts a state over, empties a store, or
makes a store and a state fit again (R27).

Without ``execute`` a function changes nothing, and returns the text about the change.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from txtopo import errors
from txtopo.command import output, show_state
from txtopo.state import acceptance, administration, base, layout, opening
from txtopo.topology.kept import Kept, StoreChange


def require_stopped(opened: opening.Opened, topology_id: str) -> None:
    """Refuse to go on while the topology runs.

    :raises FencedError: a coordinator, named in the message, holds the topology.
    """
    lease = opening.holder(opened, topology_id)
    if lease is not None:
        raise errors.FencedError(
            f"topology {topology_id!r} is running: {show_state.holder_text(lease)}\n  Stop it first: nothing was changed."
        )


# -- the state -----------------------------------------------------------------------------------


def reset_state(opened: opening.Opened, topology_id: str, execute: bool) -> str:
    """Remove a topology's state, so that its next run begins with the first batch. Returns the
    removed things as text, or without ``execute`` the things to remove."""
    shown = administration.show(opened.store, topology_id)
    require_stopped(opened, topology_id)
    status = show_state.status_of(opened, topology_id)
    stores = shown["stores"] if isinstance(shown["stores"], list) else []
    removed = [
        f"generation {show_state.plain(status['generation'])}, which has committed {show_state.plain(status['committed'])} transactions",
        output.counted(len(shown["records"]), "transaction record"),
        f"the source's positions, for {output.counted(len(shown['positions']), 'partition')}",
    ]
    lines = [
        f"{'removed' if execute else 'would remove'} from {opened.where}, of topology {topology_id!r}:",
        *(f"  {part}" for part in removed),
    ]
    if stores:
        lines.append(
            "The topology's results stay in these stores and sinks. Until they are cleared or adopted, the next run refuses to write there."
        )
        lines.append(
            "`txtopo reset TARGET` finds and clears all stores and sinks. To clear one by one:"
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
    """Remove a topology's state, atomically. No run may hold the topology."""
    _remove_dead_lease(opened, topology_id)
    administration.reset(opened.store, topology_id)


def restored_state(opened: opening.Opened, topology_id: str, execute: bool) -> str:
    """Let the next run number its attempts above all numbers that a restored copy may have
    forgotten. Returns a text about the change."""
    shown = administration.show(opened.store, topology_id)
    require_stopped(opened, topology_id)
    if execute:
        _remove_dead_lease(opened, topology_id)
        administration.restored(opened.store, topology_id)
    return (
        f"the next run of topology {topology_id!r} {'begins' if execute else 'would begin'} with transaction {show_state.plain(shown['current'])}, "
        "in attempts whose numbers no earlier run can have used"
    )


def accept_state(
    opened: opening.Opened, topology_id: str, accepted: acceptance.Accepted, execute: bool
) -> str:
    """Have a topology's next run accepted although the topology has changed. Returns a text about
    the accepted changes."""
    administration.show(opened.store, topology_id)
    require_stopped(opened, topology_id)
    if execute:
        _remove_dead_lease(opened, topology_id)
    lines = acceptance.accept(opened.store, topology_id, accepted, execute)
    head = f"{'accepted' if execute else 'would accept'} for topology {topology_id!r}:"
    return "\n  ".join([head, *lines])


def _remove_dead_lease(opened: opening.Opened, topology_id: str) -> None:
    """Remove the lease from a server that runs for this command alone: its coordinator was killed.
    The lease would outlast this command."""
    path = layout.Layout(topology_id).lease
    if not opened.is_live and opened.store.get(path) is not None:
        opened.store.multi([base.Delete(path)])


# -- stores --------------------------------------------------------------------------------------


def clear_store(store: Kept, topology_id: str, components: Sequence[str], execute: bool) -> str:
    """Remove a topology's results from a store. Returns a text about the removed rows."""
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
            f"The state is unchanged. `txtopo state reset {shlex.quote(topology_id)}` lets the next run begin with the first batch."
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
    """Let a topology go on from a store's content, which any topology may have written. Returns a
    text about the change."""
    require_stopped(opened, topology_id)
    shown = administration.show(opened.store, topology_id)
    generation, current, stores = shown["generation"], shown["current"], shown["stores"]
    if not isinstance(generation, str) or not isinstance(current, int):
        raise errors.StateMismatchError(
            f"the state of topology {topology_id!r} cannot be read\n  Look at the state: `txtopo state show {shlex.quote(topology_id)}`."
        )
    writer = from_topology or topology_id
    chosen = sorted(
        components
        or {fence.component for fence in store.fences() if fence.topology_id == writer}
        | _known_writers(store, stores)
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
        f"its content {'counts' if execute else 'would count'} as the result of all transactions before {current}, generation {generation}"
    )


def _known_writers(store: Kept, stores: Any) -> set[str]:
    named = [name.partition("/") for name in stores] if isinstance(stores, list) else []
    return {component for component, _, table in named if table == store.name}


def change_text(change: StoreChange) -> str:
    """The counts of changed rows and fences, as text."""
    return f"{output.counted(change.rows, 'row')}, {output.counted(change.fences, 'fence')}"


def _topologies_text(store: Kept) -> str:
    known = sorted({fence.topology_id for fence in store.fences()})
    return f"Topologies with results there: {', '.join(map(repr, known)) or 'none'}."
