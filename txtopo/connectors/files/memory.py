"""Files in memory, and a sink's destination over them: for ``txtopo test``.

The real directory is never touched. The sink's code is the real code, and its transactions fail
when the simulator says so.

Runs on: driver.
"""

from __future__ import annotations

import io
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, Any

from txtopo import errors
from txtopo.connectors.files import committed, decisions, file_ledger
from txtopo.connectors.files.storage import Entry, Storage, Upload
from txtopo.sinks.simulated import SimulatedSink, Written
from txtopo.topology import context as contexts
from txtopo.topology import destination, transaction


class MemoryStorage(Storage):
    """Files in a dict. Each is as old as its number."""

    def __init__(self, root: str = "memory") -> None:
        super().__init__(root)
        self.files: dict[str, tuple[bytes, int]] = {}
        self._numbers = itertools.count()

    def forget(self) -> None:
        self.files.clear()

    def create(self, path: str) -> IO[bytes]:
        return Upload(lambda file: self.write(path, file.read()))

    def put(self, path: str, data: bytes) -> bool:
        if path in self.files:
            return False
        self.write(path, data)
        return True

    def write(self, path: str, data: bytes) -> None:
        self.files[path] = data, next(self._numbers)

    def rename(self, source: str, target: str) -> bool:
        if source not in self.files or target in self.files:
            return False
        self.files[target] = self.files.pop(source)
        return True

    def open(self, path: str) -> IO[bytes]:
        if path not in self.files:
            raise FileNotFoundError(path)
        return io.BytesIO(self.files[path][0])

    def entries(self, directory: str, after: str = "") -> Iterator[Entry]:
        for entry in self.walk():
            folder, _, name = entry.path.rpartition("/")
            if folder == directory and name > after:
                yield entry

    def walk(self) -> Iterator[Entry]:
        yield from map(self._entry, list(self.files))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.files.pop(path, None)

    def stat(self, path: str) -> Entry | None:
        return self._entry(path) if path in self.files else None

    def _entry(self, path: str) -> Entry:
        data, number = self.files[path]
        return Entry(path, len(data), float(number))


class _SimulatedStorage(MemoryStorage):
    """The directory at ``root``, under the simulator."""

    def __init__(self, root: str, world: destination.World) -> None:
        super().__init__(root)
        self.name, self._world = f"{root} {next(_ids)}", world
        _by_name[self.name] = self

    def strike(self) -> str | None:
        """How the next transaction fails, if it does."""
        return self._world.fault(f"files:{self.root}")


_ids = itertools.count()
_by_name: weakref.WeakValueDictionary[str, _SimulatedStorage] = weakref.WeakValueDictionary()


class SimulatedLedger(file_ledger.FileLedger, SimulatedSink):
    """Stands for the directory of ``original``. Pickled with a held sink, so that it has the files'
    name alone."""

    def __init__(self, original: file_ledger.FileLedger, world: destination.World) -> None:
        vars(self).update(vars(original))
        self.local_only_reason = None
        # Readers look at the decisions' files alone, as a FileSink's do.
        self.tells_late = self.opaque
        storage: _SimulatedStorage = world.shared(
            f"files:{self.root}", lambda: _SimulatedStorage(original.root, world)
        )
        self._name = storage.name

    def log(self, resource: Any) -> decisions.Log:
        log: decisions.Log = resource(self._name, lambda: decisions.Log(_by_name[self._name]))
        return log

    def apply(
        self,
        context: contexts.TopologyContext,
        attempt: transaction.TransactionAttempt,
        rows: int,
        files: tuple[decisions.File, ...],
        comes_alone: bool = False,
    ) -> bool:
        fault = _by_name[self._name].strike()
        if fault == "before it began":
            raise errors.FailedException(f"{self.root} does not answer")
        is_new = super().apply(context, attempt, rows, files, comes_alone)
        if fault is not None:
            raise errors.FailedException(f"{self.root} has lost an answer")
        return is_new

    def rows(self) -> list[Written]:
        log, rows = decisions.Log(_by_name[self._name]), []
        component = next((each.component for each in log.generations()), "")
        read = committed.Committed(log, isolation="read_all")
        for txid, files in read:
            for file in files:
                folders = tuple(f"{name}={text}" for name, text in file.partition.items())
                values: list[Any] = (
                    read.table([file]).to_pylist()
                    if file.path.endswith(".parquet")
                    else read.text(file).decode("utf-8", "surrogateescape").splitlines()
                )
                rows += [
                    Written(("folders", "row"), (folders, value), component, str(txid))
                    for value in values
                ]
        return rows
