"""A directory for the Unix sockets of this process that no other user may enter.

Apart from ``session`` and ``resident_task`` because both put sockets there. PySpark asks no secret
of a process that connects to a worker's socket: the directory keeps other users out, under every
umask. The path is short, because the path of a socket has at most 108 bytes.

Runs on: driver. One directory per process; a fork makes its own.

Invariants:
- The directory has the mode 0700 and is removed when the process ends. The next process removes the
  directories of killed processes.
- The directory is locked as long as its process lives: a directory whose lock is free belongs to a
  dead process. ``systemd-tmpfiles``, which removes old files from ``/tmp``, also leaves a locked
  directory alone.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from txtopo.state import directory as directories

PREFIX = "txtopo-s-"

PATH_BYTES_MAX = 60
"""How long the path may be: Spark adds 42 bytes, and 108 are all there is, the final zero included.
"""


class Lock:
    """Holds a directory until it is closed; a fork does not hold it."""

    def __init__(self, path: str | Path) -> None:
        """Raises OSError if there is no such directory."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        directories.keep_from_forks(self)

    def acquire(self) -> bool:
        """Wait for the directory; whether it is still there."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return os.fstat(self._descriptor).st_nlink > 0

    def try_acquire(self) -> bool:
        """Whether no process holds the directory; then this one does."""
        return directories.try_flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Let go of the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_made: tuple[int, Path, Lock] | None = None


def directory() -> Path:
    """The directory of this process; made, and those of dead processes removed, when it is first
    asked for."""
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
    """Remove the directories of killed processes of this user in ``parent``."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid() and not path.is_symlink():
                with contextlib.closing(Lock(path)) as lock:
                    if lock.try_acquire():
                        shutil.rmtree(path, ignore_errors=True)


def _parents() -> list[Path]:
    return list(dict.fromkeys(map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"))))


def _make() -> tuple[Path, Lock]:
    """A new directory, in the first place where it may be made and its path is short; else where
    temporary files are."""
    for parent in _parents():
        if is_short_enough(parent / f"{PREFIX}12345678"):
            with contextlib.suppress(OSError):
                return _locked(parent)
    return _locked(Path(tempfile.gettempdir()))


def _locked(parent: Path) -> tuple[Path, Lock]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Before the lock is taken, another process may take the directory for left over and remove
        # it.
        with contextlib.suppress(FileNotFoundError):
            lock = Lock(path)
            if lock.acquire():
                return path, lock
            lock.close()


def _remove(pid: int, path: Path, lock: Lock) -> None:
    if pid == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
        lock.close()


__all__ = ["directory", "is_short_enough", "remove_leftovers"]
