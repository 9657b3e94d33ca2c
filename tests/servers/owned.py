"""A server that a test owns: made in a temporary directory, on a free port of loopback, and gone
with the process that made it.

A module per kind of server describes its data, its start, and its readiness; this module has the
operations on a running server::

    with PostgresServer() as server:
        server.kill()            # SIGKILL to the server and all its processes, at once: what a power cut leaves, but for the page cache
        server.restart()         # stopped if it runs, started again on the same port with the same data
        server.stop()            # ends sessions and shuts down; start() or restart() brings it back
        server.pause()           # SIGSTOP to all of it: connections hang; resume()

No server runs as root: then an account without rights runs it.

Invariants:
    - The server listens on 127.0.0.1 only.
    - A watchdog holds the reading end of a pipe from this process: when this process ends, also by
      SIGKILL, the server ends and its directory is removed.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests import patience
from tests.patience import PATIENCE_S
from tests.processes import owners
from tests.servers import fetch, ports

PORT_ATTEMPTS = 5
_ESTABLISHED = "01"  # <net/tcp_states.h>

# Run as ``python -I -S -c``: starts in milliseconds. The server's pid is read when it is needed,
# since the server may have been restarted, and believed only if the process is of this directory.
_WATCHDOG = """
import os, shutil, signal, sys, time
directory, give_up, patience_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sys.stdin.read()
def tell(number):
    try:
        pid = int(open(directory + "/pid").readline())
        if directory.encode() not in open(f"/proc/{pid}/cmdline", "rb").read():
            return False
        os.kill(pid, number)
        return True
    except (OSError, ValueError):
        return False
deadline = time.monotonic() + patience_s
tell(signal.SIGCONT)
tell(give_up)
while tell(0 if time.monotonic() < deadline else signal.SIGKILL):
    time.sleep(0.02)
