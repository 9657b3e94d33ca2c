"""The rules of a store for a fence and for a stamped value, without any database.

Apart from the stores because these few comparisons are where exactly-once is decided: they are
pure, they know no database and no topology, and every backend goes through them.

A value is kept as text (see ``keys``); ``None`` stands for "there is none". A tombstone is a row
whose current value is None, and a row whose previous value is None did not exist before; a stored
JSON null is the text ``null`` and neither of these.

**Void attempts.** The attempt that raised a fence may have failed, and in the replay that was
recorded no task of the component may have opened the store: then the store does not know that the
writes of the failed attempt do not count. ZooKeeper remembers the last *recorded* attempt that
opened the store (:data:`Recorded`). Writes of a component after that attempt, in a transaction that
is over, are void: they are taken back when the component opens the store again, and until then
every other component sees the values before.

A transactional store is no exception, although a replay there has the same batch and opens the same
stores. A replay opens other stores only if the code decided otherwise, or was changed between two
runs. The effect of a transaction is the effect of its recorded attempt (R28). To keep the writes of
the failed attempt would keep half of an attempt, which is the effect of no attempt at all.

Invariants:
    - ``Row.steps`` is never empty; its last entry is the current value.
    - ``Row.prev_txid < Row.stamp.txid``: the row as it was before the transaction of its stamp is
      always of an earlier one.
    - All void rows of a component are of the transaction of its fence: a fence that is not recorded
      is never raised beyond its transaction without taking them back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

from txtopo.topology import kept, transaction

Fence = kept.Fence
UNKNOWN_ATTEMPT, CLOSED_ATTEMPT = kept.UNKNOWN_ATTEMPT, kept.CLOSED_ATTEMPT

KEPT = -1
"""Instead of a row's ``prev_txid``: the transaction of the stored row, which was not read."""


Kind = Literal["plain", "transactional", "opaque"]
"""The kind of a value. Transactional and opaque values know the value before their transaction
(R30). Of a plain value only the last write is kept: a plain value can be set and deleted, but not
be updated, nor taken back."""

Recorded = Mapping[str, transaction.TransactionAttempt]
"""Of one store, by component: the last recorded attempt that opened it, with the number of its
store transactions if that is known (R34). A component without an entry has never opened the store.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """Writer and attempt of a row."""

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

    @property
    def position(self) -> str:
        """Transaction and attempt as an error names them."""
        return kept.position(self.txid, self.attempt)


@dataclasses.dataclass(slots=True)
class Row:
    """One stamped value. Owned and changed by a single store transaction."""

    key: str
    """The key's text."""
    stamp: Stamp
    prev: str | None
    """The value before the transaction of ``stamp``."""
    prev_txid: int
    """The transaction that made ``prev``; 0 if none of this generation did. :data:`KEPT` if only
    the database knows: the stored row has ``prev`` as its value, and no other column was read (see
    ``sessions``)."""
    steps: list[str | None]
    """The value after each update in the transaction of ``stamp``, in order; composed updates are
    told apart by them (R32)."""

    @property
    def curr(self) -> str | None:
        """The current value."""
        return self.steps[-1]


FenceStanding = Literal[
    "absent",
    "other generation",
    "above",
    "equal",
    "behind",
    "replayed",
    "incomplete",
    "overfull",
    "recorded",
    "void",
    "unexplained",
]
"""How a fence stands to an attempt that wants to write. Apart from absent, other generation, above
(the attempt is late) and equal, it is below the attempt: behind (the store once stood higher, it is
an older copy) · replayed (of an earlier attempt of the same transaction) · incomplete (of the
recorded attempt, but store transactions of it are missing) · overfull (the same, but there are more
than were recorded) · recorded (of a transaction that is over, by the attempt that counts, or
adopted) · void (of a transaction that is over, by an attempt that does not count) · unexplained
(above the recorded attempt, of the same transaction: the state is older than the store)."""

Standing = Literal["past", "mine", "undone", "rival", "ahead", "foreign"]
"""How a row stands to a writer: past (an earlier transaction's, or none) · mine (this writer's,
this transaction) · undone (of an earlier attempt of this opaque transaction, or of a void one) ·
rival (another writer's, this transaction) · ahead (of a newer attempt, or settled in this
transaction: the writer is late) · foreign (another topology's)."""


def fence_standing(fence: Fence | None, own: Stamp, recorded: Recorded | None) -> FenceStanding:
    """How ``fence`` stands to the attempt that wants to write (R27, R29, R31); ``recorded`` is None
    where no record is kept."""
    if fence is None:
        return "absent"
    if fence.generation != own.generation:
        return "other generation"
    at, here = (fence.txid, fence.attempt), (own.txid, own.attempt)
    if at >= here:
        return "equal" if at == here else "above"
    last = None if recorded is None else recorded.get(own.component)
    if last is not None and at < (last.txid, last.attempt_id):
        return "behind"
    if fence.txid == own.txid:
        return "replayed"
    if last is not None and at == (last.txid, last.attempt_id):
        return _completeness(fence, last)
    if recorded is None or fence.attempt == CLOSED_ATTEMPT:
        return "recorded"
    return "unexplained" if last is not None and last.txid == fence.txid else "void"


