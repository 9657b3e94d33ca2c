"""A store in a database server, for executors on any machine: the fence keeps out zombies on all
hosts (R29).

This module is configuration, pickles, and needs the standard library only. Modules that need
SQLAlchemy and a driver are imported when a connection is opened. Each database has a folder for its
own statements and errors (see ``_DIALECTS``).

Opening a store transaction takes two steps, so that an attempt's tasks do not wait for each other.
First, one task finds the fence below its attempt and *raises* the fence in a separate database
transaction. This transaction waits until every older attempt's transaction has ended, and also
takes back rows (R31). Then each task finds its attempt's fence, takes a shared lock on the fence,
and keeps the lock until its writes have ended.

A component's only task has no siblings, and takes one step. The task locks the fence for itself,
raises it, writes and commits, all in one transaction, like a store in a file. An older or newer
attempt waits for this lock as for a shared lock. The waiting attempt then finds the fence raised
together with the writes, or not raised at all. If the task runs again in the same attempt, the task
finds its attempt's fence and its own rows. A missing fence cannot be locked, and so is made in two
steps: otherwise an adoption would not know which transaction to wait for.

Invariants:
    - No password is ever in a store: neither in its pickle, nor in ``address`` or ``location``, nor
      in a message.
    - A write transaction holds a shared or exclusive lock on its own attempt's fence, from before
      the first read until the transaction ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import os
import re
import urllib.parse
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from txtopo import errors
from txtopo.stores import base, codecs, direct, failures, fencing, sessions, stamps
from txtopo.stores import place as places

RAISES_MAX = 3
"""How often an opening raises the fence and then checks whether the fence still names its attempt.
Once is enough unless connections drop."""

TABLE_NAME_MAX = 50
"""The longest table name, in characters. PostgreSQL cuts names for tables and indexes after 63
characters, and MySQL refuses more than 64."""


@dataclasses.dataclass(frozen=True)
class _Dialect:
    """A database kind, as URLs name it."""

    module: str
    driver: str
    extra: str
    places: str
    """Where the driver looks for a password if txtopo gives none."""
    naming: frozenset[str] = frozenset()
    """Options in a URL that may name the database."""

    @property
    def install(self) -> str:
        return f"Type: pip install 'txtopo[{self.extra}]', for the interpreter of the driver and of every executor."

    @property
    def password_cure(self) -> str:
        return f"Give the password by {self.places}, or by password_env= or password_file=."


_DIALECTS = {
    "postgresql+psycopg": _Dialect(
        "txtopo.stores.postgresql.backend",
        "psycopg",
        "postgres",
        places="PGPASSWORD, ~/.pgpass or a service file",
        naming=frozenset({"service", "dbname"}),
    ),
    "mysql+pymysql": _Dialect(
        "txtopo.stores.mysql.backend",
        "PyMySQL",
        "mysql",
        places="a file named by read_default_file in the URL",
    ),
}


class SqlStore(base.Store):
    """Keeps results in table ``table`` in the PostgreSQL, MySQL or MariaDB database at ``url``. The
    first write makes the tables.

    Needs ``pip install 'txtopo[postgres]'``, or ``'txtopo[mysql]'``, wherever the store is written
    or read.

    :param url: ``postgresql+psycopg://user@host:port/database``, with libpq options after a ``?``,
        or ``mysql+pymysql://user@host:port/database``, with PyMySQL options. A URL with a password
        is refused, because a store is pickled and shown. Give the password to the driver
        (``PGPASSWORD``, ``~/.pgpass``, a service file, or ``read_default_file``), or by
        ``password_env`` or ``password_file``.
    :param table: letters, digits and ``_``. Also the store's name (R27).
    :param opaque: True with an opaque spout (R30, R31).
    :param plain: True for values that are only set and deleted, and keep nothing but the last
        write.
    :param codec: turns values into texts and back. JSON by default.
    :param password_env: an environment variable with the password, in the process that connects.
    :param password_file: a file whose first line is the password, on the machine that connects.
    :param lock_timeout_s: longest wait in seconds: a task waits for its turn on the process's
        connection, and a new attempt waits for an older attempt's transactions. After that the
        attempt fails and is replayed.
    :param statement_timeout_s: longest time for a statement in a transaction, in seconds. After
        that the attempt is replayed. MySQL and MariaDB take whole seconds for the other two limits,
        which are rounded up.
    :param idle_timeout_s: how long the server keeps an idle open transaction, in seconds. If a task
        hangs, or its machine is lost, the next attempt waits no longer than that.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        opaque: bool = False,
        plain: bool = False,
        codec: codecs.Codec | None = None,
        password_env: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        lock_timeout_s: float = 30.0,
        statement_timeout_s: float = 60.0,
        idle_timeout_s: float = 60.0,
    ) -> None:
        database = database_of(url)
        if not re.fullmatch(
            rf"[A-Za-z_][A-Za-z0-9_]{{0,{TABLE_NAME_MAX - 1}}}", table
        ) or table.lower().startswith(("pg_", "txtopo_")):
            raise errors.UsageError(
                f"a store cannot name a table {table!r}\n"
                f"  Use up to {TABLE_NAME_MAX} letters, digits and _, not beginning with a digit, pg_ or txtopo_."
            )
        limits = {
            "lock_timeout_s": lock_timeout_s,
            "statement_timeout_s": statement_timeout_s,
            "idle_timeout_s": idle_timeout_s,
        }
        self._access = places.access("SqlStore", url, password_env, password_file, limits)
        self.url = url
        """The database, without a password."""
        super().__init__(
            name=table,
            address=f"{database}#{table}",
            opaque=opaque,
            location=url,
            plain=plain,
            codec=codec,
        )

    def exists(self) -> bool:
        with self._reading() as reader:
            return reader is not None

    def stored_form(self) -> str | None:
        with self._reading(any_form=True) as reader:
            return None if reader is None else str(reader.form)

    def fences(self) -> list[stamps.Fence]:
        with self._reading() as reader:
            return [] if reader is None else list(reader.fences())

    @contextlib.contextmanager
    def _fenced_session(self, opening: fencing.Opening) -> Iterator[sessions.Session]:
        context, stamp, _, number = opening
        connection = self._connection(context.resource)
        for _ in range(RAISES_MAX):
            with connection.transaction(self._place, stamp) as session:
                # If this task has raised the fence, the next pass finds it at its attempt.
                if context.num_tasks == 1 and number == 1 and session.takes_fence():
                    self._stand_at_fence(session, opening)
                    session.count(stamp, number)
                    yield session
                    return
                if session.stands_at_fence(number, context.num_tasks == 1):
                    yield session
                    return
                self._stand_at_fence(session, opening)
        raise failures.busy(
            self.address,
            f"its fence changed {RAISES_MAX} times while this task was raising the fence",
        )

    def direct(self) -> direct.Direct:
        return _Direct(self._place, self._backend().Connection())

    @contextlib.contextmanager
    def open_maintenance(self, resources: base.Resources) -> Iterator[sessions.Maintenance]:
        with self._connection(resources).maintenance(self._place) as session:
            yield session

    def _connection(self, resources: base.Resources) -> Any:
        return resources(self._place.connection_name("sql"), self._backend().Connection)

    def read_row(self, text: str) -> stamps.Row | None:
        with self._reading() as reader:
            return None if reader is None else reader.row(text)

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        with self._reading() as reader:
            if reader is not None:
                yield from reader.rows_from(text)

    def read_under(self, itself: str, beginning: str) -> Generator[stamps.Row, None, None]:
        with self._reading() as reader:
            if reader is None:
                return
            row = reader.row(itself)
            if row is not None:
                yield row
            for other in itertools.takewhile(
                lambda row: row.key.startswith(beginning), reader.rows_from(beginning)
            ):
                if other.key != itself:
                    yield other

    @contextlib.contextmanager
    def looking(self) -> Iterator[Any]:
        """Open a new driver connection, for looking at the database."""
        place = self._place
        opened = self._backend().connections.open_connection(
            place, place.limits["statement_timeout_s"]
        )
        with contextlib.closing(opened) as raw, self._backend().faults.translating(self.address):
            yield raw.connection.dbapi_connection

    def _reading(self, any_form: bool = False) -> Any:
        """Open a reader over a new connection, which sees one state of the store. Yields None if
        the store does not exist, and does not make the store."""
        return self._backend().Connection.reading(self._place, any_form)

    def _backend(self) -> Any:
        dialect = _DIALECTS[self.url.partition("://")[0]]
        try:
            return importlib.import_module(dialect.module)
        except ImportError as error:
            fact = f"the store {self.address} needs SQLAlchemy and {dialect.driver}, which cannot be imported: {error}"
            raise errors.SetupError(f"{fact}\n  {dialect.install}") from error