shutil.rmtree(directory, ignore_errors=True)
"""


class Server(abc.ABC):
    """A server with data of its own; it lives inside a ``with``."""

    title: str
    """The name in messages."""
    accounts: Sequence[str] = ("nobody",)
    """Accounts that may run the server where the tests run as root: the first that exists."""
    shut_down = signal.SIGTERM
    """Have the server end its sessions and keep its commits."""
    give_up = signal.SIGKILL
    """Has it end at once, with nothing left behind."""
    port_taken = "Address already in use"
    """The server's message when another process took the port first."""

    def __init__(self) -> None:
        self._account = _unprivileged(self.title, self.accounts) if os.geteuid() == 0 else None
        self._directory = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._said_before = 0
        self.port = 0
        """On 127.0.0.1; the same after a restart."""

    def __enter__(self) -> Self:
        # Not pytest's temporary directory, which is closed to other accounts.
        self._directory = Path(tempfile.mkdtemp(prefix=f"txtopo-{self.title.lower()}-"))
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _WATCHDOG,
            str(self._directory),
            str(int(self.give_up)),
            str(PATIENCE_S),
        ]
        self._watchdog = subprocess.Popen(
            command, stdin=subprocess.PIPE, cwd="/", start_new_session=True
        )
        try:
            os.chmod(self._directory, 0o700)
            if self._account is not None:
                os.chown(self._directory, self._account.pw_uid, self._account.pw_gid)
            self._make()
            self.start()
            self._furnish()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _make(self) -> None:
        """Make the empty data in ``_directory``."""

    @abc.abstractmethod
    def _launched(self, port: int) -> subprocess.Popen[bytes]:
        """The server, being started on ``port``."""

    @abc.abstractmethod
    def _is_ready(self, port: int) -> bool:
        """Whether the server that was launched takes connections."""

    def _furnish(self) -> None:
        """Commands after its first start."""
        return

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The server's log so far."""
        file = self._directory / "server.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self) -> None:
        """Start it on the data there is; returns when it takes connections."""
        if self.is_running:
            return
        for attempt in range(PORT_ATTEMPTS):
            port = self.port or self._free_port()
            self._said_before = len(self.log)
            self._process = self._launched(port)
            (self._directory / "pid").write_text(f"{self._process.pid}\n")
            if self._has_started(port):
                self.port = port
                return
            if self.port or self.port_taken not in self._said or attempt == PORT_ATTEMPTS - 1:
                raise fetch.ServerMissingError(f"{self.title} did not start:\n{self._said}")

    def _has_started(self, port: int) -> bool:
        self.wait_until(lambda: not self.is_running or self._is_ready(port))
        return self.is_running

    @property
    def _said(self) -> str:
        """The part of the log since the server was launched."""
        return self.log[self._said_before :]

    def _free_port(self) -> int:
        return ports.free_port()

    def stop(self) -> None:
        """Shut the server down: sessions are ended, commits are kept."""
        self._end(self.shut_down)

    def kill(self) -> None:
        """SIGKILL to the server and to every process of it."""
        if self._process is None or self._process.poll() is not None:
            return
        killed = self._final_processes()
        self._signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        # Its children are not ours to wait for; a new server refuses to start beside one of them.
        self.wait_until(lambda: all(state(pid) in "Z" for pid in killed))
        self._is_paused = False

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP to the server and to every process of it: it neither answers nor closes a
        connection. Returns when all have stopped.
        """
        paused = self._final_processes()
        self._signal(signal.SIGSTOP)
        self._is_paused = True
        for pid in paused:
            owners.wait_until_suspended(pid)

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        if self._is_paused:
            self._signal(signal.SIGCONT)
        self._is_paused = False

    def close(self) -> None:
        """Stop the server and remove its data, also after a failed start."""
        self._end(self.give_up)
        if self._watchdog is not None:
            # The end of its input; it removes the directory.
            self._watchdog.communicate()
            self._watchdog = None

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self.resume()
            self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def _process_id(self) -> int:
        return 0 if self._process is None else self._process.pid

    def _run(
        self, *command: str, environment: dict[str, str] | None = None, input: bytes | None = None
    ) -> subprocess.Popen[bytes]:
        """Run ``command`` as the account, in the directory; its output goes into the log, ``input``
        is its input."""
        account: dict[str, Any] = (
            {}
            if self._account is None
            else {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        )
        # The server's language is that of the tests; a library path of the surroundings is none of
        # its business.
        surroundings = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "TZ": "UTC",
            **(environment or {}),
        }
        with (self._directory / "server.log").open("ab") as log, tempfile.TemporaryFile() as said:
            said.write(input or b"")
            said.seek(0)
            options: dict[str, Any] = {
                "stdin": said,
                "stdout": log,
                "stderr": log,
                "start_new_session": True,
                **account,
            }
            return subprocess.Popen(command, cwd=self._directory, env=surroundings, **options)

    def _complete(
        self, *command: str, environment: dict[str, str] | None = None, input: bytes | None = None
    ) -> int:
        """Run ``command`` to its end, as in :meth:`_run`. Returns the exit code."""
        return self._run(*command, environment=environment, input=input).wait(PATIENCE_S)

    def _runnable(self, server: fetch.Found) -> fetch.Found:
        """``server``, or a copy where the account that must run it cannot reach it, as in a home
        directory of root."""
        with contextlib.suppress(PermissionError):
            self._complete(str(server.program), "--version", environment=server.environment)
            return server
        copied = self._directory / "binaries"
        if server.root == Path("/"):
            # A program of the machine's own finds its libraries from every place.
            copied.mkdir()
            return fetch.Found(Path(shutil.copy(server.program, copied)), server.root)
        shutil.copytree(server.root, copied, symlinks=True)
        return fetch.Found(copied / server.program.relative_to(server.root), copied)

    def _signal(self, number: int) -> None:
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):  # the server has just ended by itself
                os.kill(pid, number)

    def _processes(self) -> list[int]:
        """The server's processes, itself last."""
        if self._process is None or self._process.poll() is not None:
            return []
        server = self._process.pid
        return [*(pid for pid, parent in _parents() if parent == server), server]

    def _final_processes(self) -> list[int]:
        """The server's processes once it has stopped (SIGSTOP): it starts no more of them, not even
        as its answer to the death of a child."""
        if self.is_running:
            os.kill(self._process_id, signal.SIGSTOP)
            owners.wait_until_suspended(self._process_id)
        return self._processes()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; an error has the server's log."""
        try:
            patience.wait_until(condition, f"the server {self.title}")
        except patience.OutOfPatience as error:
            error.add_note(self.log)
            raise


S = TypeVar("S", bound=Server)
_RUNNING: dict[type[Server], Server] = {}


def running(kind: type[S]) -> S:
    """The server of ``kind`` that all tests of this process share: made when first asked for, then
    running again after any damage by the test before, gone when the process ends."""
    if kind not in _RUNNING:
        _RUNNING[kind] = kind().__enter__()
        atexit.register(_RUNNING[kind].close)
    server = _RUNNING[kind]
    assert isinstance(server, kind)
    server.resume()
    server.start()
    return server


def state(pid: int) -> str:
    """R, S, T (stopped), Z (ended), … (proc(5)); empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def has_unread_input(port: int) -> bool:
    """Whether the server at ``port`` has unread input. A paused server reads no input."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, tcp_state, queues, *_ = line.split()
        if (
            int(local.partition(":")[2], 16) == port
            and tcp_state == _ESTABLISHED
            and int(queues.partition(":")[2], 16)
        ):
            return True
    return False


def _parents() -> Iterator[tuple[int, int]]:
    """Every process of the machine, with its parent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may hold anything; state and parent follow it.
                yield (
                    int(entry.name),
                    int((entry / "stat").read_text().rpartition(")")[2].split()[1]),
                )


def _unprivileged(title: str, names: Sequence[str]) -> pwd.struct_passwd:
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise fetch.ServerMissingError(
        f"{title} does not run as root, and there is no account {' or '.join(names)} to run it as"
    )
