"""Shares the loop among the engine's parts: settings, queue, observers, the length of a back-off.

Runs on: driver. Parts post to the loop from any thread. Only the loop's thread handles events.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txtopo import config
from txtopo.coordinator.messages import Event
from txtopo.engine import observer
from txtopo.engine.observer import Observer
from txtopo.engine.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Loop:
    """``handle`` gives an event to the coordinator. ``drain`` ends the run after the commits in
    flight, and ``stop`` does so with an error. All three run on the loop's thread."""

    conf: config.Config
    surroundings: Surroundings
    observers: Sequence[Observer]
    rng: random.Random
    handle: Callable[[Event], None]
    drain: Callable[[], None]
    stop: Callable[[BaseException], None]

    def post(self, event: Event) -> None:
        """From any thread: let the loop handle ``event``."""
        self.surroundings.post(functools.partial(self.handle, event))

    def tell(self, fact: Callable[[Observer], None]) -> None:
        observer.tell(self.observers, fact)

    def backoff_s(self, failures: int) -> float:
        """How long to wait, in seconds. 0 for the first try. Then a random time between half the
        bound and the bound, which doubles from ``backoff_min_s`` to ``backoff_max_s``."""
        if failures == 0:
            return 0.0
        bound = min(self.conf.backoff_max_s, self.conf.backoff_min_s * 2.0 ** min(failures - 1, 30))
        return bound * (0.5 + self.rng.random() / 2)
