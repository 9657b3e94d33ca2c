"""A directory for this process's Unix sockets, which no other user may enter.

``session`` and ``resident_task`` put sockets there. PySpark asks for no secret when a process
connects to a worker's socket. The directory keeps other users out, under every umask. Its path is
short, because a socket's path has at most 108 bytes.

Runs on: driver. Each process has one directory, and a fork makes its own.

Invariants:
- The directory has the mode 0700 and is removed when the process ends. The next process removes the
  directories of killed processes.
- The directory is locked as long as its process lives. A free lock means that the process is dead.
  ``systemd-tmpfiles``, which removes old files from ``/tmp``, also leaves a locked directory alone.
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
"""The longest path: Spark adds 42 bytes, and a socket's path has at most 108 with its final zero."""


class Lock:
    """Holds a directory until it is closed; a fork does not hold it."""

    def __init__(self, path: str | Path) -> None:
        """:raises OSError: there is no such directory."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        directories.keep_from_forks(self)

    def acquire(self) -> bool:
        """Wait for the directory. Returns whether the directory is still there."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return os.fstat(self._descriptor).st_nlink > 0

    def try_acquire(self) -> bool:
        """Hold the directory if no other process does. Returns whether this process holds the
        directory."""
        return directories.try_flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_made: tuple[int, Path, Lock] | None = None


def directory() -> Path:
    """This process's directory. The first call makes the directory, and removes directories that
    dead processes have left."""
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
    """Remove directories in ``parent`` that this user's killed processes have left."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid() and not path.is_symlink():
                with contextlib.closing(Lock(path)) as lock:
                    if lock.try_acquire():
                        shutil.rmtree(path, ignore_errors=True)


def _parents() -> list[Path]:
    return list(dict.fromkeys(map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"))))


def _make() -> tuple[Path, Lock]:
    """Make a directory in the first place that is writable and has a short path, else where
    temporary files are."""
    for parent in _parents():
        if is_short_enough(parent / f"{PREFIX}12345678"):
            with contextlib.suppress(OSError):
                return _make_in(parent)
    return _make_in(Path(tempfile.gettempdir()))


def _make_in(parent: Path) -> tuple[Path, Lock]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Before the lock is taken, another process may remove the directory, which looks left over.
        with contextlib.suppress(FileNotFoundError):
            lock = Lock(path)
            if lock.acquire():
                return path, lock
            lock.close()


def _remove(pid: int, path: Path, lock: Lock) -> None:
    if pid == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
        lock.close()
