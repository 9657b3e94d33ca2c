"""The parts of one trial, in a file that the supervisor writes and every driver reads.

Apart because the supervisor, the drivers and the workers, all processes of their own, must agree on
nothing else.

Files of a trial's directory: ``world.json``; ``<workload>.available``, the length of the input so
far; ``finish``, a sign for the drivers to end once everything is committed; ``driver-<n>.jsonl``
and ``driver-<n>.err``, the messages of driver n; the stores; ``zookeeper/``.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

SESSION_TIMEOUT_S = 5.0
"""Of the drivers' ZooKeeper sessions: short, so that a pause can outlast a session, and longer than
a busy machine stands still."""

MESSAGE_TIMEOUT_S = 8.0
"""Of a phase: short, so that a paused worker is given up while still alive. A busy machine may need
seconds for a job."""

ZOMBIE_WAIT_S = 0.5
"""How long a replay waits for tasks of the attempt before: short, to have late tasks occur."""


@dataclasses.dataclass(frozen=True)
class World:
    """The parts of a trial."""

    directory: str
    seed: int
    workloads: tuple[str, ...]
    store: str = "sqlite"
    """``sqlite``, or the URL of a database or of a Redis server; in a plan ``postgresql``,
    ``mariadb`` or ``redis``, for one that is made."""
    zookeeper: str | None = None
    """``host:port`` of a server that outlives the drivers; ``None``: each driver has a server of
    its own, over the same data."""
    master: str = "local[2]"
    sabotage: str = ""
    """The part broken on purpose, to see that a checker notices; see ``sabotage``."""

    @property
    def path(self) -> Path:
        """The directory."""
        return Path(self.directory)

    def feed(self, workload: str) -> Feed:
        """How much of the input of ``workload`` there is."""
        return Feed(str(self.path / f"{workload}.available"))

    @property
    def finish(self) -> Path:
        """The file that asks the drivers to come to an end."""
        return self.path / "finish"

    def save(self) -> None:
        """Write it down for the drivers."""
        write_whole(self.path / "world.json", json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, directory: str) -> World:
        """What :meth:`save` has written."""
        fields: dict[str, Any] = json.loads((Path(directory) / "world.json").read_text())
        return cls(**{**fields, "workloads": tuple(fields["workloads"])})


@dataclasses.dataclass(frozen=True)
class Feed:
    """How many rows of each partition exist: a number in a file, which only grows. The rows
    themselves are a function of the seed."""

    file: str

    def available(self) -> int:
        """How many there are now."""
        try:
            return int(Path(self.file).read_text())
        except FileNotFoundError:
            return 0

    def publish(self, rows: int) -> None:
        """Let there be ``rows``; fewer than there are changes nothing."""
        if rows > self.available():
            write_whole(Path(self.file), str(rows))


def write_whole(path: Path, text: str) -> None:
    """Replace the file at once: a reader sees the old text or the new one."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)
