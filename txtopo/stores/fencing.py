"""Decides at a store's fence: a task stands, raises the fence, takes a failed attempt back first,
or may not write (R27, R29, R31, R34, R35).

``stamps`` compares the fence with an attempt, and ``base`` carries the decision out. Writes nothing
and asks no database. Runs on executors: standard library only.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from txtopo import errors
from txtopo.stores import begun, completeness, stamps
from txtopo.stores import place as places
from txtopo.topology import context as contexts

Decision = Literal["stand", "raise", "take back"]
"""stand: the fence names this attempt · raise: make or raise the fence · take back: undo the writes
by the fence's attempt, and raise the fence."""


class Opening(NamedTuple):
    """A store transaction that a task begins."""

    context: contexts.TopologyContext
    stamp: stamps.Stamp
    recorded: stamps.Recorded | None
    number: int
    """1, 2, 3 … in each attempt."""


def decide(
    store: places.Place,
    kind: stamps.Kind,
    context: contexts.TopologyContext,
    stamp: stamps.Stamp,
    fence: stamps.Fence | None,
    recorded: stamps.Recorded | None,
) -> Decision:
    """Decide for the task of ``stamp`` at ``fence``, which is None if the component has no fence.

    :raises errors.StaleAttemptError: a newer attempt has written (R29).
    :raises errors.StateMismatchError: store and state do not fit (R27, R29, R34, R35).
    :raises errors.FailedException: the store lost writes that the task has committed in this
        attempt.
    """
    last = None if recorded is None else recorded.get(stamp.component)
    known_name = store.known_name(stamp.component)
    where = stamps.fence_standing(fence, stamp, recorded)
    if where == "equal":
        return "stand"
    if fence is None:
        if last is not None or known_name in context.touched_stores:
            raise completeness.emptied(store, stamp)
        if not begun.may_begin(store.name, context):
            raise begun.unexpected(store, stamp, context, store.command("adopt", stamp.topology_id))
    elif where == "other generation":
        raise completeness.other_generation(store, fence, stamp)
    elif where == "above":
        raise errors.StaleAttemptError(
            store.address, stamp.component, fence.position, stamp.position
        )
    elif context.touched_stores.get(known_name, 0) > 0 and fence.attempt != stamps.CLOSED_ATTEMPT:
        raise completeness.lost(store, fence, stamp)
    elif last is not None and where == "behind":
        raise completeness.behind(store, fence, last)
    elif last is not None and where in ("incomplete", "overfull"):
        raise completeness.mismatch(store, fence, last)
    elif last is not None and where == "unexplained":
        raise completeness.unexplained(store, fence, last)
    elif where == "replayed" and fence.attempt < context.first_attempt and kind != "opaque":
        # The batch was made again, and may be different: only opaque values can be taken back to
        # before the batch.
        raise completeness.never_sealed(store, fence)
    elif kind != "plain" and (where == "void" or (where == "replayed" and kind == "opaque")):
        return "take back"
    return "raise"
