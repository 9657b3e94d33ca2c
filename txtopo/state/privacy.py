"""Sets file modes that keep the machine's other users out of a data directory.

``directory`` says which process owns a data directory, this module which user may look in. One file
holds the password for the directory's ZooKeeper.

Invariants:
- Only txtopo's own files are changed. A directory with other content, too, keeps its mode: then the
  modes of txtopo's files and of ZooKeeper's folder keep other users out.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from txtopo import errors

OURS = ("lock", "endpoint.json", "server.lock", "user.json", "zookeeper", "submit", "journal")
"""Prefixes for the names of txtopo's files in a data directory."""

_OTHERS = 0o077


def close_to_others(path: Path) -> None:
    """Close ``path`` and txtopo's files in it to other users: directories 0700, files 0600. Costs a
    look at each file.

    :raises SetupError: every user may write to ``path``, and ``path`` is not txtopo's alone.
    :raises OSError: the modes cannot be changed.
    """
    names = os.listdir(path)
    refuse_open(path)
    if all(name.startswith(OURS) for name in names):
        _close(path)
    for name in names:
        if name.startswith("zookeeper") and (path / name).is_dir():
            for folder, _, files in os.walk(path / name):
                _close(Path(folder))
                for file in files:
                    _close(Path(folder) / file)
        elif name.startswith(OURS) and not name.startswith(("submit", "journal")):
            _close(path / name)


def refuse_open(path: Path) -> None:
    """Refuse a directory that every user may write to, and that is not txtopo's alone.

    :raises SetupError: it is such a directory.
    """
    mode = os.stat(path).st_mode
    is_open = mode & stat.S_IWOTH and not mode & stat.S_ISVTX
    if is_open and not all(name.startswith(OURS) for name in os.listdir(path)):
        raise errors.SetupError(
            f"every user may write to the data directory {path}, which holds other files, too\n"
            f"  Type `chmod o-w {shlex.quote(str(path))}`, or choose a directory for txtopo alone with `--data-dir PATH` (data_dir= in Python)."
        )


def _close(path: Path) -> None:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & _OTHERS:
            os.chmod(path, mode & ~_OTHERS)
    except FileNotFoundError:
        # An earlier server, which is just ending, has purged the file.
        pass