def _completeness(
    fence: Fence, last: transaction.TransactionAttempt
) -> Literal["incomplete", "overfull", "recorded"]:
    """Whether a store whose fence is of the recorded attempt ``last`` holds all of that attempt
    (R34)."""
    count = transaction.count_of(last)
    if count is None or fence.count is None or fence.count == count:
        return "recorded"
    return "incomplete" if fence.count < count else "overfull"


def overtaking(fences: Iterable[Fence], own: Stamp) -> Fence | None:
    """The highest of the topology's ``fences`` that stands above ``own``, whose attempt is then
    over; None if no fence says so.

    A fence is of one component, but attempts are of the whole topology: a newer one of any
    component begins when the older one has ended.
    """
    above = [
        fence
        for fence in fences
        if fence.generation == own.generation
        and (fence.txid, fence.attempt) > (own.txid, own.attempt)
    ]
    return max(above, key=lambda fence: (fence.txid, fence.attempt), default=None)


def is_void(stamp: Stamp, own: Stamp, recorded: Recorded | None) -> bool:
    """Whether ``stamp`` is of an attempt that does not count, at a transaction that was over when
    ``own`` began.

    The txid tells: up to the transaction of the component's last recorded attempt, void writes have
    been taken back.
    """
    if (
        recorded is None
        or stamp.attempt == UNKNOWN_ATTEMPT
        or stamp.generation != own.generation
        or stamp.txid >= own.txid
    ):
        return False
    last = recorded.get(stamp.component)
    return last is None or stamp.txid > last.txid


def settled_txid(own: Stamp, recorded: Recorded | None) -> int:
    """The last transaction whose rows by the component of ``own`` are settled: later rows are void,
    or the writer's own."""
    if recorded is None:
        return own.txid - 1
    last = recorded.get(own.component)
    return min(own.txid - 1, 0 if last is None else last.txid)


def standing(row: Row | None, own: Stamp, opaque: bool, recorded: Recorded | None) -> Standing:
    """How ``row`` stands to the writer ``own`` (R30, R31, R32).

    A stamp of another generation is past, without regard to its txid: two generations meet only in
    an adopted store, and all values of an adopted store are settled.
    """
    if row is None:
        return "past"
    stamp = row.stamp
    if stamp.topology_id != own.topology_id:
        return "foreign"
    if stamp.generation != own.generation or stamp.txid < own.txid:
        return "undone" if is_void(stamp, own, recorded) else "past"
    if stamp.txid > own.txid:
        return "ahead"
    # Only a later transaction takes back to a value of this transaction; and an adopted value is of
    # a transaction that is over.
    if stamp.attempt > own.attempt or stamp.attempt == UNKNOWN_ATTEMPT:
        return "ahead"
    if opaque and stamp.attempt < own.attempt:
        return "undone"
    return "mine" if (stamp.component, stamp.task) == (own.component, own.task) else "rival"


def plain_standing(row: Row | None, own: Stamp) -> Standing:
    """How a row of a plain store stands to the writer ``own``: past if it may be overwritten (R29,
    R32).

    A write of an earlier attempt of this transaction is overwritten like any other write. Two
    writers are told apart only within an attempt: the writer of a key in a failed attempt may
    differ from its writer in the next attempt.
    """
    if row is None:
        return "past"
    stamp = row.stamp
    if stamp.topology_id != own.topology_id:
        return "foreign"
    if stamp.generation != own.generation or stamp.txid < own.txid:
        return "past"
    if stamp.txid > own.txid or stamp.attempt > own.attempt or stamp.attempt == UNKNOWN_ATTEMPT:
        return "ahead"
    is_another = (stamp.component, stamp.task) != (own.component, own.task)
    return "rival" if stamp.attempt == own.attempt and is_another else "past"


def seen(row: Row | None, where: Standing, step: int) -> str | None:
    """The value a writer sees that has made ``step`` updates to it: as it was before the
    transaction, plus its own updates.

    So a replay reads the values that the first application read, and no task reads writes of
    another task in the same transaction.
    """
    if row is None:
        return None
    if where == "mine" and step > 0:
        return row.steps[step - 1]
    return row.prev if where in ("mine", "undone", "rival") else row.curr


def advanced(row: Row | None, key: str, where: Standing, own: Stamp, curr: str | None) -> Row:
    """The row after one more update by ``own``; ``row`` itself if the row is of this transaction."""
    if row is None:
        return Row(key, own, prev=None, prev_txid=0, steps=[curr])
    if where == "mine":
        row.stamp = own
        row.steps.append(curr)
        return row
    if where == "undone":
        return Row(key, own, row.prev, row.prev_txid, [curr])
    if row.prev_txid == KEPT:
        row.stamp, row.prev, row.steps = own, row.steps[-1], [curr]
        return row
    same_generation = row.stamp.generation == own.generation
    return Row(key, own, row.curr, row.stamp.txid if same_generation else 0, [curr])
