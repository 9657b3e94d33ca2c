"""Reads the state from a data directory's files, while no server runs there.

Without a server to ask, a reading shows one moment, and no write is possible. ``znode_files`` reads
the files, and knows no topologies.

Invariants:
- Every answer from one store shows the same moment, not before the store was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from txtopo import errors
from txtopo.state import base, directory, znode_files


def files_of(data_dir: Path) -> znode_files.ZnodeFiles:
    """The files in which the embedded ZooKeeper of ``data_dir`` keeps its znodes."""
    return znode_files.ZnodeFiles(data_dir / "zookeeper" / "version-2")


class RecordedStateStore(base.StateStore):
    """The znodes that ``files`` of ``data_dir`` hold now, under ``root``.

    :raises SetupError: this user may not read the files.
    :raises ZooKeeperUnavailableError: the files are damaged.
    """

    def __init__(self, data_dir: Path, root: str, files: znode_files.ZnodeFiles) -> None:
        self.address = str(data_dir)
        self._prefix = "/" + root.strip("/") if root.strip("/") else ""
        try:
            znodes = files.read()
        except OSError as error:
            raise directory.unusable(data_dir, error) from error
        self._znodes = znodes or {}
        self.is_empty = znodes is None
        """Whether no server has ever written there."""

    @property
    def session(self) -> int:
        return 0

    def get(self, path: str) -> base.Node | None:
        znode = self._znodes.get(self._full(path))
        return None if znode is None else base.Node(znode.data, znode.version)

    def children(self, path: str) -> list[str]:
        prefix = self._full(path) + "/"
        return sorted(
            other[len(prefix) :]
            for other in self._znodes
            if other.startswith(prefix) and "/" not in other[len(prefix) :]
        )

    def multi(self, operations: Sequence[base.Operation]) -> NoReturn:
        raise errors.UsageError(
            f"the files in {self.address} are open for reading only\n"
            "  Commands with --execute start the directory's ZooKeeper, and may change the state."
        )

    def wait_until_connected(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _full(self, path: str) -> str:
        return self._prefix + base.check_path(path) if path != "/" else self._prefix
