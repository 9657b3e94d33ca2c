"""A store in a Redis server, for executors on any machine: zombies lose to its fence also across
hosts (R29).

Apart from ``backend`` and all that it uses, which need redis-py: this module is
configuration, pickles, and needs the standard library only; they are imported where a connection is
made.

Redis holds no transaction open. A task reads rows, computes, and has the server run one script. The
script applies all changes if the fence and every row are still as read, and no change otherwise.
Raising a fence, with all it takes back (R31), is one such script too.

Invariants:
    - No password is ever a part of a store: not of its pickle, nor of ``address`` or ``location``,
      nor of a message.
    - A fence is judged by ``stamps``, and written only in the place of the one that was judged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import urllib.parse
from collections.abc import Callable, Generator, Iterator
from typing import Any

from txtopo import errors
from txtopo.stores import base, codecs, sessions, stamps
from txtopo.stores import faults as failures
from txtopo.stores import place as places
from txtopo.topology import context as contexts

RAISES_MAX = 10
"""How often one opening judges the fence anew because another task changed the fence, or a row to
be taken back, during the raise."""

NAME_MAX = 100
"""Characters of a store's name."""

_SCHEMES = ("redis", "rediss", "unix")
_INSTALL = (
    "Type: pip install 'txtopo[redis]', for the interpreter of the driver and of every executor."
)
_PASSWORD_CURE = "Give the password by REDISCLI_AUTH, or by password_env= or password_file=."


