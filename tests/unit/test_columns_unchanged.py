"""A value that becomes part of a column is the same there, or the column is refused and names
field, row and cure."""

from __future__ import annotations

import datetime
import decimal
import enum
import zoneinfo
from typing import Any

import numpy
import pyarrow as pa
import pytest

from tests.topologies.recording import RowsSpout, builder, rows, run_once
from tests.unit.test_columns_mistakes import failed
from tests.wrong.circles import CIRCLES
from txtopo import BaseArrowBatchBolt, EmitError, Fields, OutputFieldsDeclarer
from txtopo.dataplane.column_runs import ColumnMistakeError
from txtopo.dataplane.columns import batches
from txtopo.topology import exact_columns

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NAIVE = datetime.datetime(2026, 1, 2, 12)
AWARE = NAIVE.replace(tzinfo=BERLIN)
INSTANTS = pa.timestamp("us", "UTC")
NOON = datetime.time(12)


class Number(enum.IntEnum):
    ONE = 1


class Word(str):
    """A text of a class of its own."""


def column(values: list[Any], type: pa.DataType | None, is_declared: bool = True) -> pa.RecordBatch:
    schema = None if type is None else pa.schema([("a", type)])
    return batches.from_rows(
        [("attempt", value) for value in values],
        ["a"],
        schema,
        "component 'x', stream 's'",
        is_declared,
    )


CHANGED: list[tuple[str, list[Any], pa.DataType | None, str]] = [
    (
        "a naive time would be taken for one of a zone",
        [AWARE, NAIVE],
        INSTANTS,
        "row 2 of 2 is datetime.datetime(2026, 1, 2, 12, 0): they have no",
    ),
    ("a zone would be dropped", [NAIVE, AWARE], pa.timestamp("us"), "row 2 of 2"),
    ("a zone would be dropped, not declared", [NAIVE, None, AWARE], None, "row 3 of 3"),
    (
        "a naive time would get a zone, not declared",
        [AWARE, NAIVE],
        None,
        "some have a zone and some have none",
    ),
    (
        "the time of a day would be cut off",
        [NAIVE.date(), NAIVE],
        None,
        "values are of several types: date, datetime",
    ),
    (
        "the time of a day would be cut off, declared",
        [NAIVE.date(), NAIVE],
        pa.date32(),
        "row 2 of 2",
    ),
    (
        "the zone of a time would be dropped",
        [NOON, NOON.replace(tzinfo=datetime.UTC)],
        None,
        "row 2 of 2 is datetime.time(12",
    ),
    (
        "the zone of a time would be dropped, declared",
        [NOON.replace(tzinfo=datetime.UTC)],
        pa.time64("us"),
        "a time in a column has no zone",
    ),
    (
        "text would become bytes",
        [b"a", "b"],
        pa.binary(),
        "row 2 of 2 is 'b': values are of type str",
    ),
    (
        "text would become bytes, not declared",
        [b"a", "b"],
        None,
        "values are of several types: bytes, str",
    ),
    ("a truth value would become a number", [1.5, True], pa.float64(), "row 2 of 2 is True"),
    (
        "a truth value would become a number, not declared",
        [1.5, True],
        None,
        "values are of several types: bool, float",
    ),
    (
        "an integer would become a broken number, not declared",
        [1.5, 1],
        None,
        "values are of several types: float, int",
    ),
    (
        "a truth value in a list would become an integer",
        [[1], [True]],
        pa.list_(pa.int64()),
        "row 2 of 2 is [True]",
    ),
    (
        "an integer in a list would become a broken number, after a list without values",
        [[], (0,), None, [0.0], [1]],
        None,
        "row 4 of 5 is [0.0]: values are of several types: float, int",
    ),
    (
        "an integer in a list would become a broken number",
        [[1], [1.5]],
        None,
        "values are of several types: float, int",
    ),
    (
        "a truth value deep within would become an integer",
        [{"b": [[True]]}],
        pa.struct([("b", pa.list_(pa.list_(pa.int8())))]),
        "field 'b'",
    ),
    (
        "a field of a dict would be dropped",
        [{"b": 1, "c": 2}],
        pa.struct([("b", pa.int64())]),
        "has the fields 'b', 'c'; expected 'b'",
    ),
    (
        "a missing field would become None",
        [{"b": 1}, {}],
        None,
        "row 2 of 2 is {}: a dict has the fields none; expected 'b'",
    ),
    (
        "a missing field would become None, declared",
        [{}],
        pa.struct([("b", pa.int64())]),
        "expected 'b'",
    ),
    (
        "a large number would become infinite",
        [1.5, 1e300],
        pa.float32(),
        "row 2 of 2 is 1e+300: 1e+300 is beyond float",
    ),
    (
        "a large number in a list would become infinite",
        [[1e300]],
        pa.list_(pa.float32()),
        "is beyond float",
    ),
    (
        "an integer has more digits than the number",
        [1.5, 2**53 + 1],
        pa.float64(),
        f"row 2 of 2 is {2**53 + 1}",
    ),
    (
        "an integer has more digits than a small number",
        [1.5, 2**24 + 1],
        pa.float32(),
        "is no number of float",
    ),
    ("an integer is beyond all numbers", [10**400], pa.float64(), "too large"),
    ("an integer is beyond the column", [1, 2**63], None, f"row 2 of 2 is {2**63}"),
    ("an integer is beyond the declared column", [1, 300], pa.int8(), "row 2 of 2 is 300"),
    (
        "a decimal has more digits than the column",
        [decimal.Decimal("1.25")],
        pa.decimal128(5, 1),
        "row 1 of 1 is Decimal('1.25')",
    ),
    (
        "no number at all is no decimal",
        [decimal.Decimal("NaN")],
        None,
        "row 1 of 1 is Decimal('NaN')",
    ),
    ("a lone surrogate is no text", ["a", "\ud800"], None, "row 2 of 2 is '\\ud800'"),
    (
        "microseconds would be dropped",
        [NAIVE.replace(microsecond=1)],
        pa.timestamp("ms"),
        "row 1 of 1",
    ),
    ("an enum would become an integer", [Number.ONE], None, "a Number is no value of a column"),
    ("a class of its own would become a text", [Word("a")], None, "a Word is no value of a column"),
    ("a set would become a list", [{1}], None, "a set is no value of a column"),
    ("an array would become a list", [numpy.array([1])], None, "a ndarray is no value of a column"),
]


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    ("values", "type", "said"), [case[1:] for case in CHANGED], ids=[case[0] for case in CHANGED]
)
def test_a_column_that_would_change_a_value_is_refused_and_names_its_row(
    values: list[Any], type: pa.DataType | None, said: str
) -> None:
    with pytest.raises(ColumnMistakeError) as raised:
        column(values, type)
    text = str(raised.value)
    assert text.startswith("component 'x', stream 's': values of field 'a' cannot become a column")
    assert said in text
    assert "\n  Emit values of one type that fits, or declare the types of the columns" in text


