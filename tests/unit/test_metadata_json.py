"""Metadata is JSON that comes back as it was, or it is refused where it is made, with the path."""

from __future__ import annotations

import contextlib
import enum
import json
from typing import Any

import pydantic
import pytest

from tests.wrong.circles import CIRCLES
from txtopo import plain_json
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


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a list", "$.new[0]"),
        ("a list with itself twice", "$.new[0]"),
        ("a dict", "$.new.a"),
        ("a tuple", "$.new[0][0]"),
        ("several", "$.new[0].a[0]"),
    ],
)
def test_a_value_that_contains_itself_is_refused_with_the_path(name: str, path: str) -> None:
    for write in (to_json, plain_json.dumps, plain_json.encode):
        with pytest.raises(
            NotJsonError, match="the value contains itself; plain values"
        ) as refused:
            write({"old": [[], []], "new": CIRCLES[name]})
        assert refused.value.path == path


def test_a_value_twice_beside_itself_does_not_contain_itself() -> None:
    once: list[int] = [1]
    assert plain_json.dumps([once, once]) == "[[1],[1]]"
    with pytest.raises(NotJsonError, match="the key 1"):
        plain_json.dumps([once, once, {1: once}])
    assert to_json({"a": once, "b": [once, once]}) == {"a": [1], "b": [[1], [1]]}


@pytest.mark.parametrize("depth", [400, 700, 900, 1200, 20_000])
def test_a_value_is_written_or_refused_at_any_depth(depth: int) -> None:
    value: Any = []
    for _ in range(depth):
        value = [value]
    with contextlib.suppress(NotJsonError):
        assert plain_json.dumps(value) == "[" * (depth + 1) + "]" * (depth + 1)


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
