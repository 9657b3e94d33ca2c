"""The schedule that runs at this moment: how the user's objects, which are pickled and copied, find
back to it.

Invariants: at most one schedule runs in a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from txtopo import errors

if TYPE_CHECKING:
    from txtopo.testing.simulator.schedule import Schedule

_running: Schedule | None = None


def schedule() -> Schedule:
    """The running one."""
    assert _running is not None, "outside a simulation"
    return _running


def schedule_or_none() -> Schedule | None:
    """The running one; ``None`` while a contract checker runs parts of a topology, without any
    schedule."""
    return _running


@contextlib.contextmanager
def running(schedule: Schedule) -> Iterator[None]:
    """``schedule`` runs while this lasts."""
    global _running
    if _running is not None:
        raise errors.UsageError("a simulation cannot be run inside another\n  Run one after the other.")
    _running = schedule
    try:
        yield
    finally:
        _running = None
