"""The key encoding behind fields grouping, version 1: which task sees a key is a promise for the
life of a topology."""

from __future__ import annotations

import datetime
import enum
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from typing import Any, NamedTuple

import pytest

from tests.wrong.circles import CIRCLES
from txtopo import TransactionAttempt
from txtopo.topology import grouping
from txtopo.topology.grouping import UnsupportedKeyError, encode_key, encode_value, task_for_key

pytestmark = pytest.mark.rule(16)

COUNTS = (2, 3, 5, 16, 1000)


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    RED = 7


class Text(enum.StrEnum):
    RED = "rouge"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: str


NOON = datetime.datetime(2024, 2, 29, 12, 30, 15, 250)

VECTORS: list[tuple[Any, str, tuple[int, ...]]] = [
    (None, "30", (1, 0, 3, 5, 93)),
    (0, "6e302f31", (1, 2, 1, 15, 471)),
    (1, "6e312f31", (1, 1, 2, 15, 847)),
    (-7, "6e2d372f31", (1, 0, 3, 5, 333)),
    (
        10**30,
        "6e313030303030303030303030303030303030303030303030303030303030302f31",
        (0, 2, 0, 4, 900),
    ),
    (0.5, "6e312f32", (0, 2, 2, 0, 472)),
    (
        -0.1,
        "6e2d333630323837393730313839363339372f3336303238373937303138393633393638",
        (0, 0, 0, 0, 840),
    ),
    (float("nan"), "6e6e616e", (0, 1, 1, 8, 616)),
    (float("inf"), "6e696e66", (0, 1, 4, 8, 464)),
    (float("-inf"), "6e2d696e66", (1, 1, 3, 7, 383)),
    (Decimal("1.10"), "6e31312f3130", (0, 2, 4, 2, 554)),
    ("", "73", (0, 0, 0, 4, 100)),
    ("cat", "73636174", (1, 1, 4, 9, 809)),
    ("ä€😀", "73c3a4e282acf09f9880", (0, 0, 4, 6, 814)),
    ("\ud800", "73eda080", (1, 2, 2, 1, 737)),
    (b"", "62", (1, 0, 3, 3, 643)),
    (b"\x00\xff", "6200ff", (1, 1, 2, 11, 787)),
    (bytearray(b"cat"), "62636174", (0, 0, 1, 6, 166)),
    (
        uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "7512345678123456781234567812345678",
        (0, 1, 3, 12, 748),
    ),
    (datetime.date(2024, 2, 29), "64323032342d30322d3239", (1, 0, 0, 7, 255)),
    (NOON, "74323032342d30322d32395431323a33303a31352e303030323530", (0, 1, 1, 8, 376)),
    (
        NOON.replace(tzinfo=datetime.UTC),
        "54323032342d30322d32395431323a33303a31352e303030323530",
        (1, 0, 0, 5, 45),
    ),
    (Colour.RED, "65524544", (1, 2, 1, 15, 351)),
    (TransactionAttempt(7, 3), "6137", (0, 2, 1, 2, 666)),
    ((), "6c", (0, 0, 4, 6, 694)),
    (("a", 1), "6c000000027361000000046e312f31", (0, 0, 4, 12, 4)),
    ([1, ("b", None)], "6c000000046e312f310000000c6c0000000273620000000130", (0, 2, 2, 4, 812)),
]

KEY_VECTORS: list[tuple[tuple[Any, ...], str, tuple[int, ...]]] = [
    (("a",), "000000027361", (0, 0, 0, 8, 560)),
    (("a", "b"), "000000027361000000027362", (0, 0, 3, 4, 588)),
    (("ab", ""), "000000037361620000000173", (0, 0, 2, 4, 12)),
    ((1, 2), "000000046e312f31000000046e322f31", (0, 0, 0, 10, 10)),
]


def test_the_encoding_is_version_1() -> None:
    assert grouping.KEY_ENCODING_VERSION == 1


@pytest.mark.parametrize(
    ("value", "encoded", "tasks"), VECTORS, ids=[repr(value) for value, _, _ in VECTORS]
)
def test_a_value_is_encoded_and_routed_as_pinned(
    value: Any, encoded: str, tasks: tuple[int, ...]
) -> None:
    assert encode_value(value).hex() == encoded
    assert tuple(task_for_key((value,), count) for count in COUNTS) == tasks


@pytest.mark.parametrize(
    ("key", "encoded", "tasks"), KEY_VECTORS, ids=[repr(key) for key, _, _ in KEY_VECTORS]
)
def test_a_key_of_several_values_is_encoded_and_routed_as_pinned(
    key: tuple[Any, ...], encoded: str, tasks: tuple[int, ...]
) -> None:
    assert encode_key(key).hex() == encoded
    assert tuple(task_for_key(key, count) for count in COUNTS) == tasks


def test_the_task_is_blake2b_of_the_lengths_and_bodies_modulo_the_tasks() -> None:
    key = b"\0\0\0\x04scat" + b"\0\0\0\x04n2/1"
    digest = int.from_bytes(blake2b(key, digest_size=8).digest(), "big")
    assert [task_for_key(("cat", 2), count) for count in COUNTS] == [
        digest % count for count in COUNTS
    ]


