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

from tests.patience import PATIENCE_S, OutOfPatience, wait_until

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

    def __init__(
        self,
        data_dir: Path,
        program: str = SERVING,
        environment: dict[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
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

    def report(self) -> dict[str, Any]:
        """The next line the program reports, which must come."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        _has_news(self._process.stdout.fileno(), "a report of the owner", PATIENCE_S)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


def has_ended(pid: int, patience_s: float = PATIENCE_S) -> bool:
    """Whether the process has ended; waits for its end, unless ``patience_s`` is 0. A process
    without a waiting parent counts as ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return _has_news(descriptor, f"the end of process {pid}", patience_s)
    finally:
        os.close(descriptor)


def _has_news(descriptor: int, news: str, patience_s: float) -> bool:
    has_news = bool(select.select([descriptor], [], [], patience_s)[0])
    if patience_s and not has_news:
        raise OutOfPatience(f"waited {patience_s:g} s for {news}")
    return has_news


def wait_until_suspended(pid: int) -> None:
    """Until the process, which was sent SIGSTOP, stands still: some of its threads may go on for a
    moment."""

    def is_suspended() -> bool:
        try:
            threads = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
        except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
            return False
        return all(thread.rpartition(")")[2].split()[0] in "TZX" for thread in threads)

    wait_until(is_suspended, f"process {pid} to stand still")


def wait_until_none_is_left(data_dir: Path) -> None:
    """Until the server of ``data_dir`` and its watchdog have ended."""
    while pids := processes_of(data_dir):
        assert all(map(has_ended, pids))


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
