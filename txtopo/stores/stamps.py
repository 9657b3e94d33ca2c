"""A store's rules for a fence and for a stamped value, without any database.

These few comparisons decide exactly-once. The functions are pure, know no database and no topology,
and serve every backend.

A value is kept as text (see ``keys``). ``None`` stands for "there is none". A tombstone is a row
whose current value is None. A row whose previous value is None did not exist before. A stored JSON
null is the text ``null``, and so neither.

**Void attempts.** The attempt that raised a fence may have failed, and in the recorded replay
perhaps no task of the component opened the store. Then the store does not know that the failed
attempt's writes do not count. ZooKeeper remembers the last *recorded* attempt that opened the store
(:data:`Recorded`). A component's writes after that attempt, in a transaction that is over, are
void. Void writes are taken back when the component opens the store again. Until then every other
component sees the values before.

The rule holds for a transactional store too, although a replay there has the same batch and opens
the same stores. A replay opens different stores only if the code decided otherwise, or was changed
between two runs. A transaction has the effect of its recorded attempt (R28). Keeping the failed
attempt's writes would keep half an attempt, which is no attempt's effect at all.

Invariants:
    - ``Row.steps`` is never empty. Its last entry is the current value.
    - ``Row.prev_txid < Row.stamp.txid``: an earlier transaction made the row as it was before its
      stamp's transaction.
    - A component's void rows all come from its fence's transaction: a fence that is not recorded is
      never raised beyond its transaction without taking the rows back.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Literal

from txtopo.topology import context as contexts
from txtopo.topology import kept, transaction

Fence = kept.Fence
UNKNOWN_ATTEMPT, CLOSED_ATTEMPT = kept.UNKNOWN_ATTEMPT, kept.CLOSED_ATTEMPT

KEPT = -1
"""In place of a row's ``prev_txid``: the stored row's transaction, which was not read."""


Kind = Literal["plain", "transactional", "opaque"]
"""A value's kind. Transactional and opaque values know the value before their transaction (R30). A
plain value keeps only the last write: it can be set and deleted, but neither updated nor taken
back."""

Recorded = Mapping[str, transaction.TransactionAttempt]
"""For one store, by component: the last recorded attempt that opened the store, with its number of
store transactions if known (R34). A component without an entry has never opened the store."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """A row's writer and attempt."""

    topology_id: str
    generation: str
    component: str
    task: int
    txid: int
    attempt: int

    @classmethod
    def of(
        cls, context: contexts.TopologyContext, attempt: transaction.TransactionAttempt
    ) -> Stamp:
        """The stamp for the task in ``context``, in ``attempt``."""
        return cls(
            context.topology_id,
            context.generation,
            context.component_id,
            context.task_index,
            attempt.txid,
            attempt.attempt_id,
        )

    @property
    def writer(self) -> str:
        """The writer, for errors."""
        return f"component {self.component!r} task {self.task} of topology {self.topology_id!r}"

    @property
    def position(self) -> str:
        """Transaction and attempt, for errors."""
        return kept.position(self.txid, self.attempt)


parts_of = operator.attrgetter("topology_id", "generation", "component", "task", "txid", "attempt")
"""The fields of a stamp, in order."""


@dataclasses.dataclass(slots=True)
class Row:
    """A stamped value. A single store transaction owns and changes the object."""

    key: str
    """The key's text."""
    stamp: Stamp
    prev: str | None
    """The value before the stamp's transaction."""
    prev_txid: int
    """The transaction that made ``prev``, 0 if no transaction in this generation did. :data:`KEPT`
    if only the database knows: the stored row has ``prev`` as its value, and its other columns were
    not read (see ``sessions``)."""
    steps: list[str | None]
    """The value after each update in the stamp's transaction, in order. Repeated updates are told
    apart by their steps (R32)."""

    @property
    def curr(self) -> str | None:
        """The current value."""
        return self.steps[-1]

    def taken_back(self) -> Row | None:
        """The row as it was before its stamp's transaction, None if there was none (R31)."""
        if self.prev is None:
            return None
        stamp = dataclasses.replace(self.stamp, txid=self.prev_txid, attempt=UNKNOWN_ATTEMPT)
        return Row(self.key, stamp, prev=None, prev_txid=0, steps=[self.prev])


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
"""How a fence stands to an attempt that wants to write. Absent, other generation, above (the
attempt is late) and equal aside, the fence is below the attempt: behind (the store once stood
higher, and is an older copy) · replayed (from an earlier attempt at the same transaction) ·
incomplete (from the recorded attempt, but store transactions are missing) · overfull (from the
recorded attempt, but with more store transactions than recorded) · recorded (from a transaction
that is over, by the attempt that counts, or adopted) · void (from a transaction that is over, by an
attempt that does not count) · unexplained (above the recorded attempt, in the same transaction: the
state is older than the store)."""

