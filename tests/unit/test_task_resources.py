"""State of a worker process between tasks: users' resources by name, and the runs it has seen."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.topologies.recording import NotingBolt, builder
from txtopo.dataplane import wire, worker
from txtopo.dataplane.job import Run
from txtopo.dataplane.worker import Resources
from txtopo.topology import pickling

pytestmark = pytest.mark.rule(12)


class Connection:
    """Counts what becomes of it."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        raise OSError("closing fails, and nobody minds")


def test_a_resource_is_made_once_by_name() -> None:
    resources = Resources()
    resource = resources.get("a", Connection)
    assert resources.get("a", Connection) is resource
    assert resources.get("b", Connection) is not resource


def test_a_resource_whose_factory_fails_is_asked_for_again() -> None:
    resources = Resources()
    with pytest.raises(ZeroDivisionError):
        resources.get("a", lambda: 1 / 0)
    assert resources.get("a", lambda: 5) == 5


def test_none_is_a_resource_too() -> None:
    resources = Resources()
    assert resources.get("a", lambda: None) is None
    assert resources.get("a", lambda: 5) is None


def test_discarded_resources_are_closed_despite_errors_and_made_again() -> None:
    resources = Resources()
    first, other = resources.get("a", Connection), resources.get("b", Connection)
    resources.discard({"a", "never made"})
    assert (first.closed, other.closed) == (1, 0)
    assert resources.get("a", Connection) is not first
    assert resources.get("b", Connection) is other


def test_resources_from_before_a_fork_are_neither_used_nor_closed_in_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its socket belongs to the parent too: a polite goodbye from the child would end the parent's
    connection."""
    gone: list[str] = []

    class Socket:
        def __del__(self) -> None:
            gone.append("said goodbye")

    resources = Resources()
    resources.get("a", Socket)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert resources.get("a", Connection).closed == 0
    resources.discard({"a"})
    assert gone == []


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A worker that has seen nothing yet and is not to be tuned."""
    seen: Any = type(worker._runs)()
    monkeypatch.setattr(worker, "_runs", seen)
    monkeypatch.setattr(worker, "_warm", True)
    yield seen
    for token in seen:
        wire.forget_classes(token)


def run_of(token: str) -> bytes:
    topology = builder()
    topology.set_bolt("count", NotingBolt()).shuffle_grouping("spout").add_configuration("own", 1)
    return pickling.dumps(
        Run(token, topology.build_topology(), 2, {"max_spout_pending": 3, "own": 0}, "generation")
    )


def test_a_run_is_loaded_once_and_the_oldest_is_forgotten(runs: Any) -> None:
    tokens = [f"run {i}" for i in range(worker._RUNS_MAX)]
    known = {token: worker.worker_run(token, lambda token=token: run_of(token)) for token in tokens}  # type: ignore[misc]
    kept = known["run 1"].resources.get("a", Connection)
    assert worker.worker_run("run 0", lambda: b"not loaded again") is known["run 0"]
    worker.worker_run("one more", lambda: run_of("one more"))
    assert list(runs) == [*tokens[2:], "run 0", "one more"], "run 1 was used longest ago"
    assert kept.closed == 1, "what its tasks had connected to is let go of"
    with pytest.raises(KeyError):
        wire.topology_class("run 1", 0)


def test_a_component_sees_its_own_settings_over_those_of_the_run(runs: Any) -> None:
    known = worker.worker_run("run", lambda: run_of("run"))
    assert known.confs["count"]["own"] == 1
    assert known.confs["spout"]["own"] == 0
    assert known.confs["count"]["topology.max.spout.pending"] == 3


@pytest.mark.rule(23)
def test_a_plan_is_made_once_per_task_counts(runs: Any) -> None:
    known = worker.worker_run("run", lambda: run_of("run"))
    assert known.plan({"spout": 1, "count": 1}) is known.plan({"count": 1, "spout": 1})
    assert known.plan({"spout": 1, "count": 4}).graph.task_counts == {"spout": 1, "count": 4}


def test_no_resource_of_one_run_is_seen_by_another(runs: Any) -> None:
    one, other = (
        worker.worker_run(token, functools.partial(run_of, token)) for token in ("one", "other")
    )
    assert one.resources.get("a", Connection) is not other.resources.get("a", Connection)
