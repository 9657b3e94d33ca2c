"""Runs the embedded ZooKeeper's server: its command line with the memory, its configuration, and a
run as the watchdog reports it.

``embedded`` decides when a server may run. This module knows how to run one, from pyspark's jars.
It does not import pyspark, and speaks only one four-letter word from ZooKeeper's protocol.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.state import directory, java, peer, watchdog

END_TIMEOUT_S = 10.0
TAIL_LINES = (
    40  # lines from the server's log in an error: a stack trace at its start has about fifteen
)
POLL_EVERY_S = 0.01
PROBE_TIMEOUT_S = 0.1  # a starting server may never answer a connection, so do not wait long

JARS = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-slf4j2-impl",
    "log4j-api",
    "metrics-core",
    "snappy-java",
)

SERVER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # ZooKeeperServerMain would not purge old logs and snapshots

JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",  # this and the next two: start in a third of a second, in 60 MB
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xms32m",
    "-Xmx1g",  # the server keeps its last 500 requests, several times over: with 512 KiB records, they alone need most of it
    "-XX:-UsePerfData",  # would leave a file in /tmp when the server is killed, and the server always is
    "-XX:+ExitOnOutOfMemoryError",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory",  # writes to stderr, needs no log4j-core
    "-Dorg.apache.logging.log4j.simplelog.level=INFO",
    "-Dorg.apache.logging.log4j.simplelog.showdatetime=true",
)

# Half-second ticks allow one-second sessions. The default ticks allow four seconds at least. Three
# snapshots and one hour's writes bound the disk space: a snapshot is taken after at most 10,000
# transactions or 64 MiB. On every start and every hour (ZooKeeper knows no shorter interval) all
# files that the last three snapshots do not need are deleted.
SETTINGS = {
    "tickTime": "500",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "conf,ruok,srvr",
    "snapCount": "10000",
    "snapSizeLimitInKb": "65536",
    "preAllocSize": "4096",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
}


def command(config: Path) -> list[str]:
    """The command line for a server with this configuration file. Raises SetupError if Java or the
    jars are missing."""
    classpath = os.pathsep.join(map(str, jars()))
    # One file with a fixed name, however often the JVM crashes.
    crash_report = f"-XX:ErrorFile={config.with_name('zookeeper-crash.log')}"
    return [
        java.require_java().executable,
        *JVM_FLAGS,
        crash_report,
        "-cp",
        classpath,
        SERVER_CLASS,
        str(config),
    ]


def configuration(data: Path, port: int, administrator: str = "") -> str:
    """The configuration file's text for a server on ``port`` at 127.0.0.1 that keeps its data in
    ``data``. ``administrator``: name and password digest of a user bound by no rights."""
    lines = {
        "dataDir": str(data),
        "clientPort": str(port),
        "clientPortAddress": "127.0.0.1",
        **SETTINGS,
    }
    if administrator:
        lines["DigestAuthenticationProvider.superDigest"] = administrator
    return "# Written by txtopo at every start.\n" + "".join(
        f"{name}={_property(value)}\n" for name, value in lines.items()
    )


class ServerProcess:
    """One server run, as its watchdog reports it.

    ``lock`` is the descriptor of a locked file. The server keeps the file open for its whole life.
    The caller closes its own descriptor.
    """

    def __init__(self, command: list[str], log: Path, lock: int) -> None:
        self._creator = os.getpid()
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(log), str(lock), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=[lock],
            start_new_session=True,  # Ctrl-C in the terminal must not reach the server: its owner may still have to write
            cwd=log.parent,
            umask=0o077,  # only the server's user may read its files
            env=java.environment()
            | {"LC_ALL": "C.UTF-8"},  # or Java could not open a path that is not ASCII
        )
        self._reports = b""
        self._ended = False
        for pipe in (self._watchdog.stdin, self._watchdog.stdout):
            assert pipe is not None
            directory.keep_from_forks(pipe)  # unbuffered

    @property
    def pid(self) -> int:
        """The server's pid, 0 while unknown."""
        return int(self._report().get("pid", 0))

    @property
    def tail(self) -> str:
        """The server's last lines, or why it could not be started. Known once the server has ended."""
        reported = self._report()
        words = str(reported.get("failed") or reported.get("tail") or "")
        return "\n".join(words.splitlines()[-TAIL_LINES:])

    def has_ended(self, wait_s: float) -> bool:
        """Whether the server has ended. Waits up to ``wait_s`` for news."""
        assert self._watchdog.stdout is not None
        news = (
            select.poll()
        )  # not select.select, which refuses the descriptors of a program with many files open
        if not self._ended:
            news.register(self._watchdog.stdout, select.POLLIN)
        while not self._ended and news.poll(wait_s * 1000):
            chunk = os.read(self._watchdog.stdout.fileno(), watchdog.CHUNK_BYTES)
            self._reports += chunk
            self._ended = not chunk
            wait_s = 0
        return self._ended

    def is_gone(self) -> bool:
        """Whether the server's process has ended, even if its watchdog has not reported so yet."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return self.pid > 0 and Path("/proc/self").exists()
        return state in "ZX"

    def end(self) -> None:
        """End the server and its watchdog, and wait until both have gone. Does nothing in a fork."""
        assert self._watchdog.stdin is not None
        assert self._watchdog.stdout is not None
        if self._creator != os.getpid():
            return
        self._watchdog.stdin.close()
        deadline = time.monotonic() + END_TIMEOUT_S
        while not self.has_ended(POLL_EVERY_S):
            if time.monotonic() > deadline:
                self._watchdog.kill()  # the watchdog is stopped or hangs: the server's death signal ends the server, or the next owner does
                break
        self._watchdog.wait()
        self._watchdog.stdout.close()
        self._ended = True

    def _report(self) -> dict[str, Any]:
        reported: dict[str, Any] = {}
        for line in self._reports.splitlines():
            try:
                reported |= json.loads(line)
            except (ValueError, TypeError):
                # Not a report but a line from a traceback: the watchdog itself has failed.
                reported["tail"] = f"{reported.get('tail', '')}{line.decode(errors='replace')}\n"
        return reported


def answers(port: int, data: Path) -> bool:
    """Whether the server with this ``data`` serves on ``port``.

    Asks ``conf`` and not ``ruok``: the server refuses ``conf`` until it serves requests, and its
    answer names the data directory.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), PROBE_TIMEOUT_S) as connection:
            if peer.user_of_peer(connection, PROBE_TIMEOUT_S) != os.geteuid():
                return False  # ours is about to end, since its port is taken
            connection.sendall(b"conf")
            answer = b""
            while chunk := connection.recv(watchdog.CHUNK_BYTES):
                answer += chunk
    except OSError:
        return False
    return f"dataDir={data / 'version-2'}" in answer.decode(errors="replace").splitlines()


