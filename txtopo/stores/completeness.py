"""Errors for a store that does not fit the state: the store lacks attempts (R27), has an unrecorded
attempt, a different generation, or a different count (R34).

``fencing`` decides when to refuse, and ``stamps`` compares. Standard library only.
"""

from __future__ import annotations

import shlex

from txtopo import errors
from txtopo.stores import place as places
from txtopo.stores import stamps
from txtopo.topology import transaction


def _look(fence: stamps.Fence) -> str:
    return f"`txtopo state show {shlex.quote(fence.topology_id)}`"


def begin_again(topology_id: str) -> str:
    """The line of a refusal that offers to reset the state."""
    return f"    `txtopo state reset {shlex.quote(topology_id)}`: begin with the first batch. Then clear or adopt the store"


def behind(
    store: places.Place, fence: stamps.Fence, last: transaction.TransactionAttempt
) -> errors.StateMismatchError:
    """The store's fence is below the recorded attempt."""
    return errors.StateMismatchError(
        f"store {store.address} is behind: component {fence.component!r} is at attempt {fence.position} there, but ZooKeeper has recorded {last}\n"
        "  The store was restored from an older copy, or the component has two stores with this name. Nothing was written. Look with\n"
        f"  {_look(fence)}, restore the newest copy, or choose:\n"
        f"    `{store.command('adopt', fence.topology_id)}`: go on from the store's present contents. Later results are lost\n"
        + begin_again(fence.topology_id)
    )


def unexplained(
    store: places.Place, fence: stamps.Fence, last: transaction.TransactionAttempt
) -> errors.StateMismatchError:
    """The store's fence is above the recorded attempt, in the same transaction."""
    return errors.StateMismatchError(
        f"store {store.address} is ahead: component {fence.component!r} is at attempt {fence.position} there, but ZooKeeper has recorded {last}\n"
        f"  ZooKeeper was restored from an older copy. Nothing was written. Look with {_look(fence)}, restore the newest copy, or choose:\n"
        f"    `{store.command('adopt', fence.topology_id)}`: go on from the store's contents\n"
        + begin_again(fence.topology_id)
    )


def lost(store: places.Place, fence: stamps.Fence, stamp: stamps.Stamp) -> errors.FailedException:
    """The task of ``stamp`` has committed store transactions in this attempt, but ``fence`` names
    an earlier attempt.

    The replay writes the whole transaction again.
    """
    return errors.FailedException(
        f"store {store.address} has lost writes that attempt {stamp.position} of component {stamp.component!r} committed: "
        f"the store is at attempt {fence.position}\n"
        "  A replica or an older copy replaced the store. The transaction is replayed."
    )


def mismatch(
    store: places.Place, fence: stamps.Fence, last: transaction.TransactionAttempt
) -> errors.StateMismatchError:
    """For the recorded attempt, the store holds more or fewer store transactions than ZooKeeper has
    recorded."""
    held, recorded = fence.count or 0, transaction.count_of(last) or 0
    fact = f"it holds {held} store transactions of attempt {fence.position} of component {fence.component!r}, but ZooKeeper has recorded {recorded}"
    begin = begin_again(fence.topology_id)
    if held < recorded:
        return errors.StateMismatchError(
            f"store {store.address} is behind: {fact}\n"
            "  A replica or a copy replaced the store before all store transactions had arrived there. Nothing was written. Look with\n"
            f"  {_look(fence)}, restore the newest copy, or choose:\n"
            f"    `{store.command('adopt', fence.topology_id)}`: go on from the store's present contents. The missing results are lost\n{begin}"
        )
    return errors.StateMismatchError(
        f"store {store.address} is ahead: {fact}\n"
        "  ZooKeeper was restored from an older copy, so two attempts had one number. Nothing was written. Look with\n"
        f"  {_look(fence)}, restore copies of one moment, or choose:\n"
        f"    `{store.command('adopt', fence.topology_id)}`: go on from the store's contents\n{begin}"
    )


def emptied(store: places.Place, stamp: stamps.Stamp) -> errors.StateMismatchError:
    """The store holds nothing from a component that has written results there."""
    return errors.StateMismatchError(
        f"store {store.address} holds nothing of component {stamp.component!r}, which wrote its results there before transaction {stamp.txid}\n"
        "  The store was emptied, or the address names a different store. Restore the store, or choose:\n"
        f"    `{store.command('adopt', stamp.topology_id)}`: go on from the store's present contents. Earlier results are lost\n"
        f"    `txtopo state reset {shlex.quote(stamp.topology_id)}`: forget all commits, and begin with the first batch"
    )


def never_sealed(store: places.Place, fence: stamps.Fence) -> errors.StateMismatchError:
    """The fence names an attempt whose batch was never sealed in this state."""
    return errors.StateMismatchError(
        f"store {store.address} is ahead: component {fence.component!r} is at attempt {fence.position} there, which ZooKeeper never sealed\n"
        "  ZooKeeper was restored from an older copy, and the batch may be different now. Nothing was written. Look with\n"
        f"  {_look(fence)}, restore the newest copy, or choose (an opaque store would undo the transaction, and go on):\n"
        f"    `{store.command('adopt', fence.topology_id)}`: go on from the store's contents. The batch's results may count twice\n"
        + begin_again(fence.topology_id)
    )


def other_generation(
    store: places.Place, fence: stamps.Fence, stamp: stamps.Stamp
) -> errors.StateMismatchError:
    """The store's results were written under a different generation of the topology."""
    return errors.StateMismatchError(
        f"store {store.address} belongs to generation {fence.generation} of topology {stamp.topology_id!r} (component {stamp.component!r}, "
        f"transaction {fence.txid}), but ZooKeeper is at generation {stamp.generation}, transaction {stamp.txid}\n"
        f"  Nothing was written. Look with {_look(fence)}, then choose:\n"
        f"    `{store.command('adopt', stamp.topology_id)}`: go on from the store's contents\n"
        f"    `{store.command('clear', stamp.topology_id)}`: empty the store, for a state that begins with the first batch\n"
        + begin_again(stamp.topology_id),
        without_state=f"{store.command('clear', stamp.topology_id)} --execute",
    )
