"""Reaches files in a directory, on this machine or on a file system that it has mounted.

``os.link`` gives a file its name if the name is free, in one step. File contents and names are
synced, so that a file that was put is there after a crash of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from txtopo import errors
from txtopo.connectors.files import blocks
from txtopo.connectors.files.storage import Entry, Storage

_FULL = (errno.ENOSPC, errno.EDQUOT)


class LocalStorage(Storage):
    """Files below the directory ``root``."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._root = Path(root)
        self._synced: set[Path] = set()

    def create(self, path: str) -> IO[bytes]:
        place = self._root / path
        with self._explained(path):
            self._make(place.parent)
            return io.BufferedWriter(_Durable(place))

    def put(self, path: str, data: bytes) -> bool:
        place = self._root / path
        with self._explained(path):
            self._make(place.parent)
            # Hidden from readers, and never met by another writer.
            new = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
            try:
                with new.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(new, place)
                is_new = True
            except FileExistsError:
                is_new = False
            finally:
                new.unlink(missing_ok=True)
            # The name of a file that another process put may not be durable yet either.
            _sync(place.parent)
            return is_new

    def rename(self, source: str, target: str) -> bool:
        old, new = self._root / source, self._root / target
        with self._explained(target):
            self._make(new.parent)
            try:
                os.link(old, new)
            except FileNotFoundError:
                return False
            except FileExistsError:
                # A process may have died between link and unlink.
                try:
                    if not os.path.samefile(old, new):
                        return False
                except FileNotFoundError:
                    return False
            _sync(new.parent)
            old.unlink(missing_ok=True)
            return True

    def open(self, path: str) -> IO[bytes]:
        with self._explained(path):
            return open(self._root / path, "rb")

    def entries(self, directory: str, after: str = "") -> Iterator[Entry]:
        try:
            with self._explained(directory), os.scandir(self._root / directory) as listing:
                entries = [each for each in listing if each.name > after]
        except (FileNotFoundError, NotADirectoryError):
            return
        for each in entries:
            # One that is deleted meanwhile is no end of the listing.
            with contextlib.suppress(FileNotFoundError):
                if not each.name.startswith(".") and each.is_file():
                    yield self._entry(each.path, each.stat())

    def walk(self) -> Iterator[Entry]:
        for directory, _, names in os.walk(self._root):
            for name in names:
                path = os.path.join(directory, name)
                with contextlib.suppress(FileNotFoundError):
                    yield self._entry(path, os.stat(path))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._explained(path):
                (self._root / path).unlink(missing_ok=True)

    def stat(self, path: str) -> Entry | None:
        place = self._root / path
        try:
            with self._explained(path):
                return self._entry(str(place), place.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _entry(self, path: str, status: os.stat_result) -> Entry:
        return Entry(os.path.relpath(path, self._root), status.st_size, status.st_mtime)

    def _make(self, directory: Path) -> None:
        """Make ``directory`` and what is missing above it, durably."""
        if directory in self._synced and directory.is_dir():
            return
        directory.mkdir(parents=True, exist_ok=True)
        # Another process may have made a directory, and not synced it yet.
        for above in directory.parents:
            with contextlib.suppress(PermissionError):
                _sync(above)
            if above == self._root.parent:
                break
        self._synced.add(directory)

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.explained(error, path) from error

    def explained(self, error: OSError, path: str = "") -> Exception:
        place = os.path.join(self.root, path)
        if blocks.may_pass(error) or error.errno in _FULL:
            return errors.FailedException(
                f"{place} cannot be written just now: {error.strerror}\n  The batch is replayed."
            )
        return errors.SetupError(
            f"{place}: {error.strerror}\n  This user must be able to make and write {self.root} on every machine that runs tasks."
        )


class _Durable(io.FileIO):
    """A new file that is synced when it is closed, and its directory too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self._directory = path.parent

    def close(self) -> None:
        if not self.closed:
            try:
                os.fsync(self.fileno())
            finally:
                super().close()
            _sync(self._directory)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
