"""The contract checkers are asked of a topology's parts before any schedule: what they find is the verdict, with rule, hook and cure."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests import outside
from tests.blamed_topologies import RIGHT, WRONG, Wrong
from tests.simulated_topologies import SPOUTS, generated
from tests.starter.commands import ROOT
from tests.unit.test_simulator_live_sources import CUTS, Ready, live_spout, topology
from txtopo.runtime import target
from txtopo.testing import Simulation, Violation
from txtopo.testing.simulator import mistakes, parts
from txtopo.testing.simulator.decisions import Script
from txtopo.testing.simulator.schedule import StoppedError

OF_SPOUTS = {name: wrong for name, wrong in WRONG.items() if wrong.component == "words" and wrong.grouping is None}
HOOKS = {
    "an emitter that reads to the end": (18, "emit_batch"),
    "a destructive initialize_transaction": (20, "initialize_transaction and emit_batch"),
    "an acknowledgement at emit": (18, "emit_batch"),
    "a position in a class attribute": (18, "emit_batch"),
    "a position in the coordinator": (5, "is_ready"),
}


def checked(wrong: Wrong) -> Violation | None:
    with Simulation(wrong.topology(), {"max_spout_pending": 2}, effects=outside.effects, reset=outside.reset) as simulation:
        return simulation.check_parts()


@pytest.mark.parametrize("name", OF_SPOUTS)
@pytest.mark.rule(18, 20)
def test_a_spout_that_breaks_its_contract_is_told_with_rule_hook_and_cure(name: str) -> None:
    violation = checked(OF_SPOUTS[name])
    assert violation is not None
    assert violation.broken is not None
    assert (violation.component, violation.mistakes) == ("words", (OF_SPOUTS[name].mistake.name,)), str(violation)
    rule, hook = HOOKS[name]
    assert (violation.broken.rule, violation.broken.what.startswith(hook)) == (rule, True), str(violation)
    assert violation.broken.cure in str(violation)
    assert violation.seed is None


@pytest.mark.rule(28)
def test_a_committer_that_breaks_its_contract_is_told_with_the_rule_and_the_schedule_that_shows_it() -> None:
    violation = checked(WRONG["an increment that is not in a store"])
    assert violation is not None
    assert violation.broken is not None
    assert (violation.component, violation.mistakes, violation.broken.rule) == ("sums", (mistakes.APPLIED_AGAIN.name,), 28)
    assert violation.seed is not None
    assert "bolt contract, R28: " in str(violation)


@pytest.mark.parametrize("name", RIGHT)
def test_parts_that_keep_their_contracts_are_no_violation(name: str) -> None:
    assert checked(RIGHT[name]) is None


@pytest.mark.parametrize("number", range(12))
def test_generated_topologies_keep_the_contracts(number: int) -> None:
    with Simulation(generated(number)) as simulation:
        violation = simulation.check_parts()
    assert violation is None, str(violation)


@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.rule(4)
def test_a_source_that_lives_keeps_the_contract(kind: str, cut: str) -> None:
    with Simulation(topology(live_spout(kind, cut), kind)) as simulation:
        violation = simulation.check_parts()
    assert violation is None, str(violation)


class SeldomReady(Ready):
    """Every other time."""

    def is_ready(self, last: Any) -> bool:
        return super().is_ready(last) and (not last or random.random() < 0.6)


@pytest.mark.rule(5)
def test_a_source_that_has_nothing_yet_keeps_the_contract_of_spouts() -> None:
    source = live_spout("planned", "chance")
    source.source = SeldomReady("chance")
    for _ in range(8):
        with Simulation(topology(source, "planned")) as simulation:
            violation = simulation.check_parts()
        assert violation is None, str(violation)


def test_a_checker_that_takes_long_begins_no_further_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ENOUGH_S", -1.0)
    assert checked(WRONG["an emitter that reads to the end"]) is None


def test_a_checker_stops_when_it_is_asked_to() -> None:
    with Simulation(RIGHT["nothing wrong"].topology()) as simulation:
        simulation.goes_on = lambda: False
        with pytest.raises(StoppedError):
            simulation.check_parts()


def test_a_topology_out_of_a_file_is_the_same_after_its_parts_were_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes travel by value, and must not be made anew: their globals would be others."""
    monkeypatch.setenv("TXTOPO_STARTER_STORE", str(tmp_path / "wrong"))
    found = target.resolve(str(ROOT / "starter" / "wrong" / "module_global.py"))
    with Simulation(found.topology, found.conf) as simulation:
        violation = simulation.check_parts()
        assert simulation.replay(Script()) == []
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("total", (mistakes.MODULE_GLOBAL.name,))
