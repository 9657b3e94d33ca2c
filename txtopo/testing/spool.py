"""Rows in append-only files: a growing source that several processes on one machine share.

Every instance over the same directory sees the same rows, in every process and copy.

Invariants:
- Entry k in a partition's index says where the pickled row k ends. The entry is written after the
  row, so a reader never sees half a row.
- A row with an index entry never changes again.
- One writer at a time: a writer holds the directory's lock.
- A partition is disabled while the file ``<partition>.disabled`` is there. Its rows stay.
"""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import pathlib
import pickle
import shutil
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

from txtopo import errors
from txtopo.topology import pickling

_ENTRY_BYTES = 8


class RowSpool:
    """Numbered partitions with rows, kept in ``directory``."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @classmethod
    def create(cls) -> RowSpool:
        """A new, empty spool in a private temporary directory, which is removed when this process
        ends."""
        spool = cls(tempfile.mkdtemp(prefix="txtopo-memory-spout-"))
        atexit.register(_remove_as_owner, spool.directory, os.getpid())
        return spool

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def num_partitions(self) -> int:
        """One more than the largest partition ever appended to."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            raise self._removed_error() from None
        return max(
            (int(name.removesuffix(".index")) + 1 for name in names if name.endswith(".index")),
            default=0,
        )

    def count(self, partition: int) -> int:
        """How many rows ``partition`` has now, 0 if none was ever appended."""
        try:
            return os.stat(self._path(partition, "index")).st_size // _ENTRY_BYTES
        except FileNotFoundError:
            self._require_directory()
            return 0

    def append(self, partition: int, rows: Sequence[Sequence[Any]]) -> None:
        """Append copies of ``rows`` to ``partition``, which need not exist."""
        pickled = [_dumps(tuple(row)) for row in rows]
        try:
            lock = open(os.path.join(self.directory, "lock"), "ab")  # noqa: SIM115
        except FileNotFoundError:
            raise self._removed_error() from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write(partition, pickled)

    def _write(self, partition: int, pickled: list[bytes]) -> None:
        with (
            self._open_to_write(partition, "index") as index,
            self._open_to_write(partition, "rows") as data,
        ):
            # Readers read up to the last index entry. Bytes behind that come from a writer that died
            # half-way.
            count = os.fstat(index.fileno()).st_size // _ENTRY_BYTES
            end = 0
            if count:
                index.seek((count - 1) * _ENTRY_BYTES)
                (end,) = struct.unpack(">Q", index.read(_ENTRY_BYTES))
            data.seek(end)
            data.write(b"".join(pickled))
            data.flush()
            ends: list[int] = []
            for row in pickled:
                end += len(row)
                ends.append(end)
            index.seek(count * _ENTRY_BYTES)
            index.write(struct.pack(f">{len(ends)}Q", *ends))

    def set_disabled(self, partition: int, disabled: bool) -> None:
        """Disable ``partition``, which need not have rows yet, or enable it again, for every
        instance at once."""
        self._require_directory()
        mark = pathlib.Path(self._path(partition, "disabled"))
        if disabled:
            mark.touch(0o600)
        else:
            mark.unlink(missing_ok=True)

    def is_disabled(self, partition: int) -> bool:
        is_disabled = os.path.exists(self._path(partition, "disabled"))
        if not is_disabled:
            self._require_directory()
        return is_disabled

    def read(self, partition: int, index: int, amount: int) -> list[tuple[Any, ...]]:
        """Rows ``index … index + amount - 1`` of ``partition``.

        :raises InputError: some are missing.
        """
        count = self.count(partition)
        if count < index + amount:
            raise errors.InputError(
                f"memory spout: partition {partition} has {count} rows, but the batch was planned as rows {index} to {index + amount - 1}\n"
                "  Give the spout the rows it had in the earlier run, or start over with `txtopo state reset ID`."
            )
        if not amount:
            return []
        first = max(index - 1, 0)
        entries = index + amount - first
        index_part = self._bytes(partition, "index", first * _ENTRY_BYTES, entries * _ENTRY_BYTES)
        ends = struct.unpack(f">{entries}Q", index_part)
        bounds = ends if index else (0, *ends)
        data = memoryview(self._bytes(partition, "rows", bounds[0], bounds[-1] - bounds[0]))
        return [
            pickle.loads(data[start - bounds[0] : end - bounds[0]])
            for start, end in itertools.pairwise(bounds)
        ]

    def _bytes(self, partition: int, kind: str, begin: int, length: int) -> bytes:
        with open(self._path(partition, kind), "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, begin)

    def _path(self, partition: int, kind: str) -> str:
        return f"{self.directory}/{partition}.{kind}"

    def _open_to_write(self, partition: int, kind: str) -> Any:
        return os.fdopen(os.open(self._path(partition, kind), os.O_RDWR | os.O_CREAT, 0o600), "r+b")

    def _require_directory(self) -> None:
        if not os.path.isdir(self.directory):
            raise self._removed_error() from None

    def _removed_error(self) -> errors.InputError:
        return errors.InputError(
            f"memory spout: the rows are gone, no directory {self.directory}\n"
            "  The process that made the spout has ended, or runs on another machine. Make the spout in the process that runs the topology."
        )


def _dumps(row: tuple[Any, ...]) -> bytes:
    data = pickle.dumps(row, protocol=pickle.HIGHEST_PROTOCOL)
    # pickle names a class in __main__, which workers do not have. cloudpickle carries the class
    # along, but is far slower.
    return (
        pickling.dumps(row)
        if any(module.encode() in data for module in pickling.by_value_modules())
        else data
    )


def _remove_as_owner(directory: str, owner_pid: int) -> None:
    # A forked child inherits the registration but not the directory.
    if os.getpid() == owner_pid:
        shutil.rmtree(directory, ignore_errors=True)
