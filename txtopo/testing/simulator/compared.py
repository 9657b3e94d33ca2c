"""Names the effects that a simulation compares, and the effects that it cannot see: a verdict is
about the compared effects alone.

Invariants: every effect named as compared is read after every schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from txtopo.plan import guarantees
from txtopo.testing.simulator.outcome import Outcome
from txtopo.topology.graph import TopologyGraph

CURE = "Define effects(), which returns the data written there, and reset(), which removes the data, beside the topology."


@dataclass(frozen=True, slots=True)
class Unseen:
    """Effects that judge no schedule. ``component`` is ``None`` if no component is known to write."""

    component: str | None
    cure: str = CURE
    what: str = ""
    """Another fact than that a component writes elsewhere."""

    @property
    def fact(self) -> str:
        if self.what:
            return self.what
        if self.component is None:
            return "nothing is compared: no component has a store, a sink or a commit"
        return f"component {self.component!r} writes where the simulator cannot look"

    def __str__(self) -> str:
        return f"{self.fact}\n  {self.cure}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The effects that judge every schedule: store addresses, sink tables, and components whose
    emissions are compared."""

    stores: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    effects: bool = False
    """Whether ``effects()`` is compared."""
    emissions: tuple[str, ...] = ()

    @classmethod
    def of(cls, expected: Outcome, has_effects: bool, emissions: bool) -> Compared:
        """List the effects in ``expected``. ``emissions`` is whether emissions are compared."""
        emitting = (
            {
                component
                for rows in expected.emitted.values()
                for component, emitted in rows.items()
                if emitted
            }
            if emissions
            else set()
        )
        return cls(
            tuple(sorted(expected.stores)),
            tuple(sorted(expected.rows)),
            has_effects,
            tuple(sorted(emitting)),
        )

    def lines(self) -> list[str]:
        return [
            *(f"store {address}" for address in self.stores),
            *(f"sink {table}" for table in self.sinks),
            *(["effects()"] if self.effects else []),
            *(f"what {component!r} emits" for component in self.emissions),
        ]


def unseen(
    graph: TopologyGraph, uncompared: frozenset[str], compared: Compared
) -> tuple[Unseen, ...]:
    """Find the effects of ``graph`` that judge no schedule. ``uncompared`` are components with a
    destination that has no substitute."""
    if compared.effects:
        return ()
    elsewhere = [
        id
        for id, component in graph.components.items()
        if id in uncompared or guarantees.writes_elsewhere(component)
    ]
    if not elsewhere and not (compared.stores or compared.sinks):
        return (Unseen(None),)
    return tuple(map(Unseen, elsewhere))
