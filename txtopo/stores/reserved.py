"""Rows beside the values in a store transaction, for an export queue: their keys begin with ``~``,
which no value's key does.

The rows are committed, replayed and taken back with the values, by the same fence and the same
steps. Their values are texts that no codec touches. Runs on executors: standard library only.

Invariants:
    - All writers have written before the transaction's last rows go to the database.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo.stores import sessions, stamps
from txtopo.stores.steps import Steps


class Reserved:
    """The reserved rows of one open store transaction.

    ``number`` is the transaction's number in its task and attempt, from 1 on, and ``opened_at`` the
    time at which the topology's transaction was opened (R36).
    """

    def __init__(
        self,
        session: sessions.Session,
        steps: Steps,
        address: str,
        number: int,
        opened_at: datetime.datetime,
    ) -> None:
        self._session, self._steps = session, steps
        self.address, self.number, self.opened_at = address, number, opened_at
        self.writers: dict[str, Any] = {}
        """By name. Each collects rows, and its ``write()`` is called when the block has ended."""

    @property
    def stamp(self) -> stamps.Stamp:
        return self._steps.stamp

    def read(self, texts: Sequence[str]) -> dict[str, str | None]:
        """The values of rows that other programs write. This transaction must not write them."""
        with self._steps.all_or_nothing():
            return {text: row.curr for text, row in self._session.read_rows(texts).items()}

    def value(self, text: str) -> str | None:
        """The value that this task sees."""
        self.load([text])
        return self._steps.text_before(text)

    def put(self, new: Mapping[str, str]) -> None:
        """Set each key to its value. On replay the first application's value stays (R28)."""
        self.load(list(new))
        with self._steps.all_or_nothing():
            for text, value in new.items():
                self._steps.put(text, value)

    def load(self, texts: Sequence[str]) -> None:
        """Read rows, before some of them are asked for or set."""
        steps = self._steps
        missing = [text for text in texts if text not in steps.rows]
        if missing:
            with steps.all_or_nothing():
                rows = self._session.read_rows_to_change(missing, steps.stamp, steps.settled_txid)
            steps.rows.update((text, rows.get(text)) for text in missing)

    def finish(self) -> None:
        """Let every writer write."""
        for writer in self.writers.values():
            writer.write()