Standing = Literal["past", "mine", "undone", "rival", "ahead", "foreign"]
"""How a row stands to a writer: past (from an earlier transaction, or no row) · mine (by this
writer, in this transaction) · undone (by an earlier attempt at this opaque transaction, or by a
void attempt) · rival (by another writer, in this transaction) · ahead (by a newer attempt, or
settled in this transaction: the writer is late) · foreign (by another topology)."""


def fence_standing(fence: Fence | None, own: Stamp, recorded: Recorded | None) -> FenceStanding:
    """How ``fence`` stands to the attempt that wants to write (R27, R29, R31). ``recorded`` is None
    if no record is kept."""
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
    """Whether a store whose fence names the recorded attempt ``last`` holds the whole attempt
    (R34)."""
    count = transaction.count_of(last)
    if count is None or fence.count is None or fence.count == count:
        return "recorded"
    return "incomplete" if fence.count < count else "overfull"


def overtaking(fences: Iterable[Fence], own: Stamp) -> Fence | None:
    """The topology's highest fence above ``own``, whose attempt is then over. None if there is no
    such fence.

    A fence belongs to a component, but attempts belong to the whole topology: in any component, a
    newer attempt begins when the older attempt has ended.
    """
    above = [
        fence
        for fence in fences
        if fence.generation == own.generation
        and (fence.txid, fence.attempt) > (own.txid, own.attempt)
    ]
    return max(above, key=lambda fence: (fence.txid, fence.attempt), default=None)


def is_void(stamp: Stamp, own: Stamp, recorded: Recorded | None) -> bool:
    """Whether ``stamp`` names an attempt that does not count, in a transaction that was over when
    ``own`` began.

    The txid tells: void writes have been taken back up to the component's last recorded attempt.
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


def is_undone_by(stamp: Stamp, void: Fence) -> bool:
    """Whether ``stamp`` names the attempt in ``void``, or an earlier attempt at the same
    transaction (R31)."""
    same = (stamp.topology_id, stamp.component, stamp.generation, stamp.txid) == (
        void.topology_id,
        void.component,
        void.generation,
        void.txid,
    )
    return same and UNKNOWN_ATTEMPT != stamp.attempt <= void.attempt


def is_swept(row: Row, own: Stamp) -> bool:
    """Whether ``row`` is a tombstone of the component in ``own`` that no task needs any more."""
    stamp = row.stamp
    is_ours = (stamp.topology_id, stamp.component) == (own.topology_id, own.component)
    is_over = stamp.txid < own.txid or stamp.generation != own.generation
    return row.curr is None and is_ours and is_over


def settled_txid(own: Stamp, recorded: Recorded | None) -> int:
    """The last transaction with settled rows, for the component in ``own``. Later rows are void, or
    the writer's own."""
    if recorded is None:
        return own.txid - 1
    last = recorded.get(own.component)
    return min(own.txid - 1, 0 if last is None else last.txid)


def standing(row: Row | None, own: Stamp, opaque: bool, recorded: Recorded | None) -> Standing:
    """How ``row`` stands to the writer ``own`` (R30, R31, R32).

    A stamp with a different generation is past, even with a higher txid: two generations meet only
    in an adopted store, whose values are all settled.
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
    # Only a later transaction takes a row back to a value of this transaction. An adopted value's
    # transaction is over.
    if stamp.attempt > own.attempt or stamp.attempt == UNKNOWN_ATTEMPT:
        return "ahead"
    if opaque and stamp.attempt < own.attempt:
        return "undone"
    return "mine" if (stamp.component, stamp.task) == (own.component, own.task) else "rival"


def plain_standing(row: Row | None, own: Stamp) -> Standing:
    """How a plain store's row stands to the writer ``own``: past if the row may be overwritten
    (R29, R32).

    A write by an earlier attempt at this transaction is overwritten like any other write. Two
    writers are told apart only within an attempt: the next attempt may have a different writer for
    the key.
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


def text_for_writer(row: Row | None, where: Standing, step: int) -> str | None:
    """The text that a writer sees after ``step`` own updates: the value before the transaction,
    plus the writer's updates.

    So a replay reads the same values as the first application, and no task reads another task's
    writes in the same transaction.
    """
    if row is None:
        return None
    if where == "mine" and step > 0:
        return row.steps[step - 1]
    return row.prev if where in ("mine", "undone", "rival") else row.curr


def advanced(row: Row | None, key: str, where: Standing, own: Stamp, curr: str | None) -> Row:
    """The row after one more update by ``own``: a new row, or ``row`` itself, changed."""
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
