"""Owns a data directory: locks it for one driver, and publishes the address of the driver's
ZooKeeper server.

A reader (``txtopo status``) needs only this module, which knows nothing about ZooKeeper but an
address.

Files: the owner locks ``lock`` with flock for its whole life, and writes its identity there.
``endpoint.json`` holds the address of the owner's server.

Invariants:
    At most one process owns a directory. The kernel frees the lock however that process ends.
    Neither a child nor a fork of the owner holds the lock. A reader never holds the lock (R37): it
    asks the kernel about a second lock on the same open file, an open file description lock, and
    the kernel answers without granting the lock. ``endpoint.json`` is believed only while the lock
    is held, and a new owner first removes an old ``endpoint.json``. So a killed process's file is
    never taken for a running server.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import io
import json
import os
import socket
import struct
import sys
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from txtopo import errors
from txtopo.state import privacy

DEFAULT = ".txtopo"
"""The command line's data directory by default."""

LOCK = "lock"
ENDPOINT = "endpoint.json"

ACQUIRE_PATIENCE_S = 0.5
"""How long to try for the lock. Where a lock cannot be looked at, a reader takes the lock for
microseconds, which must not turn an owner away."""

RETRY_EVERY_S = 0.01

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Closeable(Protocol):
    """An open file or pipe. Closing writes nothing."""

    def close(self) -> None:
        """Close it, in this process."""


_not_for_forks: weakref.WeakSet[Closeable] = weakref.WeakSet()


def keep_from_forks(file: Closeable) -> None:
    """Close ``file`` in every child made by ``os.fork``.

    Close-on-exec covers programs, but a ``multiprocessing`` child that outlives a killed driver
    would keep the driver's locks and pipes alive.
    """
    _not_for_forks.add(file)


def _close_in_child() -> None:
    for file in list(_not_for_forks):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(frozen=True)
class Endpoint:
    """A running server: ``hosts`` as a ZooKeeper client takes it ("127.0.0.1:port"), its pid, and
    its owner's pid."""

    hosts: str
    pid: int
    owner_pid: int


class DataDirectory:
    """A directory that one process at a time may own."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self._lock: io.FileIO | None = None

    def acquire(self) -> None:
        """Own the directory until :meth:`release`, or until this process ends. Makes a missing
        directory.

        Raises HeldError, with the owner's pid, if the directory has another owner. Raises
        SetupError if the directory cannot be used.
        """
        if self._lock is not None:
            raise errors.UsageError(
                f"this object already owns the data directory {self.path}\n  Release the directory first."
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            privacy.close_to_others(self.path)
            lock = io.FileIO(
                os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+"
            )
        except OSError as error:
            raise unusable(self.path, error) from error
        try:
            self._take(lock)
        except BaseException:
            lock.close()
            raise
        keep_from_forks(lock)
        self._lock = lock

    def _take(self, lock: io.FileIO) -> None:
        deadline = time.monotonic() + ACQUIRE_PATIENCE_S
        while not self._try_lock(lock):
            if time.monotonic() > deadline:
                raise errors.HeldError(
                    f"the data directory {self.path} is in use by {_owner(lock)}\n"
                    "  Stop that process or wait until it ends, or choose another directory with `--data-dir PATH` (data_dir= in Python)."
                )
            time.sleep(RETRY_EVERY_S)
        try:
            _mark(lock.fileno())
            self._endpoint_file.unlink(missing_ok=True)
            lock.truncate(0)
            os.pwrite(
                lock.fileno(),
                json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(),
                0,
            )
        except OSError as error:
            raise unusable(self.path, error) from error

    def _try_lock(self, lock: io.FileIO) -> bool:
        try:
            return try_flock(lock.fileno(), fcntl.LOCK_EX)
        except OSError as error:
            raise unusable(self.path, error) from error

    def release(self) -> None:
        """Give the directory up. Harmless if not owned."""
        if self._lock is None:
            return
        # A fork of the owner has the lock closed: the fork never owned the directory, and must not
        # remove the owner's endpoint.
        if not self._lock.closed:
            with contextlib.suppress(OSError):
                self._endpoint_file.unlink(missing_ok=True)
            self._lock.close()
        self._lock = None

    def publish(self, hosts: str, pid: int) -> None:
        """Let other processes find the owner's server."""
        write_durably(self._endpoint_file, json.dumps(asdict(Endpoint(hosts, pid, os.getpid()))))

    @property
    def _endpoint_file(self) -> Path:
        return self.path / ENDPOINT


