"""Rows outside any task's transaction: ranges are read, and a few rows are compared and exchanged.

For programs that share a store with a topology and are none of its tasks, as exporters are. No fence
is asked, so such a program touches no key that tasks write. Standard library only.

Invariants:
    - An exchange changes all its rows or none, and only if every compared row is as expected.
    - Neither reading nor exchanging waits for a task's transaction on other rows in a server. In a
      file, writers take turns.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from txtopo import errors
from txtopo.stores import failures, sessions, stamps

NO_WRITER = stamps.Stamp("", "", "", 0, 0, 0)
"""In place of a task's stamp, for a transaction that belongs to no task."""


class Change(NamedTuple):
    """The arguments of :meth:`Direct.exchange`."""

    expected: Mapping[str, str | None]
    rows: Sequence[stamps.Row]
    removed: Collection[str]


class Direct(abc.ABC):
    """One connection to a store's rows. For one thread at a time; a context manager.

    Every method raises ``FailedException`` for what passes (busy, connection lost), and the store's
    other errors for what a person must mend. After an error the next call connects again. After an
    error in :meth:`exchange` the rows may be exchanged or not: read them.
    """

    @abc.abstractmethod
    def read_ranges(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        """For each range, its first committed rows by key, at most ``limit``: keys from the range's
        first text on, and below its second. Empty if the store does not exist."""

    def exchange(
        self,
        expected: Mapping[str, str | None],
        rows: Sequence[stamps.Row] = (),
        removed: Collection[str] = (),
    ) -> bool:
        """If each key in ``expected`` has this value (None: no row), write ``rows`` in place of
        what is there, remove the keys ``removed`` that are there, and return True. Otherwise change
        nothing, and return False. ``rows`` have one step each, and their keys are in ``expected``.

        A deleted key may still have a row, which no expected value fits. In a database server, a row
        that is expected to be absent, and is not among ``rows``, may be added before this returns.
        """
        try:
            return self._exchange(Change(expected, rows, removed))
        except sessions.RowsChangedError:
            return False

    @abc.abstractmethod
    def _exchange(self, change: Change) -> bool:
        """See :meth:`exchange`.

        :raises sessions.RowsChangedError: a row was changed meanwhile. Nothing is changed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def are_as_expected(rows: Mapping[str, stamps.Row], expected: Mapping[str, str | None]) -> bool:
    """Whether ``rows``, by key, have the expected values. A tombstone is a row without a value, so
    no expected value fits a tombstone."""
    return all(
        key not in rows if value is None else key in rows and rows[key].curr == value
        for key, value in expected.items()
    )


def missing(address: str) -> errors.FailedException:
    """The error for an exchange in a store that does not exist yet."""
    return failures.unreachable(address, "no task has written to it yet")
