"""Lines in files as bytes: finds where lines end, and reads ranges in big blocks.

A line ends with ``\\n`` or with the range it is read from, never anywhere else. A block holds whole
lines only. An unreadable file raises :class:`~txtopo.errors.InputError`, or ``FailedException``
where trying again may help.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from txtopo import errors
from txtopo.connectors.files import remote

BLOCK_BYTES = 1 << 20
"""How many bytes a range's reader reads at once."""
PROBE_BYTES = 1 << 16
"""How many bytes the search for a line's end reads at once."""
TAIL_BYTES = 1 << 12
"""How many bytes before the end of the read part identify a file that may grow."""

_MAY_PASS = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT})


def size_of(path: str) -> int:
    """The file's size in bytes. Refuses directories and unreadable files."""
    return status_of(path).st_size


def status_of(path: str) -> os.stat_result | remote.Status:
    """The file's entry in the file system. Refuses directories and unreadable files. Opening the
    file makes a network file system's answer fresh."""
    if remote.is_remote(path):
        return remote.status_of(path)
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable("open", path, error) from None
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise errors.InputError(
            f"{path} is a directory, not a file\n  Name the files in it, for example {os.path.join(path, '**', '*.txt')!r}."
        )
    if not stat.S_ISREG(status.st_mode):
        raise errors.InputError(
            f"{path} is not a regular file, so it cannot be read twice\n  Copy its contents to a file and name that."
        )
    return status


def last_line_end(path: str, start: int, end: int) -> int | None:
    """The largest offset in ``(start, end]`` at which a line has just ended, or ``None``."""
    with opened(path) as file:
        while start < end:
            block_start = max(start, end - PROBE_BYTES)
            at = _read(file, path, block_start, end - block_start).rfind(b"\n")
            if at >= 0:
                return block_start + at + 1
            end = block_start
    return None


def next_line_end(path: str, start: int, end: int) -> int:
    """The smallest offset in ``(start, end]`` at which a line has just ended. ``end`` if no line
    ends before."""
    with opened(path) as file:
        while start < end:
            block = _read(file, path, start, min(PROBE_BYTES, end - start))
            at = block.find(b"\n")
            if at >= 0:
                return start + at + 1
            start += len(block)
    return end


def bytes_at(path: str, start: int, end: int) -> bytes:
    """Read all bytes ``[start, end)``."""
    with opened(path) as file:
        return _read(file, path, start, end - start)


def tail(path: str, end: int) -> str:
    """Identify the last bytes before ``end``: 12 hexadecimal digits from SHA-256 over up to
    ``TAIL_BYTES`` bytes."""
    with opened(path) as file:
        return _tail(file, path, end)


def _tail(file: BinaryIO, path: str, end: int) -> str:
    begin = max(0, end - TAIL_BYTES)
    return hashlib.sha256(_read(file, path, begin, end - begin)).hexdigest()[:12]


def check_tail(file: BinaryIO, path: str, end: int, expected: str) -> None:
    """Raise :class:`~txtopo.errors.InputError` if the ``tail`` before ``end`` is not
    ``expected``."""
    if _tail(file, path, end) != expected:
        raise _replaced(path, end)


def line_blocks(
    file: BinaryIO, path: str, start: int, end: int, expected_tail: str
) -> Iterator[tuple[int, bytes]]:
    """Read the bytes ``[start, end)`` as blocks of whole lines, each with the offset where the
    block begins. A line longer than a block is a block.

    ``expected_tail`` is checked before and after: a file may be written anew, in place, while the
    task reads.
    """
    check_tail(file, path, end, expected_tail)
    unfinished: list[bytes] = []
    block_start = position = start
    while position < end:
        data = _read(file, path, position, min(BLOCK_BYTES, end - position))
        position += len(data)
        cut = data.rfind(b"\n") + 1 if position < end else len(data)
        if cut:
            unfinished.append(data[:cut])
            block = b"".join(unfinished)
            yield block_start, block
            block_start += len(block)
            unfinished = []
        if cut < len(data):
            unfinished.append(data[cut:])
    check_tail(file, path, end, expected_tail)


def first_line(file: BinaryIO, path: str) -> bytes:
    """Read the first line with its end."""
    line, size = b"", file.seek(0, os.SEEK_END)
    while len(line) < size and b"\n" not in line:
        line += _read(file, path, len(line), min(PROBE_BYTES, size - len(line)))
    return line[: line.find(b"\n") + 1] or line


def bytes_of_line_end(path: str, end: int, size: int) -> int | None:
    """How many bytes behind ``end`` belong to the end of the line before. ``None`` if the line goes
    on. The file has ``size`` bytes."""
    if not 0 < end < size:
        return 0
    data = bytes_at(path, end - 1, min(end + 2, size))
    if data.startswith(b"\n") or data[1:].startswith(b"\n"):
        return int(not data.startswith(b"\n"))
    return 2 if data.endswith(b"\r\n") else None


def opened(path: str) -> BinaryIO:
    """Open the file for reading. An open file stays the same even if a new file gets its name."""
    if remote.is_remote(path):
        return remote.opened(path)
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise _unreadable("open", path, error) from None


def may_pass(error: OSError) -> bool:
    """Whether trying again may help."""
    return error.errno in _MAY_PASS


def _read(file: BinaryIO, path: str, start: int, amount: int) -> bytes:
    """Read exactly ``amount`` bytes from ``start``."""
    try:
        file.seek(start)
        data = file.read(amount)
        while len(data) < amount and (more := file.read(amount - len(data))):
            data += more
    except OSError as error:
        raise _unreadable("read", path, error) from None
    if len(data) < amount:
        raise shrunk(path, start + len(data), start + amount)
    return data


def shrunk(path: str, size: int, planned: int) -> errors.InputError:
    """The error for a file with ``size`` bytes that was planned, or read, up to byte
    ``planned``."""
    return errors.InputError(
        f"{path} has shrunk: it has {size} bytes, but was planned up to byte {planned}\n"
        "  A batch must not change: restore the file, or start over with `txtopo state reset ID`."
    )


def _replaced(path: str, end: int) -> errors.InputError:
    return errors.InputError(
        f"{path} has been rotated or written anew: the {min(end, TAIL_BYTES)} bytes before byte {end} are not those that were planned or read\n"
        "  Restore the file, and give a new file a name that sorts behind all others. Or start over with `txtopo state reset ID`."
    )


def _unreadable(verb: str, path: str, error: OSError) -> Exception:
    if may_pass(error):
        return errors.FailedException(f"cannot {verb} {path} just now: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return errors.InputError(
            f"no file {path}\n  Mend the path or restore the file. Every machine that runs tasks must see the file under this path."
        )
    if isinstance(error, PermissionError):
        return errors.InputError(
            f"{path} may not be read by this user\n  Allow it with `chmod`, also on the directories above, wherever tasks run."
        )
    return errors.InputError(
        f"{path} cannot be read: {error.strerror}\n  Make sure that `cat` can read the file on every machine that runs tasks."
    )
