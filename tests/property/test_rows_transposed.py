"""Rows that travel column by column arrive as they were: the same values, of the same types, as if
each row had been pickled."""

from __future__ import annotations

import enum
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from txtopo import TransactionAttempt
from txtopo.dataplane import row_encoding, wire

pytestmark = pytest.mark.rule(14)

ATTEMPT = TransactionAttempt(1, 0)
QUICK = examples(150)


class Colour(str, enum.Enum):  # noqa: UP042 - a text that is more than a text
    RED = "red"


texts = st.text(st.characters(exclude_categories=()), max_size=6) | st.sampled_from(
    ["", "\0", "a\0b", "\ud800", "\n", "cat"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.binary(max_size=5)
    | st.just(Colour.RED)
    | texts
)
columns = st.sampled_from(
    [texts, scalars, st.lists(scalars, max_size=2), st.integers(0, 1) | st.booleans()]
)
tables = st.lists(columns, min_size=0, max_size=3).flatmap(
    lambda kinds: st.lists(st.tuples(st.just(ATTEMPT), *kinds), min_size=1, max_size=12)
)


def there_and_back(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    ((stream, arrived),) = wire.unpack_runs(wire.pack_runs([("default", rows)], "run"))
    assert stream == "default"
    return list(arrived)


def typed(value: Any) -> Any:
    """``value`` with the types of all that is in it, because 1 == 1.0 == True."""
    return (
        (type(value), [typed(item) for item in value])
        if isinstance(value, list | tuple)
        else (type(value), value)
    )


@QUICK
@given(rows=tables)
def test_rows_arrive_as_if_they_had_been_pickled_one_by_one(rows: list[tuple[Any, ...]]) -> None:
    assert typed(there_and_back(rows)) == typed(pickle.loads(pickle.dumps(rows)))


def test_a_column_of_texts_is_joined_and_one_with_the_separator_is_not() -> None:
    kinds = [
        kind
        for kind, _ in row_encoding.columns_of(
            [(ATTEMPT, "a", "b", "x"), (ATTEMPT, "c", "\0", Colour.RED)]
        )
    ]
    assert kinds == ["same", "text", "values", "values"]


def test_objects_shared_by_rows_are_shared_on_arrival() -> None:
    shared = [1]
    first, second, third = there_and_back(
        [(ATTEMPT, shared, shared), (ATTEMPT, shared, [2]), (ATTEMPT, [1], shared)]
    )
    assert first[1] is first[2] is second[1] is third[2]
    assert third[1] == first[1]
    assert third[1] is not first[1]
    assert first[0] is second[0] is third[0]


def test_rows_of_different_lengths_are_an_error_and_never_cut() -> None:
    with pytest.raises(ValueError, match="shorter"):
        row_encoding.columns_of([(ATTEMPT, "a", 1), (ATTEMPT, "b")])
