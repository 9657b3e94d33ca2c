"""The running schedule's world: user objects are pickled and copied, and find their schedule here.

Invariants: at most one schedule runs in a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from txtopo import errors
from txtopo.testing.simulator.world import World

_running: World | None = None


def world() -> World:
    """The running schedule's world."""
    assert _running is not None, "outside a simulation"
    return _running


def world_or_none() -> World | None:
    """The running schedule's world: ``None`` while a contract checker runs a topology's parts
    without any schedule."""
    return _running


@contextlib.contextmanager
def running(world: World) -> Iterator[None]:
    """The schedule in ``world`` runs while this context lasts."""
    global _running
    if _running is not None:
        raise errors.UsageError(
            "a simulation cannot be run inside another simulation\n  Run the simulations one after the other."
        )
    _running = world
    try:
        yield
    finally:
        _running = None