@pytest.mark.rule(38)
@pytest.mark.parametrize("circle", CIRCLES.values(), ids=CIRCLES)
def test_a_value_that_contains_itself_is_refused_and_names_its_row(circle: Any) -> None:
    with pytest.raises(ColumnMistakeError) as raised:
        column([None, circle], None)
    assert str(raised.value).startswith(
        "component 'x', stream 's': values of field 'a' cannot become a column: row 2 of 2 is "
    )
    assert "it contains itself, or is nested too deeply\n  Emit values of" in str(raised.value)


KEPT: list[tuple[list[Any], pa.DataType | None]] = [
    ([1, 2.5, None, 2**53], pa.float64()),
    ([float("nan"), float("inf"), 0.1], None),
    ([float("inf"), 1.5], pa.float32()),
    ([2**70, None], pa.decimal128(38, 0)),
    ([1, decimal.Decimal("1.50")], pa.decimal64(5, 2)),
    ([AWARE, AWARE.astimezone(datetime.UTC)], INSTANTS),
    ([AWARE.replace(month=10, day=25, hour=2, fold=fold) for fold in (0, 1)], None),
    ([datetime.datetime.min, datetime.datetime.max], None),
    ([(1, 2), [3]], None),
    ([{"b": [{"c": 1}]}, None, {"b": []}], None),
    ([[1, 2.5]], pa.list_(pa.float64())),
    ([[b"x"], None, []], None),
    (["a", "b"], pa.run_end_encoded(pa.int32(), pa.string())),
    (["a", "b"], pa.string_view()),
]


@pytest.mark.rule(38)
@pytest.mark.parametrize(("values", "type"), KEPT)
def test_values_that_a_column_can_hold_come_back_unchanged(
    values: list[Any], type: pa.DataType | None
) -> None:
    came = [row[1] for row in batches.rows(column(values, type), "attempt")]
    assert (
        repr([list(value) if isinstance(value, tuple) else value for value in values]) == repr(came)
        or values == came
    )


@pytest.mark.rule(38)
def test_a_32_bit_number_that_is_declared_is_rounded() -> None:
    assert column([0.1], pa.float32()).column(0).to_pylist() == [0.10000000149011612]


