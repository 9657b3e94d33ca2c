"""A verdict of the simulator shows the difference, and gives one cure that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_simulator_outcome import outcome
from tests.unit.test_simulator_recomputes import report_of
from tests.wrong.hashing_bolts import Dice, First
from txtopo.command import cli
from txtopo.testing.contracts import equality
from txtopo.testing.contracts.violation import ContractError
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.diagnosis import Diagnosis
from txtopo.testing.simulator.outcome import Difference, differences
from txtopo.testing.simulator.processes import Processes
from txtopo.testing.simulator.recomputation import _Text
from txtopo.testing.simulator.simulation import SimulationReport
from txtopo.testing.simulator.violation import Violation

TOPOLOGY = """
from tests.wrong import hashing_bolts
topology = hashing_bolts.topology(hashing_bolts.First(sort=True))
"""


@pytest.mark.thorough
def test_chance_that_another_process_shows_is_named_with_its_line() -> None:
    violation = report_of(Dice, sort=True).violation
    assert violation is not None
    assert violation.mistakes == (mistakes.CHANCE.name,)
    assert "Dice.execute uses random, line " in str(violation)


def test_a_set_whose_order_another_process_shows_is_named_with_its_line() -> None:
    violation = report_of(First, sort=False).violation
    assert violation is not None
    assert "First.execute uses a set, line " in str(violation)


def test_values_of_another_process_are_shown_without_quotes() -> None:
    (difference,) = differences(
        outcome(stores={"s": {_Text("'a'"): _Text("2")}}),
        outcome(stores={"s": {_Text("'a'"): _Text("1")}}),
        True,
    )
    assert str(difference) == "key 'a' of store s is 2; without failures it is 1"


def test_lists_of_effects_differ_by_their_items() -> None:
    difference = differences(
        outcome(effects=["a", "b", "b"]), outcome(effects=["a", "a", "b"]), True
    )
    assert list(map(str, difference)) == [
        "'a' in effects() is there once; without failures it is there 2 times",
        "'b' in effects() is there 2 times; without failures it is there once",
    ]
    (order,) = differences(outcome(effects=["a", "b"]), outcome(effects=["b", "a"]), True)
    assert str(order) == "effects() is ['a', 'b']; without failures it is ['b', 'a']"


def test_stores_differ_by_their_keys() -> None:
    assert (
        equality.mapping_difference({"s": {"a": 1, "b": 2}}, {"s": {"a": 1, "b": 3}})
        == "'s': 'b' is 2, it should be 3"
    )


@pytest.mark.parametrize(("shown_by", "times"), [((Difference("key 'a'", "2", "1"),), 0), ((), 1)])
def test_the_cure_of_a_contract_is_given_where_no_schedule_has_shown_the_mistake(
    shown_by: tuple[Difference, ...], times: int
) -> None:
    broken = ContractError("bolt", 28, "component 'count': 2", "Compare and set.")
    text = str(
        Violation(
            "words", None, shown_by, Diagnosis("count", (mistakes.MODULE_GLOBAL,)), broken=broken
        )
    )
    assert "bolt contract, R28: component 'count': 2" in text
    assert mistakes.MODULE_GLOBAL.cure in text
    assert text.count(broken.cure) == times


def test_one_transaction_is_written_in_the_singular() -> None:
    assert " of 1 transaction in " in str(SimulationReport("words", transactions=1))


class Keeps:
    """A user's class, with the mistake every linter knows."""

    def work(self, n: int, seen: list[int] = []) -> None:  # noqa: B006 - the mistake this is about
        seen.append(n)

    def named(self, *, seen: dict[int, int] = {}) -> None:  # noqa: B006 - the mistake this is about
        seen[len(seen)] = 1


def remembered(n: int, seen: list[int] = []) -> None:  # noqa: B006 - the mistake this is about
    seen.append(n)


def test_a_mutable_default_is_a_variable_of_each_process() -> None:
    processes = Processes([Keeps])
    processes.switch_to("one")
    before = processes.shown()
    Keeps().work(1)
    assert processes.changed_between(before, processes.shown()) == [
        "the default of a parameter of Keeps.work"
    ]
    Keeps().named()
    remembered(1)
    assert "the default of a parameter of remembered" in processes.changed_between(
        before, processes.shown()
    )
    processes.switch_to("two")
    assert processes.shown() == before
    processes.end_all()
    assert (Keeps.work.__defaults__, Keeps.named.__kwdefaults__, remembered.__defaults__) == (
        ([],),
        {"seen": {}},
        ([],),
    )


@pytest.mark.parametrize(
    ("outside", "said"),
    [
        (
            "def effects(): return object()",
            "effects() returns another value at every call",
        ),
        ("def effects(): raise ValueError('no')", "effects() raised ValueError: no"),
        ("def reset(): raise OSError('disk')", "reset() raised OSError: disk"),
        ("effects = {}", "effects beside the topology is of type dict, not a function"),
    ],
)
def test_functions_about_the_outside_that_cannot_serve_are_refused(
    outside: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words.py").write_text(f"{TOPOLOGY}\n{outside}\n")
    assert cli.main(["test", str(tmp_path / "words.py"), "--seeds", "1"]) == 2
    error: Any = capsys.readouterr().err
    assert f"txtopo: error: {said}" in error
