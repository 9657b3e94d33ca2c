"""Accepts changes to a topology, for ``txtopo state accept``: another spout over the same
positions, a new store, or other components (R35).

Acceptances are written beside the last run's state. Nothing is removed but plans for batches that
the other spout would not understand.

Invariants: one multi, refused if a coordinator has taken the topology since the state was read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.state import base, layout, lease, records
from txtopo.state.components import Component, Components, Spout, can_keep_positions
from txtopo.topology.graph import SPOUT_TRAITS


@dataclass(frozen=True, slots=True)
class Accepted:
    """Changes that a person accepts. ``spout`` goes on from the positions. Components may begin
    ``stores`` (``component/name``, with ``*`` for any text) empty. ``sealed``: the present
    components complete the sealed transaction."""

    spout: Spout | None = None
    stores: tuple[str, ...] = ()
    sealed: bool = False


def accept(
    store: base.StateStore, topology_id: str, accepted: Accepted, execute: bool
) -> list[str]:
    """Write down the ``accepted`` changes, if ``execute``. Returns their meaning, line by line.

    :raises errors.UsageError: a change cannot be accepted, or there is no change.
    :raises errors.FencedError: a coordinator holds the topology, or has just taken it.
    """
    paths = layout.Layout(topology_id)
    epoch, node = store.get(paths.epoch), store.get(paths.components)
    if epoch is None or node is None:
        raise errors.UsageError(
            f"the state of topology {topology_id!r} names no components yet\n"
            "  Run the topology: a new topology needs no acceptance."
        )
    # Look for a holder after reading the epoch: a coordinator that takes the topology later raises
    # the epoch.
    holder = lease.live_holder(store, paths) if execute else None
    if holder is not None:
        raise lease.held_by(topology_id, holder)
    now = Components.decode(paths.components, node.data)
    plans, sealed = _open(store, paths)
    operations: list[base.Operation] = []
    lines: list[str] = []
    if accepted.spout is not None and accepted.spout != now.spout:
        _require_keeps(topology_id, now.spout, accepted.spout, sealed)
        lines.append(f"the spout {accepted.spout} goes on from the positions of {now.spout}")
        if accepted.spout.kind != now.spout.kind:
            operations.extend(plans)
        now = now.model_copy(update={"spout": accepted.spout})
    for name in accepted.stores:
        now = _with_store(topology_id, now, name)
        lines.append(
            f"component {name.rpartition('/')[0]!r} may begin {name.rpartition('/')[2]} empty"
        )
    if accepted.sealed:
        if sealed is None:
            raise errors.UsageError(
                f"topology {topology_id!r} has no sealed transaction\n  Leave out --sealed: the components may change."
            )
        now = now.model_copy(update={"accepted_seal": sealed.txid})
        lines.append(f"transaction {sealed.txid} is completed with the next run's components")
    if not lines:
        raise errors.UsageError(
            f"topology {topology_id!r}, whose spout is {now.spout}, has no change to accept\n"
            "  Name a store (--store), another spout (--spout and --kind), or the sealed transaction (--sealed)."
        )
    if execute:
        try:
            # A coordinator that takes the topology raises the epoch.
            store.multi(
                [
                    base.Check(paths.epoch, epoch.version),
                    base.Set(paths.components, now.encode(), version=node.version),
                    *operations,
                ]
            )
        except base.StateConflictError as conflict:
            raise errors.FencedError(
                f"a coordinator has just taken topology {topology_id!r}, so nothing was accepted\n  Stop the coordinator, and type the command again."
            ) from conflict
    return lines


def _open(
    store: base.StateStore, paths: layout.Layout
) -> tuple[list[base.Delete], records.TxidRecord | None]:
    """Deletes for the planned records, refused if a record is sealed meanwhile, and the record that
    is sealed but not committed."""
    node = store.get(paths.current)
    if node is None:
        raise errors.UnreadableStateError(paths.current, "it is missing")
    current = records.CurrentRecord.decode(paths.current, node.data).current
    plans: list[base.Delete] = []
    sealed: records.TxidRecord | None = None
    for name in store.children(paths.txids):
        path = f"{paths.txids}/{name}"
        child = store.get(path)
        record = None if child is None else records.TxidRecord.decode(path, child.data)
        if child is None or record is None or record.txid < current:
            continue
        if record.status == "open":
            plans.append(base.Delete(path, child.version))
        elif record.txid == current:
            sealed = record
    return plans, sealed


def _require_keeps(
    topology_id: str, before: Spout, now: Spout, sealed: records.TxidRecord | None
) -> None:
    if not can_keep_positions(before.kind, now.kind):
        decides = [SPOUT_TRAITS[spout.kind].decides for spout in (before, now)]
        raise errors.UsageError(
            f"the spout {now} cannot go on from the positions of {before}: {' and '.join(decides)} have nothing in common\n"
            f"  Begin with the first batch: `txtopo state reset {shlex.quote(topology_id)}`."
        )
    if sealed is not None:
        raise errors.UsageError(
            f"the spout {before} began transaction {sealed.txid} of topology {topology_id!r} and must complete it\n"
            "  Run the topology once more with that spout, until the transaction has committed."
        )


def _with_store(topology_id: str, now: Components, name: str) -> Components:
    id, _, pattern = name.rpartition("/")
    if not pattern or id not in now.components:
        raise errors.UsageError(
            f"{name!r} names no component and store of topology {topology_id!r}\n"
            f"  Give COMPONENT/STORE, as count/totals or 'count/*'. The components: {_names(now.components)}."
        )
    component = now.components[id]
    if pattern in component.accepted:
        return now
    changed = component.model_copy(update={"accepted": [*component.accepted, pattern]})
    return now.model_copy(update={"components": {**now.components, id: changed}})


def _names(components: dict[str, Component]) -> str:
    return ", ".join(map(repr, components))


def shown(made_of: dict[str, Any]) -> Sequence[str]:
    """Describe the record ``made_of`` (as JSON) for people, line by line."""
    record = Components.model_validate({**made_of, "version": 1})
    lines = [f"spout         {record.spout.id}: {SPOUT_TRAITS[record.spout.kind].decides}"]
    for id, component in record.components.items():
        former = " (not in it any more)" if component.is_former else ""
        names = ", ".join(
            (*component.stores, *(f"{name} (accepted)" for name in component.accepted))
        )
        lines.append(f"component     {id}{former}" + (f": may begin {names}" if names else ""))
    return lines
