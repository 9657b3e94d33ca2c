"""Files that are appended to and rotated, as logs are: each line is read once, across rotation.

A log has a newest file, and rotated files beside it with similar names, in the order of their last
writes. The inode and the bytes before a batch's end identify the batch's file under any name.

Invariants:
- A line is read when it has its end, or when a later file has content.
- A rotation in the middle of a look at the files fails the attempt, which is replayed.
- While logrotate copies the newest file, the lines are read from the newest file, not from the copy.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from txtopo import errors
from txtopo.connectors.files import blocks, remote
from txtopo.connectors.files import groups as file_groups
from txtopo.topology import spout
from txtopo.topology.context import CoordinatorContext

ERROR_PAGE = "sources.html"

T = TypeVar("T")


class _File(NamedTuple):
    path: str
    inode: int
    bytes: int
    written_ns: int


class _Past(NamedTuple):
    """A file that was read to its end, or was there before the first line was read."""

    inode: int
    bytes: int
    tail: str


class _Lines(NamedTuple):
    """The lines to read next, and the files that were read before."""

    file: _File
    start: int
    limit: int
    past: list[_Past]


class FollowingCoordinator(spout.PartitionedSpoutCoordinator):
    """Plans batches of whole lines. Each log is a partition.

    A partition's metadata is that of a batch in frozen files, and:

    - ``follows``: the path that the log is written to.
    - ``inode``: of the file.
    - ``past``: inode, size and tail of rotated files that are not read any more, as far as they are
      still there.
    """

    def __init__(
        self, paths: Sequence[str], bytes_per_batch: int, context: CoordinatorContext
    ) -> None:
        self._paths, self._bytes_per_batch, self._context = paths, bytes_per_batch, context
        if len({os.path.realpath(path) for path in paths}) < len(paths):
            raise errors.InputError("two of the paths are one log\n  Leave one of them out.")
        self._first: list[int] = []
        """Inodes of the files to begin with."""
        for partition, path in enumerate(paths):
            metadata = self._last(partition)
            self._first.append(os.stat(path).st_ino if os.path.exists(path) else 0)
            if metadata is None:
                blocks.size_of(path)
            elif metadata.get("follows") != path:
                raise errors.InputError(
                    f"partition {partition} was read from {metadata.get('follows', 'files that were not followed')}, and now is {path}\n"
                    f"  Give the same paths in the same order, new ones last, or start over with\n"
                    f"  `txtopo state reset {shlex.quote(context.topology_id)}`."
                )

    def num_partitions(self) -> int:
        return len(self._paths)

    def is_ready(self) -> bool:
        return any(
            _between_rotations(path, functools.partial(self._next_lines, i, self._last(i)))
            is not None
            for i, path in enumerate(self._paths)
        )

    def _last(self, partition: int) -> Any:
        return (self._context.last_metadata or {}).get(partition)

    def plan_partition_batch(
        self, txid: int, partition: int, last_metadata: Any
    ) -> dict[str, Any] | None:
        """Plan the partition's next lines. ``None`` if there are none."""
        plan = functools.partial(self._plan, partition, last_metadata)
        return _between_rotations(self._paths[partition], plan)

    def _plan(self, partition: int, last: Any, files: list[_File]) -> dict[str, Any] | None:
        lines = self._next_lines(partition, last, files)
        if lines is None:
            return None
        group = file_groups.FileGroup((lines.file.path,))
        end = file_groups.SizedGroup(group, [lines.limit]).batch_end(
            lines.start, self._bytes_per_batch, 1
        )
        return {
            "start": lines.start,
            "end": end,
            "sizes": [],
            "tails": [blocks.tail(lines.file.path, end)],
            "follows": self._paths[partition],
            "inode": lines.file.inode,
            "past": lines.past,
        }

    def _next_lines(self, partition: int, last: Any, files: list[_File]) -> _Lines | None:
        if not files:
            return None
        if last is None:
            inodes = [file.inode for file in files]
            first = self._first[partition]
            place, start = inodes.index(first) if first in inodes else len(files) - 1, 0
            past = [
                _past(file)
                for file in files[:place]
                if file.bytes and not _is_being_copied(files[-1], file)
            ]
        else:
            place, start = _place(files, last), last["end"]
            past = [_Past(*each) for each in last["past"]]
        past = _checked_past(past, files)
        unread = [i for i in range(place + 1, len(files)) if _is_unread(files[i], past)]
        if unread and start >= files[place].bytes:
            if len(unread) == 2 and _is_being_copied(files[-1], files[unread[0]]):
                raise errors.FailedException(
                    f"{files[unread[0]].path} has the beginning of {files[-1].path}, and seems to be a copy that is being made\n"
                    "  Move the copy elsewhere if no process is making it."
                )
            past += [_past(file) for file in files[place : place + 1] if file.bytes]
            place, start, unread = unread[0], 0, unread[1:]
            if re.search(_COMPRESSED, files[place].path):
                raise errors.InputError(
                    f"{files[place].path} is compressed, and newer than the file that was read last\n"
                    "  Move the file elsewhere if its lines were read. If not, decompress it as gunzip does, with the file's time."
                )
        file = files[place]
        limit = file.bytes if unread else blocks.last_line_end(file.path, start, file.bytes)
        return _Lines(file, start, limit, past) if limit is not None and limit > start else None


