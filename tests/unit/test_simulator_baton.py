"""Threads that take turns."""

from __future__ import annotations

import pytest

from txtopo.testing.simulator import turns
from txtopo.testing.simulator.turns import Carrier, Carriers


def test_a_work_runs_only_between_its_start_or_resumption_and_its_park_or_end() -> None:
    said: list[str] = []

    def work(name: str) -> None:
        said.append(f"{name} begins")
        said.append(f"{name} got {turns.park()}")
        said.append(f"{name} got {turns.park()}")

    one, other = Carrier(), Carrier()
    one.start(lambda: work("one"))
    other.start(lambda: work("other"))
    said.append("main")
    other.resume(1)
    one.resume(2)
    other.resume(3)
    assert (one.is_busy, other.is_busy) == (True, False)
    one.resume(4)
    for carrier in (one, other):
        carrier.end()
    assert said == [
        "one begins",
        "other begins",
        "main",
        "other got 1",
        "one got 2",
        "other got 3",
        "one got 4",
    ]


def test_an_exception_is_raised_where_the_work_is_parked() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            turns.park()
        except BaseException as error:
            caught.append(error)

    carrier = Carrier()
    carrier.start(work)
    lost = KeyboardInterrupt()
    carrier.resume(lost)
    assert (caught, carrier.is_busy) == ([lost], False)
    carrier.end()


def test_an_error_that_leaves_a_work_is_raised_where_the_work_was_resumed() -> None:
    carrier = Carrier()
    carrier.start(turns.park)
    with pytest.raises(KeyboardInterrupt):
        carrier.resume(KeyboardInterrupt())
    assert not carrier.is_busy
    carrier.start(lambda: None)
    carrier.end()


def test_carriers_are_lent_again_and_end_with_their_owner() -> None:
    carriers = Carriers()
    first = carriers.borrow()
    first.start(lambda: None)
    carriers.give_back(first)
    assert carriers.borrow() is first
    other = carriers.borrow()
    assert other is not first
    carriers.give_back(first)
    carriers.give_back(other)
    carriers.close()
    assert not first._thread.is_alive()
    assert not other._thread.is_alive()


def test_only_a_carrier_can_park() -> None:
    assert not turns.is_carried()
    with pytest.raises(AttributeError):
        turns.park()
