"""``txtopo state accept``: a changed topology goes on, with another spout over the same positions,
a new store, or other components (R35).

Apart from ``administration`` because acceptances are written beside the state of the last run, and
the only removal is that of plans for batches that the other spout would not understand.

Invariants: one multi, which is refused if a coordinator has taken the topology since it was looked
at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.state import base, layout, lease, records
from txtopo.state.components import Component, Components, Spout, can_keep_positions
from txtopo.topology.graph import SPOUT_TRAITS


@dataclass(frozen=True, slots=True)
class Accepted:
    """Changes that a person accepts: ``spout`` goes on from the positions; ``stores``
    (``component/name``, with ``*`` for any text) may be begun; ``sealed``: the sealed transaction
    is completed with the present components."""

    spout: Spout | None = None
    stores: tuple[str, ...] = ()
    sealed: bool = False


def accept(
    store: base.StateStore, topology_id: str, accepted: Accepted, execute: bool
) -> list[str]:
    """Write down the ``accepted`` changes, if ``execute``; their meaning, line by line.

    :raises errors.UsageError: it cannot be accepted, or there is nothing to accept.
    :raises errors.FencedError: a coordinator holds the topology, or has taken it meanwhile.
    """
    paths = layout.Layout(topology_id)
    epoch, node = store.get(paths.epoch), store.get(paths.components)
    if epoch is None or node is None:
        raise errors.UsageError(
            f"the state of topology {topology_id!r} does not say what the topology is made of\n"
            "  It is new: its next run is taken as it is, and nothing need be accepted."
        )
    # After the epoch was read: a coordinator that takes the topology later raises it.
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
            f"component {name.rpartition('/')[0]!r} may begin {name.rpartition('/')[2]} with nothing in it"
        )
    if accepted.sealed:
        if sealed is None:
            raise errors.UsageError(
                f"topology {topology_id!r} has no sealed transaction\n  Its components may change; leave out --sealed."
            )
        now = now.model_copy(update={"accepted_seal": sealed.txid})
        lines.append(
            f"transaction {sealed.txid} is completed with the components of the next run, whichever they are"
        )
    if not lines:
        raise errors.UsageError(
            f"nothing is to be accepted of topology {topology_id!r}, whose spout is {now.spout}\n"
            "  Name a store (--store), another spout (--spout and --kind), or what is sealed (--sealed)."
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
                f"topology {topology_id!r} was taken by a coordinator meanwhile; nothing was accepted\n  Stop it, and type the same again."
            ) from conflict
    return lines


def _open(
    store: base.StateStore, paths: layout.Layout
) -> tuple[list[base.Delete], records.TxidRecord | None]:
    """Operations that remove the planned records, unless one of them is sealed meanwhile; and the
    record of a sealed transaction that is not committed."""
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
            f"  Begin with the first batch: `txtopo state reset {topology_id}`."
        )
    if sealed is not None:
        raise errors.UsageError(
            f"transaction {sealed.txid} of topology {topology_id!r} was begun with the spout {before}, and only that one can complete it\n"
            "  Run the topology once more as it was, until that transaction has committed."
        )


def _with_store(topology_id: str, now: Components, name: str) -> Components:
    id, _, pattern = name.rpartition("/")
    if not pattern or id not in now.components:
        raise errors.UsageError(
            f"{name!r} names no store of a component of topology {topology_id!r}\n"
            f"  Give COMPONENT/STORE, as count/totals or 'count/*'. The components: {_listed(now.components)}."
        )
    component = now.components[id]
    if pattern in component.accepted:
        return now
    changed = component.model_copy(update={"accepted": [*component.accepted, pattern]})
    return now.model_copy(update={"components": {**now.components, id: changed}})


def _listed(components: dict[str, Component]) -> str:
    return ", ".join(map(repr, components))


def shown(made_of: dict[str, Any]) -> Sequence[str]:
    """The content of the record, for people, line by line; ``made_of`` is the record as JSON."""
    record = Components.model_validate({**made_of, "version": 1})
    lines = [f"spout         {record.spout.id}: {SPOUT_TRAITS[record.spout.kind].decides}"]
    for id, component in record.components.items():
        former = " (not in it any more)" if component.is_former else ""
        names = ", ".join(
            (*component.stores, *(f"{name} (accepted)" for name in component.accepted))
        )
        lines.append(f"component     {id}{former}" + (f": may begin {names}" if names else ""))
    return lines


__all__ = ["Accepted", "accept", "shown"]
