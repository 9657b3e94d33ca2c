"""RecordBatches as bytes and as rows: no row is lost or moved, and no piece is above its bound."""

from __future__ import annotations

import datetime
import decimal
import pickle
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.test_columns_routing import ATTEMPT, BERLIN, batches
from txtopo.dataplane import column_runs, wire
from txtopo.dataplane.columns import batches as column_batches

QUICK = examples(75)


def rows(batch: pa.RecordBatch) -> list[Any]:
    return [row[1:] for row in column_batches.rows(batch, ATTEMPT)]


def same(one: list[Any], other: list[Any]) -> bool:
    """Equal, where nan is equal to nan."""
    return repr(one) == repr(other)


@pytest.mark.rule(17)
@QUICK
@given(given_batches=st.lists(batches(), max_size=5), bound=st.none() | st.integers(1500, 5000))
def test_columns_come_out_of_a_lane_as_they_went_in(
    given_batches: list[pa.RecordBatch], bound: int | None
) -> None:
    mixed: list[Any] = []
    for i, batch in enumerate(given_batches):
        mixed += [(ATTEMPT, "row", i), batch]
    packed = column_runs.packed([("s", mixed), ("t", mixed[:1])], bound)
    if bound is not None:
        payloads = wire.dump_runs(packed, "run", bound, "a test")
        assert all(len(payload) <= bound for payload in payloads)
        packed = [
            (name, list(items)) for payload in payloads for name, items in wire.unpack_runs(payload)
        ]
    came: list[Any] = []
    for name, items in packed:
        stream = column_runs.stream_of(name) if column_runs.is_run(name) else name
        for each in column_runs.unpacked(items) if column_runs.is_run(name) else items:
            came += [(stream, row) for row in (rows(each) if column_runs.is_run(name) else [each])]
    expected = [
        ("s", row)
        for item in mixed
        for row in (rows(item) if isinstance(item, pa.RecordBatch) else [item])
    ]
    assert same(came, [*expected, *(("t", row) for row in mixed[:1])])


def test_neighbours_of_one_schema_are_merged_and_others_are_not() -> None:
    one, other = pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": ["x"]})
    streams = column_batches.dumped([one, one, other, one], None)
    assert [[batch.num_rows for batch in column_batches.loaded(stream)] for stream in streams] == [
        [4],
        [1],
        [2],
    ]


@pytest.mark.parametrize(
    "type",
    [pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.binary_view()],
)
def test_a_slice_travels_without_its_record_batch(type: pa.DataType) -> None:
    texts = [f"a text that is long enough to count {i}" for i in range(20_000)]
    values = [text.encode() for text in texts] if pa.types.is_binary_view(type) else texts
    column = (
        pa.array(values).dictionary_encode()
        if pa.types.is_dictionary(type)
        else pa.array(values, type)
    )
    batch = pa.record_batch({"a": column}).slice(777, 5)
    (stream,) = column_batches.dumped([batch], 4096)
    assert len(stream) <= 4096
    (came,) = column_batches.loaded(stream)
    assert came.schema == batch.schema
    assert came.column(0).to_pylist() == values[777:782]


def test_a_dictionary_that_arrow_cannot_make_anew_travels_as_it_is() -> None:
    dictionary = pa.array(["a", "b", "c"], pa.string_view())
    batch = pa.record_batch(
        {"a": pa.DictionaryArray.from_arrays(pa.array([0, 2], pa.int8()), dictionary)}
    )
    assert [
        row
        for stream in column_batches.dumped([batch], 400)
        for piece in column_batches.loaded(stream)
        for row in piece.to_pylist()
    ] == [{"a": "a"}, {"a": "c"}]


def test_a_large_batch_travels_in_pieces_within_the_bound() -> None:
    batch = pa.record_batch(
        {
            "a": pa.array(range(100_000)),
            "b": pa.array([f"{i * 7919 % 100_003:08x}" for i in range(100_000)]),
        }
    )
    streams = column_batches.dumped([batch], 100_000)
    assert all(len(stream) <= 100_000 for stream in streams)
    assert len(streams) > 3
    pieces = [piece for stream in streams for piece in column_batches.loaded(stream)]
    assert pa.concat_batches(pieces).equals(batch)


