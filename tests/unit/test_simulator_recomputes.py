"""Two interpreters with different hash seeds compute the same from a topology, or ``simulate``
names the component at fault."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.topologies.simulated import generated
from tests.unit.test_simulator_live_sources import live_spout
from tests.unit.test_simulator_live_sources import topology as live
from tests.wrong import hashing_bolts
from tests.wrong.hashing_bolts import ByHash, Dice, First
from txtopo.testing import Simulation, SimulationReport, simulate
from txtopo.testing.simulator import mistakes, recomputation


@functools.cache
def report_of(bolt: type[First], sort: bool) -> SimulationReport:
    """The report on a bolt, made once for several tests."""
    return simulate(hashing_bolts.topology(bolt(sort)), seeds=1)


@pytest.mark.rule(17, 28)
def test_the_order_of_a_set_in_a_bolt_is_found() -> None:
    report = report_of(First, sort=False)
    assert report.violation is not None
    assert (report.violation.component, report.violation.mistakes) == (
        "first",
        (mistakes.HASH.name,),
    )
    assert report.exit_code == 1


@pytest.mark.rule(16, 17)
def test_hash_in_a_custom_grouping_is_found() -> None:
    report = simulate(hashing_bolts.topology(First(sort=True), ByHash(by_length=False)), seeds=1)
    assert report.violation is not None
    assert (report.violation.component, report.violation.mistakes) == (
        "write",
        (mistakes.HASH.name,),
    )
    assert "gets of the same tuples of 'first'" in str(report.violation)


@pytest.mark.thorough
def test_sorted_words_dealt_by_length_are_not_found_and_one_process_with_each_hash_seed_plays_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    in_process = recomputation._in_process

    def counting(payload: bytes, hash_seed: int) -> Any:
        started.append(hash_seed)
        return in_process(payload, hash_seed)

    monkeypatch.setattr(recomputation, "_in_process", counting)
    report = simulate(hashing_bolts.topology(First(sort=True), ByHash(by_length=True)), seeds=3)
    assert report.violation is None, str(report)
    assert sorted(started) == list(recomputation.HASH_SEEDS)


def test_dice_are_told_from_hash() -> None:
    report = report_of(Dice, sort=True)
    assert report.violation is not None
    assert (report.violation.component, report.violation.mistakes) == (
        "first",
        (mistakes.CHANCE.name,),
    )


@pytest.mark.in_gate("opaque")
@pytest.mark.parametrize("kind", ["planned", "storm", "opaque"])
@pytest.mark.rule(4)
def test_a_source_that_gives_other_batches_in_another_process_is_no_violation(kind: str) -> None:
    with Simulation(live(live_spout(kind, "chance"), kind)) as simulation:
        assert simulation.recompute() is None


@pytest.mark.in_gate("1")
@pytest.mark.parametrize("seed", range(4))
def test_right_topologies_of_every_shape_are_the_same_in_every_process(seed: int) -> None:
    with Simulation(generated(seed)) as simulation:
        assert simulation.recompute() is None
