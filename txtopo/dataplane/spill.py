"""A buffer of byte strings that goes to local disk beyond a bound, so that a batch larger than memory is slow instead of fatal."""

from __future__ import annotations

import tempfile
from typing import IO

Handle = bytes | tuple[int, int]
"""The bytes themselves while in memory, else (offset, length) in the file."""


class SpillBuffer:
    """Append byte strings, read them back by handle in any order.

    Invariants: at most ``bound`` bytes are in memory; the file has no name, so it vanishes with the process.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._end = 0

    @property
    def spilled_bytes(self) -> int:
        """How many bytes went to disk."""
        return self._end

    def append(self, data: bytes) -> Handle:
        """Keep ``data``; returns what :meth:`read` wants."""
        if self._in_memory + len(data) <= self._bound:
            self._in_memory += len(data)
            return data
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="txtopo-spill-")  # noqa: SIM115 - closed by close()
        self._file.seek(self._end)
        self._file.write(data)
        handle = (self._end, len(data))
        self._end += len(data)
        return handle

    def read(self, handle: Handle) -> bytes:
        """The bytes behind ``handle``."""
        if isinstance(handle, bytes):
            return handle
        assert self._file is not None
        self._file.seek(handle[0])
        return self._file.read(handle[1])

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()
            self._file = None
