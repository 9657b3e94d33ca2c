"""Shows and resets stored state from outside, for topologies that do not run in this process.

Nothing here holds a lease. :func:`show` also shows records that cannot be understood, because
people call it when something is broken.
"""

from __future__ import annotations

import uuid
from typing import Any

from txtopo import errors
from txtopo.state import base, components, layout, lease, records

RESET_TRIES_MAX = 5

RESTORED_EPOCHS = 1_000_000
"""How far :func:`restored` raises the epoch: by more than runs can have begun since the copy was
made."""


def topologies(store: base.StateStore) -> list[str]:
    """Ids of all topologies with state in ``store``, sorted."""
    return sorted(layout.decode_name(name) for name in store.children("/"))


def show(store: base.StateStore, topology_id: str) -> dict[str, Any]:
    """Read everything stored for a topology, as JSON-able values.

    Keys: ``topology_id``, ``generation``, ``epoch``, ``current``, ``lease`` (None if no coordinator
    holds it), ``ended`` (how the newest run ended that could tell, or None), ``paused`` (by whom
    and when, or None), ``standbys`` (runs that wait), ``records`` by txid, ``positions`` by
    partition, ``components`` (the topology's parts, None before the first write), ``stores``
    (names), ``recorded`` (by store name, the last recorded attempt that opened the store:
    ``txid:attempt_id``), ``counts`` (by store name, that attempt's store transactions). An
    unreadable record is shown as ``{"unreadable": reason, "text": content}``. A missing record has
    the text None.

    :raises UsageError: there is no such topology.
    """
    paths = layout.Layout(topology_id)
    require_topology(store, paths)
    stores = _fields(paths.stores, store.get(paths.stores), records.StoresRecord)
    shown: dict[str, Any] = {
        "topology_id": topology_id,
        "generation": _field(store, paths.generation, records.GenerationRecord, "generation"),
        "epoch": _field(store, paths.epoch, records.EpochRecord, "epoch"),
        "current": _field(store, paths.current, records.CurrentRecord, "current"),
        "lease": _fields_if_any(store, paths.lease, records.LeaseRecord),
        "ended": _fields_if_any(store, paths.ended, records.EndedRecord),
        "paused": None,
        "standbys": [
            standby
            for name in store.children(paths.standbys)
            if (standby := _fields_if_any(store, f"{paths.standbys}/{name}", records.StandbyRecord))
        ],
        "records": {},
        "positions": {},
        "components": _fields_if_any(store, paths.components, components.Components),
        "stores": stores,
        "recorded": stores,
        "counts": stores,
    }
    if "unreadable" not in stores:
        by_name = stores["stores"]
        shown["stores"] = sorted(by_name)
        shown["recorded"] = {key: f"{at['txid']}:{at['attempt_id']}" for key, at in by_name.items()}
        shown["counts"] = {key: at["count"] for key, at in by_name.items()}
    if asked := _fields_if_any(store, paths.request, records.RequestRecord):
        shown["paused"] = asked if "unreadable" in asked else asked["pause"]
    for name in store.children(paths.txids):
        # A run that commits meanwhile removes the records of its committed transactions.
        if record := _fields_if_any(store, f"{paths.txids}/{name}", records.TxidRecord):
            shown["records"][str(int(name)) if name.isdecimal() else name] = record
    for name in store.children(paths.positions):
        shard = _field(store, f"{paths.positions}/{name}", records.PositionsRecord, "positions")
        shown["positions"].update({f"shard {name}": shard} if "unreadable" in shard else shard)
    shown["positions"] = dict(
        sorted(
            shown["positions"].items(),
            key=lambda item: (not item[0].isdecimal(), len(item[0]), item[0]),
        )
    )
    return shown


def position(store: base.StateStore, topology_id: str) -> tuple[str | None, int | None]:
    """A topology's generation, and its next txid to commit. None where the state has no readable
    record."""
    paths = layout.Layout(topology_id)
    generation = _field(store, paths.generation, records.GenerationRecord, "generation")
    current = _field(store, paths.current, records.CurrentRecord, "current")
    return (
        generation if isinstance(generation, str) else None,
        current if isinstance(current, int) else None,
    )


