"""Gives direct access to a store's rows in a database server: one statement reads all ranges, and
one transaction compares and exchanges rows.

Standard library only.

Invariants:
    - Reading locks no row, and an exchange locks only rows with its own keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txtopo.stores import direct, stamps
from txtopo.stores import place as places


class Direct(direct.Direct):
    """Direct access to ``store`` over ``connection``, which is this object's own."""

    def __init__(self, store: places.Place, connection: Any) -> None:
        self._store, self._connection = store, connection

    def read_ranges(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        with self._connection.direct(self._store) as session:
            return [[] for _ in ranges] if session is None else session.first_rows(ranges, limit)

    def _exchange(self, change: direct.Change) -> bool:
        with self._connection.direct(self._store) as session:
            if session is None:
                raise direct.missing(self._store.address)
            return bool(session.exchange(change))

    def close(self) -> None:
        self._connection.close()
