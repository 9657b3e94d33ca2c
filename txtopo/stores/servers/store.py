"""A store in a database server, for executors on any machine: zombies lose to its fence also across
hosts (R29).

Apart from ``session``, ``postgresql`` and ``mysql``, which need SQLAlchemy and a driver: this
module is configuration, pickles, and needs the standard library only; they are imported where a
connection is made. Each database has a folder for its own statements and errors (see
``_DIALECTS``).

Opening a store transaction takes two steps, so that the tasks of an attempt do not wait for each
other. Only the first task finds the fence below its attempt. This task *raises* the fence in a
database transaction of its own, which also takes back rows (R31), after every open transaction of
an older attempt has ended. Each task then finds the fence of its attempt under a shared lock, and
keeps the lock to the end of its writes.

The only task of its component has no sibling to let pass, and takes one step: the task locks the
fence for itself, raises it, writes and commits, all in one transaction, like a store in a file. An
older or a newer attempt waits for that lock as long as for the shared lock. It then finds the fence
raised together with the writes, or not raised at all. A second run of the task in the same attempt
finds the fence of its attempt, and its own rows. A missing fence cannot be locked, and so is made
in two steps: otherwise an adoption of the store would not know the transaction to wait for.

Invariants:
    - No password is ever a part of a store: not of its pickle, nor of ``address`` or ``location``,
      nor of a message.
    - A write transaction holds a lock of the fence, shared or its own, for an attempt that the
      fence names, from before its first read to its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import os
import re
import urllib.parse
from collections.abc import Generator, Iterator
from typing import Any

from txtopo import errors
from txtopo.stores import base, codecs, sessions, stamps
from txtopo.stores import faults as failures
from txtopo.stores import place as places
from txtopo.topology import context as contexts

RAISES_MAX = 3
"""How often one opening raises the fence, and then looks whether the fence is still of its attempt.
One is enough unless connections drop."""

TABLE_NAME_MAX = 50
"""Characters; PostgreSQL cuts names, also those of a table's indexes, after 63; MySQL refuses more
than 64."""


@dataclasses.dataclass(frozen=True)
class _Dialect:
    """A database as an address names it."""

    module: str
    driver: str
    extra: str
    places: str
    """Where the driver takes a password from, when it is given none."""
    naming: frozenset[str] = frozenset()
    """Options of an address that may name the database."""

    @property
    def install(self) -> str:
        """What to type."""
        return f"Type: pip install 'txtopo[{self.extra}]', for the interpreter of the driver and of every executor."

    @property
    def password_cure(self) -> str:
        """Where else to give a password."""
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
    """Results in table ``table`` of the PostgreSQL, MySQL or MariaDB database at ``url``; the
    tables are made when it is first written.

    Needs ``pip install 'txtopo[postgres]'``, or ``'txtopo[mysql]'``, wherever it is written or
    read.

    :param url: ``postgresql+psycopg://user@host:port/database``, with options of libpq after a
        ``?``, or ``mysql+pymysql://user@host:port/database``, with options of PyMySQL. A password
        in it is refused, since a store is pickled and shown: give it as the driver takes it
        (``PGPASSWORD``, ``~/.pgpass``, a service file; ``read_default_file``), or by
        ``password_env`` or ``password_file``.
    :param table: letters, digits and ``_``; also the store's name (R27).
    :param opaque: True with an opaque spout (R30, R31).
    :param plain: True for values that are only set and deleted, and keep nothing but the last
        write.
    :param codec: what makes texts of values; JSON by default.
    :param password_env: name of the environment variable, of the process that connects, that holds
        the password.
    :param password_file: path of a file, on the machine that connects, whose first line is the
        password.
    :param lock_timeout_s: how long to wait for others, in seconds: a task for its turn on the
        process's connection, a new attempt for open transactions of an older one. Then the attempt
        fails and is replayed.
    :param statement_timeout_s: longest time a single statement of a transaction may take, in
        seconds; then the attempt is replayed. MySQL and MariaDB take whole seconds for the other
        two limits, which are rounded up.
    :param idle_timeout_s: how long the server keeps an open transaction that says nothing, in
        seconds: a bound on the time that a hanging task, or a task of a lost machine, delays the
        next attempt.
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
        database = _database(url)
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
        places.check_access("SqlStore", password_env, password_file, limits)
        self.url = url
        """The database, without a password."""
        self.password_env = password_env
        """The environment variable with the password, if any."""
        self.password_file = None if password_file is None else os.fspath(password_file)
        """The file with the password, if any."""
        self.lock_timeout_s = lock_timeout_s
        """Longest wait for others, in seconds."""
        self.statement_timeout_s = statement_timeout_s
        """Longest statement, in seconds."""
        self.idle_timeout_s = idle_timeout_s
        """Longest silence in an open transaction, in seconds."""
        super().__init__(
            name=table,
            address=f"{database}#{table}",
            opaque=opaque,
            location=url,
            plain=plain,
            codec=codec,
        )

    @property
    def _place(self) -> places.Place:
        limits = {
            "lock_timeout_s": self.lock_timeout_s,
            "statement_timeout_s": self.statement_timeout_s,
            "idle_timeout_s": self.idle_timeout_s,
        }
        return dataclasses.replace(
            super()._place,
            url=self.url,
            password_env=self.password_env,
            password_file=self.password_file,
            limits=limits,
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
    def _fenced_session(
        self,
        context: contexts.TopologyContext,
        stamp: stamps.Stamp,
        recorded: stamps.Recorded | None,
    ) -> Iterator[sessions.Session]:
        connection = self._connection(context.resource)
        for _ in range(RAISES_MAX):
            with connection.transaction(self._place, stamp) as session:
                number = self._number(context)
                # Where this task has raised the fence, the next time it just stands there.
                if context.num_tasks == 1 and number == 1 and session.takes_fence():
                    self._stand_at_fence(session, context, stamp, recorded)
                    session.count(stamp, number)
                    yield session
                    return
                if session.stands_at_fence(number, context.num_tasks == 1):
                    yield session
                    return
                self._stand_at_fence(session, context, stamp, recorded)
        raise failures.busy(
            self.address, f"its fence was changed {RAISES_MAX} times while it was being raised"
        )

    def open_maintenance(
        self, resources: base.Resources
    ) -> contextlib.AbstractContextManager[sessions.Maintenance]:
        maintenance: contextlib.AbstractContextManager[sessions.Maintenance] = self._connection(
            resources
        ).maintenance(self._place)
        return maintenance

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
        """A new connection of the driver's, to look over."""
        opened = self._backend().connections.open_connection(self._place, self.statement_timeout_s)
        with contextlib.closing(opened) as raw, self._backend().faults.translating(self.address):
            yield raw.connection.dbapi_connection

    def _reading(self, any_form: bool = False) -> Any:
        """A reader of one state of the store, over a new connection; None if the store does not
        exist. Looking does not make the store."""
        return self._backend().reading(self._place, any_form)

    def _backend(self) -> Any:
        dialect = _DIALECTS[self.url.partition("://")[0]]
        try:
            return importlib.import_module(dialect.module)
        except ImportError as error:
            fact = f"the store {self.address} needs SQLAlchemy and {dialect.driver}, which cannot be imported: {error}"
            raise errors.SetupError(f"{fact}\n  {dialect.install}") from error


def _database(url: str) -> str:
    """Which database ``url`` means, for messages: without the user, because users may differ."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _DIALECTS:
        # Not echoed: an address without a known form may hold a password anywhere.
        known = [f"{name}://" for name in _DIALECTS]
        forms = " or ".join(f"{name}user@host:port/database" for name in known)
        raise errors.UsageError(
            f"the address of a database does not begin with {' or '.join(known)}\n  Give {forms}."
        )
    dialect, split = _DIALECTS[scheme], places.split(url)
    if split is None:
        raise errors.UsageError(
            f"the address of a database is not understood\n  Give {scheme}://user@host:port/database. {dialect.password_cure}"
        )
    names = {
        name.lower() for name, _ in urllib.parse.parse_qsl(split.query, keep_blank_values=True)
    }
    if places.holds_password(split) or any(
        re.search("pass(?!file)|pwd|secret|token", name) for name in names
    ):
        raise errors.UsageError(
            f"the address of a database holds a password, or a stray @; a store is pickled and shown\n  {dialect.password_cure}"
        )
    database = split.path.removeprefix("/")
    if split.fragment or "/" in database or not (database or names & dialect.naming):
        raise errors.UsageError(
            f"the address of a database names no database\n  Give {scheme}://user@host:port/database, with options after a ?."
        )
    port = "" if split.port is None else f":{split.port}"
    return f"{scheme}://{places.host_of(split)}{port}{split.path}{f'?{split.query}' if split.query else ''}"
