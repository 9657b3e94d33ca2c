"""What a store's rules say about a fence and about a stamped value, before any database is asked.

Apart from the stores because these few comparisons are where exactly-once is decided: they are pure, they know no database and
no topology, and every backend goes through them.

A value is kept as text (see ``keys``); ``None`` stands for "there is none". A tombstone is a row whose current value is None,
and a row whose previous value is None did not exist before; a stored JSON null is the text ``null`` and neither of these.

Invariants:
    - ``Row.steps`` is never empty; its last entry is the current value.
    - ``Row.prev_txid < Row.stamp.txid``: the row as it was before the transaction of its stamp is always of an earlier one.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

UNKNOWN_ATTEMPT = -1
"""Attempt of a value that was taken back or adopted: the one that made it is no longer known, and nobody needs it."""

CLOSED_ATTEMPT = 2**63 - 1
"""Attempt of a fence that was adopted: its transaction is over, no attempt at it may write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """Who wrote, and in which attempt."""

    topology_id: str
    generation: str
    component: str
    task: int
    txid: int
    attempt: int

    @property
    def writer(self) -> str:
        """The writer as an error names it."""
        return f"component {self.component!r} task {self.task} of topology {self.topology_id!r}"


@dataclasses.dataclass(frozen=True, slots=True)
class Fence:
    """The newest attempt of one component that has written to a store; older ones may not write any more (R29)."""

    topology_id: str
    component: str
    generation: str
    txid: int
    attempt: int


@dataclasses.dataclass(slots=True)
class Row:
    """One stamped value. Owned and changed by a single store transaction."""

    key: str
    """The key's text."""
    stamp: Stamp
    prev: str | None
    """The value before the transaction of ``stamp``."""
    prev_txid: int
    """The transaction that made ``prev``; 0 if none of this generation did."""
    steps: list[str | None]
    """What each update in the transaction of ``stamp`` made of the value, in order; composed updates are told apart by them (R32)."""

    @property
    def curr(self) -> str | None:
        """The current value."""
        return self.steps[-1]


FenceStanding = Literal["absent", "other generation", "above", "equal", "below"]
Standing = Literal["past", "mine", "undone", "rival", "ahead", "foreign"]
"""How a row stands to a writer: past (an earlier transaction's, or none) · mine (this writer's, this transaction) · undone (of an
earlier attempt of this opaque transaction) · rival (another writer's, this transaction) · ahead (of a newer attempt: the writer is
late) · foreign (another topology's)."""


def fence_standing(fence: Fence | None, mine: Stamp) -> FenceStanding:
    """How ``fence`` stands to the attempt that wants to write (R27, R29)."""
    if fence is None:
        return "absent"
    if fence.generation != mine.generation:
        return "other generation"
    at, here = (fence.txid, fence.attempt), (mine.txid, mine.attempt)
    return "equal" if at == here else "above" if at > here else "below"


def standing(row: Row | None, mine: Stamp, opaque: bool) -> Standing:
    """How ``row`` stands to the writer ``mine`` (R30, R32).

    A stamp of another generation is past whatever its txid: only adopting the store lets the two meet, and adopting says
    that all it holds is settled.
    """
    if row is None:
        return "past"
    stamp = row.stamp
    if stamp.topology_id != mine.topology_id:
        return "foreign"
    if stamp.generation != mine.generation or stamp.txid < mine.txid:
        return "past"
    if stamp.txid > mine.txid:
        return "ahead"
    if opaque and stamp.attempt != mine.attempt:
        return "undone" if stamp.attempt < mine.attempt else "ahead"
    return "mine" if (stamp.component, stamp.task) == (mine.component, mine.task) else "rival"


def seen(row: Row | None, where: Standing, step: int) -> str | None:
    """The value a writer sees that has made ``step`` updates to it: as it was before the transaction, plus its own updates.

    So a replay reads what the first application read, and nobody reads what another writer did in the same transaction.
    """
    if row is None:
        return None
    if where == "mine" and step > 0:
        return row.steps[step - 1]
    return row.prev if where in ("mine", "undone", "rival") else row.curr


def advanced(row: Row | None, key: str, where: Standing, mine: Stamp, curr: str | None) -> Row:
    """The row after one more update by ``mine``; ``row`` itself when it is already of this transaction."""
    if row is None:
        return Row(key, mine, prev=None, prev_txid=0, steps=[curr])
    if where == "mine":
        row.stamp = mine
        row.steps.append(curr)
        return row
    if where == "undone":
        return Row(key, mine, row.prev, row.prev_txid, [curr])
    same_generation = row.stamp.generation == mine.generation
    return Row(key, mine, row.curr, row.stamp.txid if same_generation else 0, [curr])
