"""Lines of JSON are parsed quickly where nothing can be wrong, and carefully elsewhere: both ways
give the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.test_files_in_columns import JSON_LINES
from tests.unit.test_hostile_files import JSON_ACCEPTED, JSON_REFUSED
from txtopo.connectors import json_lines

QUICK = examples(400)
FIELDS = ("a", "w", "n", "o")

SCALARS = st.sampled_from(
    [
        "1",
        "-0",
        "0.5",
        "1e5",
        "1e400",
        "-1E+400",
        "1e0400",
        "1e-400",
        "1e308",
        "1e309",
        "9" * 309,
        "9" * 320 + ".5",
        "9" * 250 + "e99",
        "1" * 5000,
        "0." + "1" * 300,
        "true",
        "null",
        "NaN",
        "Infinity",
        "-Infinity",
        '"a"',
        '":"',
        '": "',
        '"\\":"',
        '"{"',
        '"1e400"',
        '"1e400,"',
        '"\\ud800"',
        '"\\uDC00"',
        '"\\ud83d\\ude00"',
        '"\\ud83d\\ud83d\\ude00"',
        '"\\ude00\\ud83d"',
        '"\\\\ud83d\\ude00"',
        '"\\\\ud800"',
        '"\\\\\\ud83d\\ude00"',
        '"\\ud55c"',
        '"\u00e9"',
    ]
)
NAMES = st.sampled_from(
    ['"a"', '"a"', '"n"', '"o"', '"\\u0061"', '"a:"', '":"', '""', '"a\\""', '"a "', '"\\ud800"']
)
COLONS = st.sampled_from([":", ": ", ":", " :", "\t:", "\r:", " \t: "])


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Objects as texts, in which a name may come twice."""
    fields = st.lists(st.tuples(NAMES, COLONS, values).map("".join), max_size=4)
    return fields.map(lambda some: "{" + ",".join(some) + "}")


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        objects(inner) | st.lists(inner, max_size=3).map(lambda some: "[" + ", ".join(some) + "]")
    ),
    max_leaves=6,
)
LINES = (
    objects(VALUES)
    | st.tuples(
        st.sampled_from(["", " ", "1"]),
        objects(VALUES) | SCALARS,
        st.sampled_from(["", " ", "}", "{}", "\r"]),
    ).map("".join)
    | JSON_LINES.map(lambda line: line.decode("utf-8", "replace"))
)


def answer(line: str, is_strict: bool, is_sure: bool) -> str:
    try:
        return repr(list(json_lines.Decoder(FIELDS).values(line, is_strict, is_sure)))
    except json_lines.LineError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.rule(38)
@QUICK
@given(lines=st.lists(LINES, min_size=1, max_size=3), is_strict=st.booleans())
@example(lines=['{"a":1,"a":2}'], is_strict=False)
@example(lines=['{"a":{"b" :1,"b":2},"n":":"}'], is_strict=False)
@example(lines=['{"a":1e400}'], is_strict=False)
@example(lines=['{"a":"\\ud800"}'], is_strict=False)
def test_a_line_parsed_quickly_gives_the_same_as_one_parsed_carefully(
    lines: list[str], is_strict: bool
) -> None:
    are_sure = json_lines.is_sure("\n".join(lines))
    for line in lines:
        careful = answer(line, is_strict, is_sure=False)
        assert answer(line, is_strict, is_sure=json_lines.is_sure(line)) == careful
        assert json_lines.is_sure(line) or not are_sure
        if are_sure:
            assert answer(line, is_strict, is_sure=True) == careful


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "content",
    [*JSON_ACCEPTED.values(), *JSON_REFUSED.values()],
    ids=[*JSON_ACCEPTED, *JSON_REFUSED],
)
@pytest.mark.parametrize("is_strict", [True, False])
def test_a_hostile_line_gives_the_same_quickly_and_carefully(
    content: bytes, is_strict: bool
) -> None:
    for line in content.decode(errors="replace").split("\n"):
        assert answer(line, is_strict, is_sure=json_lines.is_sure(line)) == answer(
            line, is_strict, is_sure=False
        )


ORDINARY: list[Any] = [
    {"a": "cat", "n": 12},
    {"a": "caf\u00e9 \U0001f600 \ud55c", "n": -1.5e-7},
    {"a": "https://example.org/?at=12:30:00", "o": "2026-01-01T00:00:00Z"},
    {"a": {"b": [1, {"a": 1}], "c": {}}, "n": [[], {}]},
    {"a": "0b9f3e4005ab4e123bcd", "n": 1e30},
]


@pytest.mark.parametrize("value", ORDINARY)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_an_ordinary_line_is_parsed_quickly(
    value: Any, separators: tuple[str, str], is_ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps(value, separators=separators, ensure_ascii=is_ascii)
    monkeypatch.delattr(json_lines.Decoder, "object")
    assert json_lines.is_sure(line)
    assert list(json_lines.Decoder(FIELDS).values(line, is_strict=False, is_sure=True)) == [
        value.get(field) for field in FIELDS
    ]
