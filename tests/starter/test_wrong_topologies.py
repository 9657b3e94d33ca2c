"""The topologies that are wrong on purpose: each is caught and its mistake named, and its corrected
twin is not."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.starter.commands import ROOT
from txtopo.testing import Simulation
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.mistakes import Mistake

SEEDS_MAX = 120
"""So many schedules find each of the mistakes."""

SEEDS_OF_CORRECTED = SEEDS_MAX

WRONG: dict[str, tuple[str | None, Mistake]] = {
    "stamped_equality": ("total", mistakes.OLDER_AFTER_NEWER),
    "unconditional_increment": ("total", mistakes.APPLIED_AGAIN),
    "write_outside_the_transaction": ("total", mistakes.OUTSIDE_THE_STORE),
    "module_global": ("total", mistakes.MODULE_GLOBAL),
    "write_while_processing": ("count", mistakes.WRITE_WHILE_PROCESSING),
    "routing_by_hash": ("deal", mistakes.HASH),
    "arrival_order": (None, mistakes.TRUSTS_ARRIVAL),
}
"""The component at fault, and its mistake."""

NEED_NO_SCHEDULE = {"routing_by_hash", "arrival_order"}
SEEN_BY_SCHEDULES = [name for name in WRONG if name not in NEED_NO_SCHEDULE]


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXTOPO_STARTER_STORE", str(tmp_path / "wrong"))


COMMAND = """
import math, sys
from txtopo.command import cli
from txtopo.testing.simulator import judge, parts

parts.ENOUGH_S = judge.LONG_S = math.inf
sys.exit(cli.main())
"""
"""The command ``txtopo``, which finds the same mistakes on a slow machine."""


def txtopo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def load(name: str) -> Any:
    return importlib.import_module(f"starter.wrong.{name}")


def simulation(name: str, attribute: str) -> Simulation:
    module = load(name)
    effects, reset = getattr(module, "effects", None), getattr(module, "reset", None)
    return Simulation(getattr(module, attribute), module.conf, effects=effects, reset=reset)


def test_every_wrong_topology_is_tested() -> None:
    assert {path.stem for path in (ROOT / "starter" / "wrong").glob("*.py")} == {*WRONG, "__init__"}


@pytest.mark.in_gate("module_global", "unconditional_increment", "write_*")
@pytest.mark.parametrize("name", SEEN_BY_SCHEDULES)
@pytest.mark.rule(28, 29)
def test_the_mistake_is_found_named_and_made_short(name: str) -> None:
    component, mistake = WRONG[name]
    with simulation(name, "topology") as simulated:
        report = simulated.run(SEEDS_MAX)
        violation = report.violation
        assert violation is not None
        assert (violation.component, violation.mistakes[0]) == (component, mistake.name)
        assert len(violation.script.faults) <= 2
        assert simulated.replay(violation.script), "the shortest schedule shows it again"
        text = str(violation)
        assert mistake.cure in text
        assert f"seed {violation.seed}: " in text
        again = simulated.run(1, violation.seed or 0)
    assert again.violation == violation, "a seed is the same schedule whenever it is played"


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.rule(28, 29)
def test_the_corrected_twin_is_not_found(name: str) -> None:
    with simulation(name, "corrected") as simulated:
        report = simulated.run(SEEDS_OF_CORRECTED)
    assert report.violation is None, str(report)
    assert report.schedules == SEEDS_OF_CORRECTED


@pytest.mark.thorough
@pytest.mark.rule(16, 17)
def test_dependence_on_hash_is_found_in_processes_with_other_seeds() -> None:
    with simulation("routing_by_hash", "topology") as simulated:
        violation = simulated.recompute()
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("deal", (mistakes.HASH.name,))
    with simulation("routing_by_hash", "corrected") as simulated:
        assert simulated.recompute() is None


@pytest.mark.rule(40)
def test_trust_in_the_order_of_arrival_is_found_when_entries_are_told_again_and_late() -> None:
    component, mistake = WRONG["arrival_order"]
    with simulation("arrival_order", "topology") as simulated:
        violation = simulated.check_parts()
    assert violation is not None
    assert (violation.component, violation.mistakes) == (component, (mistake.name,))
    assert "WrongTarget of export queue 'totals': effects() is {" in str(violation)
    with simulation("arrival_order", "corrected") as simulated:
        assert simulated.check_parts() is None


@pytest.mark.in_gate("unconditional_increment")
@pytest.mark.parametrize("name", WRONG)
def test_the_command_line_finds_the_mistake_in_the_file(name: str) -> None:
    component, mistake = WRONG[name]
    answer = txtopo("test", f"starter/wrong/{name}.py", "--seeds", str(SEEDS_MAX))
    assert answer.returncode == 1, answer.stderr
    culprit = "topology" if component is None else f"component {component!r}"
    assert re.match(f"VIOLATION by {culprit}( '.*')?: {re.escape(mistake.name)}\n", answer.stdout)
    again = re.search(r"^again: txtopo (test .*)$", answer.stdout, re.MULTILINE)
    if again is None:
        assert name in NEED_NO_SCHEDULE
        return
    assert txtopo(*again[1].split()).stdout == answer.stdout


@pytest.mark.thorough
def test_the_command_line_finds_nothing_in_the_corrected_twin() -> None:
    answer = txtopo(
        "test", "starter/wrong/unconditional_increment.py:corrected", "--seeds", "25", "-v"
    )
    assert answer.returncode == 0, answer.stderr
    assert re.match(
        r"unconditional-increment: 25 schedules of 3 transactions in .* faults, no violation\n",
        answer.stdout,
    )
