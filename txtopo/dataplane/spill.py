"""A buffer for byte strings, on local disk beyond a bound: a batch larger than memory is slow
instead of fatal."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO

from txtopo import errors

Handle = bytes | tuple[int, int]
"""The bytes while they are in memory, otherwise (offset, length) in the file."""


def directory() -> str:
    """The directory for spilled bytes: Spark's first local directory. Without Spark, the directory
    for temporary files."""
    # Spark tells its Python workers these directories. The usual /tmp may be small, or be memory.
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()


class SpillBuffer:
    """Appends byte strings, and reads them back by handle, in any order.

    Invariants: at most ``bound`` bytes are in memory. The file has no name, so the file vanishes
    with the process, however the process ends.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._end = 0

    def append(self, data: bytes) -> Handle:
        """Keep ``data``. Returns a handle for :meth:`read`. :class:`txtopo.errors.LocalDiskError`
        if the disk does not take the data."""
        if self._in_memory + len(data) <= self._bound:
            self._in_memory += len(data)
            return data
        with _on_disk():
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115
                    prefix="txtopo-spill-", dir=directory(), buffering=0
                )
            left = memoryview(data)
            while left:
                left = left[
                    os.pwrite(self._file.fileno(), left, self._end + len(data) - len(left)) :
                ]
        handle = (self._end, len(data))
        self._end += len(data)
        return handle

    def read(self, handle: Handle) -> bytes:
        if isinstance(handle, bytes):
            return handle
        assert self._file is not None
        with _on_disk():
            data = os.pread(self._file.fileno(), handle[1], handle[0])
            if len(data) != handle[1]:
                raise OSError(f"of {handle[1]} bytes {len(data)} are there")
        return data

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()
            self._file = None


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.LocalDiskError(directory(), str(error)) from error
