"""Reads znodes from a ZooKeeper server's files, without the server.

This module knows the format of ZooKeeper's files and no topologies. A reader reads an idle data
directory's files as they are: it starts no server, takes no lock and leaves nothing behind, so it
keeps no run from starting.

A folder has snapshots (``snapshot.ZXID``) and logs (``log.ZXID``, ZXID in hexadecimal), as
``FileSnap`` and ``FileTxnLog`` in ZooKeeper 3.5 to 3.9 write them. The znodes are those in the
newest whole snapshot, with every later transaction from the logs applied
(``FileTxnSnapLog.restore``). A snapshot may have transactions that were applied while it was
written. Applied again, they change nothing.

Invariants:
- A server may run in the folder, or start in it, during a reading. A reading shows one moment, not
  before the reading began: logs only ever grow, and a log with a successor is complete.
- Every answer of a server is in the files, because the server writes, and syncs, before it answers.
  The files are synced here before a reading is returned, so a power loss takes nothing back that a
  reader has seen.
"""

from __future__ import annotations

import errno
import os
import struct
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from txtopo import errors

READ_TRIES_MAX = 100
"""How often a folder is read again when a server replaces its files meanwhile."""

SETTLED_S = 2.0
"""A file that was written longer ago gets another time when it is written again, however coarse the
file system's clock is."""

_SNAPSHOT, _LOG = b"ZKSN", b"ZKLG"
_HEADER_BYTES = 16
_FORMAT = 2
_END_OF_RECORD = b"B"

_CREATE = 1
_DELETE = 2
_SET_DATA = 5
_MULTI = 14
_CREATE_2 = 15
_CREATE_CONTAINER = 19
_DELETE_CONTAINER = 20
_CREATE_TTL = 21
_CLOSE_SESSION, _ERROR = -11, -1
_WITHOUT_DATA = {_ERROR, -10, 7, 13}
"""Transactions that change no data: a refused transaction, a new session, a changed ACL, a check."""

_READ_ONLY = (errno.EINVAL, errno.EROFS)
"""Answers to a sync on a file system that is never written, such as an image of a copy."""

Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode's content. ``owner`` is the session that an ephemeral znode ends with, else 0."""

    data: bytes
    version: int = 0
    owner: int = 0


class _TornError(Exception):
    """A file ends in the middle of a record."""


