"""Who we are to ZooKeeper: a user and a password, which is read where it is needed and shown to nobody.

Apart from ``config`` because settings travel: to executors, into Spark's pages, to a terminal. They say only *where* the password is.

Invariants:
- The password is in no ``repr``, in no message, and in no pickle: :class:`Credentials` cannot be pickled.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from txtopo import config, errors
from txtopo.config import sources

FILE_BYTES_MAX = 64 * 1024
"""No password is longer; a file that is was named by mistake."""


class Credentials:
    """``user`` and password under an authentication ``scheme``: ``digest`` (ZooKeeper's own) or ``sasl`` (DIGEST-MD5)."""

    __slots__ = ("_password", "scheme", "user")

    def __init__(self, scheme: Literal["digest", "sasl"], user: str, password: str) -> None:
        self.scheme, self.user, self._password = scheme, user, password

    def reveal(self) -> str:
        """The password, for the one place that hands it to ZooKeeper's client."""
        return self._password

    def __repr__(self) -> str:
        return f"Credentials({self.scheme!r}, {self.user!r}, ***)"

    def __str__(self) -> str:
        return f"{self.scheme} user {self.user!r}"

    def __reduce__(self) -> Any:
        raise TypeError("credentials are not pickled: they stay in the process that read them")


def of(conf: config.Config, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """What ``conf`` and the environment (``os.environ`` unless given) say; None if nobody is to be authenticated.

    :raises ConfigError: something is missing, or said twice.
    :raises SetupError: the library that SASL needs is not installed.
    """
    if conf.zookeeper_auth == "none":
        if conf.zookeeper_user is not None or conf.zookeeper_password_file is not None:
            given = "zookeeper_user" if conf.zookeeper_user is not None else "zookeeper_password_file"
            raise errors.ConfigError(f"{given} is set, but zookeeper_auth is 'none'\n  Set zookeeper_auth to digest or sasl, or leave {given} out.")
        return None
    if not conf.zookeeper_user or ":" in conf.zookeeper_user:
        wrong = "there is no zookeeper_user" if not conf.zookeeper_user else "zookeeper_user has a colon in it"
        raise errors.ConfigError(f"zookeeper_auth is {conf.zookeeper_auth!r}, but {wrong}\n  Set zookeeper_user to a name without colons.")
    if conf.zookeeper_auth == "sasl" and importlib.util.find_spec("puresasl") is None:
        raise errors.SetupError("zookeeper_auth is 'sasl', which needs the package pure-sasl\n  Install it: pip install 'txtopo[sasl]'")
    return Credentials(conf.zookeeper_auth, conf.zookeeper_user, _password(conf, os.environ if environment is None else environment))


def _password(conf: config.Config, environment: Mapping[str, str]) -> str:
    variable = environment.get(sources.PASSWORD_VARIABLE, "")
    if conf.zookeeper_password_file is None:
        if not variable:
            raise errors.ConfigError(
                f"zookeeper_auth is {conf.zookeeper_auth!r}, but there is no password for {conf.zookeeper_user!r}\n"
                f"  Put it into a file that only you can read, and its name into zookeeper_password_file; or set {sources.PASSWORD_VARIABLE}."
            )
        return variable
    if variable:
        raise errors.ConfigError(
            f"there are two passwords for ZooKeeper, in {sources.PASSWORD_VARIABLE} and in the file that zookeeper_password_file names\n"
            f"  Unset one of them."
        )
    return _read(conf.zookeeper_password_file)


def _read(path: Path) -> str:
    what = f"the file that zookeeper_password_file names, {path},"
    try:
        with path.open("rb") as file:
            password = file.read(FILE_BYTES_MAX + 1).decode()
    except OSError as error:
        cure = "Make it readable for who runs the driver, and for nobody else."
        raise errors.ConfigError(f"{what} cannot be read: {error.strerror}\n  {cure}") from None
    except UnicodeDecodeError:
        # What was decoded is part of Python's error, and may be the password: no cause.
        raise errors.ConfigError(f"{what} is not UTF-8\n  It must hold the password and nothing else.") from None
    password = password.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password or len(password) > FILE_BYTES_MAX:
        wrong = "is empty" if not password else "has more than one line, or more than anybody's password"
        raise errors.ConfigError(f"{what} {wrong}\n  It must hold the password and nothing else.")
    return password


__all__ = ["Credentials", "of"]
