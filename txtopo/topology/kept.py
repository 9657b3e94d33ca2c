"""Records that a destination keeps about a topology, for commands that show, clear or adopt them.
Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from txtopo import errors

UNKNOWN_ATTEMPT = -1
"""Attempt of a value that was taken back to or adopted: the attempt that made the value is no
longer known. The value's transaction is over for every attempt."""

CLOSED_ATTEMPT = 2**63 - 1
"""Attempt of an adopted fence: the transaction is over, and no attempt at it may write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fence:
    """The newest attempt of one component that has written to a destination. Older attempts may not
    write any more (R29)."""

    topology_id: str
    component: str
    generation: str
    txid: int
    attempt: int
    count: int | None = dataclasses.field(default=0, compare=False)
    """How many store transactions of this attempt the store holds, over all tasks (R34). None if
    the store does not count. Fences of the same attempt are equal."""

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
    """Raise :class:`~txtopo.errors.UsageError` where records cannot become another topology's."""
    if from_topology is not None:
        raise errors.UsageError(
            "a sink's records cannot become another topology's\n  Leave out --from-topology."
        )


@contextlib.contextmanager
def asking(place: str) -> Iterator[None]:
    """Raise :class:`~txtopo.errors.UsageError` where ``place`` does not answer."""
    try:
        yield
    except errors.FailedException as error:
        raise errors.UsageError(f"{error}\n  Try again when {place} can be reached.") from error


class Kept(Protocol):
    """A destination's records: a store, or a sink's memory of its writes."""

    @property
    def name(self) -> str:
        """The name in a topology's state."""

    @property
    def address(self) -> str:
        """For messages. Handles of the same records have the same address and name."""

    def exists(self) -> bool:
        """Whether there are any records."""

    def command(self, action: str, topology_id: str) -> str:
        """The command line that does ``action``, such as ``clear``, to a topology's records."""

    def shown(self) -> Sequence[Mapping[str, Any]]:
        """All that the records say of topologies, as JSON-able values."""

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
        """Accept the contents as this generation's result of transactions 1 to ``txid``. Stop the
        topology first.

        :raises UsageError: the destination does not answer.
        """

    def clear(
        self, topology_id: str, components: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> StoreChange:
        """Remove a topology's records, or those of some components, and all rows that are the
        destination's own. Stop the topology first.

        :raises UsageError: the destination does not answer.
        """