@pytest.mark.rule(12)
@pytest.mark.parametrize("kind", ["RecordBatch", "Table", "Array", "ChunkedArray"])
def test_a_held_bolt_pickles_the_slice_and_not_the_whole(kind: str) -> None:
    whole = pa.table({"a": pa.array(range(1_000_000))})
    part = whole.slice(5, 3)
    kept: Any = {
        "RecordBatch": part.to_batches()[0],
        "Table": part,
        "ChunkedArray": part.column(0),
        "Array": part.column(0).chunk(0),
    }[kind]
    function, arguments = column_batches.reduced(kept)
    assert len(pickle.dumps(arguments)) < 2000
    assert column_runs.is_arrow(kept)
    came = function(*pickle.loads(pickle.dumps(arguments)))
    assert came.equals(kept)
    assert type(came) is type(kept)


PYTHON_VALUES: list[tuple[Any, str]] = [
    (1, "int64"),
    (1.5, "double"),
    (True, "bool"),
    ("a", "string"),
    (b"a", "binary"),
    (decimal.Decimal("1.50"), "decimal128(3, 2)"),
    (datetime.date(2026, 1, 2), "date32[day]"),
    (datetime.datetime(2026, 1, 2, 3, 4, 5, 6), "timestamp[us]"),
    (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "timestamp[us, tz=UTC]"),
    (datetime.timedelta(1, 2, 3), "duration[us]"),
    (datetime.time(1, 2, 3, 4), "time64[us]"),
    ([1, 2], "list<item: int64>"),
    ({"a": 1}, "struct<a: int64>"),
    (None, "null"),
    (uuid.UUID(int=7), "extension<arrow.uuid>"),
]


@pytest.mark.parametrize(("value", "type"), PYTHON_VALUES)
def test_a_value_that_becomes_a_column_comes_back_as_it_was(value: Any, type: str) -> None:
    batch = column_batches.from_rows([(ATTEMPT, value), (ATTEMPT, None)], ["a"], None, "here")
    assert str(batch.schema.field("a").type) == type
    assert column_batches.rows(batch, ATTEMPT) == [(ATTEMPT, value), (ATTEMPT, None)]


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"]])
def test_rows_of_any_number_of_fields_become_columns_and_rows_again(names: list[str]) -> None:
    given_rows = [(ATTEMPT, *range(i, i + len(names))) for i in range(3)]
    batch = column_batches.from_rows(given_rows, names, None, "here")
    assert (batch.num_rows, batch.schema.names) == (3, names)
    (stream,) = column_batches.dumped([batch], None)
    assert column_batches.rows(column_batches.loaded(stream)[0], ATTEMPT) == given_rows


def test_nanoseconds_become_microseconds_everywhere_and_are_refused_if_digits_would_be_lost() -> (
    None
):
    exact = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
    nested = pa.struct([("t", pa.list_(pa.timestamp("ns")))])
    lists = [
        pa.list_view(pa.timestamp("ns")),
        pa.large_list_view(pa.timestamp("ns")),
        pa.list_(pa.timestamp("ns"), 1),
    ]
    for of_times in lists:
        (_, first), (_, none), (_, last) = column_batches.rows(
            pa.record_batch({"a": pa.array([[exact], None, [exact]], of_times)}), ATTEMPT
        )
        assert type(last[0]) is datetime.datetime
        assert (first, none, last) == ([exact], None, [exact])
    batch = pa.record_batch(
        {
            "a": pa.array([exact], pa.timestamp("ns")),
            "b": pa.array([{"t": [exact]}], nested),
            "c": pa.array([exact], pa.timestamp("ns")).dictionary_encode(),
            "d": pa.array([exact.replace(tzinfo=datetime.UTC)], pa.timestamp("ns", BERLIN)),
            "e": pa.array([exact - datetime.datetime(1970, 1, 1)], pa.duration("ns")),
        }
    )
    ((_, a, b, c, d, e),) = column_batches.rows(batch, ATTEMPT)
    assert (a, b, c, d, e) == (
        exact,
        {"t": [exact]},
        exact,
        exact.replace(tzinfo=datetime.UTC),
        exact - datetime.datetime(1970, 1, 1),
    )
    assert type(a) is datetime.datetime
    with pytest.raises(
        column_runs.ColumnMistakeError,
        match=r"column 'a' of type timestamp\[ns\].*(\n|.)*Cast the column",
    ):
        column_batches.rows(
            pa.record_batch({"a": pa.array([1], pa.int64()).cast(pa.timestamp("ns"))}), ATTEMPT
        )


