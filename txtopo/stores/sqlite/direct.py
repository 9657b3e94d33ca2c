"""Gives direct access to a store's rows in an SQLite file. Reading waits for no writer.

Standard library only.

Invariants:
    - A missing file or store is not made.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence

from txtopo.stores import direct, stamps
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores.sqlite import connection as connections
from txtopo.stores.sqlite import errors as faults

_COLUMNS = ", ".join(layout.COLUMNS)


class Direct(direct.Direct):
    """Direct access to ``store``. ``exists`` asks whether the store exists, without making it."""

    def __init__(self, store: places.Place, exists: Callable[[], bool]) -> None:
        self._store, self._exists = store, exists
        # An exchange may be lost with the machine's power, unlike a task's commit, which takes
        # earlier exchanges to the disk with it.
        self._connection = connections.Connection(store.url, synchronous="NORMAL")

    def read_ranges(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        select = f'SELECT {_COLUMNS} FROM "{self._store.name}" WHERE key >= ? AND key < ? ORDER BY key LIMIT ?'
        with self._transaction("BEGIN") as raw:
            if raw is None:
                return [[] for _ in ranges]
            return [
                [layout.row_of(*columns) for columns in raw.execute(select, (*bounds, limit))]
                for bounds in ranges
            ]

    def _exchange(self, change: direct.Change) -> bool:
        with self._transaction("BEGIN IMMEDIATE") as raw:
            if raw is None:
                raise direct.missing(self._store.address)
            table, kept = self._store.name, dict[str, stamps.Row]()
            for key in change.expected:
                select = f'SELECT {_COLUMNS} FROM "{table}" WHERE key = ?'
                kept.update((key, layout.row_of(*row)) for row in raw.execute(select, [key]))
            if not direct.are_as_expected(kept, change.expected):
                return False
            marks = ", ".join("?" * len(layout.COLUMNS))
            raw.executemany(
                f'INSERT OR REPLACE INTO "{table}"({_COLUMNS}) VALUES ({marks})',
                map(layout.columns_of, change.rows),
            )
            raw.executemany(
                f'DELETE FROM "{table}" WHERE key = ?', ([key] for key in change.removed)
            )
            return True

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection | None]:
        """Opens a transaction by the statement ``begin``. Yields None if the store does not
        exist."""
        if not self._connection.is_ready(self._store) and not self._exists():
            yield None
            return
        try:
            with self._connection.transaction(self._store, begin) as raw:
                with faults.translating(self._store.url):
                    yield raw
        except BaseException:
            self.close()
            raise
