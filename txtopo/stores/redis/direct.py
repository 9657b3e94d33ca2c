"""Gives direct access to a store's rows in Redis: ranges are read by one script, and rows are
exchanged by the script that applies a task's writes.

Standard library only.

Invariants:
    - The server compares each row's whole text, so no writer comes between comparing and writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txtopo.stores import direct, stamps
from txtopo.stores import place as places


class Direct(direct.Direct):
    """Direct access to ``store`` over ``connection``, which is this object's own."""

    def __init__(self, store: places.Place, connection: Any, accept_loss: bool) -> None:
        self._store, self._connection, self._accept_loss = store, connection, accept_loss

    def read_ranges(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        rows: list[list[stamps.Row]] = self._connection.read(
            self._store, lambda reader: reader.first_rows(ranges, limit)
        )
        return rows

    def _exchange(self, change: direct.Change) -> bool:
        if not self._connection.read(self._store, lambda reader: reader.exists):
            raise direct.missing(self._store.address)
        stamp = change.rows[0].stamp if change.rows else direct.NO_WRITER
        session = self._connection.open(self._store, stamp, self._accept_loss)
        return bool(session.exchange(change))

    def close(self) -> None:
        self._connection.close()
