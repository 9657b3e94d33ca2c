"""Bases for spouts over files: a list of files (``ListedFiles``), and byte ranges in files whose
records are lines (``ByteRanges``).

The driver plans every batch as a byte range that begins and ends between lines. To plan, the driver
reads a few kilobytes where a batch may end. Executors read the range. Emitters run on executors:
this module may import only the standard library and ``txtopo.topology``.
"""

from __future__ import annotations

import abc
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar

import txtopo.errors
from txtopo.connectors.files import blocks, following, planning, records, remote, storage
from txtopo.connectors.files import groups as file_groups
from txtopo.connectors.files import growing as file_growing
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext
from txtopo.topology.transaction import TransactionAttempt

ERROR_PAGE = "sources.html"

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

FILES_PER_BATCH = 1000
"""How many files a partition's part of a batch may span. Bounds the metadata, and the files that a
task opens in turn."""


PATHS_PER_BATCH = 1600
"""How many paths the metadata of a batch may have, where files grow in number."""


class ListedFiles(spout.BasePartitionedTransactionalSpout):
    """A base of spouts over a list of files, which is dealt out to partitions. The list is frozen
    when the topology is built, unless it grows."""

    position_keys: ClassVar[frozenset[str]]
    """Keys that every batch's metadata has, and other spouts' metadata have not."""

    def __init__(
        self,
        paths_or_glob: Paths,
        partitions: int,
        client: Mapping[str, Any] | None = None,
        growing: bool = False,
    ) -> None:
        self.patterns, self.above = _absolute(paths_or_glob, client or {})
        """``above`` is the current directory, or one above that all paths lead through. Neither that
        nor a directory above it names a column. Empty if a path is absolute."""
        self.partitions = at_least_one("partitions", partitions)
        self.growing = growing
        self._files: bytes | None = None
        if growing and (
            len({path.partition("?")[2] for path in self.patterns if remote.is_remote(path)}) > 1
        ):
            raise txtopo.errors.ConfigError(
                "file spout: with growing=True all addresses have the same settings\n  Give them by client=."
            )

    def groups(self) -> tuple[file_groups.FileGroup, ...]:
        if self._files is None:
            self._files = file_groups.packed(file_groups.listed(self.patterns))
        return file_groups.groups(self._files, self.partitions)

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.PartitionedSpoutCoordinator:
        self.require_own_positions(context)
        if self.growing:
            return file_growing.GrowingCoordinator(
                self.patterns, self.partitions, self.planner, context
            )
        groups = self.groups()
        if not any(group.paths for group in groups):
            raise file_groups.none_matched(self.patterns)
        last = context.last_metadata or {}
        planners = [
            self.planner(partition, files, last.get(partition))
            for partition, files in enumerate(file_groups.sized(groups))
        ]
        return planning.FrozenCoordinator(planners, context)

    def require_own_positions(self, context: CoordinatorContext) -> None:
        """Refuse to go on from the positions of another spout.

        :raises txtopo.errors.StateMismatchError: a position is from another spout.
        """
        for partition, metadata in (context.last_metadata or {}).items():
            if metadata is not None and not (
                isinstance(metadata, Mapping) and self.position_keys <= metadata.keys()
            ):
                id = shlex.quote(context.topology_id)
                raise txtopo.errors.StateMismatchError(
                    f"partition {partition} has a position from another spout than {type(self).__name__}: {metadata!r:.200}\n"
                    "  No transaction was begun. Run the topology with its former spout, or type\n"
                    f"    `txtopo state reset {id}`: begin with the first batch. Then clear or adopt the stores"
                )

    @abc.abstractmethod
    def planner(self, partition: int, files: file_groups.SizedGroup, last: Any) -> planning.Planner:
        """Plan the batches after ``last`` from ``files``.

        :raises txtopo.errors.InputError: the files differ from those that an earlier run read.
        """

    def planned(self, partition: int, metadata: Any) -> Sequence[str]:
        """The paths of a batch's files.

        :raises txtopo.errors.InputError: the list of files has changed.
        """
        if "follows" in metadata:
            return [following.current_path(metadata)]
        if "paths" in metadata:
            return file_growing.planned_paths(self.patterns, metadata["paths"])
        groups = self.groups()
        if partition >= len(groups):
            raise _group_changed(partition)
        check_group(groups[partition], partition, metadata)
        return groups[partition].paths[metadata["file"] : metadata["end_file"] + 1]

    def __getstate__(self) -> dict[str, Any]:
        if self.growing:
            return self.__dict__
        # Building a topology pickles the spout: the files are listed now, so that coordinator and
        # emitters have the same list.
        found_any = any(group.paths for group in self.groups())
        # The patterns may be thousands of paths, and the list of files replaces them.
        return {**self.__dict__, "patterns": () if found_any else self.patterns}


