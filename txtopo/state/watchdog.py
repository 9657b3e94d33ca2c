"""Ends the embedded ZooKeeper server when the driver ends, however the driver ends: a small process
between the two.

A process killed with SIGKILL cleans nothing up, so another process must. The driver holds the
writing end of this program's standard input and never writes to it. The input ends when the driver
ends, on every POSIX system, at once and without polling. The server is this program's child: until
this program has waited for its child, the pid cannot be reused, and a kill surely hits the server.

Runs by path, as its own program (``python -I -S watchdog.py LOG LOCK_FD COMMAND...``). The program
imports nothing from txtopo, and so starts in a few milliseconds.

The watchdog reports on standard output, one JSON object per line. First comes ``{"pid": ...}`` or
``{"failed": ...}``. When the server has ended, ``{"exit": ..., "tail": ...}`` follows, with the
exit code and the end of the server's output.

Invariants:
    The server outlives this process by a moment at most, and this process the server. At most
    ``2 * LOG_BYTES_MAX`` bytes from the server's output stay on disk: the newest in LOG, the text
    before in LOG.1.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable

LOG_BYTES_MAX = 1024 * 1024
TAIL_BYTES = 8 * 1024
CHUNK_BYTES = 64 * 1024
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class BoundedLog:
    """Appends to a file. Before the file grows beyond the bound, its content moves to ``.1`` and
    replaces the older ``.1``."""

    def __init__(self, path: str, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._path, self._bytes_max = path, bytes_max
        self.tail = b""

    def write(self, chunk: bytes) -> None:
        """Append ``chunk``. A chunk that cannot be written is dropped: a full disk must not end the
        server. ``tail`` gets the chunk regardless."""
        self.tail = (self.tail + chunk)[-TAIL_BYTES:]
        with contextlib.suppress(OSError):
            if (
                os.path.exists(self._path)
                and os.path.getsize(self._path) + len(chunk) > self._bytes_max
            ):
                os.replace(self._path, self._path + ".1")
            # Opened every time, so that other processes may move or remove the file. The server
            # writes little.
            with open(self._path, "ab") as file:
                file.write(chunk)


def run(log: BoundedLog, lock: int, command: list[str]) -> None:
    """Run ``command`` until it ends or our standard input does.

    ``lock`` is the descriptor of a file locked with flock. Only the server keeps the file open, so
    the lock says whether the server lives. The server's pid goes into the file.
    """
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            preexec_fn=_death_signal(),
        )
    except OSError as error:
        _report({"failed": str(error)})
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(server.pid).encode(), 0)
    os.close(lock)
    _report({"pid": server.pid})
    assert server.stdout is not None
    output = server.stdout.fileno()
    while True:
        ready, _, _ = select.select([sys.stdin.fileno(), output], [], [])
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
            break
        if output in ready:
            chunk = os.read(output, CHUNK_BYTES)
            if not chunk:
                break
            log.write(chunk)
    # SIGKILL, never an orderly shutdown: ZooKeeper has synced every answered write, and one way to
    # end is one way to test.
    server.kill()
    code = server.wait()
    while chunk := os.read(output, CHUNK_BYTES):
        log.write(chunk)
    _report({"exit": code, "tail": log.tail.decode(errors="replace")})


def _death_signal() -> Callable[[], object] | None:
    """A call that makes the system (Linux) kill the server if this process is killed with SIGKILL.
    None on other systems."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _report(news: dict[str, object]) -> None:
    # The driver may be gone, which is no reason to leave the server running.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(news).encode() + b"\n")


if __name__ == "__main__":
    run(BoundedLog(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
