"""A store in a Redis server, for executors on any machine: the fence keeps out zombies on all hosts
(R29).

This module is configuration, pickles, and needs the standard library only. Modules that need
redis-py are imported when a connection is opened.

Redis holds no transaction open. A task reads rows, computes, and has the server run one script. The
script applies all changes if the fence and every row are still as read, and no change otherwise.
Raising a fence and taking back rows (R31) also takes one script.

Invariants:
    - No password is ever in a store: neither in its pickle, nor in ``address`` or ``location``, nor
      in a message.
    - ``stamps`` judges a fence. A new fence replaces only the judged fence.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from txtopo import errors
from txtopo.stores import base, codecs, direct, failures, fencing, sessions, stamps
from txtopo.stores import place as places

RAISES_MAX = 10
"""How often an opening reads and judges the fence, if other tasks change the fence or a row to take
back during the raise."""

NAME_MAX = 100
"""The longest store name, in characters."""

_SCHEMES = ("redis", "rediss", "unix")
_INSTALL = (
    "Type: pip install 'txtopo[redis]', for the interpreter of the driver and of every executor."
)
_PASSWORD_CURE = "Give the password by REDISCLI_AUTH, or by password_env= or password_file=."


class RedisStore(base.Store):
    """Keeps results under the name ``name`` in the Redis server, or cluster, at ``url``.

    Needs ``pip install 'txtopo[redis]'`` wherever the store is written or read.

    :param url: ``redis://user@host:port/number``, ``rediss://…`` for TLS, with options that begin
        with ``ssl_`` after a ``?``, or ``unix:///path/of/socket``. For a cluster, any node. A URL
        with a password is refused, because a store is pickled and shown. Give the password as for
        redis-cli (``REDISCLI_AUTH``), or by ``password_env`` or ``password_file``.
    :param name: letters, digits, ``_``, ``.`` and ``-``. Also the name by which the coordinator
        knows the store (R27).
    :param opaque: True with an opaque spout (R30, R31).
    :param plain: True for values that are only set and deleted, and keep nothing but the last
        write.
    :param codec: turns values into texts and back. JSON by default.
    :param accept_loss: True to write also to a server that may forget acknowledged writes: its
        append-only file is off, or is not synced before the answer. A loss is then noticed in most
        cases (see the page on Redis), not always.
    :param password_env: an environment variable with the password, in the process that connects.
    :param password_file: a file whose first line is the password, on the machine that connects.
    :param connect_timeout_s: longest time for opening a connection, in seconds.
    :param answer_timeout_s: longest wait for the server's answer, in seconds. After that the
        attempt is replayed.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        opaque: bool = False,
        plain: bool = False,
        codec: codecs.Codec | None = None,
        accept_loss: bool = False,
        password_env: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        connect_timeout_s: float = 10.0,
        answer_timeout_s: float = 60.0,
    ) -> None:
        server = server_of("RedisStore", url)
        if not re.fullmatch(rf"[A-Za-z0-9_.-]{{1,{NAME_MAX}}}", name):
            raise errors.UsageError(
                f"a RedisStore cannot be called {name!r}\n  Use up to {NAME_MAX} letters, digits, _, . and -."
            )
        limits = {"connect_timeout_s": connect_timeout_s, "answer_timeout_s": answer_timeout_s}
        self._access = places.access("RedisStore", url, password_env, password_file, limits)
        self.url = url
        """The server, without a password."""
        self.accept_loss = accept_loss
        """Whether to write to a server that may forget acknowledged writes."""
        super().__init__(
            name=name,
            address=f"{server}#{name}",
            opaque=opaque,
            location=url,
            plain=plain,
            codec=codec,
        )

    def exists(self) -> bool:
        return bool(self._read(lambda reader: reader.exists))

    def stored_form(self) -> str | None:
        form: str | None = self._read(lambda reader: reader.form)
        return form

    def fences(self) -> list[stamps.Fence]:
        return list(self._read(lambda reader: reader.fences()))

    @contextlib.contextmanager
    def _fenced_session(self, opening: fencing.Opening) -> Iterator[sessions.Session]:
        backend, stamp = self._backend(), opening.stamp
        connection = self._connection(opening.context.resource)
        for _ in range(RAISES_MAX):
            session = connection.open(self._place, stamp, self.accept_loss)
            session.check_is_not_held()
            self._stand_at_fence(session, opening)
            session.check_nothing_is_lost()
            if session.raise_fence():
                break
        else:
            raise failures.busy(
                self.address,
                f"its fence changed {RAISES_MAX} times while this task was raising the fence",
            )
        session.count(stamp, opening.number)
        try:
            yield session
        except backend.FenceMovedError as moved:
            # Nothing was written. If a newer attempt has moved the fence, this check raises the
            # error that names the newer attempt. Otherwise a replay will find out.
            self._stand_at_fence(session.at(moved.found), opening)
            raise errors.FailedException(
                f"store {self.address}: another task changed the fence for component {stamp.component!r}"
            ) from moved

    def direct(self) -> direct.Direct:
        return _Direct(self._place, self._backend().Connection(), self.accept_loss)

    @contextlib.contextmanager
    def open_maintenance(self, resources: base.Resources) -> Iterator[sessions.Maintenance]:
        with self._connection(resources).maintenance(self._place, self.accept_loss) as session:
            yield session

    def _connection(self, resources: base.Resources) -> Any:
        return resources(self._place.connection_name("redis"), self._backend().Connection)

    def read_row(self, text: str) -> stamps.Row | None:
        row: stamps.Row | None = self._read(lambda reader: reader.row(text))
        return row

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        yield from self._read(lambda reader: reader.rows_from(text))

    def read_prefix(self, beginning: str) -> Generator[stamps.Row, None, None]:
        yield from self._read(lambda reader: reader.rows_from(beginning, beginning))

    def read_under(self, itself: str, beginning: str) -> Generator[stamps.Row, None, None]:
        # One reading sees one state. The reading takes all keys with the beginning common to both,
        # which may be more than asked for.
        rows = self._read(lambda reader: reader.rows_from(beginning, itself[:-1]))
        under = [row for row in rows if row.key == itself or row.key.startswith(beginning)]
        yield from sorted(under, key=lambda row: row.key != itself)

    def _read(self, function: Callable[[Any], Any]) -> Any:
        """Call ``function`` with a reader over a new connection."""
        with contextlib.closing(self._backend().Connection()) as connection:
            return connection.read(self._place, function)

    def _backend(self) -> Any:
        try:
            return importlib.import_module("txtopo.stores.redis.backend")
        except ImportError as error:
            raise errors.SetupError(
                f"the store {self.address} needs redis-py, which cannot be imported: {error}\n  {_INSTALL}"
            ) from error


