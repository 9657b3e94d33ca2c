"""Checks whether a component may begin a store: a component with results begins only expected
stores (R35), and a topology has at most ``stores_max``.

Runs on executors: standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from txtopo import errors
from txtopo.stores import place as places
from txtopo.stores import stamps
from txtopo.topology import context as contexts
from txtopo.topology import transaction

_SHOWN_MAX = 5


def may_begin(name: str, context: contexts.TopologyContext) -> bool:
    """Whether the context's component may write to the empty store ``name`` (R35): the component
    has no results yet, or the store was expected."""
    return context.expected_stores is None or is_expected(name, context.expected_stores)


def is_expected(name: str, patterns: Sequence[str]) -> bool:
    """Whether ``name`` matches a pattern, in which ``*`` stands for any text."""
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, flags=re.DOTALL)
        for pattern in patterns
    )


def unexpected(
    store: places.Place, stamp: stamps.Stamp, context: contexts.TopologyContext, adopt: str
) -> errors.StateMismatchError:
    """The refusal. The command ``adopt`` takes the store as it is."""
    before = ", ".join(_of_component(context.known_stores or {}, stamp.component))
    accept = f"txtopo state accept {shlex.quote(stamp.topology_id)} --store"
    return errors.StateMismatchError(
        f"store {store.address} is new to component {stamp.component!r}, whose results before transaction {stamp.txid} are in {before}\n"
        "  A renamed store would begin empty. Nothing was written. Give the store its old name, or choose:\n"
        f"    `{accept} {shlex.quote(f'{stamp.component}/{store.name}')}`: the component begins this store with transaction {stamp.txid}, and\n"
        f"    keeps its other results (`{accept} {shlex.quote(f'{stamp.component}/*')}` if names are made from data or dates)\n"
        f"    `{adopt}`: go on from the store's contents, if the store was renamed in its database"
    )


def _of_component(known: Mapping[str, transaction.TransactionAttempt], component: str) -> list[str]:
    names = sorted(
        name for id, _, name in (each.rpartition("/") for each in known) if id == component
    )
    return (
        names
        if len(names) <= _SHOWN_MAX
        else [*names[:_SHOWN_MAX], f"{len(names) - _SHOWN_MAX} more"]
    )


def check_room(name: str, address: str, context: contexts.TopologyContext) -> None:
    """Refuse a store too many for the topology's state. ``name`` is ``component/store``.

    :raises errors.UsageError: the state remembers ``stores_max`` stores already.
    """
    known = context.known_stores
    if (
        known is None
        or context.stores_max is None
        or name in known
        or name in context.touched_stores
    ):
        return
    count = len(known.keys() | context.touched_stores)
    if count >= context.stores_max:
        raise errors.UsageError(
            f"store {address} would be the {count + 1}th of topology {context.topology_id!r}, and the bound is stores_max = {context.stores_max}\n"
            "  A topology's state remembers the name of every store. Names made from data or dates have no end: keep all results in one store,\n"
            '  under keys such as ("2026-11-22", "dog"). Or raise stores_max.'
        )
