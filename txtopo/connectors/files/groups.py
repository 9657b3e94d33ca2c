"""The list of files, their partitions, and positions in a partition.

A *group* is a partition's files, end to end. A *position* counts bytes from the group's beginning,
so that empty files and the seams between files are no special cases.

Invariants:
- File i in the sorted list belongs to group i mod partitions: files added behind the last file
  never move an earlier file.
- The identity of files 0 … j in a group depends on their paths alone, so any process can compute
  the identity from the list.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import pathlib
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from txtopo import errors
from txtopo.connectors.files import blocks, remote


def absolute(path: str) -> str:
    """Make a path or pattern start from the root. Directories put in front are escaped. Behind a
    symbolic link, ``..`` is the directory above the link's target. An address stays."""
    if remote.is_remote(path):
        return path
    above, dots, below = path.rpartition(f"{os.sep}..{os.sep}")
    physical = os.path.realpath(above + dots)
    if not dots or physical == os.path.realpath(os.path.abspath(above + dots)):
        return os.path.normpath(os.path.join(glob.escape(os.getcwd()), path))
    return os.path.normpath(os.path.join(glob.escape(physical), below.lstrip(os.sep)))


def listed(patterns: Iterable[str]) -> list[str]:
    """List the files that absolute paths and glob patterns name: sorted, each once.

    A pattern stands for the files that match, not for directories. A path without a pattern, or
    with a file of exactly this name, is listed as given, even if the file does not exist: a missing
    file must not be left out, but be an error later. For the same reason a directory that a pattern
    looks into is in the list if it cannot be listed.
    """
    paths: set[str] = set()
    for pattern in patterns:
        if remote.is_remote(pattern):
            paths.update(remote.listed(pattern))
            continue
        path = plain(pattern)
        if glob.escape(path) != pattern and not os.path.lexists(path):
            pattern = with_directory(pattern)
            # From the beginning: a directory above it need not be listed, and may not allow it.
            root = beginning(pattern)
            below = os.path.relpath(pattern, glob.escape(root))
            for name in glob.iglob(below, root_dir=root, recursive=True):
                path = os.path.join(root, name)
                if not (_is_hidden(path, pattern) or os.path.isdir(path)):
                    paths.add(path)
            paths.update(_unlistable(root, below))
        else:
            paths.add(path)
    return sorted(paths, key=remote.without_settings)


def _is_hidden(path: str, pattern: str) -> bool:
    """Whether ``path`` has a name that begins with an underscore, as Spark's ``_SUCCESS`` and
    ``_temporary`` do, and ``pattern`` has none."""
    return path.count("/_") > pattern.count("/_")


plain = remote.plain


def beginning(pattern: str) -> str:
    """The directory that an absolute ``pattern`` starts from: it has no wildcards."""
    parents = map(str, pathlib.PurePath(pattern).parents)
    return next(plain(parent) for parent in parents if glob.escape(plain(parent)) == parent)


def with_directory(pattern: str) -> str:
    """Escape the beginning of ``pattern`` if it is a directory's exact name and matches nothing.
    Raises :class:`~txtopo.errors.InputError` if this beginning matches other directories."""
    beginning = next(
        str(parent)
        for parent in pathlib.PurePath(pattern).parents
        if os.path.isdir(plain(str(parent)))
    )
    directory, matched = plain(beginning), glob.glob(beginning)
    if matched and directory not in matched:
        raise remote.directory_and_pattern(directory, matched[0])
    return pattern if matched else glob.escape(directory) + pattern[len(beginning) :]


def _unlistable(root: str, pattern: str) -> Iterator[str]:
    """Yield the directories that ``pattern`` looks into, from ``root``, and that cannot be listed:
    ``glob`` passes over them in silence."""
    parts, directories = pattern.split(os.sep), [""]
    for i, part in enumerate(parts):
        if glob.has_magic(part):
            within = os.path.join("", *parts[:i], "**" if part == "**" else "", "")
            directories += glob.iglob(within, root_dir=root, recursive=True)
    for name in directories:
        directory = os.path.join(root, name)
        try:
            os.scandir(directory).close()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if blocks.may_pass(error):
                raise errors.FailedException(
                    f"cannot list {directory} just now: {error.strerror}"
                ) from None
            yield os.path.normpath(directory)


def packed(paths: Sequence[str]) -> bytes:
    """Compress the list: it travels with the spout to every task in every attempt."""
    return zlib.compress("\0".join(paths).encode("utf-8", "surrogateescape"))


def _unpacked(data: bytes) -> list[str]:
    text = zlib.decompress(data).decode("utf-8", "surrogateescape")
    return text.split("\0") if text else []


@functools.lru_cache(maxsize=16)
def groups(data: bytes, partitions: int) -> tuple[FileGroup, ...]:
    """Deal the packed list out, one group per partition. A worker process unpacks a list once, not
    once per attempt."""
    paths = _unpacked(data)
    return tuple(FileGroup(tuple(paths[partition::partitions])) for partition in range(partitions))


