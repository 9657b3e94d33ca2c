"""Files that appear while a run goes on: each is taken up once, in the order of the names."""

from __future__ import annotations

import glob
import os
import time
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Protocol

from txtopo import errors
from txtopo.connectors.files import groups as file_groups
from txtopo.connectors.files import remote
from txtopo.topology import spout
from txtopo.topology.context import CoordinatorContext

FILES_PER_BATCH = 100
"""How many files a partition's part of a batch may span: the metadata has their paths."""
FILES_OPEN = 10 * FILES_PER_BATCH
"""How many files of a partition are asked for their sizes at once."""


def pause_s(listing_s: float) -> float:
    """How many seconds the files are not listed again after a listing that took ``listing_s``."""
    return max(1.0, 10 * listing_s)


class FrozenCoordinator(Protocol):
    """Plans batches from files that stay as they are."""

    def is_ready(self) -> bool: ...

    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any: ...

    def is_whole(self, metadata: Any) -> bool:
        """Whether a batch of partition 0 ends with its last file."""


class GrowingFiles(Protocol):
    """The spout."""

    patterns: tuple[str, ...]
    partitions: int

    def frozen_coordinator(
        self, groups: tuple[file_groups.FileGroup, ...], context: CoordinatorContext
    ) -> FrozenCoordinator: ...


class GrowingCoordinator(spout.PartitionedSpoutCoordinator):
    """Lists the files again and again, and gives the unread ones to coordinators for frozen files,
    one per partition. A file belongs to the partition that its name's checksum says.

    A partition's metadata is that of the frozen coordinator, and:

    - ``paths``: ``file`` … ``end_file``, without settings.
    - ``files``: how many files in the partition sorted up to the last of ``paths``.
    - ``names``: the identity of all these paths.
    - ``whole``: whether the last file was read to its end.
    - ``partitions``: how many partitions there were.
    """

    def __init__(self, own: GrowingFiles, context: CoordinatorContext) -> None:
        self._own, self._context = own, context
        self._parts = [_Partition(own, context, each) for each in range(own.partitions)]
        self._asks_at = 0.0
        for partition, metadata in (context.last_metadata or {}).items():
            if metadata is not None and metadata.get("partitions") != own.partitions:
                raise errors.InputError(
                    f"partition {partition} was read with other partitions than {own.partitions}, or without growing\n"
                    "  Set partitions and growing as they were, or start over with `txtopo state reset`."
                )
        self._look()

    def num_partitions(self) -> int:
        return self._own.partitions

    def is_ready(self) -> bool:
        if time.monotonic() >= self._asks_at:
            self._look()
        return any(each.is_ready() for each in self._parts)

    def plan_partition_batch(
        self, txid: int, partition: int, last_metadata: Any
    ) -> dict[str, Any] | None:
        """Plan the partition's next batch. ``None`` if all files that were listed have been
        read."""
        return self._parts[partition].plan(txid, last_metadata)

    def _look(self) -> None:
        """List the files, and deal them out."""
        began = time.monotonic()
        paths = file_groups.listed(self._own.patterns)
        if not paths and not any(map(_may_match, self._own.patterns)):
            raise file_groups.none_matched(self._own.patterns)
        dealt: list[list[str]] = [[] for _ in self._parts]
        for path in paths:
            name = os.fsencode(remote.without_settings(path))
            dealt[zlib.crc32(name) % len(dealt)].append(path)
        for part, own_paths in zip(self._parts, dealt, strict=True):
            part.take(own_paths)
        ended = time.monotonic()
        self._asks_at = ended + pause_s(ended - began)


class _Partition:
    """One partition's files, as listed last. Some of the unread ones are open for planning."""

    def __init__(self, own: GrowingFiles, context: CoordinatorContext, number: int) -> None:
        self._own, self._number, self._run = own, number, context
        self._context = CoordinatorContext(
            context.topology_id,
            context.generation,
            context.component_id,
            lambda: {0: self._within(self._last())},
        )
        self._all: file_groups.FileGroup | None = None
        self._opened = file_groups.FileGroup(())
        self._next = 0
        """The number of the file behind the open ones."""
        self._frozen: FrozenCoordinator | None = None

    def _last(self) -> Any:
        return (self._run.last_metadata or {}).get(self._number)

    def is_ready(self) -> bool:
        while not (ready := self._frozen is not None and self._frozen.is_ready()):
            if self._all is None or self._next >= len(self._all.paths):
                break
            self._open(self._next)
        return ready

    def plan(self, txid: int, last_metadata: Any) -> dict[str, Any] | None:
        planned = (
            None
            if self._frozen is None
            else self._frozen.plan_partition_batch(txid, 0, self._within(last_metadata))
        )
        if self._all is None or self._frozen is None or planned is None:
            return None
        paths = self._opened.names[planned["file"] : planned["end_file"] + 1]
        files = bisect_right(self._all.names, paths[-1])
        return {
            **planned,
            "paths": paths,
            "files": files,
            "names": self._all.identities[files - 1],
            "whole": self._frozen.is_whole(planned),
            "partitions": self._own.partitions,
        }

    def take(self, paths: list[str]) -> None:
        """Go on with a new listing."""
        listed, last = file_groups.FileGroup(tuple(paths)), self._last()
        first = 0 if last is None else self._checked_place(listed, last)
        is_other = self._all is None or self._all.paths != listed.paths
        self._all = listed
        # The last file may have grown.
        if is_other or not self.is_ready():
            self._open(first)

    def _open(self, first: int) -> None:
        """Let the files from number ``first`` be read, a bounded number of them: each is asked for
        its size."""
        assert self._all is not None
        self._next = first + FILES_OPEN
        self._opened, self._frozen = (
            file_groups.FileGroup(self._all.paths[first : self._next]),
            None,
        )
        if self._opened.paths:
            self._frozen = self._own.frozen_coordinator((self._opened,), self._context)

    def _checked_place(self, listed: file_groups.FileGroup, last_metadata: Any) -> int:
        """The number of the file to go on with. Refuses a new file that sorts before it."""
        at = last_metadata["paths"][-1]
        files = bisect_right(listed.names, at)
        if self._all is not None:
            known = set(self._all.names)
            late = next((name for name in listed.names[:files] if name not in known), "")
        else:
            late = (
                f"one of {files} files"
                if files > last_metadata["files"]
                or (
                    files == last_metadata["files"]
                    and listed.identities[files - 1] != last_metadata["names"]
                )
                else ""
            )
        if late:
            raise errors.InputError(
                f"{late} has appeared, but files up to {at} were read, so it would never be read\n"
                "  Give it a name that sorts behind all others, and start the run again."
            )
        is_there = files > 0 and listed.names[files - 1] == at
        if not is_there and not last_metadata["whole"]:
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


def planned_paths(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """``paths`` with the settings of ``patterns``."""
    address, mark, settings = patterns[0].partition("?")
    return [path + mark + settings for path in paths] if remote.is_remote(address) else [*paths]


def _may_match(pattern: str) -> bool:
    """Whether files may appear that ``pattern`` matches: the directory before its first wildcard is
    there."""
    return remote.is_remote(pattern) or os.path.isdir(
        next(parent for parent in map(str, PurePath(pattern).parents) if not glob.has_magic(parent))
    )


__all__ = ["FILES_PER_BATCH", "GrowingCoordinator", "pause_s", "planned_paths"]
