"""Files in HDFS, through hdfs-native.

A rename without overwriting is one step of the NameNode. A file is closed before it is renamed: a
file that is renamed while it is written is written on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import posixpath
import secrets
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from txtopo import errors
from txtopo.connectors.files.storage import Entry, Storage, Upload

BLOCK_BYTES = 1 << 20
"""How many bytes are sent at once."""


def open_storage(root: str, client: Mapping[str, Any]) -> HdfsStorage:
    """The files below ``root``, ``hdfs://host:port/folder`` or with a name service."""
    parts = urllib.parse.urlsplit(root)
    hdfs = importlib.import_module("hdfs_native")
    config = {str(name): str(value) for name, value in client.items()}
    return HdfsStorage(
        root, hdfs.Client(f"hdfs://{parts.netloc}", config or None), parts.path or "/"
    )


def check_client(client: Mapping[str, Any]) -> None:
    """Refuse settings that hold a secret. Hadoop's client settings have none.

    :raises errors.ConfigError: there is one.
    """
    for name in client:
        if not str(name).startswith(("dfs.", "fs.", "ipc.", "hadoop.")) or "password" in name:
            raise errors.ConfigError(
                f"client[{name!r}] is no setting of an HDFS client\n  Give dfs.… or hadoop.…, or a directory in HADOOP_CONF_DIR."
            )


class HdfsStorage(Storage):
    """Files below the directory ``top``, reached by ``client``."""

    def __init__(self, root: str, client: Any, top: str) -> None:
        super().__init__(root)
        self._client, self._top = client, top
        self._options = importlib.import_module("hdfs_native").WriteOptions(create_parent=True)

    def create(self, path: str) -> IO[bytes]:
        return Upload(functools.partial(self._send, path))

    def _send(self, path: str, file: IO[bytes]) -> None:
        with self._explained(path), self._client.create(self._place(path), self._options) as out:
            while block := file.read(BLOCK_BYTES):
                out.write(block)

    def put(self, path: str, data: bytes) -> bool:
        if self.stat(path) is not None:
            return False
        folder, name = posixpath.split(path)
        new = f"{folder}/.{name}.{secrets.token_hex(8)}"
        with self.create(new) as file:
            file.write(data)
        try:
            return self.rename(new, path)
        finally:
            self.delete([new])

    def rename(self, source: str, target: str) -> bool:
        with self._explained(target):
            folder = posixpath.dirname(self._place(target))
            with contextlib.suppress(FileExistsError):
                self._client.mkdirs(folder, create_parent=True)
            try:
                self._client.rename(self._place(source), self._place(target), False)
            except (FileExistsError, FileNotFoundError):
                return False
            return True

    def open(self, path: str) -> IO[bytes]:
        with self._explained(path):
            file: IO[bytes] = self._client.read(self._place(path))
            return file

    def entries(self, directory: str, after: str = "") -> Iterator[Entry]:
        with contextlib.suppress(FileNotFoundError):
            for entry in self._list(directory, recursive=False):
                name = entry.path.rpartition("/")[2]
                if name > after and not name.startswith("."):
                    yield entry

    def walk(self) -> Iterator[Entry]:
        try:
            yield from self._list("", recursive=True)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                self._client.get_file_info(self._top)
                # A directory that goes meanwhile would end the listing in its middle.
                raise errors.FailedException(f"{self.root} changed while it was listed") from None

    def _list(self, directory: str, recursive: bool) -> Iterator[Entry]:
        with self._explained(directory):
            for status in self._client.list_status(self._place(directory), recursive):
                if not status.isdir:
                    yield self._entry(status)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._explained(path), contextlib.suppress(FileNotFoundError):
                self._client.delete(self._place(path))

    def stat(self, path: str) -> Entry | None:
        try:
            with self._explained(path):
                status = self._client.get_file_info(self._place(path))
                return None if status.isdir else self._entry(status)
        except FileNotFoundError:
            return None

    def _entry(self, status: Any) -> Entry:
        path = status.path[len(self._top.rstrip("/")) + 1 :]
        return Entry(path, status.length, status.modification_time / 1000)

    def _place(self, path: str) -> str:
        return posixpath.join(self._top, path) if path else self._top

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        place = f"{self.root}/{path}"
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except (OSError, RuntimeError) as error:
            said = str(error).split("\\n", 1)[0].strip()[:300]
            if isinstance(error, PermissionError) or "AccessControlException" in said:
                raise errors.SetupError(
                    f"{place} may not be written: {said}\n  Give this user the directory, with `hdfs dfs -chown`, or set HADOOP_USER_NAME."
                ) from error
            raise errors.FailedException(f"{place} cannot be reached just now: {said}") from error
