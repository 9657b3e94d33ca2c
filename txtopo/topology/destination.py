"""The destinations of a topology, and their guarantees: every store and every sink is a
*destination*, and states its guarantee.

Apart from the stores and sinks, which know no topology, and from ``soundness``, which judges
whether the two fit. Standard library only.
"""

from __future__ import annotations

import abc
import contextlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from txtopo.topology import kept, stream


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee of a store or sink, as far as a topology must fit it."""

    name: str
    """The name of the destination, for people: ``SqliteStore /data/words.db#counts``. No
    secrets."""
    holds: str
    """What it keeps, for people: ``opaque values``, ``rows, inserted``."""
    takes_back: bool
    """Whether a replay undoes all writes of a failed attempt, also where the replay writes nothing:
    a need of opaque spouts (R31)."""
    is_keyed: bool
    """Whether a key there has one writer per transaction (R32)."""
    cure: str
    """The argument to type so that it takes back; a substitute where no argument helps."""
    promise: str = "exactly once"
    """The promise of a write there in a topology that fits, for people."""
    has_one_writer: bool = False
    """Whether one component of a topology alone may write there: taking back the writes of one
    component would undo later writes of another."""
    place: str = ""
    """The place of its records, the same for every handle of the destination; empty if it does not
    say."""
    known_as: str = ""
    """The name of the destination in the topology's state, for each component (R27): a component's
    destinations in different places need different ones."""
    form: str = ""
    """The kind of its values, for people; every handle of the same ``place`` must have the same
    form. Empty if it does not say."""


class World(Protocol):
    """What the simulator gives a destination to be simulated on. Every schedule finds it empty."""

    def store(self, original: Destination) -> Any:
        """A store in memory with the rules and the form of the store ``original``."""

    def directory(self) -> str:
        """A directory for files."""


class Destination(abc.ABC):
    """A store or a sink, found by ``build_topology`` wherever a component keeps it: in an
    attribute, in a list, in another object.

    Subclass it for a destination of your own, and wrong topologies are refused for it too.
    """

    local_only_reason: str | None = None
    """Why every executor must be on the driver's machine, or None if they need not be."""

    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """What it can do. Runs on: driver. Called: once for each time it is found, by
        ``build_topology``."""

    def kept(self, topology_id: str, component: str) -> kept.Kept | None:
        """The records about the writes of a component, which ``txtopo reset`` clears; None if there
        are none. Runs on: the command line."""
        return None

    def simulated(self, world: World) -> Destination | None:
        """A destination in memory for ``txtopo test``, with the same name and guarantee; None if
        there is none. Runs on: driver."""
        return None

    def rows_left(self, topology_id: str) -> str:
        """Where rows of the topology may be that :meth:`kept` does not clear, because they are the
        user's; empty if there are none. Runs on: the command line."""
        return ""


@dataclass(frozen=True, slots=True)
class Writes:
    """The declared writing of one component."""

    destinations: tuple[Guarantee, ...] = ()
    """The stores and sinks in it."""
    has_own_keys: bool = False
    """The tasks never write the same key, whatever the grouping; see ``IBatchBolt``."""
    key_fields: stream.Fields | None = None
    """The fields of the input that keys are made of, where the component names them."""


@dataclass(slots=True)
class Search:
    """Looks at the parts of a component while it is pickled: at every object in it, however deep."""

    destinations: list[tuple[Guarantee, Destination]] = field(default_factory=list)
    local_only: dict[str, None] = field(default_factory=dict)
    """Reasons why every executor must be on the driver's machine."""
    problems: dict[str, None] = field(default_factory=dict)
    """Errors of destinations that were asked for their guarantee."""

    def visit(self, part: Any) -> None:
        """Look at one object."""
        if isinstance(part, type):
            return
        with contextlib.suppress(Exception):
            reason = getattr(part, "local_only_reason", None)
            if isinstance(reason, str):
                self.local_only[reason] = None
        if isinstance(part, Destination):
            try:
                self.destinations.append((part.guarantee(), part))
            except Exception as error:
                self.problems[
                    f"{type(part).__name__}.guarantee failed: {type(error).__name__}: {error}"
                ] = None

    def writes(self, component: Any) -> Writes:
        """The destinations in the component, with the properties of its keys."""
        for name in {name: None for cls in type(component).__mro__ for name in vars(cls)}:
            with contextlib.suppress(Exception):
                value = getattr(type(component), name)
                if isinstance(value, Destination):
                    self.visit(value)
        key_fields = getattr(component, "key_fields", None)
        own = bool(getattr(component, "has_own_keys", False))
        guarantees = dict.fromkeys(guarantee for guarantee, _ in self.destinations)
        return Writes(
            tuple(guarantees), own, key_fields if isinstance(key_fields, stream.Fields) else None
        )
