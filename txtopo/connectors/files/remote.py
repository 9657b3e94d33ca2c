"""Reads files in HDFS and object stores for the spouts, as local files are read.

A file's path is its address, with the settings of the library behind a question mark, as on the
command line: ``s3://bucket/in/a.csv?endpoint=http%3A%2F%2Flocalhost%3A9000``.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import itertools
import re
import urllib.parse
from typing import Any, BinaryIO, NamedTuple, cast

from txtopo import errors
from txtopo.connectors.files import storage

_TOKEN = re.compile(r"\[!?+(?:\][^]]*|[^]]+)\]|.", re.DOTALL)
_SHOWN = "(?![._])"
_ANY = f"{_SHOWN}[^/]+"


class Status(NamedTuple):
    """Size and time of a file, under the names of ``os.stat``. The other numbers identify it."""

    st_size: int
    st_mtime_ns: int
    st_dev: str
    st_ino: str


def is_remote(path: str) -> bool:
    """Whether ``path`` is an address of another machine."""
    return path.partition("://")[0] in storage.REMOTE


def status_of(path: str) -> Status:
    """The file's status.

    :raises errors.InputError: there is no such file.
    """
    store, name = _place(path)
    entry = store.stat(name)
    if entry is None:
        raise errors.InputError(f"no file {path}\n  Mend the address, or restore the file.")
    return Status(entry.bytes, round(entry.changed_at * 1e9), store.root, name)


def opened(path: str) -> BinaryIO:
    """Open the file for reading. Each read is a request."""
    status = status_of(path)
    return cast(BinaryIO, storage.Ranges(*_place(path), status.st_size))


def listed(pattern: str) -> list[str]:
    """The files that an address matches, sorted. Names that begin with a dot or an underscore are
    passed over, unless the pattern names them. A file, or a directory, of exactly the pattern's
    name is meant, as among local files."""
    address, mark, query = pattern.partition("?")
    if glob.escape(plain(address)) == address:
        return [f"{plain(address)}{mark}{query}"]
    parts = address.split("/")
    first = next(i for i, part in enumerate(parts) if glob.escape(plain(part)) != part)
    folder, below = plain("/".join(parts[:first])), parts[first:]
    store = storage.open_storage(folder, settings_in(pattern)[1])
    exact = plain("/".join(below))
    # A directory's exact name is seldom a pattern: only then all paths are looked at together.
    directories = [
        f"{plain(beginning)}/" for beginning in itertools.accumulate(below[:-1], "{}/{}".format)
    ]
    try:
        matches = _matcher(below)
        entries = [
            entry
            for entry in store.walk()
            if matches(entry.path) or entry.path.startswith((exact, *directories))
        ]
        paths = [entry.path for entry in entries]
        if exact not in paths and any(path.startswith(tuple(directories)) for path in paths):
            entries = list(store.walk())
            paths = [entry.path for entry in entries]
            matches = _matcher(_with_directory(folder, below, paths))
        names = sorted(
            entry.path
            for entry in entries
            # An object may stand for a folder, under its name with a slash behind.
            if (entry.path == exact or matches(entry.path))
            and (entry.bytes or store.stat(entry.path) is not None)
        )
    except (FileNotFoundError, re.error) as error:
        raise errors.InputError(f"{pattern} cannot be listed: {error}") from error
    names = [exact] if exact in names else names
    for name in names:
        if "?" in name:
            raise errors.InputError(
                f"{folder}/{name} has a question mark in its name, behind which settings are read\n  Rename it, or leave it out of the pattern."
            )
    return [f"{folder}/{name}{mark}{query}" for name in names]


def _with_directory(folder: str, parts: list[str], names: list[str]) -> list[str]:
    """Escape the beginning of ``parts`` if it is a directory's exact name and matches nothing."""
    for count in range(len(parts) - 1, 0, -1):
        directory = plain("/".join(parts[:count]))
        if any(name.startswith(f"{directory}/") for name in names):
            matched = [*filter(_matcher([*parts[:count], "**"]), names)]
            if not matched:
                return [glob.escape(directory), *parts[count:]]
            if not any(name.startswith(f"{directory}/") for name in matched):
                other = "/".join([folder, *matched[0].split("/")[:count]])
                raise directory_and_pattern(f"{folder}/{directory}", other)
            break
    return parts


def directory_and_pattern(directory: str, matched: str) -> errors.InputError:
    """The error for a directory whose name matches others, and not itself."""
    cure = (
        f"Give glob.escape(directory), {glob.escape(directory)!r}, or list the matches one by one."
    )
    return errors.InputError(
        f"{directory} is a directory, and a pattern that matches {matched}\n  {cure}"
    )


plain = functools.partial(re.compile(r"\[([*?[])\]").sub, r"\1")
"""A pattern without the brackets of ``glob.escape``."""


def _matcher(parts: list[str]) -> Any:
    folders = "".join(
        f"(?:{_ANY}/)*" if part == "**" else f"{_expression(part)}/" for part in parts[:-1]
    )
    last = f"(?:{_ANY}/)*{_ANY}" if parts[-1] == "**" else _expression(parts[-1])
    return re.compile(folders + last).fullmatch


def _expression(part: str) -> str:
    """The regular expression for one part of a pattern."""
    shown = "" if part.startswith((".", "_")) else _SHOWN
    return shown + _TOKEN.sub(_translated, part)


def _translated(token: re.Match[str]) -> str:
    text = token[0]
    if text == "*":
        return "[^/]*"
    return f"(?!/){fnmatch.translate(text)[4:-3]}" if len(text) > 1 else re.escape(text)


def without_settings(path: str) -> str:
    """``path``, which may be local, without settings."""
    return path.partition("?")[0] if is_remote(path) else path


def settings_in(path: str) -> tuple[str, dict[str, str]]:
    """An address, and the settings behind it."""
    address, _, query = path.partition("?")
    return address, dict(urllib.parse.parse_qsl(query))


def _place(path: str) -> tuple[storage.Storage, str]:
    address, _, query = path.partition("?")
    scheme, _, rest = address.partition("://")
    host, _, name = rest.partition("/")
    return _storage(f"{scheme}://{host}", query), name


@functools.lru_cache(maxsize=16)
def _storage(root: str, query: str) -> storage.Storage:
    return storage.open_storage(root, settings_in(f"?{query}")[1])
