"""Files that appear while a run goes on: each is taken up once, in the order of the names."""

from __future__ import annotations

import functools
import os
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from txtopo import errors
from txtopo.connectors.files import blocks, planning, remote
from txtopo.connectors.files import groups as file_groups
from txtopo.topology import spout
from txtopo.topology.context import CoordinatorContext

T = TypeVar("T")

FILES_PER_BATCH = 100
"""How many files a partition's part of a batch may span: the metadata has their paths."""
FILES_OPEN = 3 * FILES_PER_BATCH
"""How many files of a partition are asked for their sizes at once."""


def pause_s(listing_s: float) -> float:
    """How many seconds the files are not listed again after a listing that took ``listing_s``."""
    return max(1.0, 10 * listing_s)


class GrowingCoordinator(spout.PartitionedSpoutCoordinator):
    """Lists the files again and again, and gives the unread ones to planners for frozen files, one
    per partition. A file belongs to the partition that its name's checksum says.

    A partition's metadata is that of the planner, and:

    - ``paths``: ``file`` … ``end_file``, without settings.
    - ``files``: how many files in the partition sorted up to the last of ``paths``.
    - ``names``: the identity of all these paths.
    - ``whole``: whether the last file was read to its end.
    - ``partitions``: how many partitions there were.
    """

    def __init__(
        self,
        patterns: tuple[str, ...],
        partitions: int,
        planner: Callable[[int, file_groups.SizedGroup, Any], planning.Planner],
        context: CoordinatorContext,
    ) -> None:
        self._patterns, self._context = patterns, context
        self._parts = [
            _Partition(functools.partial(planner, partition), partitions)
            for partition in range(partitions)
        ]
        self._known: set[str] = set()
        self._asks_at = 0.0
        for partition, metadata in (context.last_metadata or {}).items():
            if metadata is not None and metadata.get("partitions") != partitions:
                raise errors.InputError(
                    f"partition {partition} was read with other partitions than {partitions}, or without growing\n"
                    "  Set partitions and growing as they were, or start over with `txtopo state reset ID`."
                )
        self._unless_gone(self._is_ready)

    def num_partitions(self) -> int:
        return len(self._parts)

    def is_ready(self) -> bool:
        return self._unless_gone(self._is_ready)

    def plan_partition_batch(
        self, txid: int, partition: int, last_metadata: Any
    ) -> dict[str, Any] | None:
        """Plan the partition's next batch. ``None`` if all files that were listed have been
        read."""
        part = self._parts[partition]
        return self._unless_gone(lambda: part.plan(last_metadata))

    def _unless_gone(self, call: Callable[[], T]) -> T:
        """Files that were read to their end may go, also while ``call`` looks at them."""
        try:
            return call()
        except errors.InputError:
            if self._known <= set(file_groups.listed(self._patterns)):
                raise
            self._asks_at = 0.0
            raise errors.FailedException("files have gone since they were listed") from None

    def _is_ready(self) -> bool:
        last = self._context.last_metadata or {}
        for partition, part in enumerate(self._parts):
            part.last = last.get(partition)
        if time.monotonic() >= self._asks_at:
            self._look()
        return any(part.is_ready() for part in self._parts)

    def _look(self) -> None:
        """List the files, and deal them out."""
        began = time.monotonic()
        paths = self._list()
        if not paths and not any(map(_may_match, self._patterns)):
            raise file_groups.none_matched(self._patterns)
        self._known = set(paths)
        dealt: list[list[str]] = [[] for _ in self._parts]
        for path in paths:
            name = os.fsencode(remote.without_settings(path))
            dealt[zlib.crc32(name) % len(dealt)].append(path)
        for part, own_paths in zip(self._parts, dealt, strict=True):
            part.take(own_paths)
        ended = time.monotonic()
        self._asks_at = ended + pause_s(ended - began)

    def _list(self) -> list[str]:
        """List the files. A listing takes a while, and may lack a file whose name is older than
        another file's. A second listing has both files."""
        paths = file_groups.listed(self._patterns)
        if not paths or set(paths) == self._known:
            return paths
        end = remote.without_settings(paths[-1])
        again = file_groups.listed(self._patterns)
        both = {*paths, *(path for path in again if remote.without_settings(path) <= end)}
        _check_links(both)
        return sorted(both, key=remote.without_settings)


