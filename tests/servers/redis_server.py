"""A real Redis server for tests (see ``servers``).

In a test ask for the fixture ``redis_server`` (one server for all tests, running at the beginning
of every test)::

    def test_something(redis_server: RedisServer) -> None:
        store = RedisStore(redis_server.url(), redis_server.new_name())      # keys of its own

and outside of pytest, for a soak or by hand::

    with RedisServer() as server:
        server.url()             # redis://127.0.0.1:PORT/0
        server.url_for("me")     # a database of the server that is nobody else's
        server.ask("GET", "x")   # one command, over a connection of its own
        server.clients()         # how many connections there are, but for the one that tells; disconnect() ends them
        server.remember()        # keeps a copy of the data as it is now; go_back() has the server start from that

The server keeps an append-only file and syncs it before it answers, unless ``settings`` says
otherwise. The user ``guarded`` needs :data:`PASSWORD` and may do everything with the keys of
stores; ``reader`` may only read. ``{"cluster-enabled": "yes"}`` makes a node of a cluster.

The program is the one that ``make servers`` brought, or the machine's own, of Redis or Valkey.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.servers import fetch, owned, ports

PASSWORD = "open-sesame-7"
"""Of the users ``guarded`` and ``reader``."""

# The title of the process stays its command, by which the watchdog knows it.
_SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "databases": "10000",
    "maxmemory-policy": "noeviction",
    "set-proc-title": "no",
}

_USERS = (
    f"user guarded on >{PASSWORD} ~txtopo:* &* +@all",
    f"user reader on >{PASSWORD} ~txtopo:* &* +@read +@scripting +@connection +info",
)


class RedisServer(owned.Server):
    """A server with data of its own; it lives inside a ``with``."""

    title = "Redis"
    accounts = ("redis", "nobody")

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._found = fetch.found("redis")
        self._owners: dict[object, int] = {}
        self._numbers = itertools.count(1)

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
        with contextlib.closing(
            redis.Redis(port=self.port, decode_responses=True, protocol=2)
        ) as client:
            execute: Any = client.execute_command
            return execute(*command)

    def told(self, *command: Any) -> str:
        """The answer of a command that tells of the server, such as INFO, in the server's own
        words."""
        with contextlib.closing(redis.Redis(port=self.port, protocol=2)) as client:
            client.response_callbacks.clear()
            execute: Any = client.execute_command
            return str(execute(*command).decode())

    def connections(self) -> list[str]:
        """Number and address of each connection of a client, but for the one that tells."""
        *others, _ = self.told("CLIENT", "LIST", "TYPE", "normal").splitlines()
        return [line.partition(" name=")[0] for line in others]

    def clients(self) -> int:
        """How many connections the server has, but for the one that tells."""
        return len(self.connections())

    def disconnect(self) -> None:
        """End every connection from the server's side."""
        self.ask("CLIENT", "KILL", "TYPE", "normal")

    def remember(self) -> None:
        """Keep a copy of the data as it is now, for :meth:`go_back`."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy)

    def go_back(self) -> None:
        """Kill the server, and start it on the data of :meth:`remember`: as if all later writes had
        not reached the disk."""
        self.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._give_away()
        self.start()

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _copy(self) -> Path:
        return self._directory / "copy"

    def _make(self) -> None:
        self._found = self._runnable(self._found)
        self._data.mkdir()
        self._give_away()

    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        settings = (f"{name} {value or repr(value)}" for name, value in self._settings.items())
        lines = [*settings, f"port {port}", f'dir "{self._data}"', *_USERS]
        configuration = self._directory / "redis.conf"
        configuration.write_text("\n".join(lines) + "\n")
        return self._run(
            str(self._found.program), str(configuration), environment=self._found.environment
        )

    def _free_port(self) -> int:
        # A node of a cluster takes a second port, 10,000 above the first, which clients must not
        # get either.
        is_node = self._settings.get("cluster-enabled") == "yes"
        return next(
            port
            for port in iter(super()._free_port, 0)
            if not is_node or port + 10_000 in ports.PORTS
        )

    def _is_ready(self, port: int) -> bool:
        return "Ready to accept connections" in self._said

    def _give_away(self) -> None:
        """Have the account that runs the server own its data."""
        if self._account is not None:
            for path in (self._data, *self._data.rglob("*")):
                shutil.chown(path, self._account.pw_uid, self._account.pw_gid)


def running_server() -> RedisServer:
    """The server that all tests of this process share."""
    return owned.running(RedisServer)


@pytest.fixture
def redis_server() -> RedisServer:
    """The server that all tests of this process share, running again after any damage by the test
    before.
    """
    return running_server()