class _Direct(direct.Direct):
    """Direct access to ``store`` over ``connection``, which is this object's own. Reading locks no
    row, and an exchange locks only rows with its own keys."""

    def __init__(self, store: places.Place, connection: Any) -> None:
        self._store, self._connection = store, connection

    def read_ranges(self, ranges: Sequence[tuple[str, str]], limit: int) -> list[list[stamps.Row]]:
        with self._connection.direct(self._store) as session:
            return [[] for _ in ranges] if session is None else session.first_rows(ranges, limit)

    def _exchange(self, change: direct.Change) -> bool:
        with self._connection.direct(self._store) as session:
            if session is None:
                raise direct.missing(self._store.address)
            return bool(session.exchange(change))

    def close(self) -> None:
        self._connection.close()


def database_of(url: str) -> str:
    """The database in ``url``, for messages: without the user, because users may differ."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _DIALECTS:
        # The URL is not shown: in an unknown form, a password may be anywhere.
        known = [f"{name}://" for name in _DIALECTS]
        forms = " or ".join(f"{name}user@host:port/database" for name in known)
        raise errors.UsageError(
            f"the database URL does not begin with {' or '.join(known)}\n  Give {forms}."
        )
    dialect, split = _DIALECTS[scheme], places.split(url)
    if split is None:
        raise errors.UsageError(
            f"the database URL cannot be parsed\n  Give {scheme}://user@host:port/database. {dialect.password_cure}"
        )
    names = {
        name.lower() for name, _ in urllib.parse.parse_qsl(split.query, keep_blank_values=True)
    }
    if places.holds_password(split) or any(
        re.search("pass(?!file)|pwd|secret|token", name) for name in names
    ):
        raise errors.UsageError(
            f"the database URL holds a password, or a stray @, and is pickled and shown\n  {dialect.password_cure}"
        )
    database = split.path.removeprefix("/")
    if split.fragment or "/" in database or not (database or names & dialect.naming):
        raise errors.UsageError(
            f"the database URL names no database\n  Give {scheme}://user@host:port/database, with options after a ?."
        )
    port = "" if split.port is None else f":{split.port}"
    return f"{scheme}://{places.host_of(split)}{port}{split.path}{f'?{split.query}' if split.query else ''}"
