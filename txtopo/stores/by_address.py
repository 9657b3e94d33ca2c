"""Opens a store by its address, as the command line and settings give it, without a topology.

This module knows the backends by the schemes in their addresses. Backends do not know each other.
A store is opened in its stored form (``Store.stored_form``), so the caller need not know the codec,
or whether the values are plain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.stores import base, codecs
from txtopo.stores.redis.store import RedisStore
from txtopo.stores.servers.store import SqlStore
from txtopo.stores.sqlite.store import SqliteStore
from txtopo.topology import kept

Opener = Callable[..., base.Store]
"""``(address, table, **form) -> store``. ``form`` holds parameters for the constructor."""


def _sqlite(address: str, table: str, **form: Any) -> base.Store:
    return SqliteStore(Path(address.removeprefix("sqlite:///")).expanduser(), table, **form)


def _redis(address: str, name: str, **form: Any) -> base.Store:
    # Only a writer asks whether the server keeps results safely.
    return RedisStore(address, name, accept_loss=True, **form)


OPENERS: dict[str, Opener] = {
    "": _sqlite,
    "sqlite": _sqlite,
    **dict.fromkeys(("postgresql", "postgres", "mysql", "mariadb"), SqlStore),
    **dict.fromkeys(("redis", "rediss", "unix"), _redis),
}
"""By an address's scheme, without the driver after a ``+``. A path has no scheme."""

EXAMPLES = (
    "postgresql+psycopg://user@host:port/database",
    "mysql+pymysql://user@host:port/database",
    "redis://user@host:port/0",
    "the path of an SQLite file",
)


def open_store(address: str, table: str, must_exist: bool = True) -> base.Store:
    """Opens the store ``table`` at ``address``: a database URL, or an SQLite file's path, also
    after ``sqlite:///``.

    Passwords are looked up where the database's own clients look. If the codec is not JSON, the
    store shows the stored texts, and refuses writes.

    :raises errors.UsageError: there is no such store, although ``must_exist``, or its server does
        not answer.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9.-]*)(\+[A-Za-z0-9.-]+)?://", address)
    opener = OPENERS.get(scheme[1].lower() if scheme else "")
    if opener is None:
        raise errors.UsageError(
            f"stores at {scheme[1] if scheme else ''}:// addresses are not known here\n  Give {', or '.join(EXAMPLES)}."
        )
    if (
        opener is _sqlite
        and must_exist
        and not Path(address.removeprefix("sqlite:///")).expanduser().is_file()
    ):
        raise errors.UsageError(
            f"there is no file {address.removeprefix('sqlite:///')}\n  Give the path of the store's SQLite file."
        )
    with kept.asking("the server"):
        store = opener(address, table)
        form = store.stored_form()
        if form is None and must_exist and not store.exists():
            kind = type(store).__name__
            raise errors.UsageError(
                f"{store.address} is no store of txtopo\n  The table is the second argument of {kind}(…, table)."
            )
    return store if form is None else opener(address, table, **_arguments(form))


def _arguments(form: str) -> dict[str, Any]:
    """The constructor's parameters for a store with this form."""
    plain, _, codec = form.rpartition(" ")
    return {
        "plain": bool(plain),
        "codec": None if codec == codecs.JSON.name else codecs.TextCodec(codec),
    }
