"""An engine's surroundings in a real driver: the clock, threads that talk to Spark, and an action
queue.

Runs on: driver.
"""

from __future__ import annotations

import datetime
import gc
import heapq
import itertools
import queue
import time
from collections.abc import Callable

from txtopo import faults
from txtopo.engine.surroundings import Action, Threads
from txtopo.faults import FaultPoint
from txtopo.spark.threads import WorkThreads


class Machine:
    """The clock, the threads and the action queue for one topology's engine."""

    def __init__(self, topology_id: str) -> None:
        self._topology_id = topology_id
        self._queue: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Action]] = []
        self._timer_ids = itertools.count()
        self._action: Action | None = None
        """The action that the loop is doing. None while the loop waits for an action."""
        self._seen: tuple[Action | None, float] = (None, 0.0)

    def now(self) -> float:
        return time.monotonic()

    def time_of_opening(self, txid: int) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)

    def post(self, action: Action) -> None:
        self._queue.put(action)

    def after(self, delay_s: float, action: Action) -> None:
        heapq.heappush(self._timers, (self.now() + delay_s, next(self._timer_ids), action))

    def turned_at(self) -> float:
        """When the loop last turned, in seconds since 1970: now, unless the loop was doing the same
        action at the last call. For one thread only."""
        action = self._action
        if action is None or action is not self._seen[0]:
            self._seen = (action, time.time())
        return self._seen[1]

    def next(self) -> Action:
        self._action = None
        now = self.now()
        if self._timers and self._timers[0][0] <= now:
            action = heapq.heappop(self._timers)[2]
        else:
            try:
                action = self._queue.get(timeout=self._timers[0][0] - now if self._timers else None)
            except queue.Empty:
                action = heapq.heappop(self._timers)[2]
        self._action = action
        return action

    def threads(self, name: str, count: int, failed: Callable[[BaseException], None]) -> Threads:
        return WorkThreads(name, count, failed)

    def collect_garbage(self) -> None:
        gc.collect()

    def reach(self, point: FaultPoint, txid: int) -> None:
        faults.reach(point, txid, self._topology_id)
