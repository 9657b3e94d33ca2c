"""The transactions that a reader may see, and the value of a stamped row as of the last visible
transaction.

A store is written before the commit is recorded, and several stores one after the other; so a
reader may meet results of a transaction that is under way, in one store and not yet in the next.
Readers that ask for *recorded* transactions only never see half of a transaction. A row remembers
one transaction back. One is enough because commits are serial (R3): if V is the last recorded txid,
only attempts of V + 1 can have written since. Each attempt saved in ``prev`` the row as of V: also
of a deleted key (in a tombstone, which is removed when a transaction beyond V + 1 begins to write),
and NULL for a key that did not exist.

Which attempts count is not said by txids alone. An attempt may have written and died, and the one
that was recorded in its place opened nothing (R31): so the last *recorded* attempt of every
component is asked for, and a row of a later transaction than that is seen as it was before.

Apart from ``stamps``, which judges for writers: a reader writes no fence, and comes too late where
a writer would be told so by one. Standard library only.

Invariants: a value that is returned was the value after transaction V; if that cannot be told any
more, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from txtopo import errors
from txtopo.stores import stamps
from txtopo.topology import transaction


class VisibleTxid(int):
    """The last transaction of a topology whose commit is recorded, 0 if there is none; with all
    that a store needs to show its results as of then.

    An ``int``; made by ``txtopo.visible_txid`` and ``txtopo.Visibility``. It pickles.
    """

    topology_id: str
    """Whose transaction it is."""
    generation: str
    """The incarnation of the topology's state (R27)."""
    stores: Mapping[str, transaction.TransactionAttempt]
    """By ``component/store`` name: the last recorded attempt that opened the store."""

    def __new__(
        cls,
        txid: int,
        topology_id: str,
        generation: str,
        stores: Mapping[str, transaction.TransactionAttempt],
    ) -> VisibleTxid:
        """See the class."""
        visible = super().__new__(cls, txid)
        visible.topology_id, visible.generation, visible.stores = (
            topology_id,
            generation,
            dict(stores),
        )
        return visible

    def __reduce__(self) -> tuple[Any, ...]:
        return VisibleTxid, (int(self), self.topology_id, self.generation, self.stores)

    def __repr__(self) -> str:
        return f"<txid {int(self)} of topology {self.topology_id!r}>"


def recorded(stores: Mapping[str, transaction.TransactionAttempt], name: str) -> stamps.Recorded:
    """The recorded attempts of the store ``name``, by component, from ``stores``, by
    ``component/store``."""
    split = ((known.rpartition("/"), attempt) for known, attempt in stores.items())
    return {component: attempt for (component, _, store), attempt in split if store == name}


def text_of(row: stamps.Row, as_of: VisibleTxid, recorded: stamps.Recorded) -> str | None:
    """The text that ``row`` had after the transaction ``as_of``; None if it had none, or if the row
    is another topology's.

    Right only if :func:`check_reaches` has found, after the row was read, that no later transaction
    than the next one has begun to write.
    """
    stamp = row.stamp
    if stamp.topology_id != as_of.topology_id:
        return None
    if stamp.generation != as_of.generation or stamp.attempt == stamps.UNKNOWN_ATTEMPT:
        return row.curr  # settled: of a transaction that was over before
    last = recorded.get(stamp.component)
    return row.curr if last is not None and stamp.txid <= last.txid else row.prev


def check_reaches(
    address: str, fences: Iterable[stamps.Fence], as_of: VisibleTxid, recorded: stamps.Recorded
) -> None:
    """Refuse if what was read before ``fences`` cannot be shown as of ``as_of``.

    :raises errors.OutrunError: a later transaction than the next one has begun: a row may have
        changed twice, and a deleted one be gone.
    :raises errors.StateMismatchError: the store is of another generation, or holds less than is
        recorded (R27).
    """
    of_component = {
        fence.component: fence for fence in fences if fence.topology_id == as_of.topology_id
    }
    for component, fence in sorted(of_component.items()):
        if fence.generation != as_of.generation:
            raise errors.StateMismatchError(
                f"store {address} belongs to generation {fence.generation} of topology {as_of.topology_id!r} (component {component!r}), "
                f"but ZooKeeper is at generation {as_of.generation}\n"
                f"  Look with `txtopo state show {as_of.topology_id}`; adopt or clear the store, or read it as it is."
            )
    for component, last in sorted(recorded.items()):
        at = of_component.get(component)
        if at is None or (at.txid, at.attempt) < (last.txid, last.attempt_id):
            holds = "nothing" if at is None else f"attempt {at.position}"
            raise errors.StateMismatchError(
                f"store {address} holds {holds} of component {component!r} of topology {as_of.topology_id!r}, but ZooKeeper has recorded {last}\n"
                "  It was emptied or restored from an older copy, or the address is that of another store. Restore it, or adopt it. If the\n"
                f"  component writes a store {address.rpartition('#')[2]!r} elsewhere: readers tell stores by their names; give each its own."
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
                "  It was restored from an older copy, or it is a replica that lags. Read the newest copy; `txtopo state show` says what is recorded."
            )
    newest = max((fence.txid for fence in of_component.values()), default=0)
    if newest > as_of + 1:
        raise errors.OutrunError(address, as_of.topology_id, int(as_of), newest)
