"""Files that are appended to and rotated, as logs are: each line is read once, across rotation.

A log has a newest file, and rotated files beside it with similar names, in the order of their last
writes. The inode and the bytes before a batch's end identify the batch's file under any name.

Invariants:
- A line is read when it has its end, or when a later file has content.
- A rotation in the middle of a look at the files fails the attempt, which is replayed.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from txtopo import errors
from txtopo.connectors.files import blocks, remote
from txtopo.connectors.files import groups as file_groups
from txtopo.topology import spout
from txtopo.topology.context import CoordinatorContext

T = TypeVar("T")


class _File(NamedTuple):
    path: str
    inode: int
    bytes: int


class _Lines(NamedTuple):
    """The lines to read next. ``before``: inode and size of the earlier file."""

    file: _File
    start: int
    limit: int
    before: list[int] | None


class FollowingCoordinator(spout.PartitionedSpoutCoordinator):
    """Plans batches of whole lines. Each log is a partition.

    A partition's metadata is that of a batch in frozen files, and:

    - ``follows``: the path that the log is written to.
    - ``inode``: of the file.
    - ``before``: inode and size of the earlier file, once there is one.
    """

    def __init__(
        self, paths: Sequence[str], bytes_per_batch: int, context: CoordinatorContext
    ) -> None:
        self._paths, self._bytes_per_batch, self._context = paths, bytes_per_batch, context
        for partition, path in enumerate(paths):
            metadata = self._last(partition)
            if metadata is None:
                blocks.size_of(path)
            elif metadata.get("follows") != path:
                raise errors.InputError(
                    f"partition {partition} was read from {metadata.get('follows', 'files that were not followed')}, and now is {path}\n"
                    "  Give the same paths in the same order, new ones last, or start over with `txtopo state reset`."
                )

    def num_partitions(self) -> int:
        return len(self._paths)

    def is_ready(self) -> bool:
        return any(
            _settled(path, functools.partial(_next_lines, self._last(i))) is not None
            for i, path in enumerate(self._paths)
        )

    def _last(self, partition: int) -> Any:
        return (self._context.last_metadata or {}).get(partition)

    def plan_partition_batch(
        self, txid: int, partition: int, last_metadata: Any
    ) -> dict[str, Any] | None:
        """Plan the partition's next lines. ``None`` if there are none."""
        path = self._paths[partition]
        return _settled(path, lambda files: self._planned(path, files, last_metadata))

    def _planned(self, follows: str, files: list[_File], last: Any) -> dict[str, Any] | None:
        lines = _next_lines(last, files)
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
            "follows": follows,
            "inode": lines.file.inode,
            "before": lines.before,
        }


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
    return _settled(metadata["follows"], lambda files: files[_place(files, metadata)].path)


def _settled(newest: str, look: Callable[[list[_File]], T]) -> T:
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
    return [file[:2] for file in files] != [file[:2] for file in before] or any(
        file.bytes < earlier.bytes for file, earlier in zip(files, before, strict=True)
    )


def _just_now(newest: str) -> errors.FailedException:
    return errors.FailedException(f"{newest} was rotated just now")


def _next_lines(last: Any, files: list[_File]) -> _Lines | None:
    place, start, before = len(files) - 1, 0, None
    if last is not None:
        place, start, before = _place(files, last), last["end"], last["before"]
        for file in files[:place]:
            if before is not None and file.inode == before[0] and file.bytes > before[1]:
                raise errors.InputError(
                    f"{file.path} has got lines behind byte {before[1]}, after a later file had content\n"
                    "  They were not read. Move the lines to the newest file. The writer has to close a file before it begins the next one."
                )
    following = _following(files, place)
    if following and start >= files[place].bytes:
        before = [files[place].inode, files[place].bytes]
        place, start = following, 0
        following = _following(files, place)
    if place < 0:
        return None
    file = files[place]
    limit = file.bytes if following else blocks.last_line_end(file.path, start, file.bytes)
    return _Lines(file, start, limit, before) if (limit or 0) > start and limit else None


def _following(files: list[_File], place: int) -> int:
    """Number the next file that has content. 0 if there is none."""
    return next((i for i in range(place + 1, len(files)) if files[i].bytes), 0)


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
            "  Restore exactly one such file beside the log, uncompressed (logrotate: delaycompress), or start over with `txtopo state reset`."
        )
    return same[0]


def _files(newest: str) -> list[_File]:
    """The log's files: ``app.log``, last, and for example ``app.log.1``, ``app.log-20261127``,
    ``app-2026-11-27.log``."""
    directory, name = os.path.split(newest)
    stem, extension = map(re.escape, os.path.splitext(name))
    is_rotated = re.compile(rf"{stem}{extension}[.-]\d.*|{stem}[.-]\d.*{extension}").fullmatch
    paths = [entry.path for entry in os.scandir(directory) if is_rotated(entry.name)]
    files: dict[int, tuple[int, _File]] = {}
    for path in [newest, *paths]:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        # A link may name a file a second time.
        if stat.S_ISREG(status.st_mode) and status.st_ino not in files:
            files[status.st_ino] = (
                status.st_mtime_ns if path != newest else sys.maxsize,
                _File(path, status.st_ino, status.st_size),
            )
    return [file for _, file in sorted(files.values())]


__all__ = ["FollowingCoordinator", "checked_paths", "current_path"]