def reset(store: base.StateStore, topology_id: str) -> None:
    """Remove a topology's state in one multi: the next run begins at txid 1, in a new generation
    (R27).

    :raises FencedError: a live coordinator holds the topology.
    :raises UsageError: there is no such topology.
    """
    paths = layout.Layout(topology_id)
    require_topology(store, paths)
    for _ in range(RESET_TRIES_MAX):
        lease = store.get(paths.lease)
        if lease is not None:
            raise _held_error(paths, lease)
        try:
            # A coordinator that takes the lease meanwhile adds a child: then ZooKeeper refuses to
            # remove the parent.
            store.multi([base.Delete(path) for path in _tree(store, paths.top)])
            return
        except base.StateConflictError:
            continue
    raise errors.FencedError(
        f"the state of topology {topology_id!r} changes all the time\n  Stop its coordinator first."
    )


def restored(store: base.StateStore, topology_id: str) -> int:
    """Raise the epoch above all attempts that a restored copy may not know, and tell exporters, who
    may know them. Returns the new epoch (R1).

    :raises FencedError: a live coordinator holds the topology.
    :raises UsageError: there is no such topology.
    """
    paths = layout.Layout(topology_id)
    require_topology(store, paths)
    # In this order: a coordinator that takes the lease later raises the epoch.
    node, lease = store.get(paths.epoch), store.get(paths.lease)
    if lease is not None:
        raise _held_error(paths, lease)
    begun = store.get(paths.generation)
    if node is None or begun is None:
        missing = paths.epoch if node is None else paths.generation
        raise errors.UnreadableStateError(missing, "it is missing")
    last = records.EpochRecord.decode(paths.epoch, node.data)
    raised = records.EpochRecord(epoch=last.epoch + RESTORED_EPOCHS, holder_id="restored")
    generation = records.GenerationRecord.decode(paths.generation, begun.data)
    named = records.GenerationRecord(
        generation=generation.generation, restored=uuid.uuid4().hex[:8]
    )
    writes = ((paths.epoch, node, raised), (paths.generation, begun, named))
    try:
        store.multi([base.Set(path, new.encode(), old.version) for path, old, new in writes])
    except base.StateConflictError as conflict:
        raise errors.FencedError(
            f"a coordinator has just taken topology {topology_id!r}, so nothing was changed\n  Stop the coordinator, and type the command again."
        ) from conflict
    return raised.epoch


def _held_error(paths: layout.Layout, lease_node: base.Node) -> errors.FencedError:
    try:
        return lease.held_by(
            paths.topology_id, records.LeaseRecord.decode(paths.lease, lease_node.data)
        )
    except errors.UnreadableStateError as error:
        return errors.FencedError(
            f"topology {paths.topology_id!r} is held by a coordinator whose lease cannot be read: {error}"
        )


def require_topology(store: base.StateStore, paths: layout.Layout) -> None:
    """Refuse to go on without state of the topology."""
    if store.get(paths.top) is None:
        known = ", ".join(map(repr, topologies(store))) or "none"
        raise errors.UsageError(
            f"there is no state of a topology {paths.topology_id!r} in {store.address}\n  There is state of: {known}."
        )


def _tree(store: base.StateStore, path: str) -> list[str]:
    """``path`` and everything below, children before parents."""
    return [
        *(below for name in store.children(path) for below in _tree(store, f"{path}/{name}")),
        path,
    ]


def _field(store: base.StateStore, path: str, type: type[records.Record], field: str) -> Any:
    decoded = _fields(path, store.get(path), type)
    return decoded if "unreadable" in decoded else decoded[field]


def _fields_if_any(
    store: base.StateStore, path: str, type: type[records.Record]
) -> dict[str, Any] | None:
    node = store.get(path)
    return None if node is None else _fields(path, node, type)


def _fields(path: str, node: base.Node | None, type: type[records.Record]) -> dict[str, Any]:
    if node is None:
        return {"unreadable": "it is missing", "text": None}
    try:
        record = type.decode(path, node.data)
    except errors.UnreadableStateError as error:
        return {"unreadable": error.why, "text": node.data.decode(errors="backslashreplace")}
    return {name: value for name, value in record.model_dump().items() if name != "version"}
