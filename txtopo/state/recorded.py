"""The state in the files of a data directory, for readers, while no server runs there.

Apart from ``zookeeper`` because there is no server to ask: a reading shows one moment of the files,
and no write is possible. Apart from ``znode_files``, which knows no topologies.

Invariants:
- Every answer of one store is of the same moment, not before the store was made.
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
    """What ``files`` of ``data_dir`` hold now, under ``root``.

    :raises SetupError: this user may not read the files.
    :raises ZooKeeperUnavailableError: they are damaged.
    """

    def __init__(self, data_dir: Path, root: str, files: znode_files.ZnodeFiles) -> None:
        super().__init__()
        self._data_dir = data_dir
        self._prefix = "/" + root.strip("/") if root.strip("/") else ""
        try:
            znodes = files.read()
        except OSError as error:
            raise directory.unusable(data_dir, error) from error
        self._znodes = znodes or {}
        self.is_empty = znodes is None
        """Whether no server has ever written there."""

    @property
    def address(self) -> str:
        return str(self._data_dir)

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
            f"the files of {self._data_dir} are only read\n  What changes the state starts its ZooKeeper."
        )

    def wait_until_connected(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held."""

    def _full(self, path: str) -> str:
        return self._prefix + base.check_path(path) if path != "/" else self._prefix


__all__ = ["RecordedStateStore", "files_of"]
