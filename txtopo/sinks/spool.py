"""Rows on their way to a database: few rows stay in memory, more rows go to a temporary file.

Spark computes a stream's rows one by one, and a database transaction must not stay open meanwhile.
So the sink collects all rows before the database transaction begins.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any

MEMORY_BYTES_MAX = 64 << 20
"""Pickled rows beyond this size go to a file in the directory for temporary files."""

PORTION_ROWS = 10_000
"""Number of rows that are pickled at once."""


class Spool(Collection[Sequence[Any]]):
    """Rows for repeated iteration. ``close`` the spool."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)  # noqa: SIM115 - lives as long as this object, and ends with close()
        self._last: list[Sequence[Any]] = []
        self._written = 0

    def append(self, row: Sequence[Any]) -> None:
        self._last.append(row)
        if len(self._last) == PORTION_ROWS:
            self._file.seek(0, 2)
            pickle.dump(self._last, self._file, pickle.HIGHEST_PROTOCOL)
            self._written += len(self._last)
            self._last = []

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._written + len(self._last)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        self._file.seek(0)
        for _ in range(self._written // PORTION_ROWS):
            yield from pickle.load(self._file)
        yield from self._last

    def __contains__(self, row: object) -> bool:
        return any(each == row for each in self)