class ByteRanges(ListedFiles):
    """A base of spouts whose batches are byte ranges that begin and end between lines."""

    position_keys = frozenset({"end", "sizes"})

    def __init__(
        self,
        paths_or_glob: Paths,
        partitions: int,
        bytes_per_batch: int,
        client: Mapping[str, Any] | None = None,
        growing: bool = False,
    ) -> None:
        super().__init__(paths_or_glob, partitions, client, growing)
        self.bytes_per_batch = at_least_one("bytes_per_batch", bytes_per_batch)

    def planner(self, partition: int, files: file_groups.SizedGroup, last: Any) -> planning.Planner:
        return _RangePlanner(self, partition, files, last)


class _RangePlanner(planning.Planner):
    """Plans batches from sizes taken once.

    A partition's metadata:

    - ``file`` and ``start``, ``end_file`` and ``end``: numbers of files in the group, and byte
      offsets in them.
    - ``sizes``: of the files ``file`` … ``end_file - 1``, so that a replay reads the same bytes
      even if files have grown.
    - ``tails``: for each file, the identity of the last bytes read.
    - ``group``: the identity of files 0 … ``end_file``.
    - ``read``: how many bytes in the group have been read, this batch included.
    """

    def __init__(
        self, own: ByteRanges, partition: int, files: file_groups.SizedGroup, last: Any
    ) -> None:
        super().__init__(partition, files)
        self._bytes_per_batch, self._files_per_batch = own.bytes_per_batch, files_per_batch(own)
        self._continued: dict[int, int] = {}
        if last is not None:
            self._check_continuation(last)

    def plan(self, last: Any) -> dict[str, Any] | None:
        sized = self.files
        position = self.bytes_read(last)
        if position >= sized.total:
            return None
        self._check_tail(last)
        batch_end = sized.batch_end(position, self._bytes_per_batch, self._files_per_batch)
        if batch_end == sized.total:
            sized.leave_unfinished_line()
            batch_end = sized.total
            if batch_end == position:
                return None
        file, start = sized.beginning_at(position)
        end_file, end = sized.ending_at(batch_end)
        sized.check_whole(range(file, end_file + (end == sized.sizes[end_file])))
        sizes = sized.sizes[file:end_file]
        return {
            "file": file,
            "start": start,
            "end_file": end_file,
            "end": end,
            "sizes": sizes,
            "group": sized.group.identities[end_file],
            "tails": [
                blocks.tail(path, at)
                for path, at in zip(sized.group.paths[file:], [*sizes, end], strict=False)
            ],
            "read": batch_end,
        }

    def is_whole(self, metadata: Any) -> bool:
        sized, file = self.files, metadata["end_file"]
        return bool(metadata["end"] >= sized.sizes[file]) and not (
            sized.is_cut and file == len(sized.sizes) - 1
        )

    def _check_tail(self, last: Any) -> None:
        """Refuse a file that was replaced since the batch before was read."""
        if last is not None:
            path = self.files.group.paths[last["end_file"]]
            with blocks.opened(path) as file:
                blocks.check_tail(file, path, last["end"], last["tails"][-1])

    def bytes_read(self, last: Any) -> int:
        """Where the next batch begins. Refuses files that were renamed, or whose read part has
        changed in size."""
        if last is None:
            return 0
        sized = self.files
        check_group(sized.group, self.partition, last)
        file, end = last["end_file"], last["end"]
        path = sized.group.paths[file]
        if sized.sizes[file] < end:
            raise blocks.shrunk(path, sized.sizes[file], end)
        position = sized.position(file, end)
        if position != last["read"]:
            had = last["read"] - end
            raise txtopo.errors.InputError(
                f"partition {self.partition}: the files before {path} have {position - end} bytes, but had {had} when they were read\n"
                "  They are not read again. Restore them and put new lines into a file that sorts last, or start over with `txtopo state reset ID`."
            )
        return self._continued.get(position, position)

    def _check_continuation(self, last: Any) -> None:
        """Refuse files that differ from those that an earlier run read. Note where to go on if the
        last line has got its end since."""
        position = self.bytes_read(last)
        self._check_tail(last)
        sized, file, end = self.files, last["end_file"], last["end"]
        path = sized.group.paths[file]
        skipped = blocks.bytes_of_line_end(path, end, sized.sizes[file])
        if skipped is None:
            raise txtopo.errors.InputError(
                f"{path}: the line before byte {end} was read as the last one, without an end, and has been continued since\n"
                "  Restore the file so that a line ends there, or start over with `txtopo state reset ID`."
            )
        self._continued[position] = position + skipped


