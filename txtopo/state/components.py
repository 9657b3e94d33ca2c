"""Components of a topology as of its last write: its spout, its components, and the stores that
each component may begin (R35).

Apart from ``engine.continuity``, which compares this record with the topology that wants to go on.
This module has the record itself.
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
    """The spout. A committer spout is of the kind ``transactional``, as any that decides a batch as
    a whole."""

    id: str = pydantic.Field(min_length=1)
    kind: SpoutKind

    def __str__(self) -> str:
        return f"{self.id!r} ({SPOUT_TRAITS[self.kind].decides})"


class Component(_Entry):
    """``stores`` are the names of the stores that were attributes of the component before it had
    results in any; ``accepted`` are names, or patterns with ``*``, of those that a person has
    accepted since. ``is_former``: it was not in the topology any more."""

    stores: list[str] = []
    accepted: list[str] = []
    is_former: bool = False

    @property
    def expected(self) -> tuple[str, ...]:
        """The stores that the component may begin, once it has results in others."""
        return (*self.stores, *self.accepted)


class Components(records.Record):
    """The record. ``accepted_seal`` is the sealed transaction that may meet other components than
    it was sealed with, as a person has said."""

    spout: Spout
    components: dict[str, Component]
    accepted_seal: int | None = None

    def encode(self) -> bytes:
        """The record as JSON."""
        return plain_json.encode(self.model_dump())


def can_keep_positions(before: SpoutKind, now: SpoutKind) -> bool:
    """Whether positions that the one kind has left can be positions of the other, if the spouts
    mean the same by them.

    Both kinds of partitioned spouts have metadata by partition, as of the last commit. A spout that
    decides batches as a whole has a chain of metadata instead, and no partitions.
    """
    return before == now or (
        SPOUT_TRAITS[before].is_partitioned and SPOUT_TRAITS[now].is_partitioned
    )


__all__ = ["Component", "Components", "Spout", "can_keep_positions"]