class _Cursor:
    """Reads values in ZooKeeper's serialization (jute), one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def take(self, size: int) -> bytes:
        piece = self._data[self.at : self.at + size]
        if size < 0 or len(piece) < size:
            raise _TornError
        self.at += size
        return piece

    def number(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def long(self) -> int:
        return int(struct.unpack(">q", self.take(8))[0])

    def buffer(self) -> bytes:
        size = self.number()
        return b"" if size == -1 else self.take(size)

    def text(self) -> str:
        return self.buffer().decode(errors="replace")

    def skip_acl(self) -> None:
        for _ in range(max(self.number(), 0)):
            self.take(4)
            self.buffer()
            self.buffer()


class ZnodeFiles:
    """The znodes in ``folder``. Each thread needs its own object.

    A reading is kept until a file changes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._signature: Signature | None = None
        self._znodes: dict[str, Znode] = {}

    def read(self) -> dict[str, Znode] | None:
        """Every znode by path. The root is ``""``. ``None`` if no server has ever written here.

        :raises ZooKeeperUnavailableError: the files are damaged.
        :raises OSError: the files cannot be read.
        """
        for _ in range(READ_TRIES_MAX):
            try:
                signature = self._look()
                if signature is None:
                    return None
                if signature != self._signature:
                    self._signature = None
                    self._znodes = _restore(self._folder, [name for name, *_ in signature])
                    if max(changed for *_, changed in signature) < time.time_ns() - SETTLED_S * 1e9:
                        self._signature = signature
                return self._znodes
            except FileNotFoundError:
                # A server has removed old files since the folder was listed.
                continue
        raise errors.ZooKeeperUnavailableError(
            f"the files in {self._folder} change all the time\n  Try again."
        )

    def _look(self) -> Signature | None:
        """The files and when they changed. ``None`` without files."""
        try:
            names = sorted(
                name for name in os.listdir(self._folder) if name.startswith(("snapshot.", "log."))
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        stats = [(name, os.stat(self._folder / name)) for name in names]
        return (
            tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
            or None
        )


def _restore(folder: Path, names: list[str]) -> dict[str, Znode]:
    snapshots = sorted(
        ((_zxid(name), name) for name in names if name.startswith("snapshot.")), reverse=True
    )
    logs = sorted((_zxid(name), name) for name in names if name.startswith("log."))
    for base, name in snapshots:
        try:
            znodes = _snapshot(_content(folder / name))
        except _TornError:
            # The file is being written, or its writer was killed. ZooKeeper, too, takes the
            # snapshot before.
            continue
        last_before = max((zxid for zxid, _ in logs if zxid <= base), default=0)
        for name in (name for zxid, name in logs if zxid >= last_before):
            _apply_log(znodes, folder / name, base)
        return znodes
    if logs and any(_content(folder / name)[_HEADER_BYTES:].strip(b"\0") for _, name in logs):
        raise _damage(folder, "there are logs, but no whole snapshot")
    return {"": Znode(b"")}


def _zxid(name: str) -> int:
    try:
        return int(name.partition(".")[2], 16)
    except ValueError:
        return -1


def _content(path: Path) -> bytes:
    with open(path, "rb") as file:
        content = file.read()
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
    return content


def _snapshot(content: bytes) -> dict[str, Znode]:
    if content[:4] != _SNAPSHOT or content[4:8] != struct.pack(">i", _FORMAT):
        raise _TornError
    cursor = _Cursor(content)
    cursor.take(_HEADER_BYTES)
    for _ in range(cursor.number()):
        cursor.take(12)  # a session: id and time-out
    for _ in range(cursor.number()):
        cursor.long()
        cursor.skip_acl()
    znodes: dict[str, Znode] = {}
    while (path := cursor.text()) != "/":
        data = cursor.buffer()
        cursor.take(
            8 + 32
        )  # the ACL's number, and when and by which transactions the znode was made and changed
        version = cursor.number()
        cursor.take(8)
        znodes[path] = Znode(data, version, cursor.long())
        cursor.take(8)
    checksum = zlib.adler32(content[: cursor.at])
    if cursor.long() != checksum or cursor.text() != "/":
        raise _TornError
    return znodes


def _apply_log(znodes: dict[str, Znode], path: Path, base: int) -> None:
    """Apply the transactions after ``base``. A log may end in a torn transaction, which was never
    answered: it is being written, or its writer was killed, or the disk was full."""
    content = _content(path)
    if content[:4] != _LOG:
        if content.strip(b"\0") not in (b"", *(_LOG[:written] for written in range(1, len(_LOG)))):
            raise _damage(path, "it is no ZooKeeper log")
        return
    cursor = _Cursor(content)
    cursor.at = _HEADER_BYTES
    while cursor.at < len(content):
        begin, size = cursor.at, 0
        try:
            checksum, size = cursor.long(), cursor.number()
            if size == 0:
                return
            record = cursor.take(size)
            is_whole = cursor.take(1) == _END_OF_RECORD and zlib.adler32(record) == checksum
        except _TornError:
            is_whole = False
        if not is_whole:
            # After a torn transaction there is nothing, or the zeros the file was made with.
            if content[begin + 8 : begin + 9] < b"\x80" and not content[begin + 13 + size :].strip(
                b"\0"
            ):
                return
            raise _damage(path, f"the transaction at byte {begin} is damaged")
        transaction = _Cursor(record)
        session, _, zxid, _, kind = struct.unpack(">qiqqi", transaction.take(32))
        if zxid > base:
            try:
                _apply(znodes, kind, transaction, session)
            except _TornError:
                raise _damage(
                    path, f"the transaction at byte {begin} cannot be understood"
                ) from None


def _apply(znodes: dict[str, Znode], kind: int, record: _Cursor, session: int) -> None:
    if kind in (_CREATE, _CREATE_2, _CREATE_CONTAINER, _CREATE_TTL):
        path, data = record.text(), record.buffer()
        record.skip_acl()
        is_ephemeral = kind in (_CREATE, _CREATE_2) and record.take(1) != b"\0"
        znodes.setdefault(path, Znode(data, owner=session if is_ephemeral else 0))
    elif kind in (_DELETE, _DELETE_CONTAINER):
        znodes.pop(record.text(), None)
    elif kind == _SET_DATA:
        path, data = record.text(), record.buffer()
        if path in znodes:
            znodes[path] = replace(znodes[path], data=data, version=record.number())
    elif kind == _MULTI:
        parts = [(record.number(), record.buffer()) for _ in range(record.number())]
        if all(part != _ERROR for part, _ in parts):
            for part, content in parts:
                _apply(znodes, part, _Cursor(content), session)
    elif kind == _CLOSE_SESSION:
        for path in [path for path, znode in znodes.items() if znode.owner == session]:
            del znodes[path]
    elif kind not in _WITHOUT_DATA:
        raise _TornError


def _damage(path: Path, why: str) -> errors.ZooKeeperUnavailableError:
    return errors.ZooKeeperUnavailableError(
        f"the state in {path} cannot be read: {why}\n  Restore the data directory from a copy, and type `txtopo state restored ID --execute`."
    )
