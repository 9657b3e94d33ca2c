"""Garbage in cycles: a real run collects it every few seconds, a simulated one does not count
virtual seconds for that."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import NoReturn

import pytest

from starter import word_count
from tests import local_engine
from tests.topologies.simulated import generated
from txtopo.dataplane.task import Task
from txtopo.engine import engine
from txtopo.spark.machine import Machine
from txtopo.state import memory
from txtopo.testing import Simulation
from txtopo.testing.simulator.decisions import Script

SEEDS = 25


class Counting(Machine):
    def __init__(self) -> None:
        super().__init__("words")
        self.collections = 0

    def collect_garbage(self) -> None:
        self.collections += 1
        super().collect_garbage()


def test_a_real_run_collects_garbage_after_a_commit_when_some_seconds_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings = Counting()
    monkeypatch.setattr(engine, "_COLLECT_GARBAGE_EVERY_S", -1.0)
    graph = word_count.make_topology(tmp_path / "words.db")
    committed = (
        local_engine.run_to_idle(
            graph, memory.MemoryStateStore(memory.MemoryServer()), surroundings
        )
        - 1
    )
    assert surroundings.collections == committed > 0


def test_virtual_time_that_passes_collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect() -> NoReturn:
        raise AssertionError("a whole collection takes longer than a transaction")

    with Simulation(generated(0)) as simulation:
        monkeypatch.setattr(gc, "collect", collect)
        report = simulation.run(SEEDS)
    assert report.violation is None, str(report)


def test_a_slot_that_is_done_leaves_no_task_for_the_garbage_collector() -> None:
    """Tasks hold their rows: in cycles, all rows would wait for a collection."""
    with Simulation(generated(0)) as simulation:
        gc.collect()
        gc.disable()
        try:
            assert simulation.replay(Script()) == []
            tasks = [thing for thing in gc.get_objects() if isinstance(thing, Task)]
        finally:
            gc.enable()
    assert tasks == []