def none_matched(patterns: tuple[str, ...]) -> errors.InputError:
    """The error for patterns that match no file."""
    named = ", ".join(patterns) or "an empty list"
    return errors.InputError(
        f"no file matched {named} when the topology was built\n"
        "  Mend the paths: relative paths start from the directory that was current when the spout was made, and only ** matches files at any depth."
    )


class FileGroup:
    """A partition's files, in order."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths

    @functools.cached_property
    def names(self) -> list[str]:
        return [remote.without_settings(path) for path in self.paths]

    @functools.cached_property
    def identities(self) -> tuple[str, ...]:
        """For each file j, the identity of files 0 … j together: 12 hexadecimal digits from SHA-256
        over their paths."""
        digest = hashlib.sha256()
        identities: list[str] = []
        for path in self.names:
            digest.update(os.fsencode(path) + b"\0")
            identities.append(digest.hexdigest()[:12])
        return tuple(identities)


def sized(groups: Iterable[FileGroup]) -> list[SizedGroup]:
    """Ask for the size of every file. Raises :class:`~txtopo.errors.InputError` if symbolic links
    give a file two names: the spout would read the file twice."""
    names: dict[tuple[int | str, int | str], str] = {}
    by_group: list[SizedGroup] = []
    for group in groups:
        sizes: list[int] = []
        for path in group.paths:
            status = blocks.status_of(path)
            other = names.setdefault((status.st_dev, status.st_ino), path)
            if other != path and os.path.realpath(other) == os.path.realpath(path):
                raise errors.InputError(
                    f"{other} and {path} are one file: one path is a symbolic link, or leads through a symbolic link\n"
                    "  Leave one path out, by a narrower pattern or a list of paths: each line is read once."
                )
            sizes.append(status.st_size)
        by_group.append(SizedGroup(group, sizes))
    return by_group


class SizedGroup:
    """A group with the sizes of its files, taken once. Later additions to the files do not exist
    for the run."""

    def __init__(self, group: FileGroup, sizes: list[int]) -> None:
        self.group, self.sizes = group, sizes
        self.is_cut = False
        """Whether the last file has more than its size says."""
        self._begins = [0]
        for size in self.sizes:
            self._begins.append(self._begins[-1] + size)

    @property
    def total(self) -> int:
        """The position behind the last byte."""
        return self._begins[-1]

    def leave_unfinished_line(self) -> None:
        """Let the last file end before a line that was incomplete when the size was taken, and has
        been continued since."""
        if self.sizes and self._goes_on(len(self.sizes) - 1):
            self.is_cut = True
            self.sizes[-1] = blocks.last_line_end(self.group.paths[-1], 0, self.sizes[-1]) or 0
            self._begins[-1] = self._begins[-2] + self.sizes[-1]

    def check_whole(self, files: Iterable[int]) -> None:
        """Raise :class:`~txtopo.errors.InputError` if the last line in one of ``files`` has been
        continued since the size was taken."""
        for file in files:
            if self._goes_on(file):
                raise errors.InputError(
                    f"{self.group.paths[file]}: the line before byte {self.sizes[file]} has been continued since the run began\n"
                    "  Start the run again. Only the file that sorts last may grow: give new lines to a file that sorts behind all others."
                )

    def _goes_on(self, file: int) -> bool:
        path = self.group.paths[file]
        return blocks.bytes_of_line_end(path, self.sizes[file], blocks.size_of(path)) is None

    def position(self, file: int, offset: int) -> int:
        return self._begins[file] + offset

    def beginning_at(self, position: int) -> tuple[int, int]:
        """File number and offset at ``position``, which is not the group's end."""
        file = bisect_right(self._begins, position) - 1
        return file, position - self._begins[file]

    def ending_at(self, position: int) -> tuple[int, int]:
        """File number and end offset at ``position``, which is not the group's beginning. Between
        two files, this is the earlier file's end."""
        file = bisect_left(self._begins, position) - 1
        return file, position - self._begins[file]

    def batch_end(self, start: int, bytes_max: int, files_max: int) -> int:
        """Where the batch ends that begins at ``start``: whole lines, at most ``bytes_max`` bytes,
        at most ``files_max`` files.

        A line longer than ``bytes_max`` is a batch by itself. Reads only around the place where the
        batch may end.
        """
        first_file, _ = self.beginning_at(start)
        files_end = self._begins[min(first_file + files_max, len(self.sizes))]
        target = min(start + bytes_max, files_end)
        if target in (self.total, files_end):
            return target
        file, offset = self.beginning_at(target)
        begin = self._begins[file]
        path, floor = self.group.paths[file], max(begin, start)
        cut = blocks.last_line_end(path, floor - begin, offset)
        if cut is not None:
            return begin + cut
        if floor > start:
            return floor
        return begin + blocks.next_line_end(path, offset, self.sizes[file])
