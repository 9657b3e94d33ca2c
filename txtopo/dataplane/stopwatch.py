"""Measures how long each component's tasks are at work on a slot.

Fused components call each other, so two looks at the clock for each tuple are needed. They may cost
more than the tuple. So only one transaction in :data:`EVERY` is measured, and only the first
:data:`CALLS_MAX` calls in a turn: its other calls are taken to have cost the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txtopo.dataplane.inbox import Bolt, Lane
from txtopo.dataplane.route import Send
from txtopo.topology.stream import TupleSource

EVERY = 64
CALLS_MAX = 10_000


class Stopwatch:
    """At each moment one component is at work, or none: ``""``. ``work_s`` is by component, in
    seconds. A *turn* lasts until none is at work."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.work_s: dict[str, float] = {}
        self._clock, self._at_work, self._since = clock, "", clock()
        self._calls_left = CALLS_MAX
        self._measured: dict[str, float] = {}

    def switch(self, component: str) -> str:
        """Let ``component`` be at work from now on. Returns the component before."""
        before, now = self._at_work, self._clock()
        if before and component:
            self._measured[before] = self._measured.get(before, 0.0) + now - self._since
        elif before:
            self._end_turn(before, now - self._since)
        self._at_work, self._since = component, now
        return before

    def _end_turn(self, last: str, rest_s: float) -> None:
        """Count a turn's time. ``rest_s``, since the last switch, is that of ``last``, or of all
        calls that were not measured."""
        measured_s, factor = sum(self._measured.values()), 1.0
        if self._calls_left or not measured_s:
            self._measured[last] = self._measured.get(last, 0.0) + rest_s
        else:
            factor += rest_s / measured_s
        for component, seconds in self._measured.items():
            self.work_s[component] = self.work_s.get(component, 0.0) + seconds * factor
        self._measured, self._calls_left = {}, CALLS_MAX

    def measured(self, component: str, function: Callable[..., None]) -> Callable[..., None]:
        """``function``, which lets ``component`` work."""

        def work(*arguments: Any) -> None:
            if not self._calls_left:
                function(*arguments)
                return
            self._calls_left -= 1
            before = self.switch(component)
            try:
                function(*arguments)
            finally:
                self.switch(before)

        return work


class MeasuredBolt:
    """A bolt task behind its inbox, measured."""

    def __init__(self, watch: Stopwatch, component: str, bolt: Bolt) -> None:
        self._watch, self._component, self._bolt = watch, component, bolt
        self.execute_all = watch.measured(component, bolt.execute_all)
        self.execute_columns = watch.measured(component, bolt.execute_columns)

    def sender(self, source: TupleSource, lane: Lane, wait: Send) -> Send:
        return self._watch.measured(self._component, self._bolt.sender(source, lane, wait))


def for_transaction(txid: int, clock: Callable[[], float]) -> Stopwatch | None:
    """A stopwatch if the transaction is to be measured. The first transaction is not: it warms up
    what later ones find warm."""
    return Stopwatch(clock) if txid % EVERY == 2 else None
