"""A simulated driver that is dead reaches nothing any more, however its code unwinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from txtopo.state import base
from txtopo.state.memory import MemoryServer
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.driver import (
    Driver,
    DriverDied,
    SimulatedStateStore,
    SimulatedThreads,
)
from txtopo.testing.simulator.turns import Carriers


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
