"""Rows on their way to a database: in memory while they are few, in a temporary file beyond that.

Apart from the sink because a stream's rows come one by one, and are all needed before its database
transaction begins: a transaction must not stay open while Spark computes.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, overload

MEMORY_BYTES_MAX = 64 << 20
"""Of pickled rows; more of them go to a file in the directory for temporary files."""

PORTION_ROWS = 10_000
"""How many rows are pickled at once."""


class Spool(Sequence[Sequence[Any]]):
    """Rows that can be gone through repeatedly. ``close`` it."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)  # noqa: SIM115 - lives as long as this object, and ends with close()
        self._last: list[Sequence[Any]] = []
        self._written = 0

    def append(self, row: Sequence[Any]) -> None:
        """One more row."""
        self._last.append(row)
        if len(self._last) == PORTION_ROWS:
            self._file.seek(0, 2)
            pickle.dump(self._last, self._file, pickle.HIGHEST_PROTOCOL)
            self._written += len(self._last)
            self._last = []

    def close(self) -> None:
        """Forget the rows."""
        self._file.close()

    def __len__(self) -> int:
        return self._written + len(self._last)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        self._file.seek(0)
        for _ in range(self._written // PORTION_ROWS):
            yield from pickle.load(self._file)
        yield from self._last

    @overload
    def __getitem__(self, index: int) -> Sequence[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[Any]]: ...
    def __getitem__(self, index: Any) -> Any:
        raise TypeError("rows are gone through, from the first to the last")
