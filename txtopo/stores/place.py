"""A store's place as a value: address, name, and connection settings.

A database's modules get a place, and so never import a store. Checks for URLs, passwords and limits
are here too, for all servers. Runs on executors: standard library only.

Invariants:
    - A place holds no password, only where the password is.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import urllib.parse
from collections.abc import Mapping
from typing import Any

from txtopo import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A store's address, and the settings for its database."""

    name: str
    """The store's name in its database, such as a table name."""
    address: str
    """The store in messages: the same text in every process, and a different text for each store."""
    location: str
    """The database as the command line takes it, beside ``name``."""
    form: str
    """The values' form, see ``rows``."""
    opaque: bool
    """True if writes are listed, so that a later attempt can undo them (R31)."""
    url: str = ""
    """The server's URL, without a password, or the file's path."""
    password_env: str | None = None
    """The environment variable that holds the password, if any."""
    password_file: str | None = None
    """The path of the file whose first line is the password, if any."""
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Time limits in seconds, by the names of the store constructor's parameters."""

    def command(self, action: str, topology_id: str) -> str:
        """The command line for ``action`` on this store, such as ``adopt``."""
        return f"txtopo store {action} {shlex.quote(self.location)} {shlex.quote(self.name)} --topology {shlex.quote(topology_id)}"

    def known_name(self, component: str) -> str:
        """The coordinator's name for ``component``'s store."""
        return f"{component}/{self.name}"

    def connection_name(self, scheme: str) -> str:
        """The name under which a worker process keeps its connection to the server.

        The name holds the process id, because a forked child must not use its parent's connection.
        The name also holds the settings, because a connection has its store's settings.
        """
        limits = ":".join(f"{value:g}" for value in self.limits.values())
        return (
            f"{scheme}:{self.url}:{self.password_env}:{self.password_file}:{limits}:{os.getpid()}"
        )


def password_from(
    subject: str, variable: str | None, path: str | None, alternative: str = "password_file"
) -> str | None:
    """Read the password for ``subject`` now, from an environment variable or a file. None if
    neither is given.

    :raises errors.SetupError: the variable or the file is missing on this machine, or the file's
        first line is no password.
    """
    if variable is not None:
        if not os.environ.get(variable):
            raise errors.SetupError(
                f"{subject} takes its password from the environment variable {variable}, which is not set here\n"
                f"  Set the variable where the driver and the executors are started, or use {alternative}."
            )
        return os.environ[variable]
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            password = file.readline().decode().rstrip("\r\n")
    except OSError as error:
        cure = "The file must be on every machine that connects."
        raise errors.SetupError(f"{subject} cannot read its password: {error}\n  {cure}") from error
    except UnicodeDecodeError:
        # Python's error shows the bytes, which may be the password: so no cause.
        raise errors.SetupError(
            f"the password file {path} of {subject} is not UTF-8\n  Its first line must be the password."
        ) from None
    if not password:
        raise errors.SetupError(
            f"the password file {path} of {subject} begins with an empty line\n  Its first line must be the password."
        )
    return password


def access(
    kind: str,
    url: str,
    password_env: str | None,
    password_file: str | os.PathLike[str] | None,
    limits: Mapping[str, float],
) -> dict[str, Any]:
    """Access to a server, as fields of a :class:`Place`. Refuses two password sources, and limits
    out of bounds. ``kind`` is the store's class."""
    if password_env is not None and password_file is not None:
        raise errors.UsageError(
            f"{kind} was given both password_env and password_file\n  Give one of them."
        )
    for name, value in limits.items():
        if not 0.001 <= value <= 1e6:
            raise errors.UsageError(
                f"{kind}'s {name} is {value:g}\n  Give seconds, at least 0.001."
            )
    return {
        "url": url,
        "password_env": password_env,
        "password_file": None if password_file is None else os.fspath(password_file),
        "limits": limits,
    }


def split(url: str) -> urllib.parse.SplitResult | None:
    """The parts of ``url``. None if Python cannot split the URL.

    Python's error is dropped, because its text might repeat a password.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def host_of(parts: urllib.parse.SplitResult) -> str:
    """A URL's host, with an IPv6 address in brackets. Empty if the URL names no host."""
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def holds_password(parts: urllib.parse.SplitResult) -> bool:
    """Whether a URL holds a password in front of its host, or an ``@`` after the host."""
    return parts.password is not None or "@" in parts.path + parts.query + parts.fragment
