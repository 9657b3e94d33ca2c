"""Names a topology's parts at its last write: its spout, its components, and the stores that each
component may begin (R35).

This module holds the record. ``engine.continuity`` compares the record with the topology that wants
to go on.
"""

from __future__ import annotations

import pydantic

from txtopo import plain_json
from txtopo.state import records
from txtopo.topology.graph import SPOUT_TRAITS, SpoutKind


class _Entry(pydantic.BaseModel):
    """Part of a record."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class Spout(_Entry):
    """The spout. A committer spout has the kind ``transactional``, like every spout that decides a
    batch as a whole."""

    id: str = pydantic.Field(min_length=1)
    kind: SpoutKind

    def __str__(self) -> str:
        return f"{self.id!r} ({SPOUT_TRAITS[self.kind].decides})"


class Component(_Entry):
    """A component. ``stores`` names the stores that were its attributes before it had results in
    any store. ``accepted`` are store names, or patterns with ``*``, that a person has accepted
    since. ``is_former``: the component has left the topology."""

    stores: list[str] = []
    accepted: list[str] = []
    is_former: bool = False

    @property
    def expected(self) -> tuple[str, ...]:
        """Stores that the component may begin after it has results in other stores."""
        return (*self.stores, *self.accepted)


class Components(records.Record):
    """The record. ``accepted_seal`` is the sealed transaction that may meet changed components, as
    a person has accepted."""

    spout: Spout
    components: dict[str, Component]
    accepted_seal: int | None = None

    def encode(self) -> bytes:
        return plain_json.encode(self.model_dump())


def can_keep_positions(before: SpoutKind, now: SpoutKind) -> bool:
    """Whether a spout of kind ``now`` can go on from positions that kind ``before`` has left, if
    both spouts mean the same by them.

    Both kinds of partitioned spouts have metadata by partition, as of the last commit. A spout that
    decides batches as a whole has a chain of metadata instead, and no partitions.
    """
    return before == now or (
        SPOUT_TRAITS[before].is_partitioned and SPOUT_TRAITS[now].is_partitioned
    )
