"""ZooKeeper servers of a test's own, one or an ensemble, each of which can be killed, paused, and
started again over the same data.

Apart from the embedded server, which a topology owns and repairs: these servers belong to the test,
and fail on its command. They run the same program as the embedded server. Not only for pytest: a
soak run uses them too.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.patience import wait_until
from tests.processes import owners
from tests.servers import ports
from txtopo.state import directory, server_process

ASK_TIMEOUT_S = 1.0
PORT_ATTEMPTS = 5


def _with_netty(command: Sequence[str]) -> list[str]:
    """``command`` with more on its class path: a server that is configured for SASL or TLS loads
    classes of netty's, though it uses none."""
    at = command.index("-cp") + 1
    jars = Path(command[at].split(os.pathsep)[0]).parent
    return [
        *command[:at],
        os.pathsep.join([command[at], *map(str, sorted(jars.glob("netty-*.jar")))]),
        *command[at + 1 :],
    ]


class Server:
    """One server, member ``number`` of ``members``: lines of the configuration, the server's own
    line included. Empty for a lone server."""

    def __init__(
        self,
        folder: Path,
        number: int,
        port: int,
        members: Sequence[str],
        settings: dict[str, str],
        flags: Sequence[str],
    ) -> None:
        self.number, self.port = number, port
        self._folder, self._members, self._settings, self._flags = folder, members, settings, flags
        self._data = folder / "data"
        self._process: server_process.ServerProcess | None = None
        self._is_paused = False

    @property
    def hosts(self) -> str:
        """Where it serves its clients."""
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start it; it may take part only when others have started, too."""
        assert self._process is None, "it runs already"
        self._data.mkdir(parents=True, exist_ok=True)
        (self._data / "myid").write_text(f"{self.number}\n")
        ensemble = (
            {"initLimit": "20", "syncLimit": "10", "quorumListenOnAllIPs": "false"}
            if self._members
            else {}
        )
        more = "".join(f"{key}={value}\n" for key, value in {**ensemble, **self._settings}.items())
        config = self._folder / "zookeeper.cfg"
        config.write_text(
            server_process.configuration(self._data, self.port)
            + more
            + "".join(f"{line}\n" for line in self._members)
        )
        java, *rest = _with_netty(server_process.command(config))
        with (self._folder / "server.lock").open("w") as lock:
            assert directory.try_flock(lock.fileno(), fcntl.LOCK_EX), (
                "an earlier server has this data open"
            )
            self._process = server_process.ServerProcess(
                [java, *self._flags, *rest], self._folder / "zookeeper.log", lock.fileno()
            )

    def wait_until_serving(self) -> None:
        """Return when it answers requests; it is part of a quorum then."""
        assert self._process is not None
        process = self._process

        def serves() -> bool:
            assert not process.has_ended(0), f"server {self.number} ended:\n{process.tail}"
            return server_process.answers(self.port, self._data)

        wait_until(serves, f"server {self.number} to serve")

    def start(self) -> None:
        """Start the server, and return when the server serves."""
        self.launch()
        self.wait_until_serving()

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended, by us or by itself."""
        return self._process is not None and not self._process.has_ended(0)

    def kill(self) -> None:
        """SIGKILL, and return when it is gone."""
        self._signal(signal.SIGKILL)
        wait_until(lambda: not self.is_running, f"the end of server {self.number}")
        self.end()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered. Returns when it stands still."""
        pid = self._signal(signal.SIGSTOP)
        self._is_paused = True
        owners.wait_until_suspended(pid)

    def resume(self) -> None:
        """SIGCONT, if it is paused."""
        if self._is_paused and self.is_running:
            self._signal(signal.SIGCONT)
        self._is_paused = False

    def end(self) -> None:
        """End it, if it runs. Harmless otherwise."""
        if self._process is not None:
            self.resume()
            self._process.end()
            self._process = None

    @property
    def is_leader(self) -> bool:
        """Whether it leads an ensemble just now."""
        return "Mode: leader" in self.ask("srvr")

    def ask(self, word: str) -> str:
        """The answer to a four-letter word; empty if there is none soon."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), ASK_TIMEOUT_S) as connection:
                connection.sendall(word.encode())
                with connection.makefile("rb") as answer:
                    return answer.read().decode(errors="replace")
        except OSError:
            return ""

    def _signal(self, signum: int) -> int:
        """Send it; the pid of the server."""
        assert self._process is not None, "it does not run"
        assert not self._process.has_ended(0), (
            f"server {self.number} has ended:\n{self._process.tail}"
        )
        assert self._process.pid
        os.kill(self._process.pid, signum)
        return self._process.pid


class Ensemble:
    """``size`` servers of one ensemble, with data in ``directory``; a context manager.

    ``settings`` are added to the configuration file of each, ``flags`` to the options of its JVM.
    """

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        settings: dict[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._directory, self._size, self._settings, self._flags = (
            directory,
            size,
            settings or {},
            flags,
        )
        self.servers: list[Server] = []

    @property
    def hosts(self) -> str:
        """All servers, as a ZooKeeper client takes them."""
        return ",".join(server.hosts for server in self.servers)

    def start(self) -> Self:
        """Start all, and return when all serve."""
        for attempt in range(PORT_ATTEMPTS):
            self.servers = self._make(self._directory / str(attempt))
            try:
                for server in self.servers:
                    server.launch()
                for server in self.servers:
                    server.wait_until_serving()
                return self
            except AssertionError as error:
                self.stop()
                # Another process got hold of a port between its choice and its use.
                if "BindException" not in str(error) or attempt == PORT_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.stop()
                raise
        return self

    def _make(self, folder: Path) -> list[Server]:
        chosen = ports.free_ports(3 * self._size)
        numbers = range(1, self._size + 1)
        among, voting, serving = (
            chosen[: self._size],
            chosen[self._size : -self._size],
            chosen[-self._size :],
        )
        members = (
            [
                f"server.{number}=127.0.0.1:{among[number - 1]}:{voting[number - 1]}"
                for number in numbers
            ]
            if self._size > 1
            else []
        )
        return [
            Server(
                folder / str(number),
                number,
                serving[number - 1],
                members,
                self._settings,
                self._flags,
            )
            for number in numbers
        ]

    def leader(self) -> Server:
        """The server that leads; waits until there is one."""
        leaders: list[Server] = []

        def is_led() -> bool:
            leaders[:] = [
                server for server in self.servers if server.is_running and server.is_leader
            ]
            return bool(leaders)

        wait_until(is_led, "a leader")
        return leaders[0]

    def start_missing(self) -> None:
        """Start the servers that do not run, and return when all serve."""
        for server in self.servers:
            server.resume()
            if not server.is_running:
                server.end()
                server.launch()
        for server in self.servers:
            server.wait_until_serving()

    def stop(self) -> None:
        """End all."""
        for server in self.servers:
            server.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