def jars() -> list[Path]:
    """The jars that the server needs, from the installed pyspark, or from the Spark distribution in
    ``SPARK_HOME``."""
    package = importlib.util.find_spec("pyspark")
    folders = (
        [Path(place) / "jars" for place in (package.submodule_search_locations or ())]
        if package
        else []
    )
    if home := os.environ.get("SPARK_HOME"):
        folders.append(Path(home) / "jars")
    for folder in folders:
        newest = [
            jar
            for name in JARS
            if (jar := max(folder.glob(f"{name}-[0-9]*.jar"), default=None)) is not None
        ]
        if len(newest) == len(JARS):
            return newest
    raise errors.SetupError(
        f"the ZooKeeper that comes with pyspark was not found in {' or '.join(map(str, folders)) or 'any place, since pyspark is not installed'}\n"
        "  Install the whole of pyspark with `pip install pyspark` (pyspark-client has no jars),\n"
        "  or use a ZooKeeper that runs already with `--zookeeper HOST:PORT`."
    )


def _property(value: str) -> str:
    """``value`` as java.util.Properties reads it: Latin-1, and UTF-16 escapes for other characters."""
    units = value.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(
        chr(code) if 0x20 < code < 0x7F and code != ord("\\") else f"\\u{code:04x}"
        for code in codes
    )
