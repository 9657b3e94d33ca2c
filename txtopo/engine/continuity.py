"""Checks that a topology can go on from its stored state: spout kind, a sealed transaction's
components, and stores (R35).

Asked once, before a run's first transaction.

Runs on: driver.

Invariants: a refusal changes nothing. The state remembers which stores a component may begin before
the component has results. Afterwards the list grows only when a person accepts an addition, so that
a second start is refused like the first.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence

from txtopo import errors
from txtopo.state.components import Component, Components, Spout, can_keep_positions
from txtopo.state.layout import Layout
from txtopo.state.records import TxidRecord
from txtopo.state.topology import TopologyState
from txtopo.topology import graph as graphs

_LOGGER = logging.getLogger(__name__)

SHOWN_MAX = 5
"""A log line names so many stores at most."""

ExpectedStores = Mapping[str, tuple[str, ...]]
"""By component with results: names or patterns (with ``*``) of further stores that the component
may begin. Components without results may begin any store."""


def resume(graph: graphs.TopologyGraph, state: TopologyState) -> ExpectedStores:
    """Refuse ``graph`` if it cannot go on from ``state``. Otherwise the state remembers ``graph``.
    Returns the stores that each component may begin.

    :raises errors.StateMismatchError: the topology cannot go on. Names the difference,
        and the command that accepts the difference if there is one.
    """
    assert graph.spout.spout_kind is not None
    spout = Spout(id=graph.spout.id, kind=graph.spout.spout_kind)
    before = state.made_of
    if state.txids.txids():
        if before is None:
            raise errors.UnreadableStateError(
                Layout(graph.id).components, "it is missing, although transactions were written"
            )
        if before.spout != spout:
            raise _other_spout(graph.id, before.spout, spout, state.sealed())
        _require_sealed_components(graph, state, before)
    writers = {name.rpartition("/")[0] for name in state.known_stores}
    now = _record_of(graph, before, spout, writers, state.current)
    if before is not None and state.current > 1:
        _tell(graph.id, before, now, state.current, state.known_stores)
    state.remember(now)
    return {id: now.components[id].expected for id in graph.components if id in writers}


def _record_of(
    graph: graphs.TopologyGraph,
    before: Components | None,
    spout: Spout,
    writers: Iterable[str],
    current: int,
) -> Components:
    old = {} if before is None else before.components
    components = {
        id: component.model_copy(update={"is_former": True}) for id, component in old.items()
    }
    for id, component in graph.components.items():
        known = old.get(id)
        declared = sorted(
            {written.known_as for written in component.writes.destinations if written.known_as}
        )
        if known is not None and id in writers:
            components[id] = known.model_copy(update={"is_former": False})
        else:
            components[id] = Component(
                stores=declared, accepted=[] if known is None else known.accepted
            )
    seal = None if before is None or before.accepted_seal != current else current
    return Components(spout=spout, components=components, accepted_seal=seal)


def _tell(
    topology_id: str, before: Components, now: Components, current: int, known_stores: Iterable[str]
) -> None:
    def present(components: Components) -> set[str]:
        return {id for id, component in components.components.items() if not component.is_former}

    new = sorted(present(now) - present(before))
    for id in new:
        _LOGGER.warning(
            "topology %r: component %r is new: it begins with transaction %d",
            topology_id,
            id,
            current,
        )
    for id in sorted(present(before) - present(now)):
        begun = {name.rpartition("/")[2] for name in known_stores if name.rpartition("/")[0] == id}
        stores = begun.union(before.components[id].stores)
        heirs = {heir: stores.intersection(now.components[heir].stores) for heir in new}
        _LOGGER.warning(
            "topology %r: component %r is gone since transaction %d%s%s",
            topology_id,
            id,
            current,
            "".join(
                f". Component {heir!r} goes on from its results in {', '.join(map(repr, sorted(names)))}"
                for heir, names in heirs.items()
                if names
            ),
            _remains(topology_id, id, sorted(stores.difference(*heirs.values()))),
        )


def _remains(topology_id: str, id: str, stores: Sequence[str]) -> str:
    """Describe a component's results left in ``stores``, and the command that removes them."""
    if not stores:
        return ""
    names = ", ".join(map(repr, stores[:SHOWN_MAX])) + (
        f" and {len(stores) - SHOWN_MAX} more" if len(stores) > SHOWN_MAX else ""
    )
    table = shlex.quote(stores[0]) if len(stores) == 1 else "NAME"
    return (
        f". Its results stay in {names}. Rows from a failed attempt may stay too, and readers without as_of see them\n"
        "  To remove the results, type: "
        f"`txtopo store clear ADDRESS {table} --topology {shlex.quote(topology_id)} --component {shlex.quote(id)}`"
    )


def _require_sealed_components(
    graph: graphs.TopologyGraph, state: TopologyState, before: Components
) -> None:
    sealed = state.sealed()
    if sealed is None or sealed.tasks is None or before.accepted_seal == sealed.txid:
        return
    missing = sorted(sealed.tasks.keys() - graph.components.keys())
    new = sorted(graph.components.keys() - sealed.tasks.keys())
    if missing or new:
        differs = " and ".join(
            f"{verb} {', '.join(map(repr, ids))}"
            for verb, ids in (("lacks", missing), ("has in addition", new))
            if ids
        )
        raise errors.StateMismatchError(
            f"topology {graph.id!r}: transaction {sealed.txid} was begun with other components: the topology now {differs}\n"
            f"  Its effects may exist in part, and only the same components can complete them. Nothing was changed. Run the topology once more with\n"
            f"  its former components, until the transaction has committed. After that, components may come and go. If that is impossible:\n"
            f"    `txtopo state accept {shlex.quote(graph.id)} --sealed`: complete the transaction with the present components. A missing\n"
            "    component's rows for the transaction stay in its stores, and readers without as_of see them"
        )


def _other_spout(
    topology_id: str, before: Spout, now: Spout, sealed: TxidRecord | None
) -> errors.StateMismatchError:
    id = shlex.quote(topology_id)
    reset = (
        f"    `txtopo state reset {id}`: begin with the first batch. Then clear or adopt the stores"
    )
    fact = f"topology {topology_id!r} has positions from the spout {before}, but it now has {now}"
    if not can_keep_positions(before.kind, now.kind):
        why = "The new spout cannot use these positions: it would read its source from the beginning, and every tuple would count twice."
        return errors.StateMismatchError(
            f"{fact}\n  {why}\n  Nothing was changed. Run the topology with its former spout, or type\n{reset}"
        )
    first = (
        ""
        if sealed is None
        else f" until transaction {sealed.txid}, which an earlier run began, has committed"
    )
    accept = f"txtopo state accept {id} --spout {shlex.quote(now.id)} --kind {now.kind}"
    return errors.StateMismatchError(
        f"{fact}\n  Nothing was changed. Run the topology with its former spout{first}. Or choose{', after that' if first else ''}:\n"
        f"    `{accept}`: go on from the positions, if they mean the same to the new spout\n{reset}"
    )