def running(path: str | Path) -> Endpoint | None:
    """The server running in the data directory ``path``. None if no process owns the directory, or
    its server does not serve yet.

    Changes nothing on disk. Raises SetupError if the directory may not be read.
    """
    path = Path(path)
    if not is_owned(path):
        return None
    try:
        endpoint = json.loads((path / ENDPOINT).read_bytes())
        return Endpoint(str(endpoint["hosts"]), int(endpoint["pid"]), int(endpoint["owner_pid"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_owned(path: str | Path) -> bool:
    """Whether a process owns the data directory ``path``. Changes no file, and holds no lock.

    Raises SetupError if the directory may not be read.
    """
    path = Path(path)
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unusable(path, error) from error
    try:
        return _is_marked(lock)
    finally:
        os.close(lock)


_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""``struct flock`` on a 64-bit Linux. The pid is 0, as open file description locks need it."""

_CAN_LOOK_AT_LOCKS = sys.platform.startswith("linux")


def _mark(lock: int) -> None:
    """Take the lock that readers look at. The kernel frees it together with the owner's other lock."""
    if _CAN_LOOK_AT_LOCKS:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _WHOLE_FILE)


def _is_marked(lock: int) -> bool:
    if not _CAN_LOOK_AT_LOCKS:
        return not try_flock(lock, fcntl.LOCK_SH)
    (kind,) = struct.unpack_from("h", fcntl.fcntl(lock, fcntl.F_OFD_GETLK, _WHOLE_FILE))
    return bool(kind != fcntl.F_UNLCK)


def try_flock(descriptor: int, kind: int) -> bool:
    """Lock ``descriptor`` with ``kind`` if that is possible without waiting. Returns whether it is
    locked."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_durably(path: Path, text: str) -> None:
    """Replace the file ``path`` at once and on disk: every reader, also after a power loss, sees
    the old text or the new.

    Only this process's user may read the file.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(new, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file's content, or a directory's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unusable(path: Path, error: OSError) -> errors.TxtopoError:
    """The error for a data directory that the system does not let us use.

    A full disk is no reason to choose another directory, which would have another state. The stored
    state is sound: the error is the one for a ZooKeeper that is away.
    """
    if error.errno in _FULL:
        return no_room(path, error.strerror or str(error))
    return errors.SetupError(
        f"the data directory {path} cannot be used: {error.strerror or error}\n"
        "  Choose one that this user may write to, on a local disk, with `--data-dir PATH` (data_dir= in Python)."
    )


def no_room(path: Path, why: str) -> errors.ZooKeeperUnavailableError:
    """The error for a data directory whose disk, or whose user's quota, is full."""
    return errors.ZooKeeperUnavailableError(
        f"there is no room left in the data directory {path}: {why}\n  Make room in {path}, and run again: the topology resumes. Nothing is lost."
    )


def says_no_room(text: str) -> str | None:
    """The system's words for a full disk, if ``text`` has them, else ``None``."""
    return next((words for words in map(os.strerror, _FULL) if words in text), None)


def _owner(lock: io.FileIO) -> str:
    try:
        owner = json.loads(os.pread(lock.fileno(), 4096, 0))
        since = datetime.datetime.fromtimestamp(os.fstat(lock.fileno()).st_mtime).astimezone()
        return f"process {int(owner['pid'])} on host {owner['host']} since {since.isoformat(sep=' ', timespec='seconds')}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process, whose pid is not known"
