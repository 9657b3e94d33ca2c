"""The two kinds of database transaction that the rules of stores need: a :class:`Session` for a
task, and :class:`Maintenance` for ``Store.adopt`` and ``Store.clear``.

Apart from ``base`` and ``transaction``, which ask, and from ``steps``, which has the rules: a
backend implements these two classes, and knows no rule. Runs on executors: standard library only.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence

from txtopo.stores import stamps
from txtopo.topology import merge


class RowsChangedError(Exception):
    """Rows were changed by another transaction between reading and writing. Raised by a
    :class:`Session`, and judged in ``steps``."""

    def __init__(self, rows: Mapping[str, stamps.Row | None]) -> None:
        super().__init__(rows)
        self.found = rows
        """The rows of the other transaction by key; None for a removed row."""


class Maintenance(abc.ABC):
    """One open database transaction that adopts or clears a store, while no task writes to it."""

    @abc.abstractmethod
    def write_fence(self, fence: stamps.Fence) -> None:
        """Make or replace the fence, without any count."""

    @abc.abstractmethod
    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        """Give the rows of the component the stamp ``stamp`` as settled values; return their
        number.

        Each row keeps its task and its value, and forgets the value before. The counts and the
        lists of the component are removed, because the number of an attempt may come again."""

    @abc.abstractmethod
    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        """Remove the rows, fences, counts and lists of a component, or of the whole topology;
        return the number of rows and the number of fences."""


class Session(abc.ABC):
    """One open database transaction of a task: all that the rules need of a database.

    A backend that finds the rows of a failed attempt by a list of keys calls :meth:`note` with the
    keys of the rows that the backend writes, keeps :attr:`written` in :meth:`apply`, and sets
    :attr:`is_listed` in :meth:`read_fence`. The rule when to list is here, once.
    """

    def __init__(self, lists: bool = False) -> None:
        self.lists = lists
        """Whether the store lists the keys that its attempts write: True for opaque stores."""
        self.is_listed = False
        """Whether the attempt of the fence, as :meth:`read_fence` saw the fence, lists its keys."""
        self.has_raised = False
        """Whether this transaction has raised the fence. Set by the rules."""
        self.written: list[str] = []
        """Keys to be listed when this transaction is applied."""

    def note(self, texts: Iterable[str]) -> None:
        """Remember written keys, if the attempt of the fence lists them.

        An attempt lists all of its keys, even if some of its tasks opened the store as
        transactional: a list with gaps would leave writes of a failed attempt behind (R31).
        """
        if self.lists or (self.is_listed and not self.has_raised):
            self.written.extend(texts)

    @abc.abstractmethod
    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        """The fence with its count, under a lock that until the end of this transaction lets no
        other attempt raise it."""

    @abc.abstractmethod
    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        """The fences of all components of a topology, without a lock; asked only where something is
        wrong."""

    @abc.abstractmethod
    def write_fence(self, fence: stamps.Fence) -> None:
        """Make or replace the fence; no store transaction of its attempt is counted yet."""

    @abc.abstractmethod
    def count(self, stamp: stamps.Stamp, number: int) -> None:
        """Count this transaction for the fence, which is the fence of ``stamp`` (R34). ``number``
        is the number of the transaction within the task and attempt, from 1 on. Add one to the
        count of the task, unless the count has reached ``number``: then the task runs again in its
        attempt. Never add more than one: a copy of the database may lack earlier transactions of
        the task. :attr:`stamps.Fence.count` is the sum over all tasks. Each task has a count of its
        own, so that two tasks of an attempt do not wait for each other here."""

    is_alone = False
    """Whether the transaction is of its component's only task: the fence itself may then count,
    since no other task has to count there."""

    is_counted = True
    """Whether the transaction was counted when it committed. A transaction without writes need not
    be counted."""

    @abc.abstractmethod
    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """The rows of these keys, tombstones too; absent keys are left out."""

    def read_rows_to_write(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """As :meth:`read_rows`, of keys that will be written; a database may lock the rows here
        against changes by other transactions.

        :raises RowsChangedError: another writer of these keys got in the way.
        """
        return self.read_rows(texts)

    merges_midway = True
    """Whether :meth:`merge_rows` may be followed by more reading and writing, or is the last act
    before :meth:`apply`."""

    def merge_rows(
        self, deltas: Mapping[str, int], how: merge.Merge, stamp: stamps.Stamp, settled_txid: int
    ) -> Collection[str]:
        """Combine ``deltas``, by key, with the rows that are there, without reading these first;
        the result is the row that the rules would make of an *ordinary* row.

        A row is ordinary if there is none, which then is the delta; or if it was written in the
        same topology, generation and component by transaction ``settled_txid`` or an earlier one,
        and its value is an integer as JSON has it, of fewer than 16 digits: then its value becomes
        the value before this transaction. No key was read or written in this transaction before.
        Integers have fewer than 16 digits.

        Returns the keys whose rows are not ordinary, or are not known to be; these rows are
        unchanged, and the rules combine them.

        :raises RowsChangedError: as :meth:`write_rows`.
        """
        return deltas

    def read_rows_to_change(
        self, texts: Sequence[str], stamp: stamps.Stamp, settled_txid: int
    ) -> dict[str, stamps.Row]:
        """As :meth:`read_rows_to_write`, but a database may read only the value of a row whose last
        writer is of the same topology, generation and component, and whose txid is at most
        ``settled_txid``. When the row is written, the database must then make the stored value the
        value before this transaction. The ``prev_txid`` of such a row is :data:`stamps.KEPT`, and
        its stamp a placeholder. Not for plain stores.

        :raises RowsChangedError: as :meth:`read_rows_to_write`.
        """
        return self.read_rows_to_write(texts)

    @abc.abstractmethod
    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        """Make or replace these rows, all of which were looked for with :meth:`read_rows_to_write`.

        :raises RowsChangedError: not all are as they were read. Cannot happen where no other
            transaction can write meanwhile.
        """

    def apply(self) -> None:
        """Called after the last :meth:`write_rows`: a database that takes all rows of a transaction
        in one step takes them now.

        :raises RowsChangedError: as :meth:`write_rows`.
        """

    @abc.abstractmethod
    def take_back(self, void: stamps.Fence) -> None:
        """Restore every row of the component and transaction of ``void`` that its attempt, or an
        earlier one, wrote; remove rows that did not exist before (R31)."""

    @abc.abstractmethod
    def sweep(self, stamp: stamps.Stamp) -> None:
        """Remove the component's tombstones of earlier transactions: committed tombstones are never
        read again. Tombstones of another component may be void."""
