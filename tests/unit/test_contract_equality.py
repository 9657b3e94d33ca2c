"""Values are the same to a contract checker exactly if their types and contents are."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

import pytest

from tests.wrong.circles import CIRCLES
from txtopo.errors import UsageError
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


@dataclasses.dataclass
class _Node:
    inner: Any = None


def nested(levels: int) -> Any:
    """A number inside so many containers."""
    value: Any = 1
    for level in range(levels):
        value = ([value], (value,), {"a": value}, _Node(value))[level % 4]
    return value


def test_a_deeply_nested_value_is_the_same_as_itself() -> None:
    levels = equality._LEVELS_MAX
    assert equality.identity(nested(levels)) == equality.identity(nested(levels))
    assert equality.multiset_difference([nested(levels)], [nested(levels)]) is None


_OWN = _Node()
_OWN.inner = _OWN


@pytest.mark.parametrize(
    "value", [*CIRCLES.values(), _OWN, nested(equality._LEVELS_MAX + 2), nested(1_000)]
)
def test_a_value_that_has_no_end_is_refused_with_the_cure(value: Any) -> None:
    for compare in (equality.identity, lambda value: equality.multiset_difference([value], [1])):
        with pytest.raises(
            UsageError,
            match=r"contains itself, or is nested more than \d+ levels deep.*\n  Emit and",
        ):
            compare(value)


def test_differences_are_told_with_their_counts() -> None:
    assert equality.multiset_difference([("cat", 1), ("dog", 2)], [("dog", 2), ("cat", 1)]) is None
    difference = equality.multiset_difference(
        [("cat", 1), ("cat", 1), ("dog", 2.0)], [("cat", 1), ("dog", 2)]
    )
    assert difference == "1 missing, namely ('dog', 2); 2 too many, namely ('cat', 1), ('dog', 2.0)"
