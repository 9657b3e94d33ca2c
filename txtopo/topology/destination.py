"""Destinations: a topology's stores and sinks, each with its guarantee.

Stores and sinks know no topology. ``soundness`` judges whether the two fit. Standard library only.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from txtopo.topology import kept, stream


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A store's or sink's guarantee, as far as a topology must fit it."""

    name: str
    """The destination's name, for people: ``SqliteStore /data/words.db#counts``. No secrets."""
    holds: str
    """The contents, for people: ``opaque values``, ``rows, inserted``."""
    takes_back: bool
    """Whether a replay undoes all writes of a failed attempt, also where the replay writes nothing.
    Opaque spouts need this (R31)."""
    is_keyed: bool
    """Whether each key needs a single writer per transaction (R32)."""
    cure: str
    """The argument to type so that the destination takes back, or a substitute where no argument
    helps."""
    promise: str = "exactly once"
    """The promise for a write in a topology that fits, for people."""
    has_one_writer: bool = False
    """Whether only one component of a topology may write there: taking back one component's writes
    would undo later writes of another."""
    place: str = ""
    """Where the records are, the same for every handle of the destination. Empty if the destination
    does not say."""
    known_as: str = ""
    """The destination's name in the topology's state, for each component (R27). A component's
    destinations in different places need different names."""
    form: str = ""
    """Which values there are, for people. Every handle with the same ``place`` must have the same
    form. Empty if the destination does not say."""


class World(Protocol):
    """The simulator's stores and directories for simulated destinations. Every schedule finds them
    empty."""

    def store(self, original: Destination) -> Any:
        """A store in memory with the rules and the form of the store ``original``."""

    def directory(self) -> str:
        """A directory for files."""

    def shared(self, address: str, make: Callable[[], Any]) -> Any:
        """The substitute for the system at ``address``. The first call makes it with ``make``. Its
        method ``forget`` empties it."""

    def fault(self, address: str) -> str | None:
        """How the next transaction at ``address`` fails: ``before it began``, ``after it
        committed``, or ``None``."""


class Simulable(abc.ABC):
    """Reaches a system outside, and brings a substitute for ``txtopo test``."""

    @abc.abstractmethod
    def simulated(self, world: World) -> Any:
        """The substitute in memory. None if there is none. Runs on: driver."""


class Destination(Simulable):
    """A store or a sink. ``build_topology`` finds every destination in a component: in an
    attribute, in a list, in another object.

    Subclass it for your own destination: wrong topologies are then refused for it too.
    """

    local_only_reason: str | None = None
    """Why every executor must be on the driver's machine. None if executors may be anywhere."""

    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """The destination's guarantee. Runs on: driver. Called: by ``build_topology``, once for
        each place where it finds the destination."""

    def kept(self, topology_id: str, component: str) -> kept.Kept | None:
        """The records about a component's writes, which ``txtopo reset`` clears. None if there are
        none. Runs on: the command line."""
        return None

    def simulated(self, world: World) -> Destination | None:
        """A destination in memory for ``txtopo test``, with the same name and guarantee. None if
        there is none. Runs on: driver."""
        return None

    def rows_left(self, topology_id: str) -> str:
        """Where the topology may have rows that :meth:`kept` does not clear, because they are the
        user's. Empty if there are none. Runs on: the command line."""
        return ""


@dataclass(frozen=True, slots=True)
class Writes:
    """A component's destinations, and how its keys are made."""

    destinations: tuple[Guarantee, ...] = ()
    """The stores and sinks in the component."""
    has_own_keys: bool = False
    """Whether the tasks never write the same key, under any grouping. See ``IBatchBolt``."""
    key_fields: stream.Fields | None = None
    """The input fields that make up keys, where the component names them."""


@dataclass(slots=True)
class Search:
    """Looks at every object in a component, however deep, while the component is pickled."""

    destinations: list[tuple[Guarantee, Destination]] = field(default_factory=list)
    local_only: dict[str, None] = field(default_factory=dict)
    """Reasons why every executor must be on the driver's machine."""
    problems: dict[str, None] = field(default_factory=dict)
    """Errors from destinations that were asked for their guarantee."""

    def visit(self, part: Any) -> None:
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
        """The component's destinations, and how its keys are made."""
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
