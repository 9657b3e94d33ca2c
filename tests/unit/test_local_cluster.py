"""A cluster that cannot be made, or whose run does not end, leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest

from txtopo import Config, LocalCluster, SetupError
from txtopo.runtime import cluster as clusters
from txtopo.runtime.cluster import Submission
from txtopo.spark import session


def test_a_cluster_whose_zookeeper_does_not_start_leaves_no_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    with pytest.raises(SetupError, match="JAVA_HOME"):
        LocalCluster(progress=False)
    assert list(tmp_path.iterdir()) == []


def hanging(ended: list[str], name: str) -> Any:
    """A run that does not end in time."""

    def kill() -> None:
        ended.append(name)
        raise TimeoutError(f"{name} did not end")

    return types.SimpleNamespace(is_alive=True, kill=kill)


def test_the_end_of_a_cluster_ends_all_of_it_although_a_run_does_not_end(tmp_path: Path) -> None:
    ended: list[str] = []
    cluster: Any = object.__new__(LocalCluster)
    cluster.runs = {name: hanging(ended, name) for name in ("first", "second")}
    cluster._embedded = types.SimpleNamespace(stop=lambda: ended.append("ZooKeeper"))
    cluster._temporary, cluster._pid = str(tmp_path / "temporary"), os.getpid()
    (tmp_path / "temporary").mkdir()
    with pytest.raises(TimeoutError):
        cluster.shutdown()
    assert sorted(ended) == ["ZooKeeper", "first", "second"]
    assert ended[-1] == "ZooKeeper"
    assert list(tmp_path.iterdir()) == []
    cluster.shutdown()


def test_the_end_of_a_submission_ends_its_zookeeper_although_the_run_does_not_end() -> None:
    ended: list[str] = []
    submission: Any = object.__new__(Submission)
    submission.run = hanging(ended, "run")
    submission._embedded = types.SimpleNamespace(stop=lambda: ended.append("ZooKeeper"))
    with pytest.raises(TimeoutError):
        submission.close()
    assert ended == ["run", "ZooKeeper"]


class StopError(Exception):
    """Ends a start that has come far enough."""


class NotedZooKeeper:
    """A ZooKeeper that notes each call in ``events``."""

    events: list[str]

    def __init__(self, place: object) -> None:
        self.hosts = "127.0.0.1:1"

    def launch(self) -> NotedZooKeeper:
        self.events.append("ZooKeeper is launched")
        return self

    def wait_until_served(self) -> NotedZooKeeper:
        self.events.append("ZooKeeper serves")
        raise StopError

    def stop(self) -> None:
        self.events.append("ZooKeeper is stopped")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of a start, in their order; the start is ended when ZooKeeper serves."""
    events: list[str] = []
    monkeypatch.setattr(NotedZooKeeper, "events", events, raising=False)
    monkeypatch.setattr(clusters, "EmbeddedZooKeeper", NotedZooKeeper)
    monkeypatch.setattr(session, "submitted_context", lambda: None)

    def start_spark(*arguments: object) -> Any:
        events.append("Spark is started")
        return types.SimpleNamespace(master="local[2]")

    monkeypatch.setattr(session, "spark_context", start_spark)
    return events


SIDE_BY_SIDE = [
    "ZooKeeper is launched",
    "Spark is started",
    "ZooKeeper serves",
    "ZooKeeper is stopped",
]


def test_a_cluster_starts_spark_while_its_zookeeper_starts(
    events: list[str], tmp_path: Path
) -> None:
    with pytest.raises(StopError):
        LocalCluster(data_dir=tmp_path, progress=False)
    assert events == SIDE_BY_SIDE


def test_a_submission_starts_spark_while_its_zookeeper_starts(
    events: list[str], tmp_path: Path
) -> None:
    topology: Any = object()
    with pytest.raises(StopError):
        Submission("run", Config(data_dir=tmp_path), topology)
    assert events == SIDE_BY_SIDE
