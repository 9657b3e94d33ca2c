"""Processes below a process of ours, as /proc shows them: targets of a nemesis, and a check that no
process is left.

Only processes that descend from ours, or did when they were last seen, are ever touched; a pid is
believed only with its start time, for the system gives pids out again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process, for good: ``started`` (in ticks since boot) tells it from a later one with the
    same pid."""

    pid: int
    parent: int
    started: int
    command: str

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        process = _read(self.pid)
        return process is not None and process.started == self.started

    def send(self, number: int) -> bool:
        """Send a signal; False if it has ended."""
        if not self.is_alive:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    @property
    def kind(self) -> str:
        """What it is for."""
        for kind, mark in MARKS.items():
            if mark in self.command:
                return kind
        return "other"


MARKS = {
    "executor": "CoarseGrainedExecutorBackend",
    "zookeeper": "QuorumPeerMain",
    "watchdog": "watchdog.py",
    "jvm": "java ",
    # The process that Python workers are forked from, and they; told apart by their parents. The
    # name alone is also among the settings of the JVM, and of the shell that becomes the JVM.
    "python": "-m txtopo.spark.daemon",
    "driver": "tests.soak.driver",
}


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[1]), int(fields[19]), command)


def below(pid: int) -> list[Process]:
    """Every living descendant of ``pid``."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        process = _read(int(entry.name)) if entry.name.isdigit() else None
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    descendants: list[Process] = []
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            descendants.append(child)
            todo.append(child.pid)
    return sorted(descendants, key=lambda process: process.pid)


def workers(processes: list[Process]) -> list[Process]:
    """The Python workers among ``processes``: forked from a daemon, hence its children with its own
    command line."""
    daemons = {process.pid for process in processes if process.kind == "python"}
    return [
        process for process in processes if process.kind == "python" and process.parent in daemons
    ]


def end(processes: set[Process]) -> None:
    """SIGKILL to all that live, also if they are stopped."""
    for process in processes:
        process.send(signal.SIGKILL)
