"""The errors for a store that does not fit the state: the store lacks attempts (R27), has an
attempt that was not recorded, or has another count (R34).

Apart from ``base``, which refuses, and from ``stamps``, which compares. Standard library only.
"""

from __future__ import annotations

from txtopo import errors
from txtopo.stores import stamps
from txtopo.topology import transaction


def behind(address: str, fence: stamps.Fence, last: transaction.TransactionAttempt, adopt: str) -> errors.StateMismatchError:
    """Why the store at ``address``, whose fence is below the recorded attempt, may not be written;
    ``adopt`` is the command that accepts the store."""
    return errors.StateMismatchError(
        f"store {address} is behind: component {fence.component!r} is at attempt {fence.position} there, but ZooKeeper has recorded {last}\n"
        "  It was restored from an older copy, or the component has two stores of this name. Nothing was written. Look with\n"
        "  `txtopo state show`, restore the newest copy, or choose:\n"
        f"    `{adopt}`: go on from what it holds now; what came after it is lost\n"
        f"    `txtopo state reset {fence.topology_id}`: begin with the first batch; the store must then be cleared or adopted"
    )


def unexplained(address: str, fence: stamps.Fence, last: transaction.TransactionAttempt, adopt: str) -> errors.StateMismatchError:
    """Why the store at ``address``, whose fence is above the recorded attempt of the same
    transaction, may not be written."""
    return errors.StateMismatchError(
        f"store {address} is ahead: component {fence.component!r} is at attempt {fence.position} there, but ZooKeeper has recorded {last}\n"
        "  ZooKeeper was restored from an older copy. Nothing was written. Look with `txtopo state show`, restore the newest copy, or choose:\n"
        f"    `{adopt}`: go on from what the store holds\n"
        f"    `txtopo state reset {fence.topology_id}`: begin with the first batch; the store must then be cleared or adopted"
    )


def lost(address: str, fence: stamps.Fence, stamp: stamps.Stamp) -> errors.FailedException:
    """Why a task of ``stamp``, which has committed store transactions in this attempt, may not go
    on at ``fence``, which is of an earlier attempt.

    The replay writes the whole transaction again.
    """
    return errors.FailedException(
        f"store {address} has lost what attempt {stamp.position} of component {stamp.component!r} committed: it is at attempt {fence.position}\n"
        "  A replica or an older copy took the place of the store. The transaction is replayed."
    )


def mismatch(address: str, fence: stamps.Fence, last: transaction.TransactionAttempt, adopt: str) -> errors.StateMismatchError:
    """Why the store at ``address`` may not be written; ``adopt`` is the command that accepts the
    store unchanged."""
    held, recorded = fence.count or 0, transaction.count_of(last) or 0
    fact = (
        f"it holds {held} store transactions of attempt {fence.position} of component {fence.component!r}, but ZooKeeper has recorded {recorded}"
    )
    begin = f"    `txtopo state reset {fence.topology_id}`: begin with the first batch; the store must then be cleared or adopted"
    if held < recorded:
        return errors.StateMismatchError(
            f"store {address} is behind: {fact}\n"
            "  A replica or a copy took the place of the store before all of them had arrived there. Nothing was written. Look with\n"
            "  `txtopo state show`, restore the newest copy, or choose:\n"
            f"    `{adopt}`: go on from what it holds now; what is missing is lost\n{begin}"
        )
    return errors.StateMismatchError(
        f"store {address} is ahead: {fact}\n"
        "  ZooKeeper was restored from an older copy, and two attempts had one number. Nothing was written. Look with `txtopo state show`, restore\n"
        "  copies of one moment, or choose:\n"
        f"    `{adopt}`: go on from what the store holds\n{begin}"
    )