class _Partition:
    """One partition's files, as listed last. Some of the unread ones are open for planning."""

    def __init__(
        self,
        planner: Callable[[file_groups.SizedGroup, Any], planning.Planner],
        partitions: int,
    ) -> None:
        self._plan_from, self._partitions = planner, partitions
        self.last: Any = None
        """The metadata of the newest batch."""
        self._all: file_groups.FileGroup | None = None
        self._seen: set[str] = set()
        """All names of this run: a listing may lack some for a moment."""
        self._bytes_of_last = 0
        self._opened = file_groups.FileGroup(())
        self._next = 0
        """The number of the file behind the open ones."""
        self._planner: planning.Planner | None = None

    def is_ready(self) -> bool:
        while not self._has_more() and self._all is not None and self._next < len(self._all.paths):
            self._open(self._next)
        return self._has_more()

    def _has_more(self) -> bool:
        return self._planner is not None and self._planner.has_more(self._within(self.last))

    def plan(self, last_metadata: Any) -> dict[str, Any] | None:
        if self._all is None or self._planner is None:
            return None
        planned = self._planner.plan(self._within(last_metadata))
        if planned is None:
            return None
        paths = self._opened.names[planned["file"] : planned["end_file"] + 1]
        files = bisect_right(self._all.names, paths[-1])
        return {
            **planned,
            "paths": paths,
            "files": files,
            "names": self._all.identities[files - 1],
            "whole": self._planner.is_whole(planned),
            "partitions": self._partitions,
        }

    def take(self, paths: list[str]) -> None:
        """Go on with a new listing."""
        listed = file_groups.FileGroup(tuple(paths))
        first = 0 if self.last is None else self._checked_place(listed)
        is_new = self._all is None or self._all.paths != listed.paths
        self._all = listed
        self._seen.update(listed.names)
        open_names = self._opened.names
        if is_new and open_names and self._has_more():
            end = bisect_right(listed.names, open_names[-1])
            start = max(0, end - len(open_names))
            at = "" if self.last is None else self.last["paths"][-1]
            if listed.names[start:end] == open_names and start <= bisect_right(listed.names, at):
                # All new files sort behind the open files.
                self._next = end
                return
        # Only the last file may grow.
        size = blocks.size_of(paths[-1]) if paths else 0
        if is_new or (size != self._bytes_of_last and not self._has_more()):
            self._bytes_of_last = size
            self._open(first)

    def _open(self, first: int) -> None:
        """Let the files from number ``first`` be read, a bounded number of them: each is asked for
        its size. After a failure, they are opened again."""
        assert self._all is not None
        self._next, self._planner = first, None
        self._opened = file_groups.FileGroup(self._all.paths[first : first + FILES_OPEN])
        if self._opened.paths:
            (files,) = file_groups.sized([self._opened])
            self._planner = self._plan_from(files, self._within(self.last))
        self._next += FILES_OPEN

    def _checked_place(self, listed: file_groups.FileGroup) -> int:
        """The number of the file to go on with. Refuses a new file before this number."""
        at = self.last["paths"][-1]
        files = bisect_right(listed.names, at)
        if self._all is not None:
            late = next((name for name in listed.names[:files] if name not in self._seen), "")
        else:
            late = (
                f"one of {files} files"
                if files > self.last["files"]
                or (
                    files == self.last["files"]
                    and listed.identities[files - 1] != self.last["names"]
                )
                else ""
            )
        if late:
            raise errors.InputError(
                f"{late} has appeared, but files up to {at} were read, so it would never be read\n"
                "  Give it a name that sorts behind all others, and start the run again."
            )
        is_there = files > 0 and listed.names[files - 1] == at
        if not is_there and not self.last["whole"]:
            raise errors.InputError(
                f"{at} was read in part, and is no longer there\n"
                "  Restore it. Only files that were read to their end, in committed transactions, may go."
            )
        return files - is_there

    def _within(self, metadata: Any) -> Any:
        """Number the files in ``metadata`` as the open ones. None if it ended before the first of
        them."""
        names, identities = self._opened.names, self._opened.identities
        if metadata is None or not names or metadata["paths"][-1] < names[0]:
            return None
        if metadata["paths"][-1] == names[0]:
            end = {"read": metadata["end"]} if "end" in metadata else {}
            return {**metadata, "end_file": 0, "group": identities[0], **end}
        return metadata


def _check_links(paths: Iterable[str]) -> None:
    """Refuse links to files, and to directories, that are listed under their own name, too."""
    places = {path for path in paths if not remote.is_remote(path)}
    directories: dict[str, str] = {}
    for directory in {os.path.dirname(path) for path in places}:
        other = directories.setdefault(os.path.realpath(directory), directory)
        if other != directory:
            raise _named_twice(other, directory)
    for path in filter(os.path.islink, places):
        if (target := os.path.realpath(path)) in places:
            raise _named_twice(path, target)


def _named_twice(path: str, other: str) -> errors.InputError:
    return errors.InputError(
        f"{path} and {other} are one place, and each line is read once\n  Leave the link out, by a narrower pattern."
    )


def planned_paths(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """``paths`` with the settings of ``patterns``."""
    settings = next((each.partition("?")[2] for each in patterns if remote.is_remote(each)), "")
    return [f"{path}?{settings}" if settings and remote.is_remote(path) else path for path in paths]


def _may_match(pattern: str) -> bool:
    """Whether files may appear that ``pattern`` matches: the directory before its first wildcard is
    there."""
    return remote.is_remote(pattern) or os.path.isdir(
        file_groups.beginning(file_groups.with_directory(pattern))
    )
