"""Samples of the benchmark, and the ratios computed from them."""

from __future__ import annotations

import itertools

import pytest

from bench.race import Better, Ratio, interleaved, median, ratio


def test_contenders_take_turns_and_the_first_turns_do_not_count() -> None:
    order: list[str] = []
    numbers = itertools.count()

    def block(name: str) -> dict[str, int]:
        order.append(name)
        return {"seconds": next(numbers)}

    samples = interleaved({"a": lambda: block("a"), "b": lambda: block("b")}, rounds=2, warm_up=1)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert samples == {"a": [{"seconds": 2}, {"seconds": 4}], "b": [{"seconds": 3}, {"seconds": 5}]}


def test_one_bad_round_does_not_move_a_ratio_but_is_shown_beside_it() -> None:
    measured_ratio = ratio("tuples/s", [10.0, 12.0, 1.0], [5.0, 5.0, 5.0], "higher", 1.5)
    assert (measured_ratio.value, measured_ratio.low, measured_ratio.high) == (2.0, 0.2, 2.4)


def test_the_median_is_that_of_the_value_asked_for() -> None:
    assert median([{"seconds": 3}, {"seconds": 1, "period": 7}, {"seconds": 2}], "seconds") == 2


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_rounds_that_do_not_pair_make_no_ratio(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="rounds of ours"):
        ratio("tuples/s", ours, theirs, "higher")


@pytest.mark.parametrize(
    ("value", "better", "target", "is_met"),
    [
        (4.0, "higher", 4.0, True),
        (3.9, "higher", 4.0, False),
        (2.5, "lower", 2.5, True),
        (2.6, "lower", 2.5, False),
        (1.0, "lower", None, None),
    ],
)
def test_a_target_is_reached_from_the_side_that_is_better(
    value: float, better: Better, target: float | None, is_met: bool | None
) -> None:
    assert Ratio("what", value, value, value, better, target).is_met is is_met