class ByteRangeEmitter(spout.PartitionedSpoutEmitter):
    """Reads planned ranges, block by block."""

    def __init__(self, own: ListedFiles) -> None:
        self._own = own

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        paths = self._own.planned(partition, metadata)
        try:
            self._emit_files(attempt, collector, paths, metadata)
        except txtopo.errors.InputError as error:
            if "follows" in metadata and self._own.planned(partition, metadata) != paths:
                raise txtopo.errors.FailedException(f"rotated while it was read: {error}") from None
            raise

    def _emit_files(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        paths: Sequence[str],
        metadata: Any,
    ) -> None:
        ends, start = [*metadata["sizes"], metadata["end"]], metadata["start"]
        for path, end, tail in zip(paths, ends, metadata["tails"], strict=True):
            with blocks.opened(path) as open_file:
                self.begin_file(path, open_file)
                for offset, block in blocks.line_blocks(open_file, path, start, end, tail):
                    if offset == 0:
                        records.check_uncompressed(path, block)
                    self.emit_block(attempt, collector, path, offset, block)
            start = 0

    def begin_file(self, path: str, open_file: BinaryIO) -> None:
        """Look at the file's beginning, before a batch's first block in the file."""

    @abc.abstractmethod
    def emit_block(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        path: str,
        offset: int,
        block: bytes,
    ) -> None:
        """Emit a block of whole lines, which begins at byte ``offset`` in ``path``."""


def files_per_batch(own: ListedFiles) -> int:
    """How many files a partition's part of a batch may span."""
    if not own.growing:
        return FILES_PER_BATCH
    return max(1, min(file_growing.FILES_PER_BATCH, PATHS_PER_BATCH // own.partitions))


def check_group(group: file_groups.FileGroup, partition: int, metadata: Any) -> None:
    """Raise :class:`~txtopo.errors.InputError` if the files in ``partition`` differ from those in
    ``metadata``."""
    if "follows" in metadata:
        raise txtopo.errors.InputError(
            f"partition {partition} was read with follow=True\n  Set follow as it was, or start over with `txtopo state reset ID`."
        )
    file = metadata["end_file"]
    if file >= len(group.paths) or group.identities[file] != metadata["group"]:
        raise _group_changed(partition)


def _group_changed(partition: int) -> txtopo.errors.InputError:
    return txtopo.errors.InputError(
        f"partition {partition} no longer has the files that were read: one was added among them, removed or renamed, or partitions changed\n"
        "  Restore the list of files (new files must sort behind all others) and partitions, or start over with `txtopo state reset ID`."
    )


def _absolute(paths: Paths, client: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for path in several:
        if (
            not isinstance(path, str | os.PathLike)
            or not isinstance(os.fspath(path), str)
            or not os.fspath(path)
        ):
            raise txtopo.errors.ConfigError(
                f"file spout: {path!r} is not a path\n  Give a path, a pattern like 'data/**/*.txt', or a list of these."
            )
    names = [os.fspath(path) for path in several]
    whole = tuple(_with_settings(file_groups.absolute(name), client) for name in names)
    if any(os.path.isabs(name) or remote.is_remote(name) for name in names):
        return whole, ""
    return whole, os.path.commonpath([os.getcwd(), *map(file_groups.beginning, whole)])


def _with_settings(path: str, client: Mapping[str, Any]) -> str:
    if not remote.is_remote(path):
        storage.check_client(path, client)
        return path
    address, own = remote.settings_in(path)
    settings = {**own, **client}
    storage.check_client(address, settings)
    return storage.address_of(address, settings)


def at_least_one(name: str, value: int) -> int:
    """Return ``value``, or raise :class:`~txtopo.errors.ConfigError` if it is not a whole number
    from 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise txtopo.errors.ConfigError(
            f"file spout: {name} is {value!r}; it is a whole number of at least 1"
        )
    return value
