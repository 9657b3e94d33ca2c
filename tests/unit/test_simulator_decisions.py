"""Decisions: by chance, written down, played again; and made short."""

from __future__ import annotations

from typing import Any

import pytest

from txtopo.testing.simulator import decisions
from txtopo.testing.simulator.decisions import Chance, Decisions, Fault, Script
from txtopo.testing.simulator.shrink import TRIES_MAX, shrink

OPPORTUNITIES = {"hook": 10, "job": 5, "state": 3}


def ask(asked: Decisions) -> list[Any]:
    """The same fifty questions."""
    answers: list[Any] = []
    for n in range(25):
        answers.append(
            asked.strike("hook", f"finish_batch, attempt {n % 4}:{n}", ("before", "after"))
        )
        answers.append(asked.pick(3))
    order = list(range(9))
    asked.shuffled(order, "chunks")
    return [*answers, order]


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_decides_the_same_whenever_it_is_asked(seed: int) -> None:
    one, other = (Decisions(chance=Chance.of(seed, OPPORTUNITIES)) for _ in range(2))
    assert ask(one) == ask(other)


@pytest.mark.parametrize("seed", range(20))
def test_a_written_script_decides_the_same_as_chance_did(seed: int) -> None:
    by_chance = Decisions(chance=Chance.of(seed, OPPORTUNITIES))
    answers = ask(by_chance)
    assert ask(Decisions(by_chance.written_down())) == answers


def test_some_seeds_decide_something_and_differ() -> None:
    decided = [ask(Decisions(chance=Chance.of(seed, OPPORTUNITIES))) for seed in range(20)]
    assert len({repr(answers) for answers in decided}) > 5


def test_without_chance_and_script_nothing_strikes_and_the_first_in_line_comes_first() -> None:
    asked = Decisions()
    answers = ask(asked)
    assert set(answers[:-1]) == {None, 0}
    assert answers[-1] == list(range(9))
    assert asked.opportunities == {"hook": 25}, "and opportunities are counted"
    assert asked.written_down() == Script()


def test_no_more_faults_strike_than_there_may_be() -> None:
    chance = Chance.of(0, {})
    asked = Decisions(chance=Chance(chance.rng, {"hook": 1.0}, 0.0, None))
    for n in range(100):
        asked.strike("hook", str(n), ("before",))
    assert len(asked.struck) == decisions.FAULTS_MAX


def test_a_fault_in_any_attempt_strikes_the_first_one_that_gets_there_and_once() -> None:
    fault = Fault("hook", "finish_batch of 'sum', attempt 2:7", "before")
    asked = Decisions(Script((fault.in_any_attempt,)))
    struck = [
        asked.strike("hook", f"finish_batch of 'sum', attempt {attempt}", ("before",))
        for attempt in ("1:0", "2:0", "2:1")
    ]
    assert struck == [None, "before", None]


def test_shrinking_leaves_the_needed_faults_only() -> None:
    faults = tuple(Fault("hook", f"hook {n}", "before") for n in range(6))
    script = Script(faults, ((3, 1), (5, 2), (8, 1)), shuffle_seed=4)
    asked: list[Script] = []

    def shows_it(tried: Script) -> bool:
        asked.append(tried)
        return {faults[1], faults[4]} <= set(tried.faults) and (5, 2) in tried.picks

    assert shrink(script, shows_it) == Script((faults[1], faults[4]), ((5, 2),), None)
    assert len(asked) <= TRIES_MAX


def test_shrinking_keeps_a_script_of_which_everything_is_needed() -> None:
    script = Script((Fault("hook", "hook", "before"),), ((1, 1),), 2)
    assert shrink(script, lambda tried: tried == script) == script


def size_of(script: Script) -> tuple[int, int, bool]:
    return len(script.faults), len(script.picks), script.shuffle_seed is not None


def test_shrinking_ends_when_it_has_tried_enough() -> None:
    script = Script(
        tuple(Fault("hook", f"hook {n}", "before") for n in range(40)),
        tuple((n, 1) for n in range(40)),
        1,
    )
    tries = 0

    def never_done(tried: Script) -> bool:
        nonlocal tries
        tries += 1
        return tries % 7 == 0

    assert size_of(shrink(script, never_done)) < size_of(script)
    assert tries <= TRIES_MAX
