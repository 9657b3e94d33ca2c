"""Patience: the longest wait for an event that always comes, unless something is broken.

No verdict of a test depends on this time: it ends the wait of a test that would fail in any case.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "300"))
"""Longer than any stall of a busy machine. The environment may stretch it, and processes that a
test starts read the same variable."""

TICK_S = 0.01


class OutOfPatience(AssertionError):
    """An event did not come: the product is broken, or the machine stood still."""


def wait_until(
    condition: Callable[[], object], event: str = "", patience_s: float | None = None
) -> None:
    """Return as soon as ``condition()`` is true.

    :raises OutOfPatience: it was not for ``patience_s`` seconds; the message names the ``event``.
    """
    bound_s = PATIENCE_S if patience_s is None else patience_s
    tick, deadline = threading.Event(), time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > deadline:
            raise OutOfPatience(f"waited {bound_s:g} s for {event or condition!r}")
        tick.wait(TICK_S)
