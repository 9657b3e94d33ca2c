"""Bounds the names of user code's counters, so that a run's metrics stay few.

Runs on: driver, the engine's loop.

Invariants: a component has at most ``counters.NAMES_MAX`` names, and ``other``, in a run. The first
committed names stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from txtopo.engine.observer import LOGGER
from txtopo.topology.counters import NAMES_MAX, OTHER


class CounterNames:
    """The names that a run's counters have, by component."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._full: set[str] = set()

    def bounded(self, counters: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """A committed attempt's ``counters``, by component and name. Too many names become
        ``other``, with a warning for each component."""
        return {id: self._bounded(id, sums) for id, sums in counters.items()}

    def _bounded(self, id: str, sums: Mapping[str, int]) -> dict[str, int]:
        names, bounded = self._names.setdefault(id, {OTHER}), dict[str, int]()
        for name, n in sorted(sums.items()):
            if name not in names and len(names) > NAMES_MAX:
                self._warn(id, name)
                name = OTHER
            names.add(name)
            bounded[name] = bounded.get(name, 0) + n
        return bounded

    def _warn(self, id: str, name: str) -> None:
        if id not in self._full:
            self._full.add(id)
            LOGGER.warning(
                "component %r counts under more than %d names: %r and further ones count as %r\n"
                "  Give context.count() a fixed set of names. Data belongs in a store or in the log.",
                id,
                NAMES_MAX,
                name,
                OTHER,
            )
