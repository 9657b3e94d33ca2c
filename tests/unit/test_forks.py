"""A fork of a process with a Spark can neither use that Spark nor end it, and says so."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.unit.test_visibility import Recorder
from txtopo import Config, LocalCluster, TopologyRun, Visibility, submit_topology
from txtopo.spark import session, settings
from txtopo.state import opening
from txtopo.state.zookeeper import ZooKeeperStateStore


class Untouchable:
    """Spark, or a part of Spark. A fork that asks Spark would wait, or disturb the owner."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a fork asked Spark for {name}")


def in_fork(work: Callable[[], object]) -> str:
    """The result of ``work`` in a fork of this process, or its error, as text."""
    reading, writing = os.pipe()
    fork = os.fork()
    if not fork:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(fork, 0)
    with open(reading, encoding="utf-8") as pipe:
        return pipe.read()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LocalCluster:
    """A cluster of this process, which has the Spark."""
    context = Untouchable()
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", Untouchable())
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(session, "_ours", ({}, context))
    monkeypatch.setattr(session, "_jvm", None)
    cluster: Any = object.__new__(LocalCluster)
    cluster.runs, cluster.context, cluster._embedded, cluster._pid = (
        {},
        context,
        types.SimpleNamespace(stop=lambda: None),
        os.getpid(),
    )
    cluster._temporary = str(tmp_path / "state")
    (tmp_path / "state").mkdir()
    return cluster  # type: ignore[no-any-return]


def refuse_without_a_gateway() -> None:
    pyspark.SparkContext._gateway = None
    settings.refuse_fork()


def test_a_fork_that_uses_the_spark_of_its_parent_is_refused_with_the_cure(
    cluster: LocalCluster,
) -> None:
    topology: Any = None
    for use in (
        lambda: LocalCluster(progress=False),
        lambda: LocalCluster(spark_conf={"spark.ui.enabled": "true"}, progress=False),
        lambda: cluster.submit_topology("words", Config(), topology),
        lambda: submit_topology("words", Config(), topology),
        object.__new__(TopologyRun).join,
    ):
        said = in_fork(use)
        assert said.startswith(
            "SetupError: this process is a fork of the process that started Spark, and cannot use that Spark\n"
        ), said
        assert "spawn" in said
    settings.refuse_fork()
    assert in_fork(refuse_without_a_gateway) == "None", "a fork with a Spark of its own is refused"


def test_a_fork_reads_the_state_over_a_connection_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the workers of a web server that is loaded before it forks."""
    recorder, processes = Recorder(), list[int]()

    @contextlib.contextmanager
    def opened(*where: Any) -> Iterator[opening.Opened]:
        processes.append(os.getpid())
        with recorder.opened() as state:
            yield state

    monkeypatch.setattr(opening, "opened", opened)
    recorder.commit()
    reader = Visibility("words")

    def look() -> object:
        seen = int(reader.txid()), int(reader.txid())
        return *seen, [process == os.getpid() for process in processes]

    assert reader.txid() == 1
    assert in_fork(look) == "(1, 1, [False, True])"
    assert (reader.txid(), processes) == (1, [os.getpid()])


def test_a_fork_does_not_end_its_parents_connection_to_zookeeper() -> None:
    store: Any = object.__new__(ZooKeeperStateStore)
    store._client, store._closed, store._pid = Untouchable(), False, os.getpid()
    assert in_fork(store.close) == "None"
    with pytest.raises(AssertionError, match="a fork asked Spark for stop"):
        store.close()


def test_a_fork_ends_neither_the_spark_nor_the_state_of_its_parent(
    cluster: Any, tmp_path: Path
) -> None:
    assert in_fork(session.stop_ours) == "None"
    assert in_fork(cluster.shutdown) == "None"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    cluster.shutdown()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AssertionError, match="a fork asked Spark for stop"):
        session.stop_ours()