def checked_paths(patterns: Sequence[str]) -> tuple[str, ...]:
    """The paths of logs. Raises :class:`~txtopo.errors.ConfigError` for patterns and addresses."""
    for pattern in patterns:
        if remote.is_remote(pattern) or glob.escape(file_groups.plain(pattern)) != pattern:
            raise errors.ConfigError(
                f"file spout: {pattern} cannot be followed\n  With follow=True give the paths of local files, without patterns."
            )
    return tuple(map(file_groups.plain, patterns))


def current_path(metadata: Mapping[str, Any]) -> str:
    """The path that the file of a batch has now.

    :raises errors.InputError: it is not there.
    """
    return _between_rotations(
        metadata["follows"], lambda files: files[_place(files, metadata)].path
    )


def _between_rotations(newest: str, look: Callable[[list[_File]], T]) -> T:
    """Let ``look`` read the log's files, which must not be rotated meanwhile."""
    files = _files(newest)
    try:
        result = look(files)
    except errors.InputError:
        if _is_rotated(files, newest):
            raise _just_now(newest) from None
        raise
    if _is_rotated(files, newest):
        raise _just_now(newest)
    return result


def _is_rotated(before: list[_File], newest: str) -> bool:
    files = _files(newest)
    if [file[:2] for file in files] != [file[:2] for file in before]:
        return True
    added = [file.bytes - earlier.bytes for file, earlier in zip(files, before, strict=True)]
    # Before a file with content only a copy that is being made may grow.
    return min(added, default=0) < 0 or bool(any(added[:-1]) and before[-1].bytes)


def _just_now(newest: str) -> errors.FailedException:
    return errors.FailedException(f"{newest} was rotated just now")


def _past(file: _File) -> _Past:
    return _Past(file.inode, file.bytes, blocks.tail(file.path, file.bytes))


def _is_being_copied(newest: _File, copy: _File) -> bool:
    """Whether ``copy`` may be one that logrotate makes, before it cuts the newest file. Files with
    few bytes may begin alike: then a copy is not older than the newest file's content."""
    return (
        0 < copy.bytes <= newest.bytes
        and (copy.bytes >= blocks.TAIL_BYTES or copy.written_ns >= newest.written_ns)
        and blocks.tail(copy.path, copy.bytes) == blocks.tail(newest.path, copy.bytes)
    )


def _is_unread(file: _File, past: Iterable[_Past]) -> bool:
    """Whether the file has content, and no entry in ``past``."""
    return bool(file.bytes) and not any(
        (each.inode, each.bytes) == (file.inode, file.bytes)
        and blocks.tail(file.path, each.bytes) == each.tail
        for each in past
    )


def _checked_past(past: Iterable[_Past], files: Iterable[_File]) -> list[_Past]:
    """Select from ``past`` the files that are present. Refuses a file with more lines by now."""
    by_inode = {file.inode: file for file in files}
    present = []
    for each in past:
        file = by_inode.get(each.inode)
        # A new file may have got the inode of one that is gone.
        if file and file.bytes >= each.bytes and blocks.tail(file.path, each.bytes) == each.tail:
            if file.bytes > each.bytes:
                raise errors.InputError(
                    f"{file.path} has got lines behind byte {each.bytes}, after a later file had content\n"
                    "  They were not read. Move the lines to the newest file. The writer has to close a file before it begins the next one."
                )
            present.append(each)
    return present


def _place(files: list[_File], metadata: Mapping[str, Any]) -> int:
    """Number the batch's file."""
    end, tail = metadata["end"], metadata["tails"][-1]
    same = [
        i
        for i, file in enumerate(files)
        if file.bytes >= end and blocks.tail(file.path, end) == tail
    ]
    same = [i for i in same if files[i].inode == metadata["inode"]] or same
    if len(same) != 1:
        names = " and ".join(files[i].path for i in same)
        why = f"may be {names}" if same else "is not there, nor beside under a rotated name"
        raise errors.InputError(
            f"{metadata['follows']}: the file that was read up to byte {end} {why}\n"
            "  Restore exactly one such file beside the log, uncompressed (logrotate: delaycompress), or start over with `txtopo state reset ID`."
        )
    return same[0]


_COMPRESSED = r"\.(?:gz|bz2|xz|zst|lz4|zip)$"


def _files(newest: str) -> list[_File]:
    """The log's files: ``app.log``, last, and for example ``app.log.1``, ``app.log-20261127``,
    ``app-2026-11-27.log``."""
    directory, name = os.path.split(newest)
    stem, extension = map(re.escape, os.path.splitext(name))
    is_rotated = re.compile(
        rf"{stem}{extension}[.-]\d[\d.:T_-]*(?:{_COMPRESSED})?|{stem}[.-]\d{{4}}-?\d\d-?\d\d[\d.:T_-]*{extension}"
    ).fullmatch
    paths = [os.path.join(directory, other) for other in os.listdir(directory) if is_rotated(other)]
    files: dict[int, tuple[int, int, _File]] = {}
    for path in [newest, *paths]:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        # A link may name a file a second time.
        if stat.S_ISREG(status.st_mode) and status.st_ino not in files:
            # Of files with one time, app.log.2 is older than app.log.1.
            number = re.search(r"\.(\d{1,4})$", path)
            files[status.st_ino] = (
                status.st_mtime_ns if path != newest else sys.maxsize,
                -int(number[1]) if number else 0,
                _File(path, status.st_ino, status.st_size, status.st_mtime_ns),
            )
    return [file for *_, file in sorted(files.values())]
