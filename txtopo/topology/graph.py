"""The topology as a value: components, their streams, and the receivers' subscriptions with their
groupings. Immutable and valid by construction."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from txtopo.topology.destination import Writes
from txtopo.topology.grouping import Grouping
from txtopo.topology.stream import StreamSpec

ComponentKind = Literal["spout", "batch", "basic"]
SpoutKind = Literal["transactional", "partitioned", "opaque"]


@dataclass(frozen=True, slots=True)
class SpoutTraits:
    """How kinds of spouts differ."""

    decides: str
    """How far metadata reaches, for people."""
    is_partitioned: bool
    """Whether metadata and positions belong to partitions."""
    is_opaque: bool
    """Whether a replayed batch may have other tuples."""


SPOUT_TRAITS: dict[SpoutKind, SpoutTraits] = {
    "transactional": SpoutTraits("a whole batch", is_partitioned=False, is_opaque=False),
    "partitioned": SpoutTraits("partitions", is_partitioned=True, is_opaque=False),
    "opaque": SpoutTraits("partitions, opaque", is_partitioned=True, is_opaque=True),
}


@dataclass(frozen=True, slots=True)
class Subscription:
    """A receiver's subscription to a component's stream."""

    source: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, slots=True)
class Component:
    """One spout or bolt. ``template`` is the pickled instance: every attempt gets a fresh copy."""

    id: str
    kind: ComponentKind
    parallelism: int
    template: bytes = field(repr=False)
    outputs: Mapping[str, StreamSpec]
    inputs: tuple[Subscription, ...] = ()
    committer: bool = False
    spout_kind: SpoutKind | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    type_name: str = ""
    takes_columns: bool = False
    """Whether the component is a bolt that takes RecordBatches."""
    emits_columns: bool = False
    """Whether the component declares RecordBatches as its output. Any component may."""
    writes: Writes = field(default_factory=Writes)
    """The component's stores and sinks, and how its keys are made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", MappingProxyType(dict(self.outputs)))
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, each.name) for each in fields(self)]
        # A mappingproxy cannot be pickled.
        return Component, tuple(
            dict(value) if isinstance(value, MappingProxyType) else value for value in values
        )


@dataclass(frozen=True, slots=True, repr=False)
class TopologyGraph:
    """A valid topology. ``components`` is in topological order, the spout first, ties as declared.

    ``by_value`` are the classes that were defined in ``__main__`` and travel with the templates.
    ``local_only`` names components that work only where every executor is on the driver's machine,
    with the reason.
    """

    id: str
    components: Mapping[str, Component]
    by_value: tuple[type, ...] = ()
    local_only: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", MappingProxyType(dict(self.components)))

    @property
    def spout(self) -> Component:
        return next(iter(self.components.values()))

    @property
    def spout_traits(self) -> SpoutTraits:
        kind = self.spout.spout_kind
        assert kind is not None, "a spout has a kind"
        return SPOUT_TRAITS[kind]

    @property
    def task_counts(self) -> dict[str, int]:
        """Task counts by component id."""
        return {component.id: component.parallelism for component in self.components.values()}

    def receivers(self, component: str, stream: str) -> list[tuple[Component, Grouping]]:
        """The receivers of a component's ``stream``, with their groupings, in topological order."""
        return [
            (receiver, subscription.grouping)
            for receiver in self.components.values()
            for subscription in receiver.inputs
            if (subscription.source, subscription.stream) == (component, stream)
        ]

    def with_task_counts(self, task_counts: Mapping[str, int]) -> TopologyGraph:
        """This topology with other task counts (R23: a sealed transaction is replayed with its
        own)."""
        changed = {
            component.id: replace(
                component, parallelism=task_counts.get(component.id, component.parallelism)
            )
            for component in self.components.values()
        }
        return TopologyGraph(self.id, changed, self.by_value, self.local_only)

    def __reduce__(self) -> tuple[Any, ...]:
        return TopologyGraph, (self.id, dict(self.components), self.by_value, self.local_only)

    def __repr__(self) -> str:
        components = ", ".join(
            f"{component.id} x {component.parallelism}" for component in self.components.values()
        )
        return f"<topology {self.id!r}: {components}>"

    explained: ClassVar[Callable[[TopologyGraph], str] | None] = None
    """Gives the text of ``txtopo explain``. The package sets it: a plan is a layer above."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The text of ``txtopo explain``, for a notebook."""
        text = repr(self) if self.explained is None else self.explained()
        return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]
