"""Values are the same to a contract checker exactly if their types and contents are."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest

from txtopo.testing.contracts import equality

DAY = datetime.date(2026, 1, 1)
VALUES: list[Any] = [
    None,
    0,
    1,
    1.0,
    True,
    False,
    "1",
    b"1",
    "nan",
    math.nan,
    DAY,
    datetime.datetime(2026, 1, 1),
    (),
    (1,),
    (1.0,),
    (True,),
    ("nan",),
    (math.nan,),
    [1],
    [1.0],
    ((1,),),
    ([1],),
    {"a": 1},
    {"a": True},
    {1},
    frozenset({1}),
    ("default", ("cat", 1)),
    ("default", ("cat", 1.0)),
    ("default", ("cat", DAY)),
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_a_value_is_the_same_as_itself_and_as_no_other(number: int) -> None:
    same = [equality.identity(VALUES[number]) == equality.identity(other) for other in VALUES]
    assert same == [number == other for other in range(len(VALUES))]


def test_differences_are_told_with_their_counts() -> None:
    assert equality.multiset_difference([("cat", 1), ("dog", 2)], [("dog", 2), ("cat", 1)]) is None
    difference = equality.multiset_difference(
        [("cat", 1), ("cat", 1), ("dog", 2.0)], [("cat", 1), ("dog", 2)]
    )
    assert difference == "1 missing, namely ('dog', 2); 2 too many, namely ('cat', 1), ('dog', 2.0)"
