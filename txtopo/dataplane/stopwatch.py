"""Measures how long each component's tasks are at work on a slot.

Fused components call each other, so two looks at the clock for each tuple are needed. They may cost
more than the tuple. So only one transaction in :data:`EVERY` is measured. A *turn* lasts until no
component is at work. Of its calls the first :data:`CALLS_FIRST` are measured. Then
:data:`CALLS_BETWEEN` are not, and the next :data:`CALLS_LATER`, which are measured, stand for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txtopo.dataplane.inbox import Bolt, Lane
from txtopo.dataplane.route import Send
from txtopo.topology.stream import TupleSource

EVERY = 64
CALLS_FIRST = 10_000
CALLS_LATER = 50
CALLS_BETWEEN = 5_000


class Stopwatch:
    """At each moment one component is at work, or none: ``""``. ``work_s`` is by component, in
    seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.work_s: dict[str, float] = {}
        self._clock, self._at_work, self._since = clock, "", clock()
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._calls_left = CALLS_FIRST
        self._has_gap = self._is_measured_again = False
        """Whether calls since the last switch were not measured, and whether the next ones are."""
        self._measured: dict[str, float] = {}
        self._last: dict[str, float] = {}
        """What was measured in the last whole window."""
        self._gaps_s = 0.0

    def switch(self, component: str) -> str:
        """Let ``component`` be at work from now on. Returns the component before."""
        before, now = self._at_work, self._clock()
        if self._has_gap:
            if self._is_measured_again and component:
                self._settle(is_whole=True)
            self._gaps_s += now - self._since
            self._has_gap = False
        elif before:
            self._measured[before] = self._measured.get(before, 0.0) + now - self._since
        self._at_work, self._since = component, now
        if before and not component:
            self._settle(is_whole=self._calls_left <= 0)
            self._begin_turn()
        return before

    def _settle(self, is_whole: bool) -> None:
        """Let the measured calls stand for the others so far. Unless their window ``is_whole``,
        those of the window before help: of few calls one may be as long as all others."""
        alike = dict(self._measured)
        if not is_whole:
            for id, seconds in self._last.items():
                alike[id] = alike.get(id, 0.0) + seconds
        whole_s = sum(alike.values())
        for id, seconds in alike.items():
            more_s = self._gaps_s * seconds / whole_s if whole_s else 0.0
            self.work_s[id] = self.work_s.get(id, 0.0) + self._measured.get(id, 0.0) + more_s
        self._last, self._measured = self._measured, {}
        self._gaps_s, self._is_measured_again = 0.0, False

    def measured(self, component: str, function: Callable[..., None]) -> Callable[..., None]:
        """``function``, which lets ``component`` work."""

        def work(*arguments: Any) -> None:
            self._calls_left -= 1
            if self._calls_left < 0:
                if self._calls_left <= -CALLS_BETWEEN:
                    self._calls_left, self._is_measured_again = CALLS_LATER, True
                before, self._at_work, self._has_gap = self._at_work, component, True
                try:
                    function(*arguments)
                finally:
                    self._at_work, self._has_gap = before, True
                return
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
