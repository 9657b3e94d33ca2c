"""The check before a component begins a store: a component with results begins only expected stores
(R35), and a topology at most ``stores_max``.

Apart from ``base``, which asks when it finds no fence of the component. Runs on executors: standard
library only.
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
    """Whether the component of ``context`` may write to the empty store ``name`` (R35): it has no
    results yet, or was expected to."""
    return context.expected_stores is None or is_expected(name, context.expected_stores)


def is_expected(name: str, patterns: Sequence[str]) -> bool:
    """Whether ``name`` is one of ``patterns``, in which ``*`` stands for any text."""
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, flags=re.DOTALL)
        for pattern in patterns
    )


def unexpected(
    store: places.Place, stamp: stamps.Stamp, context: contexts.TopologyContext, adopt: str
) -> errors.StateMismatchError:
    """The refusal; ``adopt`` is the command that takes the store as it is."""
    before = ", ".join(_of_component(context.known_stores or {}, stamp.component))
    accept = f"txtopo state accept {shlex.quote(stamp.topology_id)} --store"
    return errors.StateMismatchError(
        f"store {store.address} is new to component {stamp.component!r}, whose results before transaction {stamp.txid} are in {before}\n"
        "  A store that has got another name would begin with nothing. Nothing was written to it. Give it its old name; or choose:\n"
        f"    `{accept} {shlex.quote(f'{stamp.component}/{store.name}')}`: the component begins this store with transaction {stamp.txid}; its other\n"
        f"    results stay where they are (`{accept} {shlex.quote(f'{stamp.component}/*')}` where names are made of data or dates)\n"
        f"    `{adopt}`: go on from what it holds, where it was renamed in its database"
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
    """Refuse a store more than the topology's state may remember; ``name`` is ``component/store``.

    :raises errors.UsageError: there are ``stores_max`` already.
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
            f"store {address} would be the {count + 1}th of topology {context.topology_id!r}; the bound is stores_max = {context.stores_max}\n"
            "  The state of a topology remembers every store by its name. Names made of data or dates have no end: keep their results in one store,\n"
            '  under keys such as ("2026-11-22", "dog"). Or raise stores_max.'
        )
