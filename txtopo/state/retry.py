"""Repeats calls that ZooKeeper does not answer, with pauses and a bound.

kazoo reconnects by itself, with its own pauses: see ``client``. ``topology``, ``writer`` and
``runtime.run`` wait through this module. A thread that stops the topology calls
:meth:`Retry.abandon`, and every wait ends at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from txtopo import errors
from txtopo.state import base

T = TypeVar("T")

PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 1.0
"""Pauses between tries grow from the first to the second value. ``wait_s`` bounds their sum. Before
the second try there is no pause: most often a single answer was lost, and the connection is back,
or is waited for anyway."""

SLICE_S = 0.1
"""How soon a wait for the connection notices that it was abandoned."""


class AbandonedError(errors.ZooKeeperUnavailableError):
    """The wait for ZooKeeper was ended from outside, because the topology is being stopped."""


class Retry:
    """Repeats calls that ZooKeeper does not answer, for at most ``wait_s`` each. Thread-safe."""

    def __init__(
        self,
        store: base.StateStore,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        abandoned: threading.Event | None = None,
    ) -> None:
        """``abandoned``: an event that acts like :meth:`abandon`, for callers that must be able to
        abandon before this object exists."""
        self._store, self._wait_s, self._clock = store, wait_s, clock
        self._abandoned = abandoned or threading.Event()

    def abandon(self) -> None:
        """Make every wait, now and from now on, raise :class:`AbandonedError`."""
        self._abandoned.set()

    def call(self, call: Callable[[], T]) -> T:
        """Call ``call()`` again and again while it raises
        :class:`~txtopo.state.base.StateUnavailableError`.

        The call itself must find out the effect of an earlier try.

        :raises ZooKeeperUnavailableError: ZooKeeper did not answer for ``wait_s``.
        :raises AbandonedError: :meth:`abandon` was called.
        """
        deadline: float | None = None
        pause_s = 0.0
        while True:
            self._raise_if_abandoned()
            try:
                return call()
            except base.StateUnavailableError as error:
                deadline = self._clock() + self._wait_s if deadline is None else deadline
                self._await_connection(deadline, pause_s, error)
                pause_s = min(max(2 * pause_s, PAUSE_MIN_S), PAUSE_MAX_S)

    def _await_connection(
        self, deadline: float, pause_s: float, error: base.StateUnavailableError
    ) -> None:
        if pause_s:
            self._abandoned.wait(pause_s)
        while True:
            self._raise_if_abandoned()
            left_s = deadline - self._clock()
            if left_s <= 0:
                raise errors.ZooKeeperUnavailableError(
                    f"ZooKeeper at {self._store.address} has not answered for {self._wait_s:g} s: {str(error).splitlines()[0]}\n"
                    f"  Nothing is lost. When it is back, run again: the topology resumes where it stopped."
                ) from error
            if self._store.wait_until_connected(min(SLICE_S, left_s)):
                return

    def _raise_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise AbandonedError(
                "ZooKeeper is not waited for any longer, because the topology is being stopped\n  Run it again: it resumes where it stopped."
            )
