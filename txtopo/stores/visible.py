"""Decides which transactions a reader sees, and which value a row shows as of the last visible
transaction.

A store is written before the commit is recorded, and several stores are written one after the
other. So a reader may meet results from a transaction under way, in one store and not yet in the
next. Readers of *recorded* transactions only never see half a transaction.

A row remembers one transaction back. One is enough because commits are serial (R3): if V is the
last recorded txid, only attempts at V + 1 can have written since. Each attempt saved in ``prev``
the row as of V. A key that did not exist has NULL. A deleted key has a tombstone, which is removed
when a transaction beyond V + 1 begins to write.

Txids alone do not say which attempts count. An attempt may have written and died, and the attempt
recorded in its place may have opened nothing (R31). So each component's last *recorded* attempt is
asked for, and a row from a later transaction is seen as it was before.

``stamps`` judges for writers. A fence tells a writer that the writer is late, but a reader writes
no fence. Standard library only.

Invariants: a value that is returned was the value after transaction V. If this cannot be told any
more, the reading is refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from txtopo import errors
from txtopo.stores import stamps
from txtopo.topology import context as contexts
from txtopo.topology import transaction


class VisibleTxid(int):
    """A topology's last transaction whose commit is recorded, 0 if there is none, with all that a
    store needs to show its results as of then.

    An ``int``. Made by ``txtopo.visible_txid`` and ``txtopo.Visibility``. It pickles.
    """

    topology_id: str
    """The transaction's topology."""
    generation: str
    """The generation of the topology's state (R27)."""
    stores: Mapping[str, transaction.TransactionAttempt]
    """By ``component/store`` name: the last recorded attempt that opened the store."""
    restored: str | None
    """Names the newest time that the state was restored from a copy, if it ever was."""

    def __new__(
        cls,
        txid: int,
        topology_id: str,
        generation: str,
        stores: Mapping[str, transaction.TransactionAttempt],
        restored: str | None = None,
    ) -> VisibleTxid:
        """See the class."""
        visible = super().__new__(cls, txid)
        visible.topology_id = topology_id
        visible.generation = generation
        visible.stores = dict(stores)
        visible.restored = restored
        return visible

    def __reduce__(self) -> tuple[Any, ...]:
        return VisibleTxid, (
            int(self),
            self.topology_id,
            self.generation,
            self.stores,
            self.restored,
        )

    def __repr__(self) -> str:
        return f"<txid {int(self)} of topology {self.topology_id!r}>"


def recorded(stores: Mapping[str, transaction.TransactionAttempt], name: str) -> stamps.Recorded:
    """The recorded attempts for the store ``name``, by component. ``stores`` has them by
    ``component/store``."""
    split = ((known.rpartition("/"), attempt) for known, attempt in stores.items())
    return {component: attempt for (component, _, store), attempt in split if store == name}


def recorded_in(context: contexts.TopologyContext, name: str) -> stamps.Recorded | None:
    """The recorded attempts for the store ``name`` that ``context`` knows, by component. None if no
    record is kept."""
    return None if context.known_stores is None else recorded(context.known_stores, name)


def text_of(row: stamps.Row, as_of: VisibleTxid, recorded: stamps.Recorded) -> str | None:
    """The text that ``row`` had after the transaction ``as_of``. None if there was no text, or if
    the row is another topology's.

    Right only if :func:`check_reaches`, after the row was read, found that no transaction beyond
    the next has begun to write.
    """
    stamp = row.stamp
    if stamp.topology_id != as_of.topology_id:
        return None
    if stamp.generation != as_of.generation or stamp.attempt == stamps.UNKNOWN_ATTEMPT:
        return row.curr  # settled: the transaction was over before
    last = recorded.get(stamp.component)
    return row.curr if last is not None and stamp.txid <= last.txid else row.prev


def check_reaches(
    address: str, fences: Iterable[stamps.Fence], as_of: VisibleTxid, recorded: stamps.Recorded
) -> None:
    """Refuse if rows read before ``fences`` cannot be shown as of ``as_of``.

    :raises errors.OutrunError: a transaction beyond the next has begun. A row may have changed
        twice, and a deleted row may be gone.
    :raises errors.StateMismatchError: the store has a different generation, or does not hold the
        recorded attempts (R27).
    """
    of_component = {
        fence.component: fence for fence in fences if fence.topology_id == as_of.topology_id
    }
    for component, fence in sorted(of_component.items()):
        if fence.generation != as_of.generation:
            raise errors.StateMismatchError(
                f"store {address} belongs to generation {fence.generation} of topology {as_of.topology_id!r} (component {component!r}), "
                f"but ZooKeeper is at generation {as_of.generation}\n"
                f"  Look with `txtopo state show {shlex.quote(as_of.topology_id)}`. Then adopt or clear the store, or read the store without as_of."
            )
    for component, last in sorted(recorded.items()):
        at = of_component.get(component)
        if at is None or (at.txid, at.attempt) < (last.txid, last.attempt_id):
            holds = "nothing" if at is None else f"attempt {at.position}"
            raise errors.StateMismatchError(
                f"store {address} holds {holds} of component {component!r} of topology {as_of.topology_id!r}, but ZooKeeper has recorded {last}\n"
                "  The store was emptied or restored from an older copy, or the address names a different store. Restore or adopt the store. If\n"
                f"  the component also writes a store {address.rpartition('#')[2]!r} elsewhere, give one of them\n"
                "  another name (the next run names the command to accept it): readers tell stores by their names."
            )
    for component, last in sorted(recorded.items()):
        at, count = of_component[component], transaction.count_of(last)
        if (
            (at.txid, at.attempt) == (last.txid, last.attempt_id)
            and count is not None
            and at.count is not None
            and at.count != count
        ):
            raise errors.StateMismatchError(
                f"store {address} holds {at.count} store transactions of attempt {at.position} of component {component!r} of topology "
                f"{as_of.topology_id!r}, but ZooKeeper has recorded {count}\n"
                "  The store was restored from an older copy, or is a replica that lags. Read the newest copy.\n"
                f"  `txtopo state show {shlex.quote(as_of.topology_id)}` has the recorded attempts."
            )
    newest = max((fence.txid for fence in of_component.values()), default=0)
    if newest > as_of + 1:
        raise errors.OutrunError(address, as_of.topology_id, int(as_of), newest)
