"""Decides which combinations of spout, grouping and destination count exactly once. Wrong ones are
refused before the topology runs.

Invariants: a rule here goes by facts that are known before the topology runs. Other facts are left
to the destination, which checks every write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from txtopo.topology import destination, graph, stream
from txtopo.topology import grouping as groupings


def held_components(
    sources: Mapping[str, Iterable[str]], committers: Iterable[str], spout: str
) -> set[str]:
    """The committers, and all components downstream of a committer except the spout (R12).
    ``sources`` are each component's sources."""
    members = set(committers)
    while more := {
        id
        for id, above in sources.items()
        if id not in members and any(source in members and source != spout for source in above)
    }:
        members |= more
    return members


def problems(
    id: str,
    parallelism: int,
    inputs: Iterable[graph.Subscription],
    writes: destination.Writes,
    spout: str,
    spout_kind: graph.SpoutKind | None,
) -> Iterator[str]:
    """Reasons why writes of the held component ``id`` would not count exactly once, as far as can
    be known."""
    is_opaque = spout_kind is not None and graph.SPOUT_TRAITS[spout_kind].is_opaque
    for written in writes.destinations:
        if is_opaque and not written.takes_back:
            yield (
                f"component {id!r}: {written.name} holds {written.holds}, but the spout {spout!r} is opaque. A replayed batch may have other"
                f" tuples, and a failed attempt's writes would stay (R31); {written.cure}"
            )
        if written.is_keyed and parallelism > 1 and not writes.has_own_keys:
            for why in _spread(inputs, writes.key_fields):
                yield (
                    f"component {id!r}: {why}, so several of its {parallelism} tasks may write one key of {written.name} in one transaction (R32)."
                    f" Use fields_grouping on {_key(writes)}, or parallelism 1. If no two tasks ever write the same key, say so in its class:"
                    " has_own_keys = True"
                )
    known: dict[str, dict[str, str]] = {}
    for written in writes.destinations:
        known.setdefault(written.known_as, {}).setdefault(written.place, written.name)
    for known_as, names in known.items():
        if known_as and len(names) > 1:
            yield (
                f"component {id!r}: it writes to {' and '.join(names.values())}, and the topology's state knows both as {id}/{known_as}. The first"
                " would be taken for the second, emptied or restored from an older copy (R27). Give each its own name"
            )


def mixed(writes: Mapping[str, destination.Writes]) -> Iterator[str]:
    """Problems with destinations that components open for different values. Counts components that
    only read, too. ``writes`` is by component id."""
    by_place: dict[str, list[tuple[str, destination.Guarantee]]] = {}
    for id, each in writes.items():
        for written in each.destinations:
            if written.place and written.form:
                by_place.setdefault(written.place, []).append((id, written))
    for opened in by_place.values():
        ids: dict[str, dict[str, None]] = {}
        for id, written in opened:
            ids.setdefault(written.form, {})[id] = None
        if len(ids) > 1:
            how = " and ".join(
                f"for {form} by {', '.join(map(repr, those))}" for form, those in ids.items()
            )
            yield (
                f"{opened[0][1].name} is opened for different values, {how}. A store holds values of one form (R27). Open the store with the same"
                " plain= and codec= everywhere, or use another store"
            )


def rivals(writes: Mapping[str, destination.Writes]) -> Iterator[str]:
    """Problems with held components that may not write to the same place. ``writes`` is by
    component id."""
    writers: dict[str, list[str]] = {}
    for id, each in writes.items():
        for name in dict.fromkeys(written.name for written in each.destinations):
            writers.setdefault(name, []).append(id)
    alone = {
        written.name
        for each in writes.values()
        for written in each.destinations
        if written.has_one_writer
    }
    for name, ids in writers.items():
        if name in alone and len(ids) > 1 and not all(writes[id].has_own_keys for id in ids):
            yield (
                f"components {', '.join(map(repr, ids))}: all write to {name}, and taking back one component's writes would undo another's"
                " later writes (R31, R32). Send all rows to one component, or give each its own table. If no two components ever write the same key,"
                " say so in their classes: has_own_keys = True"
            )


def _spread(
    inputs: Iterable[graph.Subscription], key_fields: stream.Fields | None
) -> Iterator[str]:
    """Reasons why equal keys come to different tasks."""
    keyed: dict[groupings.Grouping, str] = {}
    for subscription in inputs:
        grouping = subscription.grouping
        if grouping.traits.spreads_keys:
            yield f"{grouping} grouping on {subscription.source!r} gives equal keys to different tasks"
        elif grouping.traits.by_key and grouping.fields is not None and key_fields is not None:
            if others := [name for name in grouping.fields if name not in key_fields]:
                yield f"{grouping} grouping on {subscription.source!r} goes by {', '.join(others)}, but its keys have other fields"
            keyed.setdefault(grouping, subscription.source)
    if len(keyed) > 1:
        listed = " and ".join(f"{grouping} on {source!r}" for grouping, source in keyed.items())
        yield f"groupings {listed} send equal keys to different tasks"


def _key(writes: destination.Writes) -> str:
    return "the key" if writes.key_fields is None else f"the key, {', '.join(writes.key_fields)}"
