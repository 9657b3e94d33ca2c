"""A simulated driver that is dead reaches nothing any more, however its code unwinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from txtopo.state import base
from txtopo.state.memory import MemoryServer
from txtopo.testing.simulator.decisions import Decisions
from txtopo.testing.simulator.driver import Driver, DriverDied, SimulatedStateStore


def test_a_dead_driver_neither_reads_nor_writes_zookeeper() -> None:
    server = MemoryServer()
    world: Any = SimpleNamespace(server=server, decisions=Decisions(), is_asking_again=False)
    driver: Any = object.__new__(Driver)
    driver.subject, driver.number, driver.is_dead = SimpleNamespace(graph=SimpleNamespace(id="words")), 1, False
    store = SimulatedStateStore(world, driver)
    store.multi([base.Create("/words")])
    driver.is_dead = True
    with pytest.raises(DriverDied):
        store.multi([base.Create("/words/current", b"1")])
    with pytest.raises(DriverDied):
        store.get("/words")
    assert server.get("/words/current") is None
