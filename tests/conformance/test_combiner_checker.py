"""``check_combiner`` finds a combiner whose result depends on the cut of its tuples."""

from __future__ import annotations

from typing import Any

import pytest

from txtopo import CombinerAggregator, Count, Max, Min, Sum, Tuple
from txtopo.testing import ContractError, check_combiner

ROWS = [(3.1,), (0.2,), (5.7,), (4.4,)]


class Mean(CombinerAggregator):
    """The sum and the number of values."""

    fields = ("cents",)

    def init(self, tup: Tuple) -> Any:
        return [tup["cents"], 1]

    def combine(self, left: Any, right: Any) -> Any:
        return [left[0] + right[0], left[1] + right[1]]


class MeanOfMeans(CombinerAggregator):
    fields = ("cents",)

    def init(self, tup: Tuple) -> Any:
        return tup["cents"]

    def combine(self, left: Any, right: Any) -> Any:
        return (left + right) / 2


class Last(MeanOfMeans):
    def combine(self, left: Any, right: Any) -> Any:
        return right


class InPlace(Mean):
    def combine(self, left: Any, right: Any) -> Any:
        left[0] += right[0]
        left[1] += right[1]
        return left


class Forgetful(Mean):
    def combine(self, left: Any, right: Any) -> Any:
        return None if left[1] + right[1] == 3 else super().combine(left, right)


@pytest.mark.parametrize(
    "combiner",
    [Count(), Sum("cents"), Min("cents"), Max("cents"), Mean()],
    ids=lambda combiner: type(combiner).__name__,
)
def test_a_combiner_with_one_result_for_every_cut_passes(combiner: CombinerAggregator) -> None:
    assert check_combiner(combiner, ROWS, fields=["cents"]) == 7


@pytest.mark.parametrize(
    ("combiner", "rows", "message"),
    [
        (
            MeanOfMeans(),
            ROWS,
            r"MeanOfMeans\.combine makes .* of all tuples one by one, and .* of \[3\.1\] and \[0\.2, 5\.7, 4\.4\]\n.*associative",
        ),
        (
            Last(),
            ROWS,
            r"Last\.combine makes 4\.4 of all tuples one by one, and 3\.1 of \[0\.2, 5\.7, 4\.4\] and \[3\.1\]",
        ),
        (Mean(), [(1.0,), (float("inf"),)], r"Mean\.init makes \[inf, 1\] of \(inf,\)"),
        (InPlace(), ROWS, r"InPlace\.combine changed .*\n.*Make a new value"),
        (Forgetful(), ROWS, r"Forgetful\.combine makes None of \[3\.3.*, 2\] and \[5\.7, 1\]"),
        (
            Sum("cents"),
            [(1.0,), (float("nan"),)],
            r"Sum\.init makes nan of \(nan,\)\n.*drop the tuples",
        ),
    ],
)
def test_a_combiner_that_depends_on_the_cut_is_found(
    combiner: CombinerAggregator, rows: list[tuple[float]], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        check_combiner(combiner, rows, fields=["cents"])
