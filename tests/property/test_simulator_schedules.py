"""Ten thousand schedules over the starters and generated topologies: under any failures the results
equal those without failures."""

from __future__ import annotations

import concurrent.futures
import gc
import importlib
import multiprocessing
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.simulated import generated
from txtopo.testing import Simulation
from txtopo.testing.simulator.fault_kinds import KINDS

SCHEDULES = 10_000
"""How many are played in all."""
STARTERS = (
    "transactional_words",
    "transactional_global_count",
    "opaque_keyed_count",
    "opaque_global_count",
)
OF_EACH_STARTER = 125
OF_EACH_TOPOLOGY = 95
TOPOLOGIES = (SCHEDULES - len(STARTERS) * OF_EACH_STARTER) // OF_EACH_TOPOLOGY


@dataclass(frozen=True)
class Played:
    """The result of one simulation, without the parts that cannot travel between processes."""

    name: str
    schedules: int
    faults: Counter[str]
    violation: str | None
    elapsed_s: float


def play_generated(number: int) -> Played:
    """Every second topology also with varying task counts; windows of one, two and three
    transactions."""
    varies = number % 2 == 1
    topology = generated(number, tasks_matter=not varies)
    return played(
        topology,
        {"max_spout_pending": 1 + number % 3},
        OF_EACH_TOPOLOGY,
        10_000 * number,
        vary_parallelism=varies,
    )


def play_starter(name: str, store: str) -> Played:
    """A starter as its file has it, with a store of its own."""
    module: Any = importlib.import_module(f"starter.{name}")
    return played(module.make_topology(store), module.conf, OF_EACH_STARTER, 0)


def played(topology: Any, conf: Any, seeds: int, first_seed: int, **more: Any) -> Played:
    with Simulation(topology, conf, **more) as simulation:
        # The warm process stays; a schedule leaves little behind, and its leftovers go with this
        # process.
        gc.freeze()
        gc.disable()
        report = simulation.run(seeds, first_seed)
    return Played(
        report.topology,
        report.schedules,
        report.faults,
        None if report.violation is None else str(report.violation),
        report.elapsed_s,
    )


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.rule(1, 3, 4, 6, 7, 8, 18, 20, 23, 25, 26, 28, 29, 30, 31, 33)
def test_no_schedule_leaves_anything_else_than_a_run_without_failures(tmp_path: Path) -> None:
    # Spawned processes, not forks: threads and servers of this process must not be in them.
    with concurrent.futures.ProcessPoolExecutor(
        os.cpu_count(), multiprocessing.get_context("spawn")
    ) as pool:
        waiting = [
            pool.submit(play_starter, name, str(tmp_path / f"{name}.db")) for name in STARTERS
        ]
        waiting += [pool.submit(play_generated, number) for number in range(TOPOLOGIES)]
        done = [future.result() for future in waiting]
    schedules = sum(each.schedules for each in done)
    faults = sum((each.faults for each in done), Counter[str]())
    elapsed_s = sum(each.elapsed_s for each in done)
    speed = f"{60 * schedules / elapsed_s:,.0f} a minute per core"
    print(
        f"\n{schedules:,} schedules of {len(done)} topologies, {faults.total():,} faults, {speed}",
        file=sys.stderr,
    )
    assert [each.violation for each in done if each.violation is not None] == []
    assert schedules == SCHEDULES
    assert set(faults) == set(KINDS), "every kind of fault has struck"


def test_generated_topologies_have_every_kind_of_spout_and_of_bolt() -> None:
    graphs = [generated(number) for number in range(TOPOLOGIES)]
    kinds = {graph.spout.type_name for graph in graphs}
    assert kinds == {"PlainSpout", "CommitterSpout", "PartitionedSpout", "OpaqueSpout"}
    bolts = {
        component.type_name
        for graph in graphs
        for component in graph.components.values()
        if component.kind != "spout"
    }
    assert bolts == {"Pass", "Sum", "Double", "Store", "Committer", "EagerCommitter"}
    groupings = {
        s.grouping.kind
        for graph in graphs
        for component in graph.components.values()
        for s in component.inputs
    }
    assert groupings == {"shuffle", "fields", "global", "none", "local_or_shuffle", "all"}
