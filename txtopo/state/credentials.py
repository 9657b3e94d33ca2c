"""Holds user and password for ZooKeeper connections. The password is read only where it is used,
and never shown.

Settings (``config``) travel to executors, to Spark's pages and to terminals. They say only *where*
the password is.

Invariants:
- No ``repr``, message or pickle contains the password: :class:`Credentials` cannot be pickled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from txtopo import config, errors
from txtopo.config import sources

OWNER_FILE = "user.json"
"""File in a data directory with the credentials of its ZooKeeper's administrator. Only the
directory's user may read the file."""

FILE_BYTES_MAX = 64 * 1024
"""No password is longer: a longer file was named by mistake."""


class Credentials:
    """``user`` and password for an authentication ``scheme``: ``digest`` (ZooKeeper's own) or
    ``sasl`` (DIGEST-MD5).

    ``server_uid``: the password is for servers on this machine that belong to this user, or to
    root. None: for any server, as txtopo's user has said.
    """

    __slots__ = ("_password", "scheme", "server_uid", "user")

    def __init__(
        self,
        scheme: Literal["digest", "sasl"],
        user: str,
        password: str,
        server_uid: int | None = None,
    ) -> None:
        self.scheme, self.user, self._password, self.server_uid = scheme, user, password, server_uid

    def reveal(self) -> str:
        """The password, for ZooKeeper's client and for the server's files."""
        return self._password

    def __repr__(self) -> str:
        return f"Credentials({self.scheme!r}, {self.user!r}, ***)"

    def __str__(self) -> str:
        return f"{self.scheme} user {self.user!r}"

    def __reduce__(self) -> Any:
        raise TypeError("credentials are not pickled: a password stays in the process that read it")


_owners: dict[str, Credentials] = {}
"""Credentials for the servers that this process runs, by ``host:port``."""


def new_owner() -> Credentials:
    """ZooKeeper's administrator for one server run, with a random password."""
    return Credentials("digest", "super", secrets.token_urlsafe(32), os.geteuid())


def owner_text(owner: Credentials) -> str:
    """The text for ``OWNER_FILE``."""
    return json.dumps({"user": owner.user, "password": owner.reveal()})


def owner_of_directory(data_dir: Path) -> Credentials | None:
    """The administrator's credentials for the ZooKeeper of ``data_dir``. ``None`` if it is open to
    all, as before there were such users.

    :raises OSError: this process's user may not read the file.
    :raises ConfigError: the file has other content.
    """
    path = data_dir / OWNER_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(text)
        return Credentials(
            "digest", str(fields["user"]), str(fields["password"]), path.stat().st_uid
        )
    except (ValueError, TypeError, KeyError):
        # Not chained: the cause contains the text read, perhaps the password.
        raise errors.ConfigError(
            f"{path} does not name its ZooKeeper's user and password\n  Restore the file from a copy of the directory."
        ) from None


def owner_of_server(hosts: str) -> Credentials | None:
    """Credentials for the server at ``hosts`` if this process runs that server, else ``None``."""
    return _owners.get(hosts)


def remember_owner(hosts: str, owner: Credentials | None) -> None:
    """Note that this process runs a server at ``hosts`` for ``owner``. ``None``: the server has
    ended, or is open to all."""
    if owner is None:
        _owners.pop(hosts, None)
    else:
        _owners[hosts] = owner


def of(conf: config.Config, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """Credentials from ``conf`` and the environment (``os.environ`` by default). None for no
    authentication.

    :raises ConfigError: a setting is missing, or given twice.
    :raises SetupError: the library that SASL needs is not installed.
    """
    if conf.zookeeper_auth == "none":
        if conf.zookeeper_user is not None or conf.zookeeper_password_file is not None:
            name = (
                "zookeeper_user" if conf.zookeeper_user is not None else "zookeeper_password_file"
            )
            raise errors.ConfigError(
                f"{name} is set, but zookeeper_auth is 'none'\n  Set zookeeper_auth to digest or sasl, or leave {name} out."
            )
        return None
    if not conf.zookeeper_user or ":" in conf.zookeeper_user:
        wrong = (
            "there is no zookeeper_user"
            if not conf.zookeeper_user
            else "zookeeper_user has a colon in it"
        )
        raise errors.ConfigError(
            f"zookeeper_auth is {conf.zookeeper_auth!r}, but {wrong}\n  Set zookeeper_user to a name without colons."
        )
    if conf.zookeeper_auth == "sasl" and importlib.util.find_spec("puresasl") is None:
        raise errors.SetupError(
            "zookeeper_auth is 'sasl', which needs the package pure-sasl\n  Install it: pip install 'txtopo[sasl]'"
        )
    return Credentials(
        conf.zookeeper_auth,
        conf.zookeeper_user,
        _password(conf, os.environ if environment is None else environment),
    )


def _password(conf: config.Config, environment: Mapping[str, str]) -> str:
    variable = environment.get(sources.PASSWORD_VARIABLE, "")
    if conf.zookeeper_password_file is None:
        if not variable:
            raise errors.ConfigError(
                f"zookeeper_auth is {conf.zookeeper_auth!r}, but there is no password for {conf.zookeeper_user!r}\n"
                f"  Put the password into a file that only you can read, and name the file in zookeeper_password_file, "
                f"or set {sources.PASSWORD_VARIABLE}."
            )
        return variable
    if variable:
        raise errors.ConfigError(
            f"there are two passwords for ZooKeeper, in {sources.PASSWORD_VARIABLE} and in the file that zookeeper_password_file names\n"
            f"  Unset one of them."
        )
    return _read(conf.zookeeper_password_file)


def _read(path: Path) -> str:
    described = f"the file that zookeeper_password_file names, {path},"
    try:
        with path.open("rb") as file:
            password = file.read(FILE_BYTES_MAX + 1).decode()
    except OSError as error:
        cure = "Make it readable for the user of the driver, and for no other user."
        raise errors.ConfigError(
            f"{described} cannot be read: {error.strerror}\n  {cure}"
        ) from None
    except UnicodeDecodeError:
        # Not chained: Python's error contains the decoded text, perhaps the password.
        raise errors.ConfigError(
            f"{described} is not UTF-8\n  The file must hold only the password."
        ) from None
    password = password.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password or len(password) > FILE_BYTES_MAX:
        wrong = (
            "is empty" if not password else "has more than one line, or is too long for a password"
        )
        raise errors.ConfigError(f"{described} {wrong}\n  The file must hold only the password.")
    return password