@pytest.mark.rule(38)
def test_scalars_of_numpy_are_the_values_that_they_hold() -> None:
    assert column([numpy.int64(5), 6, None], None).column(0).to_pylist() == [5, 6, None]
    assert column([numpy.float32(0.1)], None).column(0).to_pylist() == [float(numpy.float32(0.1))]
    with pytest.raises(ColumnMistakeError, match="values are of several types: bool, int"):
        column([1, numpy.True_], None)


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "scalar",
    [
        numpy.datetime64("2026-01-02", "ns"),
        numpy.datetime64("20000-01-01", "D"),
        numpy.timedelta64(5, "ns"),
        numpy.timedelta64(5, "Y"),
        numpy.timedelta64(5),
    ],
)
def test_a_time_of_numpy_that_python_has_no_object_for_becomes_no_number(scalar: Any) -> None:
    with pytest.raises(ColumnMistakeError, match=r"row 2 of 2 is .*64 is no value of a column"):
        column([None, scalar], None)
    with pytest.raises(ColumnMistakeError, match=r"row 2 of 2 is .*64 is no value of a column"):
        column([1, scalar], pa.int64())


@pytest.mark.rule(38)
def test_times_of_numpy_are_the_ones_that_they_hold() -> None:
    assert column([numpy.datetime64("2026-01-02", "us")], None).column(0).to_pylist() == [
        datetime.datetime(2026, 1, 2)
    ]
    assert column([numpy.timedelta64(5, "ms")], None).column(0).to_pylist() == [
        datetime.timedelta(milliseconds=5)
    ]


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    ("type", "number"),
    [
        (pa.time32("s"), 90_000),
        (pa.time32("ms"), -1),
        (pa.time64("us"), 86_400_000_000),
        (pa.time64("ns"), 10**15),
    ],
)
def test_a_time_beyond_a_day_becomes_no_other_time_of_a_tuple(
    type: pa.DataType, number: int
) -> None:
    integers = pa.array([number], pa.int32() if pa.types.is_time32(type) else pa.int64())
    times = pa.Array.from_buffers(type, 1, integers.buffers())
    for values in (
        times,
        pa.StructArray.from_arrays([times], names=["b"]),
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), times),
    ):
        with pytest.raises(
            ColumnMistakeError, match=r"column 'a' of type .* is not within the acceptable range"
        ):
            batches.rows(pa.RecordBatch.from_arrays([values], names=["a"]), "attempt")


class Degrees(pa.ExtensionType):  # type: ignore[misc]
    """A type of a user's own, as the documentation of pyarrow has it."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.degrees")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Degrees:
        return cls()


@pytest.mark.rule(38)
def test_a_column_of_a_users_own_type_is_read_as_plain_values_and_is_never_made() -> None:
    degrees = pa.ExtensionArray.from_storage(Degrees(), pa.array([5, None]))
    nested = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), degrees)
    assert batches.rows(pa.RecordBatch.from_arrays([degrees], names=["a"]), "attempt") == [
        ("attempt", 5),
        ("attempt", None),
    ]
    assert batches.rows(pa.RecordBatch.from_arrays([nested], names=["a"]), "attempt") == [
        ("attempt", [5, None])
    ]
    for type in (Degrees(), pa.list_(Degrees())):
        with pytest.raises(ColumnMistakeError, match="row 1 of 1 is"):
            column([5] if type == Degrees() else [[5]], type)


@pytest.mark.rule(38)
def test_types_that_were_found_once_are_not_widened_by_later_rows() -> None:
    with pytest.raises(
        ColumnMistakeError, match="of type double: row 1 of 1 is 1: values are of type int"
    ):
        column([1], pa.float64(), is_declared=False)
    assert column([1], pa.float64(), is_declared=True).column(0).to_pylist() == [1.0]


@pytest.mark.rule(38)
def test_a_topology_whose_tuples_would_change_ends_with_component_field_row_and_cure() -> None:
    class Declaring(RowsSpout):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(Fields("tx", "value"), schema=pa.schema([("value", pa.float64())]))

    class Taking(BaseArrowBatchBolt):
        def execute_batch(self, batch: pa.RecordBatch) -> None:
            raise AssertionError("no batch is made")

        def finish_batch(self) -> None:
            raise AssertionError("the batch is not over")

    topology = builder(Declaring())
    topology.set_bolt("bolt", Taking()).none_grouping("spout")
    kind, text = failed(run_once(topology.build_topology(), {0: rows(1.5, 2, True)}, cores=1))
    assert kind is EmitError
    assert (
        "component 'spout', stream 'default': values of field 'value' cannot become a column of type double: row 3 of 3 is True"
        in text
    )


@pytest.mark.parametrize("type", [None, pa.int8(), pa.dense_union([pa.field("a", pa.int8())])])
def test_a_column_without_rows_has_any_type(type: pa.DataType | None) -> None:
    array = exact_columns.array([], type, True)
    assert (len(array), array.type) == (0, type or pa.null())
