"""What a topology knows of the places its components write to: every store and every sink is a
*destination*, and says what it can do.

Apart from the stores and sinks, which know no topology, and from ``soundness``, which judges
whether the two fit. Standard library only.
"""

from __future__ import annotations

import abc
import contextlib
from dataclasses import dataclass, field
from typing import Any

from txtopo.topology import stream


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a store or sink can do, as far as a topology must fit it."""

    name: str
    """Which one it is, for people: ``SqliteStore /data/words.db#counts``. No secrets."""
    holds: str
    """What it keeps, for people: ``opaque values``, ``rows, inserted``."""
    takes_back: bool
    """Whether a replay undoes all that a failed attempt wrote, also where it writes nothing itself:
    what an opaque spout needs (R31)."""
    is_keyed: bool
    """Whether a key there has one writer per transaction (R32)."""
    cure: str
    """What to type so that it takes back; what to use instead where nothing can be typed."""
    promise: str = "exactly once"
    """What holds of a write there in a topology that fits, for people."""
    has_one_writer: bool = False
    """Whether one component of a topology alone may write there: what is taken back of one would
    undo what another wrote since."""
    place: str = ""
    """Where its records are, which is the same for all who open it; empty if it does not say."""
    known_as: str = ""
    """What the topology's state knows it as, for each component (R27): a component's destinations
    in different places need different ones."""
    form: str = ""
    """What its values are, for people; all who open the same ``place`` must open it for the same.
    Empty if it does not say."""


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


@dataclass(frozen=True, slots=True)
class Writes:
    """What one component says of its writing."""

    destinations: tuple[Guarantee, ...] = ()
    """The stores and sinks in it."""
    has_own_keys: bool = False
    """Its tasks never write the same key, whatever the grouping; see ``IBatchBolt``."""
    key_fields: stream.Fields | None = None
    """The fields of its input that its keys are made of, where it says so."""


@dataclass(slots=True)
class Search:
    """Looks at the parts of a component while it is pickled: at every object in it, however deep.
    """

    destinations: dict[Guarantee, Destination] = field(default_factory=dict)
    local_only: dict[str, None] = field(default_factory=dict)
    """Reasons why every executor must be on the driver's machine."""
    problems: dict[str, None] = field(default_factory=dict)
    """What went wrong when a destination was asked."""

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
                self.destinations.setdefault(part.guarantee(), part)
            except Exception as error:
                self.problems[f"{type(part).__name__}.guarantee failed: {type(error).__name__}: {error}"] = None

    def writes(self, component: Any) -> Writes:
        """What was found, with what ``component`` says of its keys."""
        for name in {name: None for cls in type(component).__mro__ for name in vars(cls)}:
            with contextlib.suppress(Exception):
                value = getattr(type(component), name)
                if isinstance(value, Destination):
                    self.visit(value)
        key_fields = getattr(component, "key_fields", None)
        own = bool(getattr(component, "has_own_keys", False))
        return Writes(tuple(self.destinations), own, key_fields if isinstance(key_fields, stream.Fields) else None)
