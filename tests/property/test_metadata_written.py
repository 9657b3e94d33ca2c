"""Metadata that is accepted where a spout makes it can be written, and comes back equal."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txtopo.state import records
from txtopo.state.memory import MemoryStateStore
from txtopo.state.positions import Positions
from txtopo.topology import metadata

pytestmark = pytest.mark.property


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**80


class Name(enum.StrEnum):
    FIRST = "one"
    SECOND = "two"


class Text(str):
    """Text of a class of the user's, as NumPy has one."""


TEXTS = st.one_of(
    st.text(max_size=5),
    st.text(st.sampled_from("a\ud83d\ude00\udc80ä"), max_size=4),
    st.sampled_from(Name),
    st.builds(Text, st.text(max_size=3)),
)
HUGE = st.integers(1, 10).map(lambda power: 10 ** (1000 * power))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    HUGE,
    st.floats(),
    TEXTS,
    st.sampled_from(Level),
    st.binary(max_size=2),
)
KEYS = st.one_of(TEXTS, st.integers(0, 2), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)


def equal(value: Any, back: Any) -> bool:
    """Whether ``back`` is ``value``, with a list for every tuple."""
    if isinstance(value, list | tuple):
        return isinstance(back, list) and len(value) == len(back) and all(map(equal, value, back))
    if isinstance(value, dict):
        return len(value) == len(back) and all(
            equal(item, back[str.__str__(key)]) for key, item in value.items()
        )
    return bool(value == back)


def accepted(value: Any) -> Any:
    """``value`` as it is accepted; ``None`` if it is refused."""
    try:
        return metadata.to_json(value)
    except ValueError:
        return None


@given(VALUES)
@pytest.mark.rule(25)
def test_accepted_metadata_is_written_and_read_as_it_was(value: Any) -> None:
    plain = accepted(value)
    if plain is None:
        return
    assert equal(value, plain)
    record = records.TxidRecord(txid=1, metadata={"partitions": {"0": plain}})
    assert records.TxidRecord.decode("/p", record.encode()).metadata == {"partitions": {"0": plain}}
    positions = Positions(MemoryStateStore(), "/positions")
    positions.operations({0: plain})
    positions.apply({0: plain})
    assert positions.all() == {0: plain}


@pytest.mark.parametrize("depth", [1, 50, 100, 101, 300, 600, 900])
@pytest.mark.rule(25)
def test_metadata_nested_so_deeply_that_it_is_accepted_can_be_written(depth: int) -> None:
    value: Any = "innermost"
    for level in range(depth):
        value = [value] if level % 2 else {"inner": value}
    plain = accepted(value)
    assert (plain is not None) == (depth <= 100)
    record = records.TxidRecord(txid=1, metadata={"partitions": {"0": plain}})
    assert records.TxidRecord.decode("/p", record.encode()) == record
