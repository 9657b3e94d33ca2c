"""Reaches files: local directories, HDFS and object stores behind one interface.

A path is relative to a root, with ``/`` between its parts. ``local``, ``hdfs`` and ``objects``
implement the interface, and one contract holds for all.

Runs on: executor, driver and the command line. Standard library only, until an address needs more.
"""

from __future__ import annotations

import abc
import importlib
import io
import os
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

from txtopo import errors
from txtopo.topology import arrow

_KINDS = {
    "hdfs": ("txtopo.connectors.files.hdfs", "hdfs_native", "hdfs"),
    "s3": ("txtopo.connectors.files.objects", "obstore", "objects"),
    "gs": ("txtopo.connectors.files.objects", "obstore", "objects"),
    "az": ("txtopo.connectors.files.objects", "obstore", "objects"),
}
"""Module, package and extra, by an address's scheme."""
REMOTE = frozenset(_KINDS)
SCHEMES = REMOTE | {"file"}
MEMORY_BYTES = 8 << 20
"""A file on its way to another machine stays in memory up to this size, and goes to a temporary file
beyond it."""


class Entry(NamedTuple):
    """A file in a listing."""

    path: str
    bytes: int
    changed_at: float
    """Seconds since 1970."""


class Storage(abc.ABC):
    """Files below ``root``. Calls raise ``FailedException`` where a second try may help, and
    ``SetupError`` where the user has to act."""

    renames = True
    """Whether :meth:`rename` is cheap. If not, files stay where they were written, if that will
    do."""

    def __init__(self, root: str) -> None:
        self.root = root

    @abc.abstractmethod
    def create(self, path: str) -> IO[bytes]:
        """A new file to write. It is whole and durable when its ``close`` returns, and may be there
        in part before."""

    def check(self, path: str) -> None:
        """Check, with a file at ``path``, that the storage keeps its promises.

        :raises errors.SetupError: it does not.
        """

    @abc.abstractmethod
    def put(self, path: str, data: bytes) -> bool:
        """Put a small file there, whole and durable, unless there is one. False if there was."""

    @abc.abstractmethod
    def rename(self, source: str, target: str) -> bool:
        """Rename a file, unless ``target`` is there. False if ``target`` was there, or ``source``
        is not."""

    @abc.abstractmethod
    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading, at any place.

        :raises FileNotFoundError: there is none.
        """

    @abc.abstractmethod
    def entries(self, directory: str, after: str = "") -> Iterator[Entry]:
        """The files in ``directory``, not below, whose names sort behind ``after``. In any
        order."""

    @abc.abstractmethod
    def walk(self) -> Iterator[Entry]:
        """All files, in any order."""

    @abc.abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. Files that are not there are passed over."""

    @abc.abstractmethod
    def stat(self, path: str) -> Entry | None:
        """The file at ``path``. None if there is none."""

    def explained(self, error: OSError) -> Exception:
        """The error of txtopo that stands for ``error``, which a file raised while it was
        written."""
        return errors.FailedException(f"{self.root} cannot be written just now: {error}")

    def read(self, path: str) -> bytes | None:
        """The contents of a small file. None if there is none."""
        try:
            with self.open(path) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes ``[start, end)`` of a file.

        :raises FileNotFoundError: there is none.
        """
        with self.open(path) as file:
            file.seek(start)
            return file.read(end - start)

    def are_equal(self, path: str, other: str) -> bool:
        """Whether two files have the same bytes. False if one is not there."""
        try:
            with self.open(path) as first, self.open(other) as second:
                while block := first.read(MEMORY_BYTES):
                    if second.read(len(block)) != block:
                        return False
                return not second.read(1)
        except FileNotFoundError:
            return False


class Upload(tempfile.SpooledTemporaryFile[bytes]):
    """A file that is sent as a whole when it is closed."""

    def __init__(self, send: Any) -> None:
        super().__init__(max_size=MEMORY_BYTES)
        self._send = send

    def close(self) -> None:
        if self._send is not None:
            send, self._send = self._send, None
            self.seek(0)
            try:
                send(self)
            finally:
                super().close()

    def discard(self) -> None:
        """Close the file, and send nothing."""
        self._send = None
        super().close()

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self.discard()
        else:
            self.close()


class Ranges(io.RawIOBase):
    """A file that is read by ranges."""

    def __init__(self, store: Storage, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        data = self._store.read_range(self._path, self._at, end) if end > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def is_table(store: Storage) -> bool:
    """Whether the files are a Delta table's."""
    return any(True for _ in store.entries("_delta_log"))


def absolute(root: str | os.PathLike[str]) -> str:
    """``root`` as an address that means the same in every process on this machine."""
    text = os.fspath(root)
    if not isinstance(text, str) or not text:
        raise errors.ConfigError(
            f"root is {root!r}\n  Give a directory, or an address such as s3://bucket/folder."
        )
    scheme, separator, rest = text.partition("://")
    if not separator:
        return os.path.abspath(text)
    if scheme == "file":
        return f"file://{os.path.abspath(rest)}"
    if scheme not in _KINDS:
        raise errors.ConfigError(
            f"root is {text!r}, and {scheme}:// is not known\n  Give a directory, or an address with {', '.join(f'{name}://' for name in _KINDS)}."
        )
    return text.rstrip("/")


def is_directory(root: str) -> bool:
    """Whether ``root`` is a directory that this machine sees."""
    return "://" not in root or root.startswith("file://")


def check_client(root: str, client: Mapping[str, Any]) -> None:
    """Refuse settings that the library at ``root`` does not take, or that are secret.

    :raises errors.ConfigError: there is one.
    """
    if not is_directory(root):
        scheme, _, rest = root.partition("://")
        if "?" in rest or "@" in rest.partition("/")[0]:
            raise errors.ConfigError(
                f"the address with {scheme}:// has a user or settings in it, which may be secret\n  Give them by client=."
            )
        importlib.import_module(_KINDS[scheme][0]).check_client(client)
    elif client:
        raise errors.ConfigError(
            f"client is for other machines, and root is the directory {root}\n  Leave client out."
        )


def address_of(root: str, client: Mapping[str, Any]) -> str:
    """``root`` with the settings behind it, as on the command line:
    ``s3://bucket/folder?endpoint=…``."""
    query = urllib.parse.urlencode(client, safe="", quote_via=urllib.parse.quote)
    return f"{root}?{query}" if query else root


def open_storage(root: str, client: Mapping[str, Any]) -> Storage:
    """The storage at ``root``, as :func:`absolute` returns it. ``client`` has settings of the
    library that reaches it."""
    if is_directory(root):
        directory = root.removeprefix("file://")
        local: Storage = importlib.import_module("txtopo.connectors.files.local").LocalStorage(
            directory
        )
        return local
    scheme = root.partition("://")[0]
    module, package, extra = _KINDS[scheme]
    arrow.require(package, f"{scheme}://", extra)
    storage: Storage = importlib.import_module(module).open_storage(root, client)
    return storage