class RedisStore(base.Store):
    """Results under the name ``name`` in the Redis server, or cluster, at ``url``.

    Needs ``pip install 'txtopo[redis]'`` wherever it is written or read.

    :param url: ``redis://user@host:port/number``, ``rediss://…`` for TLS, with options that begin
        with ``ssl_`` after a ``?``, or ``unix:///path/of/socket``. A password in it is refused,
        since a store is pickled and shown: give it as redis-cli takes it (``REDISCLI_AUTH``), or by
        ``password_env`` or ``password_file``. Of a cluster any node.
    :param name: letters, digits, ``_``, ``.`` and ``-``; also the name by which the coordinator
        knows the store (R27).
    :param opaque: True with an opaque spout (R30, R31).
    :param plain: True for values that are only set and deleted, and keep nothing but the last
        write.
    :param codec: what makes texts of values; JSON by default.
    :param accept_loss: True to write also to a server that may forget acknowledged writes: its
        append-only file is off, or is not synced before the answer. A loss is then noticed in most
        cases (see the page on Redis), not always.
    :param password_env: name of the environment variable, of the process that connects, that holds
        the password.
    :param password_file: path of a file, on the machine that connects, whose first line is the
        password.
    :param connect_timeout_s: longest time for making a connection, in seconds.
    :param answer_timeout_s: longest wait for an answer of the server, in seconds; then the attempt
        is replayed.
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
        server = _server(url)
        if not re.fullmatch(rf"[A-Za-z0-9_.-]{{1,{NAME_MAX}}}", name):
            raise errors.UsageError(
                f"a RedisStore cannot be called {name!r}\n  Use up to {NAME_MAX} letters, digits, _, . and -."
            )
        limits = {"connect_timeout_s": connect_timeout_s, "answer_timeout_s": answer_timeout_s}
        places.check_access("RedisStore", password_env, password_file, limits)
        self.url = url
        """The server, without a password."""
        self.accept_loss = accept_loss
        """Whether the store is written in a server that may forget acknowledged writes."""
        self.password_env = password_env
        """The environment variable with the password, if any."""
        self.password_file = None if password_file is None else os.fspath(password_file)
        """The file with the password, if any."""
        self.connect_timeout_s = connect_timeout_s
        """Longest time for making a connection, in seconds."""
        self.answer_timeout_s = answer_timeout_s
        """Longest wait for an answer, in seconds."""
        super().__init__(
            name=name,
            address=f"{server}#{name}",
            opaque=opaque,
            location=url,
            plain=plain,
            codec=codec,
        )

    @property
    def _place(self) -> places.Place:
        limits = {
            "connect_timeout_s": self.connect_timeout_s,
            "answer_timeout_s": self.answer_timeout_s,
        }
        return dataclasses.replace(
            super()._place,
            url=self.url,
            password_env=self.password_env,
            password_file=self.password_file,
            limits=limits,
        )

    def exists(self) -> bool:
        return bool(self._read(lambda reader: reader.exists))

    def stored_form(self) -> str | None:
        form: str | None = self._read(lambda reader: reader.form)
        return form

    def fences(self) -> list[stamps.Fence]:
        return list(self._read(lambda reader: reader.fences()))

    @contextlib.contextmanager
    def _fenced_session(
        self,
        context: contexts.TopologyContext,
        stamp: stamps.Stamp,
        recorded: stamps.Recorded | None,
    ) -> Iterator[sessions.Session]:
        backend = self._backend()
        connection = self._connection(context.resource)
        for _ in range(RAISES_MAX):
            session = connection.open(self._place, stamp, self.accept_loss)
            session.check_is_not_held()
            self._stand_at_fence(session, context, stamp, recorded)
            session.check_nothing_is_lost()
            if session.raise_fence():
                break
        else:
            raise failures.busy(
                self.address, f"its fence was changed {RAISES_MAX} times while it was being raised"
            )
        session.count(stamp, self._number(context))
        try:
            yield session
        except backend.FenceMovedError as moved:
            # Nothing was written. The judgement names the attempt that moved the fence; if there is
            # nothing to say against this attempt, a replay will see.
            self._stand_at_fence(session.at(moved.found), context, stamp, recorded)
            raise errors.FailedException(
                f"store {self.address}: the fence of {stamp.component!r} was changed by others"
            ) from moved

    def open_maintenance(
        self, resources: base.Resources
    ) -> contextlib.AbstractContextManager[sessions.Maintenance]:
        maintenance: contextlib.AbstractContextManager[sessions.Maintenance] = self._connection(
            resources
        ).maintenance(self._place, self.accept_loss)
        return maintenance

    def _connection(self, resources: base.Resources) -> Any:
        return resources(self._place.connection_name("redis"), self._backend().Connection)

    def read_row(self, text: str) -> stamps.Row | None:
        row: stamps.Row | None = self._read(lambda reader: reader.row(text))
        return row

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        yield from self._read(lambda reader: reader.rows_from(text))

    def read_prefix(self, beginning: str) -> Iterator[stamps.Row]:
        yield from self._read(lambda reader: reader.rows_from(beginning, beginning))

    def read_under(self, itself: str, beginning: str) -> Iterator[stamps.Row]:
        # A reading is of one state: of all that begins as both do, also where that is more than is
        # asked for.
        rows = self._read(lambda reader: reader.rows_from(beginning, itself[:-1]))
        under = [row for row in rows if row.key == itself or row.key.startswith(beginning)]
        yield from sorted(under, key=lambda row: row.key != itself)

    def _read(self, function: Callable[[Any], Any]) -> Any:
        """``function``, of a reader with a connection of its own."""
        return self._backend().read(self._place, function)

    def _backend(self) -> Any:
        try:
            return importlib.import_module("txtopo.stores.redis.backend")
        except ImportError as error:
            raise errors.SetupError(
                f"the store {self.address} needs redis-py, which cannot be imported: {error}\n  {_INSTALL}"
            ) from error


def _server(url: str) -> str:
    """Which server and database ``url`` means, for messages: without the user, because users may
    differ."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        # Not echoed: an address without a known form may hold a password anywhere.
        raise errors.UsageError(
            "the address of a RedisStore does not begin with redis://, rediss:// or unix://\n  Give redis://user@host:port/0."
        )
    split = places.split(url)
    if split is None:
        raise errors.UsageError(
            f"the address of a RedisStore is not understood\n  Give {scheme}://user@host:port/0. {_PASSWORD_CURE}"
        )
    options = [option for option, _ in urllib.parse.parse_qsl(split.query, keep_blank_values=True)]
    if places.holds_password(split) or any("pass" in option.lower() for option in options):
        raise errors.UsageError(
            f"the address of a RedisStore holds a password, or a stray @; a store is pickled and shown\n  {_PASSWORD_CURE}"
        )
    known = ("db",) if scheme == "unix" else ("ssl_",) if scheme == "rediss" else ()
    if split.fragment or any(not option.startswith(known or ("\0",)) for option in options):
        raise errors.UsageError(
            f"the address of a RedisStore has unknown options\n  Give {scheme}://user@host:port/0; with rediss ssl_…."
        )
    if scheme == "unix":
        if split.hostname or not split.path.strip("/"):
            raise errors.UsageError(
                "the address of a RedisStore names no socket\n  Give unix:///path/of/socket."
            )
        return f"unix://{split.path}{f'?{split.query}' if split.query else ''}"
    if not split.hostname or not re.fullmatch(r"/?[0-9]*", split.path):
        raise errors.UsageError(
            f"the address of a RedisStore names no server\n  Give {scheme}://user@host:port/0."
        )
    return f"{scheme}://{places.host_of(split)}:{split.port or 6379}/{split.path.removeprefix('/') or 0}"
