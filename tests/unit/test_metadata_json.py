"""Metadata is JSON that comes back as it was, or it is refused where it is made, with the path."""

from __future__ import annotations

import enum
import json
from typing import Any

import pydantic
import pytest

from txtopo.plain_json import NotJsonError
from txtopo.topology.metadata import from_json, to_json


class Level(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "1"


class Text(str):
    """A string of a class of the user's."""


class Position(pydantic.BaseModel):
    file: str
    offset: int = 0


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(10**30), 1.5, "", "ä\n", [], {}, {"a": [1, {"b": None}]}, [[1], [2.0, "x"]]],
    ids=repr,
)
def test_plain_json_is_kept_as_it_is(value: Any) -> None:
    assert to_json(value) == value
    assert json.loads(json.dumps(to_json(value))) == value
    assert from_json(to_json(value)) == value


def test_tuples_come_back_as_lists_so_they_become_lists_at_once() -> None:
    assert to_json({"range": (1, (2, 3))}) == {"range": [1, [2, 3]]}


def test_a_value_of_a_subclass_becomes_the_plain_value_it_equals_at_once() -> None:
    stored = to_json({"level": Level.ONE, "names": [Text("a"), Word.ONE], Word.ONE: 2})
    assert stored == {"level": 1, "names": ["a", "1"], "1": 2}
    assert {type(value) for value in (stored["level"], *stored["names"], *stored)} == {int, str}


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        (float("nan"), "$", "nan has no form in JSON"),
        (float("-inf"), "$", "-inf has no form in JSON"),
        ({1: "a"}, "$", "the key 1 is a int and would come back as a string"),
        ({"a": {None: 1}}, "$.a", "the key None is a NoneType"),
        ({"offsets": [0, {1, 2}]}, "$.offsets[1]", "a value of type set"),
        ([1, (2, b"x")], "$[1][1]", "a value of type bytes"),
        ({"n": [10**5000]}, "$.n[0]", "an int of more digits than Python reads back"),
        ({"file": "\ud83d\ude00"}, "$.file", "text with two surrogates in a row"),
        ({"\ud83d\ude00": 1}, "$", "text with two surrogates in a row"),
        (object(), "$", "a value of type object"),
        (Position(file="a"), "$", "a value of type Position"),
    ],
    ids=lambda value: "huge" if value == {"n": [10**5000]} else ascii(value)[:14],
)
def test_a_value_that_json_would_change_is_refused_with_its_path(
    value: Any, path: str, why: str
) -> None:
    with pytest.raises(NotJsonError) as refused:
        to_json(value)
    assert refused.value.path == path
    assert why in str(refused.value)
    assert str(refused.value).endswith(
        "plain values are None, bool, int, finite float, str, lists, and dicts with str keys"
    )


def test_a_model_travels_as_json_and_comes_back_as_itself() -> None:
    stored = to_json(Position(file="a", offset=3), Position)
    assert stored == {"file": "a", "offset": 3}
    assert from_json(stored, Position) == Position(file="a", offset=3)


def test_no_metadata_is_no_model() -> None:
    assert from_json(None, Position) is None
    assert to_json(None, Position) is None


def test_plain_data_is_allowed_also_where_a_model_is_named() -> None:
    assert from_json(to_json({"file": "a"}, Position), Position) == Position(file="a")


def test_stored_metadata_is_a_copy() -> None:
    metadata = {"offsets": [1]}
    stored = to_json(metadata)
    metadata["offsets"].append(2)
    assert stored == {"offsets": [1]}
