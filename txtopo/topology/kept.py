"""Records that a destination keeps about a topology, as commands maintain them.

Apart from ``destination`` because a store has records too, and is more than these. Standard library
only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from txtopo import errors

UNKNOWN_ATTEMPT = -1
"""Attempt of a value that was taken back to or adopted: the attempt that made the value is no
longer known. The transaction of the value is over for every attempt."""

CLOSED_ATTEMPT = 2**63 - 1
"""Attempt of a fence that was adopted: its transaction is over, no attempt at it may write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fence:
    """The newest attempt of one component that has written to a destination; older ones may not
    write any more (R29)."""

    topology_id: str
    component: str
    generation: str
    txid: int
    attempt: int
    count: int | None = dataclasses.field(default=0, compare=False)
    """How many store transactions of this attempt the store holds, over all tasks (R34); None if
    the store does not count. Fences are equal if they are of the same attempt."""

    @property
    def position(self) -> str:
        """Transaction and attempt as an error names them."""
        return position(self.txid, self.attempt)


def position(txid: int, attempt: int) -> str:
    """Transaction and attempt as an error names them."""
    if attempt == CLOSED_ATTEMPT:
        return f"{txid} (adopted)"
    return f"{txid} (settled)" if attempt == UNKNOWN_ATTEMPT else f"{txid}:{attempt}"


@dataclasses.dataclass(frozen=True, slots=True)
class StoreChange:
    """How much ``adopt`` or ``clear`` changed, or would change."""

    rows: int
    fences: int


def refuse_from_topology(from_topology: str | None) -> None:
    """:class:`~txtopo.errors.UsageError` where records cannot become another topology's."""
    if from_topology is not None:
        raise errors.UsageError(
            "what a sink remembers cannot become another topology's\n  Leave out --from-topology."
        )


class Kept(Protocol):
    """The records of a destination: a store, or what a sink remembers of its writes."""

    @property
    def name(self) -> str:
        """As the state of a topology knows it."""

    @property
    def address(self) -> str:
        """For messages. Handles of the same records have the same address and name."""

    def exists(self) -> bool:
        """Whether there are any."""

    def command(self, action: str, topology_id: str) -> str:
        """The command line that does ``action``, such as ``clear``, to the records of a topology."""

    def shown(self) -> Sequence[Mapping[str, Any]]:
        """Everything that they say of topologies, as JSON-able values."""

    def fences(self) -> Sequence[Fence]:
        """The fence of each component that has written."""

    def adopt(
        self,
        topology_id: str,
        generation: str,
        txid: int,
        components: Iterable[str],
        *,
        from_topology: str | None = None,
        dry_run: bool = False,
    ) -> StoreChange:
        """Accept the contents as the result of transactions 1 to ``txid`` of this generation. Stop
        the topology first.

        :raises UsageError: the destination does not answer.
        """

    def clear(
        self, topology_id: str, components: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> StoreChange:
        """Remove the records of a topology, or of some of its components, and all rows that are the
        destination's own. Stop the topology first.

        :raises UsageError: the destination does not answer.
        """
