"""Fields grouping: equal keys of any types meet; unequal keys are told apart."""

from __future__ import annotations

import datetime
import itertools
import math
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from txtopo import Fields, TransactionAttempt
from txtopo.dataplane import route
from txtopo.topology.grouping import (
    Grouping,
    encode_key,
    encode_value,
    task_for_key,
    two_tasks_for_key,
)

pytestmark = pytest.mark.rule(16)

QUICK = examples(100)

offsets = st.builds(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)), st.integers(-1439, 1439)
)
numbers = (
    st.integers()
    | st.floats()
    | st.decimals(allow_nan=True, min_value=-(10**20), max_value=10**20)
    | st.booleans()
)
scalars = (
    st.none()
    | numbers
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.none() | offsets)
    | st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1))
)
keys = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=5
)


def canonical(value: Any) -> Any:
    """The meaning of an encoding, in Python's own terms: equal for exactly those keys whose
    encodings should be equal."""
    if isinstance(value, bool | int | float | Decimal):
        if value.is_nan() if isinstance(value, Decimal) else math.isnan(value):
            return ("number", "nan")
        return ("number", value if math.isinf(value) else Fraction(value))
    if isinstance(value, tuple | list):
        return ("items", tuple(map(canonical, value)))
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return ("naive", value.replace(fold=0))
        return ("instant", value - datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
    return (type(value).__name__, value)


@QUICK
@given(one=keys, other=keys)
def test_encodings_are_equal_exactly_if_the_keys_are(one: Any, other: Any) -> None:
    assert (encode_value(one) == encode_value(other)) == (canonical(one) == canonical(other))


@QUICK
@given(number=st.integers(-(2**60), 2**60), shift=st.integers(0, 8))
def test_one_number_in_any_type_is_one_key(number: int, shift: int) -> None:
    exact = Fraction(number, 2**shift)
    same: list[Any] = [Decimal(number) / Decimal(2**shift)] if abs(number) < 10**12 else []
    if Fraction(float(exact)) == exact:
        same.append(float(exact))
    if exact.denominator == 1:
        same.append(exact.numerator)
    assert len({encode_value(value) for value in same}) <= 1


@QUICK
@given(instant=st.datetimes(timezones=st.just(datetime.UTC)), zone=offsets)
def test_an_instant_is_one_key_in_every_time_zone(
    instant: datetime.datetime, zone: datetime.timezone
) -> None:
    try:
        elsewhere = instant.astimezone(zone)
    except OverflowError:
        return
    assert encode_value(elsewhere) == encode_value(instant)


@QUICK
@given(one=st.lists(keys, max_size=3), other=st.lists(keys, max_size=3))
def test_keys_of_several_values_are_told_apart_by_every_value_and_their_number(
    one: list[Any], other: list[Any]
) -> None:
    assert (encode_key(one) == encode_key(other)) == (canonical(one) == canonical(other))


@QUICK
@given(key=st.lists(keys, min_size=1, max_size=3), tasks=st.integers(1, 100))
def test_a_task_is_one_of_the_tasks(key: list[Any], tasks: int) -> None:
    assert 0 <= task_for_key(key, tasks) < tasks
    first, second = two_tasks_for_key(key, tasks)
    assert 0 <= first < tasks
    assert 0 <= second < tasks
    assert (first == second) == (tasks == 1)


def test_keys_spread_over_the_tasks() -> None:
    counts = [0] * 8
    for i in range(8000):
        counts[task_for_key((f"user-{i}",), 8)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


@pytest.mark.rule(16, 17)
@QUICK
@given(
    words=st.lists(st.sampled_from(["a", "b", 1, 1.0, True, None, "1", (1, "a")]), max_size=50),
    tasks=st.integers(1, 5),
    sender=st.integers(0, 9),
)
def test_every_grouping_delivers_every_tuple_and_the_same_way_when_computed_again(
    words: list[Any], tasks: int, sender: int
) -> None:
    attempt = TransactionAttempt(3, 0)
    for kind, fields in [
        ("shuffle", None),
        ("fields", Fields("w")),
        ("partial_key", Fields("w")),
        ("global", None),
        ("all", None),
        ("none", None),
    ]:
        runs = []
        for _ in range(2):
            got: list[list[Any]] = [[] for _ in range(tasks)]
            grouping = Grouping(kind, fields)  # type: ignore[arg-type]
            memory = route.SenderMemory(grouping, sender, 3, tasks)
            send = route.make_send(
                grouping, Fields("tx", "w", "i"), sender, [task.append for task in got], memory
            )
            for i, word in enumerate(words):
                send((attempt, word, i))
            runs.append(got)
        assert runs[0] == runs[1]
        delivered = sorted(row[2] for task in runs[0] for row in task)
        assert delivered == sorted(list(range(len(words))) * (tasks if kind == "all" else 1))
        assert all(
            [row[2] for row in task] == sorted(row[2] for row in task) for task in runs[0]
        ), "in the order of emission"
        if kind == "partial_key":
            assert all(
                task in two_tasks_for_key((row[1],), tasks)
                for task, of_task in enumerate(runs[0])
                for row in of_task
            )
        if kind == "shuffle":
            assert max(map(len, runs[0])) - min(map(len, runs[0])) <= 1
        if kind == "fields":
            for (one, of_one), (other, of_other) in itertools.combinations(enumerate(runs[0]), 2):
                assert not {encode_value(row[1]) for row in of_one} & {
                    encode_value(row[1]) for row in of_other
                }, (one, other)
