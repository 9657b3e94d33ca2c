"""The place of a store as a value: address, name, and settings of a connection.

Apart from ``base``, so that the modules of a database get this value and never import a store. The
checks of a URL, a password and the limits are here too, once for all servers. Runs on executors:
standard library only.

Invariants:
    - A place holds no password, only where the password is.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import urllib.parse
from collections.abc import Mapping

from txtopo import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The address of a store, and the settings for its database."""

    name: str
    """The name of the store in its database, such as a table."""
    address: str
    """The store in messages: the same text in every process, and a different text for each store.
    """
    location: str
    """The database as the command line takes it, beside ``name``."""
    form: str
    """The form of the values; see ``rows``."""
    opaque: bool
    """True if writes are listed, so that a later attempt can undo them (R31)."""
    url: str = ""
    """The URL of the server, without a password; the path of a file."""
    password_env: str | None = None
    """The environment variable that holds the password, if any."""
    password_file: str | None = None
    """The path of the file whose first line is the password, if any."""
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Time limits in seconds, by the names that the constructor of the store gives them."""

    def command(self, action: str, topology_id: str) -> str:
        """The command line that does ``action``, such as ``adopt``, to this store."""
        return f"txtopo store {action} {shlex.quote(self.location)} {shlex.quote(self.name)} --topology {shlex.quote(topology_id)}"

    def known_name(self, component: str) -> str:
        """The name under which the coordinator knows the store of ``component``."""
        return f"{component}/{self.name}"

    def connection_name(self, scheme: str) -> str:
        """The name under which a worker process keeps its connection to the server.

        A forked child must not use a connection of its parent, and a connection has the settings of
        its store: so the name holds the process id and the settings.
        """
        limits = ":".join(f"{value:g}" for value in self.limits.values())
        return (
            f"{scheme}:{self.url}:{self.password_env}:{self.password_file}:{limits}:{os.getpid()}"
        )


def password_from(
    subject: str, variable: str | None, path: str | None, alternative: str = "password_file"
) -> str | None:
    """The password of ``subject``, read now from an environment variable or a file; None if there
    is neither.

    :raises errors.SetupError: the variable or the file is missing on this machine.
    """
    if variable is not None:
        if not os.environ.get(variable):
            raise errors.SetupError(
                f"{subject} takes its password from the environment variable {variable}, which is not set here\n"
                f"  Set it where the driver and the executors are started; or use {alternative}."
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
        # The text of Python's error holds the bytes, which may be the password: so no cause.
        raise errors.SetupError(
            f"the password file {path} of {subject} is not UTF-8\n  Its first line must be the password."
        ) from None
    if not password:
        raise errors.SetupError(
            f"the password file {path} of {subject} begins with an empty line\n  Its first line must be the password."
        )
    return password


def check_access(
    kind: str,
    password_env: str | None,
    password_file: str | os.PathLike[str] | None,
    limits: Mapping[str, float],
) -> None:
    """Refuse two sources of a password, and limits out of bounds, for a store of class ``kind``."""
    if password_env is not None and password_file is not None:
        raise errors.UsageError(
            f"{kind} was given both password_env and password_file\n  Give one of them."
        )
    for name, value in limits.items():
        if not 0.001 <= value <= 1e6:
            raise errors.UsageError(
                f"{kind}'s {name} is {value:g}\n  Give seconds, at least 0.001."
            )


def split(url: str) -> urllib.parse.SplitResult | None:
    """The parts of ``url``; None where Python cannot split the URL.

    Python's error is dropped, because the text of the error might repeat a password.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def host_of(parts: urllib.parse.SplitResult) -> str:
    """The host of a URL, an IPv6 address in brackets; empty if the URL names no host."""
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def holds_password(parts: urllib.parse.SplitResult) -> bool:
    """Whether a URL holds a password in front of its host, or an ``@`` after the host."""
    return parts.password is not None or "@" in parts.path + parts.query + parts.fragment
