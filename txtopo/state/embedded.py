"""Runs a data directory's embedded ZooKeeper, the default without a named ensemble. Decides when
the server may run, and on which port.

A ZooKeeper client takes ``hosts`` and need not know the server's owner. ``server_process`` runs a
server, ``directory`` knows the data's owner, ``watchdog`` ends the server.

In the data directory: ``zookeeper/`` (the server's data), ``zookeeper.cfg`` (written on every
start), ``zookeeper.log`` and ``zookeeper.log.1`` (bounded), ``server.lock`` (locked by the living
server, with its pid), ``user.json`` (the administrator's name and password), and the files from
``directory``.

Invariants:
    A server runs only while this process owns the data directory, and ends with this process (see
    ``watchdog``). Two servers never have the same data open: each server holds ``server.lock`` for
    its whole life, and starts only with that lock handed over. Only users who may read the
    directory can read the state, and this protection stands before clients can find the server (see
    ``protection`` and ``privacy``). A server is reported as serving only if this data directory's
    server answered, not another process that got the port.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from txtopo import errors
from txtopo.state import credentials, directory, protection, server_process

START_TIMEOUT_S = 30.0
PORT_ATTEMPTS = 5

CLOSED = "user.json.closed"
"""This file exists once no znode is open to other users."""


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedZooKeeper:
    """A ZooKeeper server with its data under ``data_dir``. It lives between :meth:`start` and
    :meth:`stop`, or inside a ``with``."""

    def __init__(
        self,
        data_dir: str | Path,
        *,
        choose_port: Callable[[], int] = free_port,
        is_private: bool = True,
    ) -> None:
        """``is_private``: only users who may read the directory can read the state. Otherwise all
        users can, as in an ensemble."""
        self._directory = directory.DataDirectory(data_dir)
        self._choose_port = choose_port
        self._is_private = is_private
        self._owner: credentials.Credentials | None = None
        self._command: list[str] = []
        self._server: server_process.ServerProcess | None = None
        self._port = 0

    @property
    def data_dir(self) -> Path:
        """The data directory, absolute."""
        return self._directory.path

    @property
    def hosts(self) -> str:
        """``127.0.0.1:port``, as a ZooKeeper client takes it. Raises UsageError if the server is
        not started."""
        self._require_server()
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The server's pid. Raises UsageError if the server is not started."""
        return self._require_server().pid

    @property
    def is_alive(self) -> bool:
        """Whether the server is started and has not ended since. :meth:`restart` brings back an
        ended server."""
        return (
            self._server is not None
            and not self._server.is_gone()
            and not self._server.has_ended(0)
        )

    def start(self) -> Self:
        """Own the data directory, start the server, and return when the server serves:
        :meth:`launch` and :meth:`wait_until_served`, with their errors."""
        return self.launch().wait_until_served()

    def launch(self) -> Self:
        """Own the data directory, start the server, and return at once: Spark starts meanwhile.

        Raises HeldError if the directory has another owner. Raises SetupError if Java, the jars or
        the directory are not as needed.
        """
        self._command = server_process.command(self._config)
        self._directory.acquire()
        try:
            self._port = self._choose_port()
            self._server = self._launch(self._port)
        except BaseException:
            self.stop()
            raise
        return self

    def wait_until_served(self) -> Self:
        """Return when the launched server serves.

        Raises ZooKeeperUnavailableError, with the server's last log lines, if the server does not
        come up.
        """
        launched = self._require_server()
        try:
            self._serve(
                itertools.chain(
                    [self._port], (self._choose_port() for _ in range(PORT_ATTEMPTS - 1))
                ),
                launched,
            )
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """End the server, if alive, and start it again at the same address. Clients see a ZooKeeper
        that was away for a moment."""
        self._require_server().end()
        self._serve([self._port] * PORT_ATTEMPTS)

    def stop(self) -> None:
        """End the server and give the data directory up. Harmless if nothing is started, and in a
        fork."""
        if self._server is not None:
            credentials.remember_owner(f"127.0.0.1:{self._port}", None)
            self._server.end()
            self._server = self._owner = None
        self._directory.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    @property
    def _config(self) -> Path:
        return self.data_dir / "zookeeper.cfg"

    @property
    def _data(self) -> Path:
        return self.data_dir / "zookeeper"

    def _require_server(self) -> server_process.ServerProcess:
        if self._server is None:
            raise errors.UsageError(
                f"the embedded ZooKeeper of {self.data_dir} is not started\n  Call start(), or use it in a `with` statement."
            )
        return self._server

    def _serve(
        self, ports: Iterable[int], launched: server_process.ServerProcess | None = None
    ) -> None:
        """Serve on the first of ``ports`` that no other process has taken meanwhile. ``launched``
        is a server that is started already, on the first port."""
        tail = ""
        for port in ports:
            self._server, launched = launched or self._launch(port), None
            if self._is_serving(self._server, port):
                self._port = port
                self._admit_clients(self._server)
                return
            tail = self._server.tail
            self._server.end()
            if "java.net.BindException" not in tail:
                break
        self._raise_if_full(tail)
        raise errors.ZooKeeperUnavailableError(
            "the embedded ZooKeeper server ended before it served\n"
            f"  Read the log {self.data_dir / 'zookeeper.log'}, or choose another data directory with `--data-dir PATH`\n"
            f"  or another ZooKeeper with `--zookeeper HOST:PORT`. The server's last words:\n{tail}"
        )

    def _admit_clients(self, server: server_process.ServerProcess) -> None:
        """Let clients find ``server``, which serves. End the server if that fails."""
        try:
            self._sync_data()
            self._make_private()
            self._directory.publish(self.hosts, server.pid)
        except BaseException as error:
            server.end()
            self._raise_if_full(server.tail)
            if isinstance(error, OSError):
                raise directory.unusable(self.data_dir, error) from error
            raise

    def _raise_if_full(self, tail: str) -> None:
        full = directory.says_no_room(tail)
        if full is not None:
            raise directory.no_room(self.data_dir, full)

    def _make_private(self) -> None:
        """Close every znode to other users."""
        if self._owner is None:
            return
        closed = self.data_dir / CLOSED
        protection.protect(self.hosts, self._owner, closed.exists())
        if not closed.exists():
            directory.write_durably(closed, "")
        credentials.remember_owner(self.hosts, self._owner)

    def _launch(self, port: int) -> server_process.ServerProcess:
        try:
            lock = os.open(
                self.data_dir / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise directory.unusable(self.data_dir, error) from error
        try:
            self._wait_for_earlier_server(lock)
            self._configure(port)
            return server_process.ServerProcess(
                self._command, self.data_dir / "zookeeper.log", lock
            )
        finally:
            os.close(lock)

    def _configure(self, port: int) -> None:
        """Write the files for the next server. The earlier server must have ended: readers log in
        with the password in these files."""
        try:
            if self._is_private and self._owner is None:
                # Every owner of the directory draws a new password: a reader's old password opens
                # nothing.
                self._owner = credentials.new_owner()
                directory.write_durably(
                    self.data_dir / credentials.OWNER_FILE, credentials.owner_text(self._owner)
                )
            administrator = "" if self._owner is None else protection.digest_of(self._owner)
            directory.write_durably(
                self._config, server_process.configuration(self._data, port, administrator)
            )
        except OSError as error:
            raise directory.unusable(self.data_dir, error) from error

    def _wait_for_earlier_server(self, lock: int) -> None:
        """Lock ``lock``: then no server has our data open, even if its owner was killed a moment
        ago."""
        deadline = time.monotonic() + server_process.END_TIMEOUT_S
        while not directory.try_flock(lock, fcntl.LOCK_EX):
            # We own the directory, so the server that holds this lock has no owner any more. Its
            # watchdog is ending the server. Kill the server here, in case the watchdog was killed
            # too.
            pid = os.pread(lock, 32, 0).decode(errors="replace")
            _kill_server(pid, self._config)
            if time.monotonic() > deadline:
                raise errors.ZooKeeperUnavailableError(
                    f"an earlier embedded ZooKeeper server, process {pid or 'unknown'}, still has the data of {self.data_dir} open\n"
                    f"  Look at that process with `ps -fp {pid or 'PID'}`, and end it with `kill -9 {pid or 'PID'}`."
                )
            time.sleep(server_process.POLL_EVERY_S)

    def _is_serving(self, server: server_process.ServerProcess, port: int) -> bool:
        """Wait until ``server`` serves (True) or has ended (False)."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server.has_ended(server_process.POLL_EVERY_S):
            if server_process.answers(port, self._data):
                return True
            if time.monotonic() > deadline:
                server.end()
                raise errors.ZooKeeperUnavailableError(
                    f"the embedded ZooKeeper server did not serve within {START_TIMEOUT_S:.0f} s\n"
                    f"  Is the machine overloaded, or the disk of {self.data_dir} stalled? The server's last words:\n{server.tail}"
                )
        return False

    def _sync_data(self) -> None:
        """Sync the first snapshot to disk before the log has any transaction. ZooKeeper syncs only
        its logs, and refuses logs without a snapshot."""
        content = self._data / "version-2"
        for snapshot in content.glob("snapshot.*"):
            # The server may be purging old snapshots at this moment.
            with contextlib.suppress(FileNotFoundError):
                directory.sync(snapshot)
        for folder in (content, self._data, self.data_dir):
            directory.sync(folder)


def _kill_server(pid: str, config: Path) -> None:
    """Kill the process ``pid`` if it is the server with this configuration, not a later process
    with the same pid."""
    with contextlib.suppress(OSError, ValueError):
        if os.fsencode(config) in Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0"):
            os.kill(int(pid), signal.SIGKILL)
