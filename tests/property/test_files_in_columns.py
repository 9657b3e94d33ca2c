"""Generated files, whole and broken: the cut of a batch changes nothing, and columns hold the same
values as tuples, or both are refused."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.test_hostile_files import FIELDS, LF, SCHEMA, Answer, answer, cut
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    FileTransactionalSpout,
    JsonLinesTransactionalSpout,
)
from txtopo.dataplane.column_runs import ColumnMistakeError
from txtopo.dataplane.columns import batches

QUICK = examples(100)
CUTS = (1, 17, 1 << 20)

TEXTS = st.text(st.sampled_from('ab{}[]",:\\\r\n\t NaInf\u00e9\ud800\x00'), max_size=6)
JSON_OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "w": st.none() | TEXTS,
        "n": st.integers(-(2**65), 2**65) | st.integers(-9, 9) | st.none(),
        "x": st.floats() | st.integers(-(2**60), 2**60) | st.booleans(),
        "l": st.lists(st.integers(0, 9) | st.none(), max_size=3),
        "o": st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 9)}),
        "q": st.recursive(
            TEXTS | st.floats(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
            max_leaves=5,
        ),
    },
)
JSON_LINES = st.builds(
    lambda value, is_ascii: json.dumps(value, ensure_ascii=is_ascii).encode(
        "utf-8", "surrogatepass"
    ),
    JSON_OBJECTS,
    st.booleans(),
)
SPLICES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"\n",
    b"\r",
    b" ",
    b"null",
    b"NaN",
    b"Inf",
    b"1",
    b"e400",
    b"\xff",
    b"\x00",
    b"{}",
]
CSV_PARTS = [
    b"a",
    b"1",
    b",",
    b",",
    b'"',
    b'""',
    b"\n",
    b"\n",
    b"\r",
    b"\r\n",
    b" ",
    b"\x00",
    b"\xc3\xa9",
]


@st.composite
def json_files(draw: st.DrawFn) -> bytes:
    content = draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])).join(
        draw(st.lists(JSON_LINES | st.sampled_from([b"null", b" ", b"{}"]), max_size=5))
    )
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(content)))
        content = (
            content[:at] + draw(st.sampled_from(SPLICES)) + content[at + draw(st.integers(0, 2)) :]
        )
    return content + draw(st.sampled_from([b"", b"\n", b"\r\n"]))


def answers(make: Any, content: bytes) -> Answer:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a"
        path.write_bytes(content)
        return cut([answer(make(path, size), path) for size in CUTS])


@pytest.mark.rule(38)
@QUICK
@given(content=json_files())
@example(content=b'null\n{"n":1}\n')
@example(content=b'{"n":1}{"n":2}\n')
def test_columns_of_json_lines_hold_the_same_values_as_tuples(content: bytes) -> None:
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError:
        assert isinstance(
            answers(lambda path, size: JsonLinesTransactionalSpout(path, SCHEMA, size), content),
            tuple,
        )
    of_tuples = answers(
        lambda path, size: FileTransactionalSpout(
            path, size, fields=FIELDS, format="json", errors="replace"
        ),
        content,
    )
    of_columns = answers(
        lambda path, size: JsonLinesTransactionalSpout(path, SCHEMA, size, errors="replace"),
        content,
    )
    if isinstance(of_columns, tuple):
        # A value of another type than its column is refused in columns alone, and the first line
        # that is refused is named.
        assert isinstance(of_tuples, list) or of_columns[1] <= of_tuples[1]
    else:
        assert of_columns == of_tuples


@pytest.mark.rule(38)
@QUICK
@given(parts=st.lists(st.sampled_from(CSV_PARTS), max_size=25), quote=st.sampled_from(['"', False]))
def test_records_of_a_csv_file_are_those_of_its_lines(parts: list[bytes], quote: Any) -> None:
    content = b"".join(parts)
    schema = pa.schema([("a", pa.string()), ("b", pa.string())][: 1 + content.startswith(b"a")])

    def of(some: bytes) -> Answer:
        return answers(
            lambda path, size: CsvTransactionalSpout(
                path, schema, size, header=False, quote_char=quote
            ),
            some,
        )

    whole, by_line = of(content), [of(line + LF) for line in content.split(LF)]
    if isinstance(whole, list):
        assert whole == [row for rows in by_line for row in rows]
    else:
        assert any(isinstance(one, tuple) for one in by_line)


# -- Python values -------------------------------------------------------------------------------

SCALARS = [
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-9, 9),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.timezones()),
    st.times(),
    st.times(timezones=st.timezones()),
    st.timedeltas(),
    st.uuids(),
    st.decimals(-(10**6), 10**6, places=2),
    st.decimals(),
    st.text(st.characters(categories=["Cs"]), min_size=1, max_size=1),
]
NESTED = [
    nested
    for one in SCALARS[:4]
    for nested in (
        st.lists(one, max_size=2),
        st.fixed_dictionaries({"a": one}, optional={"b": one}),
        st.tuples(one),
    )
]
TYPES = [
    None,
    pa.bool_(),
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.date32(),
    pa.date64(),
    pa.timestamp("us"),
    pa.timestamp("ms"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Asia/Tokyo"),
    pa.time64("us"),
    pa.time32("s"),
    pa.duration("us"),
    pa.duration("s"),
    pa.uuid(),
    pa.decimal128(10, 2),
    pa.decimal128(38, 10),
    pa.list_(pa.int64()),
    pa.list_(pa.float64()),
    pa.struct([("a", pa.int64())]),
    pa.struct([("a", pa.float32()), ("b", pa.string())]),
    pa.null(),
]


@st.composite
def columns(draw: st.DrawFn) -> list[Any]:
    kinds = draw(st.lists(st.sampled_from(SCALARS + NESTED), min_size=1, max_size=2))
    return draw(st.lists(st.none() | st.one_of(kinds), min_size=1, max_size=5))


def is_same(value: Any, came: Any, type: pa.DataType) -> bool:
    """Whether ``came`` is ``value``, judged independently of the source: in type and value, but for
    the exceptions named on the page on columns."""
    if isinstance(value, list | tuple):
        return isinstance(came, list) and [
            is_same(*pair, type.value_type) for pair in zip(value, came, strict=True)
        ] == [True] * len(value)
    if isinstance(value, dict):
        return value.keys() == came.keys() and all(
            is_same(value[name], came[name], type.field(name).type) for name in value
        )
    if isinstance(value, bool) or isinstance(came, bool) or value is None or came is None:
        return value is came
    if isinstance(value, float):
        return isinstance(came, float) and (
            value == came or value != value or (type == pa.float32() and abs(came) != float("inf"))
        )
    if isinstance(value, int):
        return bool(value == came)
    return value.__class__ is came.__class__ and value == came


@pytest.mark.rule(38)
@examples(250)
@given(values=columns(), type=st.sampled_from(TYPES))
def test_values_come_out_of_a_column_as_they_went_in_or_it_is_refused(
    values: list[Any], type: pa.DataType | None
) -> None:
    schema = None if type is None else pa.schema([("a", type)])
    try:
        batch = batches.from_rows([("attempt", value) for value in values], ["a"], schema, "here")
    except ColumnMistakeError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert f" of {len(values)} is " in said, said
        return
    came = [row[1] for row in batches.rows(batch, "attempt")]
    assert all(is_same(*pair, batch.schema.types[0]) for pair in zip(values, came, strict=True)), (
        values,
        came,
        batch.schema,
    )
    if type is None:
        assert len({kind.__name__ for kind in map(_type_of, values)} - {"NoneType"}) <= 1


def _type_of(value: Any) -> Any:
    return list if isinstance(value, tuple) else value.__class__
