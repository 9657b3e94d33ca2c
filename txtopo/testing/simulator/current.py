"""The world of the schedule that runs now: how the user's objects, which are pickled and copied,
find their way back to the schedule.

Invariants: at most one schedule runs in a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from txtopo import errors
from txtopo.testing.simulator.world import World

_running: World | None = None


def world() -> World:
    """The world of the running schedule."""
    assert _running is not None, "outside a simulation"
    return _running


def world_or_none() -> World | None:
    """The world of the running schedule; ``None`` while a contract checker runs parts of a
    topology, without any schedule."""
    return _running


@contextlib.contextmanager
def running(world: World) -> Iterator[None]:
    """The schedule of ``world`` runs while this context lasts."""
    global _running
    if _running is not None:
        raise errors.UsageError(
            "a simulation cannot be run inside another\n  Run one after the other."
        )
    _running = world
    try:
        yield
    finally:
        _running = None