@pytest.mark.parametrize("values", [[1, "a"], [2**70], [object()]])
def test_values_that_make_no_column_are_refused_with_the_cure(values: list[Any]) -> None:
    with pytest.raises(column_runs.ColumnMistakeError) as raised:
        column_batches.from_rows(
            [(ATTEMPT, value) for value in values], ["a"], None, "component 'x', stream 's'"
        )
    assert str(raised.value).startswith(
        "component 'x', stream 's': values of field 'a' cannot become a column: "
    )
    assert "schema=pa.schema([('a', pa.float64()), ...])" in str(raised.value)


def test_values_take_the_types_of_the_schema() -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.int8())])
    batch = column_batches.from_rows(
        [(ATTEMPT, 1, None), (ATTEMPT, 2.5, 3)], ["a", "b"], schema, "here"
    )
    assert batch.schema == schema
    with pytest.raises(
        column_runs.ColumnMistakeError,
        match="values of field 'b' cannot become a column of type int8: ",
    ):
        column_batches.from_rows([(ATTEMPT, 1, 300)], ["a", "b"], schema, "here")


AWARE = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (1, pa.int8()),
        (2**63, pa.uint64()),
        (1, pa.float64()),
        (1, pa.decimal128(5, 2)),
        (decimal.Decimal("1.5"), pa.decimal128(9, 4)),
        ("a", pa.large_string()),
        ("a", pa.dictionary(pa.int8(), pa.string())),
        (b"a", pa.binary(1)),
        (datetime.date(2026, 1, 2), pa.date64()),
        (AWARE, pa.timestamp("ms", BERLIN)),
        (AWARE.replace(tzinfo=None), pa.timestamp("ns")),
        ([1, 2], pa.large_list(pa.float64())),
        ({"a": 1}, pa.struct([("a", pa.int8())])),
    ],
)
def test_a_value_of_the_kind_of_the_declared_type_becomes_it_exactly(
    value: Any, type: pa.DataType
) -> None:
    batch = column_batches.from_rows(
        [(ATTEMPT, value), (ATTEMPT, None)], ["a"], pa.schema([("a", type)]), "here"
    )
    assert batch.schema.types == [type]
    assert column_batches.rows(batch, ATTEMPT) == [(ATTEMPT, value), (ATTEMPT, None)]


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (1.5, pa.int64()),
        (2.0, pa.int64()),
        (True, pa.int64()),
        (1, pa.bool_()),
        (b"a", pa.string()),
        ("a", pa.binary()),
        ("1", pa.int64()),
        (AWARE.replace(tzinfo=None), pa.timestamp("us", "UTC")),
        (AWARE, pa.timestamp("us")),
        (datetime.date(2026, 1, 2), pa.timestamp("us")),
        (1.5, pa.decimal128(5, 2)),
        (decimal.Decimal("1.234"), pa.decimal128(5, 2)),
        (decimal.Decimal(1), pa.float64()),
        (2**60 + 1, pa.float64()),
    ],
)
def test_a_value_that_the_declared_type_would_change_is_refused(
    value: Any, type: pa.DataType
) -> None:
    with pytest.raises(
        column_runs.ColumnMistakeError, match="values of field 'a' cannot become a column of type"
    ):
        column_batches.from_rows([(ATTEMPT, value)], ["a"], pa.schema([("a", type)]), "here")
