"""A simulated driver that is dead reaches nothing any more, however its code unwinds."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.topologies.simulated import generated
from txtopo.engine.attempts import AttemptFailedError, AttemptRunner
from txtopo.errors import StateMismatchError
from txtopo.state import base
from txtopo.state.memory import MemoryServer
from txtopo.state.topology import TopologyState
from txtopo.testing import Simulation
from txtopo.testing.simulator import turns
from txtopo.testing.simulator.decisions import Decisions, Script
from txtopo.testing.simulator.driver import (
    Driver,
    DriverDied,
    SimulatedLoop,
    SimulatedStateStore,
    SimulatedThreads,
)
from txtopo.testing.simulator.turns import Carriers

PLANNED_OPAQUE = 5


def test_a_dead_driver_neither_reads_nor_writes_zookeeper() -> None:
    server = MemoryServer()
    world: Any = SimpleNamespace(server=server, decisions=Decisions(), is_asking_again=False)
    driver: Any = object.__new__(Driver)
    driver.subject, driver.number, driver.is_dead = (
        SimpleNamespace(graph=SimpleNamespace(id="words")),
        1,
        False,
    )
    store = SimulatedStateStore(world, driver)
    store.multi([base.Create("/words")])
    driver.is_dead = True
    with pytest.raises(DriverDied):
        store.multi([base.Create("/words/current", b"1")])
    with pytest.raises(DriverDied):
        store.get("/words")
    assert server.get("/words/current") is None


def test_a_driver_that_dies_while_a_failure_is_judged_has_a_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [AttemptFailedError("fatal", "ahead", StateMismatchError("the store is ahead"))]
    judged, run_job, trace = list[Any](), AttemptRunner.run_job, list[str]()

    def fail_once(runner: AttemptRunner, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return run_job(runner, *arguments)

    def die(state: Any) -> None:
        judged.append(state)
        state._store._driver.die()

    with Simulation(generated(PLANNED_OPAQUE)) as simulation:
        monkeypatch.setattr(AttemptRunner, "run_job", fail_once)
        monkeypatch.setattr(TopologyState, "require_held", die)
        assert simulation.replay(Script(), trace.append) == []
    (judging,) = judged
    assert judging._store._driver.is_dead
    assert [line.partition(" s  ")[2] for line in trace][-1] == "driver 2 ends"


def test_code_that_catches_every_exception_keeps_no_dead_driver_from_its_end() -> None:
    carriers, goes_on = Carriers(), [True]

    def never_ends() -> None:
        while goes_on:
            with contextlib.suppress(BaseException):
                turns.park()

    world: Any = None
    driver: Any = SimpleNamespace(subject=SimpleNamespace(carriers=carriers))
    loop = SimulatedLoop(world, driver)
    threads: Any = loop.threads("spout", 1, print)
    threads.submit(never_ends)
    threads.start()
    (carrier,) = threads.carriers
    loop.end()
    assert (carrier.is_busy, carriers._idle) == (True, [])
    goes_on.clear()
    carrier.resume()
    carrier.end()


def test_an_error_that_leaves_a_work_of_the_engine_ends_no_simulated_thread() -> None:
    """A driver may die while it judges the failure of its own attempt."""
    told, done = list[BaseException](), list[str]()

    def dies() -> NoReturn:
        raise DriverDied

    driver: Any = SimpleNamespace(subject=SimpleNamespace(carriers=Carriers()))
    threads = SimulatedThreads(driver, 1, told.append)
    for work in (dies, lambda: done.append("the next")):
        threads.submit(work)
        threads.start()
    assert ([type(error) for error in told], done) == ([DriverDied], ["the next"])
    assert len(threads.carriers) == 1
    threads.carriers[0].end()
