"""A reader outside: it looks into every store again and again while the topologies run, and has
each look judged.

Runs in a thread of the supervisor, with connections of its own, as any program that shows results
would.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.soak.workloads import WORKLOADS
from tests.soak.workloads.base import Checker, Snapshot
from tests.soak.world import World

PAUSE_S = 0.05
VIOLATIONS_MAX = 20
"""No more than these are kept: the first violations tell the cause."""


class Reader:
    """Reads until it is stopped."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checkers: dict[str, Checker] = {
            name: WORKLOADS[name].checker(world) for name in world.workloads
        }
        self._stores: dict[str, Mapping[str, Any]] = {
            name: WORKLOADS[name].stores(world) for name in world.workloads
        }
        self._stop = threading.Event()
        self._looking = threading.Lock()
        self._is_paused = False
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self.reads: Counter[str] = Counter()
        self.violations: list[str] = []

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def pause(self) -> None:
        """Look no more until :meth:`go_on`; the look that has begun is over when this returns."""
        with self._looking:
            self._is_paused = True

    def go_on(self) -> None:
        """Look again, without memory of earlier reads."""
        with self._looking:
            self._checkers = {
                name: WORKLOADS[name].checker(self._world) for name in self._world.workloads
            }
            self._is_paused = False

    def _run(self) -> None:
        while not self._stop.is_set():
            for workload, stores in self._stores.items():
                for name, store in stores.items():
                    with self._looking:
                        if not self._is_paused:
                            self._look(workload, name, store)
                    if self._stop.wait(PAUSE_S):
                        return

    def _look(self, workload: str, name: str, store: Any) -> None:
        try:
            seen = snapshot(store)
            wrong = self._checkers[workload].read(
                name, seen, self._world.feed(workload).available()
            )
        except Exception as error:
            wrong = [f"{workload}: reading failed: {type(error).__name__}: {error}"]
        self.reads[workload] += 1
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.extend(wrong)

    def end(self) -> list[str]:
        """Judge the last state of every store; :meth:`stop` first."""
        wrong = []
        if self._is_paused:
            self.go_on()
        for workload, stores in self._stores.items():
            seen = {name: snapshot(store) for name, store in stores.items()}
            wrong.extend(self._checkers[workload].end(seen, self._world.feed(workload).available()))
            self.reads[workload] += 1
        return wrong


def snapshot(store: Any) -> Snapshot:
    """The whole content, at one moment."""
    return dict(store.items())
