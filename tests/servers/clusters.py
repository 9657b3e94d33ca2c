"""One local cluster for all tests that need real Spark and a real ZooKeeper: starting Spark costs
seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.zookeepers import SESSION_S
from txtopo import Config, LocalCluster, TopologyRun

FAST = {
    "backoff_min_s": 0.01,
    "backoff_max_s": 0.1,
    "poll_interval_s": 0.05,
    "message_timeout_s": PATIENCE_S,
    "zookeeper_connect_timeout_s": PATIENCE_S,
    "zookeeper_session_timeout_s": SESSION_S,
}
"""Settings that shorten the waits of a test; results stay the same. A slow machine is no reason for
a replay."""


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of two cores for the whole session. Every test uses topology ids of its own."""
    with LocalCluster(master="local[2]", data_dir=tmp_path_factory.mktemp("zookeeper")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster; runs that the test left behind are ended."""
    yield shared_cluster
    for run in list(shared_cluster.runs.values()):
        if run.is_alive:
            run.kill()


def fast(**settings: Any) -> Config:
    """A configuration with short waits."""
    return Config({**FAST, **settings})


def run_to_idle(cluster: LocalCluster, topology: Any, **settings: Any) -> TopologyRun:
    """Submit, wait until everything is committed, stop."""
    run = cluster.submit_topology(topology.id, fast(**settings), topology)
    run.wait_until_idle(PATIENCE_S)
    run.stop(PATIENCE_S)
    return run


class Journal:
    """Lines that user code in workers appends to a file, for the test to read: what ran, where, how
    often."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: str) -> None:
        """Append one line; whole lines of several processes do not mix."""
        with self.path.open("a") as file:
            file.write(line + "\n")

    def claim(self, line: str, times: int = 1) -> bool:
        """Write ``line``, unless it has been claimed ``times`` times; several processes may try at
        once."""
        name = hashlib.blake2b(line.encode(), digest_size=8).hexdigest()
        for number in range(times):
            try:
                self.path.with_name(f"{self.path.name}.{name}.{number}").open("x").close()
            except FileExistsError:
                continue
            self.write(line)
            return True
        return False

    def lines(self) -> list[str]:
        """All lines so far, in the order of writing."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, line: str) -> int:
        """How often ``line`` was written."""
        return self.lines().count(line)
