"""A directory for the Unix sockets of this process that no other user may enter.

Apart from ``session`` and ``standing`` because both put sockets there. PySpark asks no secret of who connects to a worker's socket: what keeps other
users out is the directory, whatever the umask is. The path is short, because that of a socket has at most 108 bytes.

Runs on: driver. One directory per process; a fork makes its own.

Invariants:
- The directory has the mode 0700 and is removed when the process ends. One that a killed process left behind is removed by the next one.
- ``lock`` in it is locked as long as its process lives: a directory whose lock is free is nobody's any more.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import os
import shutil
import tempfile
import time
from pathlib import Path

from txtopo.state import directory as directories

PREFIX = "txtopo-s-"

PATH_BYTES_MAX = 60
"""How long the path may be: Spark adds 42 bytes, and 108 are all there is, the final zero included."""

UNLOCKED_S = 3600.0
"""After so long, a directory without a lock is one whose process was killed while it made it."""

_LOCK = "lock"

_made: tuple[int, Path, io.FileIO] | None = None


def directory() -> Path:
    """The directory of this process; made, and those of dead processes removed, when it is first asked for."""
    global _made
    if _made is None or _made[0] != os.getpid() or not _made[1].is_dir():
        path, lock = _make()
        remove_leftovers(path.parent)
        _made = (os.getpid(), path, lock)
        atexit.register(_remove, os.getpid(), path, lock)
    return _made[1]


def is_short_enough(path: Path) -> bool:
    """Whether Spark's sockets fit below ``path``."""
    return len(os.fsencode(path)) <= PATH_BYTES_MAX


def remove_leftovers(parent: Path) -> None:
    """Remove what killed processes of this user left in ``parent``."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid() and not path.is_symlink() and _is_nobodys(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_nobodys(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - path.stat().st_mtime > UNLOCKED_S
    try:
        return directories.try_flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(lock)


def _parents() -> list[Path]:
    return list(dict.fromkeys(map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"))))


def _make() -> tuple[Path, io.FileIO]:
    """A new directory, in the first place where it may be made and its path is short; else where temporary files are."""
    for parent in _parents():
        if is_short_enough(parent / f"{PREFIX}12345678"):
            with contextlib.suppress(OSError):
                return _locked(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    return _locked(tempfile.mkdtemp(prefix=PREFIX))


def _locked(path: str) -> tuple[Path, io.FileIO]:
    # Locked before it has its name: a lock that is found is free only if its process has ended.
    lock = io.FileIO(os.open(f"{path}/{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(f"{path}/{_LOCK}.new", f"{path}/{_LOCK}")
    directories.keep_from_forks(lock)
    return Path(path), lock


def _remove(pid: int, path: Path, lock: io.FileIO) -> None:
    if pid == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
        lock.close()


__all__ = ["directory", "is_short_enough", "remove_leftovers"]
