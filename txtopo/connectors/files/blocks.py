"""Lines in files as bytes: where they end, and reading a range of them in big blocks.

Apart from the spout because it knows only files: no partition, no transaction, no text. A line ends
with ``\\n`` or with the range it is read from, never anywhere else; a block holds whole lines only.
A file that cannot be read is an :class:`~txtopo.errors.InputError`, or a ``FailedException`` where
trying again may help.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from txtopo import errors

BLOCK_BYTES = 1 << 20
"""How much the reader of a range asks for at once."""
PROBE_BYTES = 1 << 16
"""How much the search for the end of a line asks for at once."""
TAIL_BYTES = 1 << 12
"""The number of bytes, before the end of the read part, that identify a file that may grow."""

_MAY_PASS = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT})


def size_of(path: str) -> int:
    """The size of the file in bytes, once it is sure that it is a file and can be read."""
    return status_of(path).st_size


def status_of(path: str) -> os.stat_result:
    """The file's entry in the file system, of a readable file and no directory. Opening it makes a
    network's answer fresh."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from None
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
    """The largest offset in ``(start, end]`` at which a line has just ended; ``None`` if no line
    ends there."""
    with opened(path) as file:
        while start < end:
            block_start = max(start, end - PROBE_BYTES)
            at = _read(file, path, block_start, end - block_start).rfind(b"\n")
            if at >= 0:
                return block_start + at + 1
            end = block_start
    return None


def next_line_end(path: str, start: int, end: int) -> int:
    """The smallest offset in ``(start, end]`` at which a line has just ended; ``end`` if none does
    before."""
    with opened(path) as file:
        while start < end:
            block = _read(file, path, start, min(PROBE_BYTES, end - start))
            at = block.find(b"\n")
            if at >= 0:
                return start + at + 1
            start += len(block)
    return end


def bytes_at(path: str, start: int, end: int) -> bytes:
    """The bytes ``[start, end)`` of the file, all of them."""
    with opened(path) as file:
        return _read(file, path, start, end - start)


def tail(path: str, end: int) -> str:
    """The identity of the last bytes before ``end``: 12 hexadecimal digits of SHA-256 over as many
    as ``TAIL_BYTES``."""
    with opened(path) as file:
        return _tail(file, path, end)


def _tail(file: BinaryIO, path: str, end: int) -> str:
    begin = max(0, end - TAIL_BYTES)
    return hashlib.sha256(_read(file, path, begin, end - begin)).hexdigest()[:12]


def check_tail(path: str, end: int, expected: str) -> None:
    """:class:`~txtopo.errors.InputError` if the last bytes before ``end`` are not those whose
    ``tail`` was ``expected``."""
    with opened(path) as file:
        _check_tail(file, path, end, expected)


def _check_tail(file: BinaryIO, path: str, end: int, expected: str) -> None:
    if _tail(file, path, end) != expected:
        raise _replaced(path, end)


def line_blocks(
    file: BinaryIO, path: str, start: int, end: int, expected_tail: str
) -> Iterator[tuple[int, bytes]]:
    """The bytes ``[start, end)`` of ``file`` as blocks of whole lines, each with the offset it
    begins at. A line longer than a block is a block.

    ``expected_tail`` is looked at before and after: a file may be written anew, in place, while it
    is read.
    """
    _check_tail(file, path, end, expected_tail)
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
    _check_tail(file, path, end, expected_tail)


def first_line(file: BinaryIO, path: str) -> bytes:
    """The first line of ``file`` with its end."""
    line, size = b"", os.fstat(file.fileno()).st_size
    while len(line) < size and b"\n" not in line:
        line += _read(file, path, len(line), min(PROBE_BYTES, size - len(line)))
    return line[: line.find(b"\n") + 1] or line


def bytes_of_line_end(path: str, end: int, size: int) -> int | None:
    """How many bytes behind ``end``, where a line was taken to end, are its end; ``None`` if the
    line goes on. The file has ``size`` bytes."""
    if not 0 < end < size:
        return 0
    data = bytes_at(path, end - 1, min(end + 2, size))
    if data.startswith(b"\n") or data[1:].startswith(b"\n"):
        return int(not data.startswith(b"\n"))
    return 2 if data.endswith(b"\r\n") else None


def opened(path: str) -> BinaryIO:
    """The file, open for reading. An open file stays the same file if its name is given to a new
    file."""
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        if may_pass(error):
            raise errors.FailedException(f"cannot open {path} just now: {error.strerror}") from None
        raise _unreadable(path, error) from None


def may_pass(error: OSError) -> bool:
    """Whether trying again may help."""
    return error.errno in _MAY_PASS


def _read(file: BinaryIO, path: str, start: int, amount: int) -> bytes:
    """Exactly ``amount`` bytes from ``start``."""
    try:
        file.seek(start)
        data = file.read(amount)
        while len(data) < amount and (more := file.read(amount - len(data))):
            data += more
    except OSError as error:
        if may_pass(error):
            raise errors.FailedException(f"cannot read {path} just now: {error.strerror}") from None
        raise _unreadable(path, error) from None
    if len(data) < amount:
        raise shrunk(path, start + len(data), start + amount)
    return data


def shrunk(path: str, size: int, planned: int) -> errors.InputError:
    """The error that ``path`` has ``size`` bytes although it was planned, or read, up to byte
    ``planned``."""
    return errors.InputError(
        f"{path} has shrunk: it has {size} bytes, but was planned up to byte {planned}\n"
        "  Batches must stay what they were: restore the file, or start over with `txtopo state reset`."
    )


def _replaced(path: str, end: int) -> errors.InputError:
    return errors.InputError(
        f"{path} has been rotated or written anew: the {min(end, TAIL_BYTES)} bytes before byte {end} are not those that were planned or read\n"
        "  Restore the file, and give a new one a name that sorts behind all others; or start over with `txtopo state reset`."
    )


def _unreadable(path: str, error: OSError) -> errors.InputError:
    if isinstance(error, FileNotFoundError):
        return errors.InputError(
            f"no file {path}\n  Mend the path or restore the file; every machine that runs tasks must see it under this path."
        )
    if isinstance(error, PermissionError):
        return errors.InputError(
            f"{path} may not be read by this user\n  Allow it with `chmod`, also on the directories above, wherever tasks run."
        )
    return errors.InputError(
        f"{path} cannot be read: {error.strerror}\n  See that `cat` can read it, on every machine that runs tasks."
    )
