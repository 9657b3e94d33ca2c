"""The two database transactions that the rules for stores need: a :class:`Session` for a task, and
:class:`Maintenance` for ``Store.adopt`` and ``Store.clear``.

A backend implements these two classes, and knows no rule. The rules are in ``steps``. Runs on
executors: standard library only.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence

from txtopo.stores import stamps
from txtopo.topology import merge


class RowsChangedError(Exception):
    """Another transaction changed rows between reading and writing. Raised by a :class:`Session`,
    and judged in ``steps``."""

    def __init__(self, rows: Mapping[str, stamps.Row | None]) -> None:
        super().__init__(rows)
        self.found = rows
        """The other transaction's rows by key. None for a removed row."""


class Maintenance(abc.ABC):
    """One open database transaction that adopts or clears a store, while no task writes to it."""

    @abc.abstractmethod
    def write_fence(self, fence: stamps.Fence) -> None:
        """Make or replace the fence, without any count."""

    @abc.abstractmethod
    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        """Give the component's rows the stamp ``stamp`` as settled values. Returns how many rows.

        Each row keeps its task and its value, and forgets the value before. The component's counts
        and lists are removed, because an attempt's number may come again.
        """

    @abc.abstractmethod
    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        """Remove rows, fences, counts and lists, for a component or for the whole topology. Returns
        how many rows and how many fences."""


class Session(abc.ABC):
    """A task's open database transaction, with all that the rules need from a database.

    A backend that finds a failed attempt's rows by a list of keys calls :meth:`note` with the keys
    that the backend writes, keeps :attr:`written` in :meth:`apply`, and sets :attr:`is_listed` in
    :meth:`read_fence`. The rule when to list is here, once.
    """

    def __init__(self, lists: bool = False) -> None:
        self.lists = lists
        """Whether the store lists the keys that its attempts write: True for opaque stores."""
        self.is_listed = False
        """Whether the fence's attempt lists its keys, as of :meth:`read_fence`."""
        self.has_raised = False
        """Whether this transaction has raised the fence. Set by the rules."""
        self.written: list[str] = []
        """Keys to list when this transaction is applied."""

    def note(self, texts: Iterable[str]) -> None:
        """Remember written keys, if the fence's attempt lists its keys.

        An attempt lists all its keys, even if some tasks opened the store as transactional: a list
        with gaps would leave a failed attempt's writes behind (R31).
        """
        if self.lists or (self.is_listed and not self.has_raised):
            self.written.extend(texts)

    @abc.abstractmethod
    def read_fence(self, topology_id: str, component: str) -> stamps.Fence | None:
        """The fence with its count, under a lock: until this transaction ends, no other attempt can
        raise the fence."""

    @abc.abstractmethod
    def read_fences(self, topology_id: str) -> list[stamps.Fence]:
        """The topology's fences for all components, without a lock. Asked only if something is
        wrong."""

    @abc.abstractmethod
    def write_fence(self, fence: stamps.Fence) -> None:
        """Make or replace the fence. No store transaction of the fence's attempt is counted yet."""

    @abc.abstractmethod
    def count(self, stamp: stamps.Stamp, number: int) -> None:
        """Count this transaction for the fence, which names ``stamp``'s attempt (R34).

        ``number`` is the transaction's number within the task and attempt, from 1 on. Add one to
        the task's count, unless the count has reached ``number``: then the task runs again in its
        attempt. Never add more than one: a copy of the database may lack the task's earlier
        transactions.

        :attr:`stamps.Fence.count` is the sum over all tasks. Each task has its own count, so that
        two tasks of an attempt do not wait for each other here.
        """

    is_alone = False
    """Whether the component has only this task. The fence itself may then hold the count, because
    no other task counts there."""

    is_counted = True
    """Whether the commit counted the transaction. A transaction without writes need not be counted."""

    @abc.abstractmethod
    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """The rows with these keys, tombstones too. Absent keys are left out."""

    def read_rows_to_write(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        """Like :meth:`read_rows`, for keys that will be written. A database may lock the rows here
        against changes by other transactions.

        :raises RowsChangedError: another writer got in the way.
        """
        return self.read_rows(texts)

    merges_midway = True
    """Whether more reading and writing may follow :meth:`merge_rows`. If not, :meth:`apply` follows
    at once."""

    def merge_rows(
        self, deltas: Mapping[str, int], how: merge.Merge, stamp: stamps.Stamp, settled_txid: int
    ) -> Collection[str]:
        """Combine ``deltas``, by key, with the stored rows, without reading the rows first. The
        result is the row that the rules would make from an *ordinary* row.

        A row is ordinary in two cases. First, there is no row: the new value is then the delta.
        Second, the row was written in the same topology, generation and component by transaction
        ``settled_txid`` or an earlier transaction, and its value is an integer as JSON has it, with
        fewer than 16 digits: this value becomes the value before the present transaction.

        The deltas have fewer than 16 digits, and this transaction has neither read nor written
        their keys before.

        Returns the keys whose rows are not ordinary, or are not known to be. Their rows are
        unchanged, and the rules combine them.

        :raises RowsChangedError: as :meth:`write_rows`.
        """
        return deltas

    def read_rows_to_change(
        self, texts: Sequence[str], stamp: stamps.Stamp, settled_txid: int
    ) -> dict[str, stamps.Row]:
        """Like :meth:`read_rows_to_write`, but a database may read only a row's value, if the last
        writer has the same topology, generation and component, and a txid up to ``settled_txid``.

        When the row is written, the database must make the stored value the value before this
        transaction. The row's ``prev_txid`` is :data:`stamps.KEPT`, and its stamp a placeholder.
        Not for plain stores.

        :raises RowsChangedError: as :meth:`read_rows_to_write`.
        """
        return self.read_rows_to_write(texts)

    @abc.abstractmethod
    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        """Make or replace these rows, all looked for with :meth:`read_rows_to_write` before.

        :raises RowsChangedError: a row is not as it was read. Cannot happen where no other
            transaction can write meanwhile.
        """

    def apply(self) -> None:
        """Called after the last :meth:`write_rows`. A database that takes a transaction's rows in
        one step takes them now.

        :raises RowsChangedError: as :meth:`write_rows`.
        """

    @abc.abstractmethod
    def take_back(self, void: stamps.Fence) -> None:
        """Restore every row that the attempt in ``void``, or an earlier attempt, wrote in the same
        component and transaction. Remove rows that did not exist before (R31)."""

    @abc.abstractmethod
    def sweep(self, stamp: stamps.Stamp) -> None:
        """Remove the component's tombstones from earlier transactions: committed tombstones are
        never read again. Another component's tombstones may be void."""
