"""What a simulation compares, by name, and the effects that it cannot look at: a verdict is about
no more than these.

Apart from ``outcome``, which compares, so that a verdict can name both without having run.

Invariants: what is named as compared is read after every schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from txtopo.plan import guarantees
from txtopo.testing.simulator.outcome import Outcome
from txtopo.topology.graph import TopologyGraph

CURE = "Define effects(), which returns what is written there, and reset(), which removes it, beside the topology."


@dataclass(frozen=True, slots=True)
class Unseen:
    """Effects that no schedule is judged by. ``component`` is ``None`` where no component is known
    to write anything."""

    component: str | None
    cure: str = CURE

    @property
    def what(self) -> str:
        """The fact, in one line."""
        if self.component is None:
            return "nothing is compared: no component has a store, a sink or a commit"
        return f"component {self.component!r} writes where the simulator cannot look"

    def __str__(self) -> str:
        return f"{self.what}\n  {self.cure}"


@dataclass(frozen=True, slots=True)
class Compared:
    """What every schedule is judged by: addresses of stores, tables of sinks, components whose
    emissions are compared."""

    stores: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    effects: bool = False
    """Whether the module says what it writes elsewhere."""
    emissions: tuple[str, ...] = ()

    @classmethod
    def of(cls, expected: Outcome, has_effects: bool, emissions: bool) -> Compared:
        """What there is in ``expected``; ``emissions`` if those are compared."""
        emitting = {component for rows in expected.emitted.values() for component, emitted in rows.items() if emitted} if emissions else set()
        return cls(tuple(sorted(expected.stores)), tuple(sorted(expected.rows)), has_effects, tuple(sorted(emitting)))

    def lines(self) -> list[str]:
        """One line for each thing."""
        return [
            *(f"store {address}" for address in self.stores),
            *(f"sink {table}" for table in self.sinks),
            *(["effects()"] if self.effects else []),
            *(f"what {component!r} emits" for component in self.emissions),
        ]


def unseen(graph: TopologyGraph, strange: frozenset[str], compared: Compared) -> tuple[Unseen, ...]:
    """What no schedule of ``graph`` is judged by; ``strange`` are components with destinations that
    have no substitute."""
    if compared.effects:
        return ()
    found = [id for id, component in graph.components.items() if id in strange or guarantees.writes_elsewhere(component)]
    if not found and not (compared.stores or compared.sinks):
        return (Unseen(None),)
    return tuple(map(Unseen, found))
