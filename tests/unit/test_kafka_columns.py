"""Records of Kafka in columns: the same rows as in tuples over hostile records, and both refuse a
record by its place."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import txtopo.connectors.kafka
from tests.topologies.planned_spouts import Collected, task_context
from tests.unit.test_hostile_files import (
    COLUMNS_REFUSE,
    FIELDS,
    JSON_ACCEPTED,
    JSON_REFUSED,
    SCHEMA,
)
from txtopo import Fields, TransactionAttempt
from txtopo.connectors.kafka import (
    KafkaColumnSpout,
    KafkaTransactionalSpout,
    OpaqueKafkaColumnSpout,
    reading,
)
from txtopo.connectors.kafka.records import PARTS
from txtopo.errors import ConfigError, InputError
from txtopo.topology.conf import TopologyConf
from txtopo.topology.stream import OutputFieldsDeclarer

SERVERS = "127.0.0.1:9092"
BOM = b"\xef\xbb\xbf"
Rows = list[tuple[Any, ...]]


@dataclass
class Message:
    """A record as ``confluent_kafka.Message`` shows it."""

    data: bytes | None
    number: int = 0
    name: bytes | None = None
    time: tuple[int, int] = (1, 1_700_000_000_000)
    more: list[tuple[str, bytes | None]] | None = None
    place: tuple[str, int] = field(default=("orders", 3))

    def value(self) -> bytes | None:
        return self.data

    def key(self) -> bytes | None:
        return self.name

    def offset(self) -> int:
        return self.number

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.more


def messages(values: Iterable[bytes | None]) -> list[Message]:
    return [Message(value, number) for number, value in enumerate(values)]


def emitted(
    spout: Any, of_log: Sequence[Message], monkeypatch: pytest.MonkeyPatch, at_once: int = 1000
) -> Collected:
    """The emissions of ``spout`` for these messages."""

    class Reader:
        def records(self, metadata: Any) -> Iterable[list[Message]]:
            for begin in range(0, len(of_log), at_once):
                yield list(of_log[begin : begin + at_once])

    monkeypatch.setattr(reading, "reader_of", lambda context, source: Reader())
    attempt = TransactionAttempt(1, 0)
    collector = Collected(attempt)
    spout.get_emitter(TopologyConf({}), task_context()).emit_planned_partition_batch(
        attempt, collector, 0, {}
    )
    return collector


def rows(
    spout: Any, of_log: Sequence[Message], monkeypatch: pytest.MonkeyPatch, at_once: int = 1000
) -> Rows | str:
    """The rows without the attempt; or the beginning of the error."""
    try:
        return [row[1:] for row in emitted(spout, of_log, monkeypatch, at_once).rows]
    except InputError as error:
        return str(error).split(": ")[1]


HOSTILE = [
    Message(b"", 1, b"", (0, 0), []),
    Message(None, 2, None, (2, -1), [("a", b"1"), ("a", None), ("", b"")]),
    Message(
        b"\x00\r\n\xe2\x82\xac", 7, b"\xf0\x9f\x98\x80", (1, (1 << 63) - 1), [("\u20ac", b"\xff")]
    ),
    Message("e\u0301".encode(), (1 << 63) - 1, b"key"),
    Message(b"x" * 100_000, 9),
]
NO_TEXT = [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"]


@pytest.mark.rule(38)
@pytest.mark.parametrize("format", ["bytes", "text"])
@pytest.mark.parametrize("fields", [PARTS, ("value",), ("headers", "key")])
def test_parts_of_records_are_the_same_in_tuples_and_in_columns(
    monkeypatch: pytest.MonkeyPatch, format: Any, fields: tuple[str, ...]
) -> None:
    of_tuples = rows(
        KafkaTransactionalSpout(SERVERS, "orders", fields=fields, format=format),
        HOSTILE,
        monkeypatch,
    )
    assert isinstance(of_tuples, list)
    for at_once in (1, 2, 5):
        spout = KafkaColumnSpout(SERVERS, "orders", fields=fields, format=format)
        assert rows(spout, HOSTILE, monkeypatch, at_once) == of_tuples


@pytest.mark.rule(38)
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("data", NO_TEXT)
def test_bytes_that_are_not_utf_8_are_refused_or_replaced_in_both_forms(
    monkeypatch: pytest.MonkeyPatch, part: str, data: bytes
) -> None:
    log = [Message(b"a", 1, b"a"), Message(data, 4, data), Message(None, 5, None)]
    for errors in ("strict", "replace"):
        taken: dict[str, Any] = {"fields": (part, "offset"), "format": "text", "errors": errors}
        of_tuples = rows(KafkaTransactionalSpout(SERVERS, "orders", **taken), log, monkeypatch)
        assert rows(KafkaColumnSpout(SERVERS, "orders", **taken), log, monkeypatch) == of_tuples
        assert isinstance(of_tuples, list) == (errors == "replace")
        assert (
            errors == "replace" or of_tuples == "topic orders, partition 3, offset 4 is not UTF-8"
        )


# -- JSON ----------------------------------------------------------------------------------------


def json_answers(
    values: Iterable[bytes | None], monkeypatch: pytest.MonkeyPatch
) -> tuple[Rows | str, Rows | str]:
    """Of tuples, and of columns."""
    log = messages(values)
    of_tuples = rows(
        KafkaTransactionalSpout(SERVERS, "orders", fields=FIELDS, format="json", errors="replace"),
        log,
        monkeypatch,
    )
    columns = KafkaColumnSpout(SERVERS, "orders", format="json", schema=SCHEMA, errors="replace")
    answers = [rows(columns, log, monkeypatch, at_once) for at_once in (1, 3, 1000)]
    assert all(repr(answer) == repr(answers[0]) for answer in answers), answers
    return of_tuples, answers[0]


def values_in(content: bytes) -> list[bytes | None]:
    return [line for line in content.removeprefix(BOM).split(b"\n") if line.strip(b" \t\r")]


@pytest.mark.rule(38)
@pytest.mark.parametrize("content", JSON_ACCEPTED.values(), ids=JSON_ACCEPTED)
def test_objects_are_the_same_in_tuples_and_in_columns(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    values: list[bytes | None] = [None, *values_in(content)]
    of_tuples, of_columns = json_answers(values, monkeypatch)
    assert of_columns == of_tuples
    assert len(of_columns) == len(values)


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "content",
    [*JSON_REFUSED.values(), *COLUMNS_REFUSE.values()],
    ids=[*JSON_REFUSED, *COLUMNS_REFUSE],
)
def test_a_value_that_is_no_object_of_the_schema_is_refused_by_its_place(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """The same values as lines of files, of which the first one is to blame in each case."""
    values = values_in(content)
    spout = KafkaColumnSpout(SERVERS, "orders", format="json", schema=SCHEMA)
    alone = [
        number
        for number, value in enumerate(values)
        if isinstance(rows(spout, messages([value]), monkeypatch), str)
    ]
    assert alone
    for at_once in (1, 2, 1000):
        refused = rows(spout, messages(values), monkeypatch, at_once)
        assert isinstance(refused, str)
        assert refused.startswith(f"topic orders, partition 3, offset {alone[0]} ")


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b'{\n  "w": "cat",\r\n  "n": 1\n}\n', ("cat", 1, None, None, None)),
        (b'\n\n{"w":"a\\nb"}', ("a\nb", None, None, None, None)),
        (b'{"w":"a\nb"}', None),
        (b'{"n":1}\n{"n":2}', None),
        (b'{"n":1}\n', (None, 1, None, None, None)),
        (b"", None),
        (b" \n ", None),
        (BOM + b'{"n":1}', None),
        (b"\n", None),
    ],
)
def test_a_value_may_have_line_ends_and_is_one_object_all_the_same(
    monkeypatch: pytest.MonkeyPatch, value: bytes, row: Any
) -> None:
    spout = KafkaColumnSpout(SERVERS, "orders", format="json", schema=SCHEMA)
    around = b'{"n":0}'
    for values in ([value], [around, value], [value, around], [around, value, around]):
        answer = rows(spout, messages(values), monkeypatch)
        others = [(None, 0, None, None, None)] * values[: values.index(value)].count(around)
        if row is None:
            assert isinstance(answer, str)
            assert answer.startswith(f"topic orders, partition 3, offset {values.index(value)} ")
        else:
            assert answer == [
                *others,
                row,
                *[(None, 0, None, None, None)] * (len(values) - len(others) - 1),
            ]


def test_a_null_value_is_refused_or_is_null_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("n", pa.int64())])
    strict = KafkaColumnSpout(SERVERS, "orders", format="json", schema=schema)
    refused = "topic orders, partition 3, offset 1 has no value\n  Give errors='replace', which makes null columns."
    assert rows(strict, messages([b'{"n":1}', None]), monkeypatch) == refused
    lenient = KafkaColumnSpout(SERVERS, "orders", format="json", schema=schema, errors="replace")
    assert rows(lenient, messages([b'{"n":1}', None]), monkeypatch) == [(1,), (None,)]


def test_columns_of_a_value_take_its_place_among_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("w", pa.string()), ("n", pa.int64())])
    spout = KafkaColumnSpout(
        SERVERS, "orders", fields=("offset", "value", "topic"), format="json", schema=schema
    )
    declarer = OutputFieldsDeclarer()
    spout.declare_output_fields(declarer)
    assert declarer.streams["default"].fields == Fields("tx", "offset", "w", "n", "topic")
    (batch,) = emitted(spout, messages([b'{"w":"a","n":1}', b'{"n":2}']), monkeypatch).batches
    assert batch.schema.types == [
        pa.int64(),
        pa.string(),
        pa.int64(),
        pa.dictionary(pa.int32(), pa.string()),
    ]
    assert declarer.streams["default"].schema == batch.schema.serialize().to_pybytes()
    assert batch.to_pydict() == {
        "offset": [0, 1],
        "w": ["a", None],
        "n": [1, 2],
        "topic": ["orders", "orders"],
    }


@pytest.mark.rule(38)
@pytest.mark.parametrize("content", JSON_REFUSED.values(), ids=JSON_REFUSED)
def test_tuples_and_columns_refuse_the_same_value(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """Bytes that are not UTF-8 are replaced in tuples alone."""
    for value in values_in(content):
        of_tuples, of_columns = json_answers([b"{}", value], monkeypatch)
        if (
            isinstance(of_columns, str)
            and value == (value or b"").decode(errors="replace").encode()
        ):
            assert isinstance(of_tuples, str)
            assert of_tuples.startswith("topic orders, partition 3, offset 1 ")
            assert of_columns.startswith("topic orders, partition 3, offset 1 ")
        elif isinstance(of_columns, list):
            assert of_columns == of_tuples


# -- Avro ----------------------------------------------------------------------------------------


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "more", "type": {"type": "array", "items": "double"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
COLUMNS = pa.schema(
    [
        ("note", pa.string()),
        ("id", pa.int64()),
        ("more", pa.list_(pa.float64())),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("ms", tz="UTC")),
    ]
)


def written(schema: Any, *values: Any, prefix: bytes = b"") -> list[bytes | None]:
    parsed = fastavro.parse_schema(schema)
    encoded: list[bytes | None] = []
    for value in values:
        stream = io.BytesIO()
        stream.write(prefix)
        fastavro.schemaless_writer(stream, parsed, value)
        encoded.append(stream.getvalue())
    return encoded


def order(number: int, note: str | None = None) -> dict[str, Any]:
    return {
        "id": number,
        "note": note,
        "more": [number / 2],
        "price": Decimal("12.50"),
        "at": 1_700_000_000_000 + number,
    }


@pytest.mark.parametrize("schema", [ORDER, json.dumps(ORDER)])
def test_avro_becomes_the_columns_of_the_schema(
    monkeypatch: pytest.MonkeyPatch, schema: Any
) -> None:
    values = written(ORDER, order(1, "a"), order(2))
    spout = KafkaColumnSpout(SERVERS, "orders", format="avro", avro_schema=schema, schema=COLUMNS)
    (batch,) = emitted(spout, messages(values), monkeypatch).batches
    decoded = [
        fastavro.schemaless_reader(io.BytesIO(value or b""), ORDER, None) for value in values
    ]
    assert batch.to_pylist() == [{name: row[name] for name in COLUMNS.names} for row in decoded]
    lenient = KafkaColumnSpout(
        SERVERS, "orders", format="avro", avro_schema=schema, schema=COLUMNS, errors="replace"
    )
    assert rows(lenient, messages([None]), monkeypatch) == [(None,) * 5]


def test_an_id_of_a_schema_registry_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    spout = KafkaColumnSpout(
        SERVERS, "orders", format="avro", avro_schema=ORDER, schema=COLUMNS, schema_id=17
    )
    right, wrong = (
        written(ORDER, order(1), prefix=b"\0" + number.to_bytes(4, "big")) for number in (17, 18)
    )
    assert len(rows(spout, messages(right), monkeypatch)) == 1
    refused = rows(spout, messages([*right, *wrong]), monkeypatch)
    assert isinstance(refused, str)
    assert refused.startswith(
        r"topic orders, partition 3, offset 1 does not begin with the schema id 17, but with b'\x00\x00\x00\x00\x12'"
    )


def test_values_of_several_schemas_are_told_apart_by_their_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer = {**ORDER, "fields": [{"name": "shop", "type": "string"}, *ORDER["fields"]]}
    schema = pa.schema([("id", pa.int64()), ("shop", pa.string())])
    spout = KafkaColumnSpout(
        SERVERS,
        "orders",
        format="avro",
        avro_schema={17: ORDER, 300: json.dumps(newer)},
        schema=schema,
    )
    old, new, other = (
        written(of, {**order(number), "shop": "tea"}, prefix=b"\0" + id.to_bytes(4, "big"))
        for number, (id, of) in enumerate([(17, ORDER), (300, newer), (18, ORDER)])
    )
    assert rows(spout, messages([*new, *old]), monkeypatch) == [(1, "tea"), (0, None)]
    assert "offset 1 does not begin with the schema id 17 or 300, but with" in str(
        rows(spout, messages([*old, *other]), monkeypatch)
    )


def test_avro_that_breaks_off_or_goes_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spout = KafkaColumnSpout(SERVERS, "orders", format="avro", avro_schema=ORDER, schema=COLUMNS)
    (whole,) = written(ORDER, order(1, "note"))
    assert whole is not None
    for value in [
        *(whole[:cut] for cut in range(len(whole))),
        whole + b"\0",
        whole + whole,
        b"\xff" * 100,
    ]:
        refused = rows(spout, messages([whole, value]), monkeypatch)
        assert isinstance(refused, str), value
        assert refused.startswith("topic orders, partition 3, offset 1 "), refused


def test_a_value_of_avro_that_its_column_would_change_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spout = KafkaColumnSpout(
        SERVERS, "orders", format="avro", avro_schema=ORDER, schema=pa.schema([("id", pa.int8())])
    )
    refused = rows(spout, messages(written(ORDER, order(1), order(300))), monkeypatch)
    assert isinstance(refused, str)
    assert refused.startswith(
        "topic orders, partition 3, offset 1 has 300 in field 'id', which is no value of a column of type int8"
    )


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"format": "csv"}, "format is 'csv'\n  Give one of 'bytes', 'text', 'json', 'avro'"),
        ({"format": len}, "Give one of 'bytes', 'text', 'json', 'avro'"),
        ({"fields": ()}, "Give some of key, value, topic"),
        ({"fields": ("word",)}, "Give some of key, value, topic"),
        ({"fields": ("value", "value")}, "there are two columns 'value'"),
        ({"errors": "ignore"}, "errors is 'ignore'\n  Give 'strict' or 'replace'"),
        ({"format": "json"}, "format is 'json', schema is None"),
        ({"format": "json", "schema": {"n": "long"}}, "Give the columns and their types"),
        (
            {"format": "json", "schema": SCHEMA, "fields": ("key",)},
            "take the place of 'value' in fields",
        ),
        (
            {
                "format": "json",
                "schema": pa.schema([("key", pa.string())]),
                "fields": ("key", "value"),
            },
            "there are two columns 'key'",
        ),
        (
            {"format": "json", "schema": pa.schema([("t", pa.time64("us"))])},
            "Declare types that JSON has",
        ),
        ({"schema": SCHEMA}, "schema is for values in JSON or Avro"),
        ({"format": "avro", "schema": SCHEMA}, "avro_schema and format='avro' go together"),
        (
            {"format": "json", "schema": SCHEMA, "avro_schema": ORDER},
            "avro_schema and format='avro' go together",
        ),
        (
            {"format": "avro", "schema": SCHEMA, "avro_schema": ORDER},
            "avro_schema has no field 'w', but has 'id', 'note'",
        ),
        (
            {"format": "avro", "schema": COLUMNS, "avro_schema": '"long"'},
            "Give a record schema",
        ),
        ({"format": "avro", "schema": COLUMNS, "avro_schema": "{"}, "avro_schema is no JSON"),
        (
            {"format": "avro", "schema": COLUMNS, "avro_schema": ORDER, "schema_id": "17"},
            "Give the number that a schema registry gave",
        ),
        (
            {"format": "avro", "schema": COLUMNS, "avro_schema": {17: ORDER, "18": ORDER}},
            "schema_id is '18'\n  Give the number",
        ),
        (
            {"format": "avro", "schema": COLUMNS, "avro_schema": {17: ORDER, -1: ORDER}},
            "schema_id is -1\n  Give the number",
        ),
        (
            {"format": "avro", "schema": COLUMNS, "avro_schema": {17: ORDER, 18: "{}"}},
            "avro_schema is '{}'\n  Give a record schema",
        ),
        (
            {"format": "avro", "schema": COLUMNS, "avro_schema": {17: ORDER}, "schema_id": 17},
            "Give a record schema",
        ),
        (
            {"format": "avro", "schema": COLUMNS, "avro_schema": {}},
            "avro_schema is '{}'\n  Give a record schema",
        ),
        ({"format": "bytes", "schema_id": 17}, "Give the number that a schema registry gave"),
        ({"records_per_batch": 0}, "records_per_batch is 0"),
        ({"client": {"group.id": "g"}}, "is not for users"),
    ],
)
@pytest.mark.parametrize("spout", [KafkaColumnSpout, OpaqueKafkaColumnSpout])
def test_impossible_arguments_are_refused(spout: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        spout(SERVERS, "orders", **arguments)
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["KafkaColumnSpout", "OpaqueKafkaColumnSpout"])
def test_spouts_of_columns_are_imported_when_they_are_asked_for(name: str) -> None:
    assert getattr(txtopo.connectors.kafka, name).emits_columns
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = txtopo.connectors.kafka.nothing
