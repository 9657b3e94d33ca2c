"""The decision at the fence of a store: a task stands at it, raises it, takes a failed attempt back
first, or may not write (R27, R29, R31, R34, R35).

Apart from ``stamps``, which compares a fence with an attempt, and from ``base``, which does what is
decided here. Writes nothing and asks no database. Runs on executors: standard library only.
"""

from __future__ import annotations

from typing import Literal

from txtopo import errors
from txtopo.stores import begun, completeness, stamps
from txtopo.stores import place as places
from txtopo.topology import context as contexts

Decision = Literal["stand", "raise", "take back"]
"""stand: the fence is this attempt's · raise: make the fence, or raise it · take back: undo the
writes of the attempt of the fence, and raise it."""


def decide(
    store: places.Place,
    kind: stamps.Kind,
    context: contexts.TopologyContext,
    stamp: stamps.Stamp,
    fence: stamps.Fence | None,
    recorded: stamps.Recorded | None,
) -> Decision:
    """The decision for the task of ``stamp`` at ``fence``, None if its component has no fence.

    :raises errors.StaleAttemptError: a newer attempt has written (R29).
    :raises errors.StateMismatchError: store and state do not fit (R27, R29, R34, R35).
    :raises errors.FailedException: the store lost what this task has committed in this attempt.
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
        # The batch was made anew, and may be another: only opaque values can be taken back to
        # before it.
        raise completeness.never_sealed(store, fence)
    elif kind != "plain" and (where == "void" or (where == "replayed" and kind == "opaque")):
        return "take back"
    return "raise"
