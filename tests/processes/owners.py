"""Owners of a data directory in processes of their own, so that a test may kill them; and waiting
for any process, exactly and bounded."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 20.0

SERVING = """
import json, os, sys
from txtopo.state import embedded
owned = embedded.EmbeddedZooKeeper(sys.argv[1]).start()
print(json.dumps({"hosts": owned.hosts, "pid": owned.pid, "has_pyspark": "pyspark" in sys.modules}), flush=True)
sys.stdin.read()
owned.stop()
"""


class Owner:
    """A Python process that runs ``program`` with the data directory as its first argument and
    reports lines of JSON."""

    def __init__(self, data_dir: Path, program: str = SERVING, environment: dict[str, str] | None = None, arguments: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(data_dir), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | (environment or {}),
        )
        self.pid = self._process.pid

    def report(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next line the program reports, which must come."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        assert select.select([self._process.stdout], [], [], patience_s)[0], "the owner reports nothing"
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        fields: dict[str, Any] = json.loads(line)
        return fields

    def say(self) -> None:
        """Give it a line of input."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def wait(self) -> int:
        """Let it finish; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


def has_ended(pid: int, patience_s: float = PATIENCE_S) -> bool:
    """Whether the process ends within ``patience_s``; a process without a waiting parent counts as
    ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], patience_s)[0])
    finally:
        os.close(descriptor)


def parent_of(pid: int) -> int:
    """The pid of the parent of ``pid``."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes_of(data_dir: Path) -> list[int]:
    """The pids of every process whose command line has an argument below ``data_dir``: the server
    and its watchdog."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(argument.startswith(os.fsencode(data_dir) + b"/") for argument in arguments):
                pids.append(int(entry.name))
    return sorted(pids)