@pytest.mark.parametrize(
    "equal",
    [
        [1, 1.0, True, Decimal(1), Decimal("1.000"), Decimal("1E+0")],
        [0, 0.0, -0.0, False, Decimal("-0"), Decimal("0E+7")],
        [0.5, Decimal("0.5"), Decimal("0.500")],
        [
            float("nan"),
            -float("nan"),
            Decimal("NaN"),
            Decimal("-NaN"),
            Decimal("sNaN"),
            Decimal("NaN123"),
        ],
        [float("inf"), Decimal("Infinity")],
        [float("-inf"), Decimal("-Infinity")],
        [2**100, float(2**100), Decimal(2**100)],
        ["red", type("Word", (str,), {})("red")],
        [b"red", bytearray(b"red")],
        [("a", [1, 2]), ["a", (1.0, True + True)], Point("a", [1, 2])],  # type: ignore[arg-type]
        [Colour.RED, Number.RED, Text.RED],
        [TransactionAttempt(7, 0), TransactionAttempt(7, 3)],
    ],
    ids=repr,
)
def test_values_that_are_equal_go_to_the_same_task(equal: Sequence[Any]) -> None:
    assert len({encode_value(value) for value in equal}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        ("cat", b"cat"),
        (None, "None"),
        (0, None),
        ("", None),
        (0.1, Decimal("0.1")),
        (NOON, NOON.replace(tzinfo=datetime.UTC)),
        (NOON.date(), NOON),
        ((), None),
        (("a", "b"), ("ab",)),
        (("a", ("b",)), (("a", "b"),)),
        (2**53, 2**53 + 1),
        (Colour.RED, "RED"),
        (TransactionAttempt(7, 0), 7),
        (TransactionAttempt(7, 0), TransactionAttempt(8, 0)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_that_differ_are_encoded_differently(one: Any, other: Any) -> None:
    assert encode_value(one) != encode_value(other)


def test_integers_of_any_length_are_routed_beyond_pythons_bound_for_printing() -> None:
    """str() of an int refuses more than 4300 digits, or as many as an environment variable says."""
    huge = 10**6000
    assert encode_value(huge) == encode_value(Decimal("1E+6000")) == b"n1" + b"0" * 6000 + b"/1"
    assert encode_value(-huge - 1) == b"n-1" + b"0" * 5999 + b"1/1"
    assert encode_value(Decimal("1E-6000")) == b"n1/1" + b"0" * 6000


def test_the_boundary_between_the_values_of_a_key_is_part_of_it() -> None:
    assert encode_key(("ab", "c")) != encode_key(("a", "bc"))
    assert encode_key(("ab",)) != encode_key(("a", "b"))


def test_aware_datetimes_are_routed_by_instant() -> None:
    utc = datetime.datetime(2024, 1, 1, 23, 30, tzinfo=datetime.UTC)
    tokyo = utc.astimezone(datetime.timezone(datetime.timedelta(hours=9)))
    assert tokyo.date() != utc.date()
    assert encode_value(tokyo) == encode_value(utc)


def test_an_instant_before_the_first_year_is_routed_too() -> None:
    """The sentinel datetime.min east of Greenwich has no UTC form."""

    def east(hours: int) -> datetime.datetime:
        return datetime.datetime(
            1, 1, 1, hours - 3, tzinfo=datetime.timezone(datetime.timedelta(hours=hours))
        )

    assert (
        encode_value(east(3))
        == encode_value(east(4))
        != encode_value(east(3) + datetime.timedelta(microseconds=1))
    )


def test_the_fold_of_a_naive_datetime_makes_no_difference_because_such_values_are_equal() -> None:
    folded = NOON.replace(fold=1)
    assert folded == NOON
    assert encode_value(folded) == encode_value(NOON)


def test_a_combined_flag_is_routed_by_its_names() -> None:
    assert encode_value(Right.READ | Right.WRITE) == b"eREAD|WRITE"


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1},
        {"a": 1},
        Fraction(1, 3),
        1j,
        datetime.time(12),
        datetime.timedelta(1),
        range(3),
        memoryview(b"a"),
        Right(0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_other_type_is_refused_with_the_cure(value: Any) -> None:
    with pytest.raises(UnsupportedKeyError) as refused:
        encode_value(value)
    assert (
        f"fields grouping cannot route on a value of type {type(value).__module__}.{type(value).__qualname__}"
        in str(refused.value)
    )
    assert "Group on None, bool, int" in str(refused.value)


def test_an_unsupported_value_inside_a_tuple_is_refused_too() -> None:
    with pytest.raises(UnsupportedKeyError, match=r"builtins\.set"):
        encode_value(("a", [{1}]))


@pytest.mark.parametrize("name", [name for name in CIRCLES if name not in ("a dict", "several")])
@pytest.mark.parametrize("tasks", [grouping.task_for_key, grouping.two_tasks_for_key])
def test_a_value_that_contains_itself_is_refused_too(name: str, tasks: Any) -> None:
    with pytest.raises(UnsupportedKeyError) as refused:
        tasks(("a", CIRCLES[name]), 3)
    assert "which contains itself or is nested too deeply\n  Group on None" in str(refused.value)


_PROGRAM = """
import datetime, decimal, sys
from txtopo.topology.grouping import task_for_key
keys = ["cat", 1, 1.5, None, b"x", decimal.Decimal("2.50"), datetime.date(2024, 2, 29), ("a", ("b", 1)), True, 10**6000]
print([task_for_key((key, "suffix"), 1000) for key in keys])
"""


@pytest.mark.rule(17)
def test_routing_depends_neither_on_the_process_nor_on_its_hash_seed() -> None:
    outputs = set()
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONINTMAXSTRDIGITS": "640"}
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", _PROGRAM],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    keys = [
        "cat",
        1,
        1.5,
        None,
        b"x",
        Decimal("2.50"),
        datetime.date(2024, 2, 29),
        ("a", ("b", 1)),
        True,
        10**6000,
    ]
    here = [task_for_key((key, "suffix"), 1000) for key in keys]
    assert outputs == {f"{here}\n"}
