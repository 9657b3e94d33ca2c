"""Keys and values that are written without JSON's help have JSON's text: a store is the same under
both writers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from txtopo.stores import keys

LONG = [10**15, 10**15 - 1, 10**15 + 1, 10**30, 2**63]
NUMBERS = [0, 1, 7, *LONG, *(-number for number in [1, 7, *LONG])]


@pytest.mark.parametrize(
    "value", [*NUMBERS, True, False, None, 1.0, "7", "", "1_0", [1], {"1": 2}], ids=repr
)
def test_a_value_has_the_text_of_json_and_comes_back_as_it_was(value: Any) -> None:
    text = keys.encode_value(value)
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    back = keys.decode_value(text)
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "dog",
        'a "quoted" \\ one',
        "a\nb\x00c\x7f",
        "größer",
        "日本",
        "true",
        "7",
        *NUMBERS,
        ("a", 7),
        (),
    ],
    ids=repr,
)
def test_a_key_has_the_text_of_json_and_comes_back_as_it_was(key: Any) -> None:
    text = keys.encode_key(key)
    assert text == json.dumps(key, ensure_ascii=False, separators=(",", ":"))
    assert keys.decode_key(text) == key


@pytest.mark.parametrize("text", ["007", "1_000", "٣", "²", " 7", "7 "], ids=ascii)
def test_a_text_that_is_no_number_to_json_is_none_here_or_reads_alike(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    try:
        value = keys.decode_value(text)
    except ValueError:
        value = None
    assert value == expected
