"""Rows as JSON objects: the quick way writes what the general way writes, and refuses what it
refuses."""

from __future__ import annotations

import enum
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from txtopo import plain_json
from txtopo.connectors.files import formats


class Colour(enum.IntEnum):
    RED = 1


ANY_TEXT = st.text(st.characters(codec=None), max_size=5)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    ANY_TEXT,
    st.sampled_from([Colour.RED, 10**5000, b"", [1], {"a": None}, '"%s\\\n', -0.0]),
)


@examples(300)
@given(st.dictionaries(ANY_TEXT, VALUES, min_size=1, max_size=4))
def test_a_row_is_written_as_json_gives_it_back_or_refused(row: dict[str, object]) -> None:
    encode = formats.json_encoder([*row])
    try:
        expected = plain_json.encode(row) + b"\n"
    except plain_json.NotJsonError as error:
        why = re.escape(str(error))
    else:
        assert encode([*row.values()]) == expected
        assert json.loads(expected) == row
        return
    with pytest.raises(formats.RefusedError, match=why):
        encode([*row.values()])