class _Direct(direct.Direct):
    """Direct access to ``store`` over ``connection``, which is this object's own. The server compares
    each row's whole text, so no writer comes between comparing and writing."""

    def __init__(self, store: places.Place, connection: Any, accept_loss: bool) -> None:
        self._store, self._connection, self._accept_loss = store, connection, accept_loss

    def read_ranges(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        rows: list[list[stamps.Row]] = self._connection.read(
            self._store, lambda reader: reader.first_rows(ranges, limit)
        )
        return rows

    def _exchange(self, change: direct.Change) -> bool:
        if not self._connection.read(self._store, lambda reader: reader.exists):
            raise direct.missing(self._store.address)
        stamp = change.rows[0].stamp if change.rows else direct.NO_WRITER
        session = self._connection.open(self._store, stamp, self._accept_loss)
        return bool(session.exchange(change))

    def close(self) -> None:
        self._connection.close()


def server_of(kind: str, url: str) -> str:
    """The server and database in ``url``, for messages: without the user, because users may differ.
    ``kind`` is the class that was given ``url``."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        # The URL is not shown: in an unknown form, a password may be anywhere.
        raise errors.UsageError(
            f"the {kind} URL does not begin with redis://, rediss:// or unix://\n  Give redis://user@host:port/0."
        )
    split = places.split(url)
    if split is None:
        raise errors.UsageError(
            f"the {kind} URL cannot be parsed\n  Give {scheme}://user@host:port/0. {_PASSWORD_CURE}"
        )
    options = [option for option, _ in urllib.parse.parse_qsl(split.query, keep_blank_values=True)]
    if places.holds_password(split) or any("pass" in option.lower() for option in options):
        raise errors.UsageError(
            f"the {kind} URL holds a password, or a stray @, and is pickled and shown\n  {_PASSWORD_CURE}"
        )
    known = ("db",) if scheme == "unix" else ("ssl_",) if scheme == "rediss" else ()
    if split.fragment or any(not option.startswith(known or ("\0",)) for option in options):
        raise errors.UsageError(
            f"the {kind} URL has unknown options\n  Give redis://user@host:port/0. rediss:// takes ssl_… options, and unix:// takes db."
        )
    if scheme == "unix":
        if split.hostname or not split.path.strip("/"):
            raise errors.UsageError(
                f"the {kind} URL names no socket\n  Give unix:///path/of/socket."
            )
        return f"unix://{split.path}{f'?{split.query}' if split.query else ''}"
    if not split.hostname or not re.fullmatch(r"/?[0-9]*", split.path):
        raise errors.UsageError(
            f"the {kind} URL names no server\n  Give {scheme}://user@host:port/0."
        )
    return f"{scheme}://{places.host_of(split)}:{split.port or 6379}/{split.path.removeprefix('/') or 0}"
