"""Records of Kafka as tuples: parts, formats, and records that are not as the format says."""

from __future__ import annotations

from typing import Any

import pytest

from txtopo.connectors.kafka import records
from txtopo.errors import ConfigError, InputError

Headers = list[tuple[str, bytes | None]]


class Message:
    """As much of a ``confluent_kafka.Message`` as a format may ask for."""

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: tuple[int, int] = (1, 1_700_000_000_000),
    ) -> None:
        place = {"topic": "orders", "partition": 3, "offset": 17}
        self._parts = {
            "value": value,
            "key": key,
            "headers": headers,
            "timestamp": timestamp,
            **place,
        }

    def __getattr__(self, name: str) -> Any:
        return lambda: self._parts[name]


def rows(
    fields: tuple[str, ...], format: Any, *messages: Message, errors: str = "strict"
) -> list[Any]:
    return [
        tuple(row)
        for row in records.converter("Kafka spout", fields, format, errors)(list(messages))
    ]


def test_bytes_are_as_they_were_and_null_is_none() -> None:
    assert rows(("key", "value"), "bytes", Message(b"\xff\x00", b""), Message(None)) == [
        (b"", b"\xff\x00"),
        (None, None),
    ]
    assert rows(("value",), "bytes", Message(b"a"), Message(None)) == [(b"a",), (None,)]


def test_text_is_utf_8_and_null_is_none() -> None:
    assert rows(("key", "value"), "text", Message("é".encode(), None), Message(None, b"")) == [
        (None, "é"),
        ("", None),
    ]


def test_bytes_that_are_no_text_are_named_by_their_place_or_replaced() -> None:
    with pytest.raises(
        InputError,
        match=r"topic orders, partition 3, offset 17 is not UTF-8(.|\n)*format='bytes'(.|\n)*errors='replace'",
    ):
        rows(("value",), "text", Message(b"\xff"))
    with pytest.raises(InputError, match="offset 17 is not UTF-8"):
        rows(("key",), "text", Message(b"a", b"\xff"))
    assert rows(("value",), "text", Message(b"a\xffb"), errors="replace") == [("a\ufffdb",)]


def test_the_place_the_time_and_the_headers_of_a_record_are_fields() -> None:
    headers: Headers = [("trace", b"1"), ("trace", b"2"), ("none", None)]
    fields = ("topic", "partition", "offset", "timestamp", "headers")
    message = Message(b"", headers=headers)
    assert rows(fields, "bytes", message, Message(b"", timestamp=(0, -1))) == [
        ("orders", 3, 17, 1_700_000_000_000, headers),
        ("orders", 3, 17, None, []),
    ]


def test_json_gives_fields_of_the_object() -> None:
    message = Message(b' {"b": [1, {"c": null}], "a": "\\u00e9", "more": 1.5}\n')
    assert rows(("a", "b"), "json", message) == [("é", [1, {"c": None}])]


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"a": 1} {"a": 2}', "is not JSON"),
        (b"[1]", "is not a JSON object but a list"),
        (b"null", "is not a JSON object but a NoneType"),
        (b'"a"', "is not a JSON object but a str"),
        (b'{"a": NaN}', "is not JSON: NaN is no number"),
        (b'{"a": Infinity}', "Infinity is no number"),
        (b'{"a": 1e400}', "1e400 is beyond the numbers of 64 bits"),
        (b'{"a": 1, "a": 2}', "gives the field 'a' more than once"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"b": 1}', "has no field 'a'; it has 'b'"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        (None, "is no JSON object: its value is null"),
    ],
)
def test_a_value_that_is_no_object_as_expected_is_named_by_its_place(
    value: bytes | None, mistake: str
) -> None:
    for messages in ([Message(value)], [Message(b'{"a": 1}'), Message(value)]):
        with pytest.raises(InputError) as raised:
            rows(("a",), "json", *messages)
        assert str(raised.value).startswith("Kafka spout: topic orders, partition 3, offset 17 ")
        assert mistake in str(raised.value)
        assert "\n  " in str(raised.value)


def test_one_doubtful_record_does_not_change_the_others() -> None:
    assert rows(
        ("a",), "json", Message(b'{"a": 1}'), Message(b'{"a" : 2}'), Message(b'{"a": 1e100}')
    ) == [(1,), (2,), (1e100,)]


def test_missing_fields_and_null_values_are_none_with_replace() -> None:
    assert rows(("a", "b"), "json", Message(b'{"b": 1}'), Message(None), errors="replace") == [
        (None, 1),
        (None, None),
    ]
    with pytest.raises(InputError, match="is not JSON"):
        rows(("a",), "json", Message(b"{"), errors="replace")


def test_a_callable_makes_values_or_passes_over() -> None:
    def pairs(message: Any) -> tuple[Any, ...] | None:
        return None if message.value() is None else (message.key(), len(message.value()))

    assert rows(("key", "length"), pairs, Message(b"abc", b"k"), Message(None), Message(b"")) == [
        (b"k", 3),
        (None, 0),
    ]


@pytest.mark.parametrize("row", ["ab", (1,), (1, 2, 3), 5, {"a": 1}])
def test_a_callable_that_makes_something_else_is_named(row: Any) -> None:
    with pytest.raises(
        InputError,
        match=r"format made .* from topic orders, partition 3, offset 17\n  Return 2 values, or None",
    ):
        rows(("a", "b"), lambda message: row, Message(b""))


def test_the_error_of_a_callable_says_which_record_it_was_given() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        rows(("a",), lambda message: 1 / 0, Message(b""))
    assert raised.value.__notes__ == ["format was given topic orders, partition 3, offset 17"]


@pytest.mark.parametrize(
    ("fields", "format", "errors", "message"),
    [
        (
            ("value", "size"),
            "bytes",
            "strict",
            "a record has no field 'size'\n  Give some of key, value",
        ),
        ((), "bytes", "strict", "fields is empty"),
        ((), "json", "strict", "fields is empty"),
        (
            ("value",),
            "avro",
            "strict",
            "format is 'avro'\n  Give one of 'bytes', 'text', 'json', or a callable",
        ),
        (("value",), "text", "ignore", "errors is 'ignore'\n  Give 'strict' or 'replace'"),
    ],
)
def test_fields_and_formats_that_do_not_go_together_are_refused(
    fields: tuple[str, ...], format: str, errors: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        records.converter("Kafka spout", fields, format, errors)
