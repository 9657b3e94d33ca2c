"""A real MariaDB server for tests (see ``servers``).

In a test ask for the fixture ``mariadb`` (one server for all tests, running at the beginning of
every test)::

    def test_something(mariadb: MariaServer) -> None:
        store = SqlStore(mariadb.new_url(), "counts")        # an empty database of its own

and outside of pytest, for a soak or by hand::

    with MariaServer() as server:
        server.url("words")      # mysql+pymysql://root@127.0.0.1:PORT/words; the database is made when first asked for
        server.execute("SELECT count(*) FROM counts", database="words")
        server.backends("words")    # the server's numbers of the connections of clients; disconnect("words") ends them

``root`` is let in from loopback without a password; ``guarded`` needs :data:`PASSWORD` and may
connect only: ``server.url("words", user="guarded")``. Processes of Spark may use the URL as it is,
being on this machine.

The program is the one that ``make servers`` brought, or the machine's own.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.servers import databases, fetch, owned

PASSWORD = "open-sesame-7"
"""Of the user ``guarded``."""

# Losing the machine is not among the faults of tests; losing every process is, and the page cache
# survives that without a flush.
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "ON",
    "skip-log-bin": "ON",
    "performance-schema": "OFF",
    "max-connections": "60",
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "32M",
    "innodb-doublewrite": "OFF",
    "innodb-flush-method": "nosync",
    "debug-no-sync": "ON",
    "sync-frm": "OFF",
    # Code that relies on the server's character set and collation shall fail.
    "character-set-server": "latin1",
    "default-storage-engine": "MyISAM",
    "transaction-isolation": "SERIALIZABLE",
}


_NAMES = ("mysql", "mariadb")
"""Older and newer versions call the directory of their scripts, and the scripts, by one or the
other."""
_SCRIPTS = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")
"""Of the distribution; the distribution's own script to install a database writes the same
tables.
"""


class MariaServer(databases.DatabaseServer):
    """A server with data of its own; it lives inside a ``with``."""

    title = "MariaDB"
    accounts = ("mysql", "nobody")

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__({**_SETTINGS, **(settings or {})})
        self._found = fetch.found("mariadb")

    def url(self, database: str, user: str = "root", options: str = "") -> str:
        if database not in self._databases:
            self.execute(f"CREATE DATABASE IF NOT EXISTS `{database}`")
            self._databases.add(database)
        return f"mysql+pymysql://{user}@127.0.0.1:{self.port}/{database}{'?' if options else ''}{options}"

    def drop(self, database: str) -> None:
        self.disconnect(database)
        self.execute(f"DROP DATABASE IF EXISTS `{database}`")
        self._databases.discard(database)

    def execute(
        self, statement: str, parameters: Sequence[Any] | None = None, *, database: str = ""
    ) -> list[tuple[Any, ...]]:
        settings = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        # The driver takes longer to make ready for TLS, which this server does not have, than for
        # everything else.
        place = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "root",
            "database": database or "mysql",
            "ssl_disabled": True,
        }
        raw = pymysql.connect(**place, autocommit=True, init_command=settings)
        try:
            with raw.cursor() as cursor:
                cursor.execute(statement, parameters)
                return list(cursor.fetchall())
        finally:
            raw.close()

    def backends(self, database: str) -> list[int]:
        select = "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id() ORDER BY id"
        return [number for (number,) in self.execute(select, [database])]

    def _end_session(self, number: int) -> None:
        try:
            self.execute(f"KILL CONNECTION {number}")
        except pymysql.err.MySQLError as error:
            if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
                raise

    def waiting_for_locks(self, database: str) -> int:
        # Of all databases: one test at a time uses the server. The catalogue's figures are as old
        # as the last query for them.
        return int(self.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")[0][1])

    def _make(self) -> None:
        self._found = self._runnable(self._found)
        scripts = [script.read_text() for script in scripts_of(self._found)]
        statements = "\n".join(
            ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;", *scripts]
        ).encode()
        if (
            self._complete(
                *self._command(),
                "--bootstrap",
                environment=self._found.environment,
                input=statements,
            )
            != 0
        ):
            raise RuntimeError(f"the system tables of MariaDB could not be made:\n{self.log}")

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        socket = f"--socket={self._directory / 'socket'}"
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        return self._run(
            *self._command(),
            f"--port={port}",
            socket,
            *options,
            environment=self._found.environment,
        )

    def _is_ready(self, port: int) -> bool:
        return "ready for connections" in self._said

    def _furnish(self) -> None:
        self.execute(f"CREATE USER guarded@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")

    def _command(self) -> list[str]:
        data = self._directory / "data"
        if not data.exists():
            data.mkdir()
            if self._account is not None:
                shutil.chown(data, self._account.pw_uid, self._account.pw_gid)
        shared = scripts_of(self._found)[0].parent
        places = {
            "datadir": data,
            "tmpdir": self._directory,
            "lc-messages-dir": shared,
            "character-sets-dir": shared / "charsets",
        }
        return [
            str(self._found.program),
            "--no-defaults",
            *(f"--{name}={place}" for name, place in places.items()),
        ]


def scripts_of(server: fetch.Found) -> list[Path]:
    """The scripts that make the system tables; the server's messages and characters are beside
    them."""
    shared = server.root / "usr/share"
    for directory, prefix in itertools.product(_NAMES, _NAMES):
        scripts = [shared / directory / f"{prefix}_{name}" for name in _SCRIPTS]
        if all(script.exists() for script in scripts):
            return scripts
    cure = "Type: apt-get install mariadb-server-core; or remove the server of the machine, and type: make servers"
    raise fetch.ServerMissingError(
        f"{shared} lacks the scripts of MariaDB that make the system tables\n  {cure}"
    )


def running_server() -> MariaServer:
    """The server that all tests of this process share."""
    return owned.running(MariaServer)


@pytest.fixture
def mariadb() -> MariaServer:
    """The server that all tests of this process share, running again after any damage by the test
    before.
    """
    return running_server()
