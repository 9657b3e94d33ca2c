"""Decimals, dates, times and durations in files: a column holds the very value, or the file is
refused."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.topologies.planned_spouts import Drive
from tests.unit.test_hostile_files import Answer, answer, cut
from txtopo.connectors.files import CsvTransactionalSpout, JsonLinesTransactionalSpout
from txtopo.errors import ConfigError, InputError

CUTS = (1, 1 << 20)
SMALLEST = "9E-2147483647"


def csv_answer(tmp_path: Path, value: str, type: pa.DataType, **arguments: Any) -> Answer:
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n,x\n{value},1e5\n")
    schema = pa.schema([("a", type), ("b", pa.string())])
    return cut(
        [answer(CsvTransactionalSpout(path, schema, size, **arguments), path) for size in CUTS]
    )


def json_answer(tmp_path: Path, value: str, type: pa.DataType) -> Answer:
    path = tmp_path / "a.json"
    path.write_text(f'{{"b":"1e5"}}\n{{"a":{value},"b":"3e12"}}\n')
    schema = pa.schema([("a", type), ("b", pa.string())])
    return cut([answer(JsonLinesTransactionalSpout(path, schema, size), path) for size in CUTS])


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "type",
    [
        pa.decimal128(5, 2),
        pa.decimal256(40, 2),
        pa.decimal32(5, 2),
        pa.dictionary(pa.int32(), pa.decimal128(5, 2)),
    ],
)
def test_csv_decimals_are_written_in_many_ways_and_null_is_the_declared_text(
    tmp_path: Path, type: pa.DataType
) -> None:
    for text, number in [
        ("+1.5", "1.5"),
        (" 007\t", "7"),
        (".5", "0.5"),
        ("12.", "12"),
        ("1e2", "100"),
        ("-0", "0"),
        ('"1.50"', "1.5"),
    ]:
        assert csv_answer(tmp_path, text, type) == [(None, "x"), (Decimal(number), "1e5")]
    for text in ("1_0", "\u0661", "NaN", "inf", "0x10", "x", "1 2", "--1", "1.5.5", "e5", "."):
        assert csv_answer(tmp_path, text, type) == (str(tmp_path / "a.csv"), 7)
    assert csv_answer(tmp_path, "n/a", type, null_values=("", "n/a")) == [
        (None, "x"),
        (None, "1e5"),
    ]


@pytest.mark.rule(38)
def test_a_csv_decimal_that_its_column_would_change_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n,x\n1e400,\n")
    said = r"a\.csv: the line at byte 7 has 1e400 in column 'a', which is no number of the type decimal128\(5, 2\)\n  Mend"
    with pytest.raises(InputError, match=said):
        Drive(CsvTransactionalSpout(path, pa.schema([("a", pa.decimal128(5, 2))]))).run()


@pytest.mark.rule(38)
def test_json_decimals_within_others_are_looked_at(tmp_path: Path) -> None:
    small = pa.decimal64(18, 18)
    quarter = Decimal("0.25")
    cases: list[tuple[pa.DataType, str, Any]] = [
        (pa.list_(small), "[null,{}]", [None, quarter]),
        (pa.struct([("a", small)]), '{{"a":{}}}', {"a": quarter}),
        (pa.list_(pa.struct([("a", small)])), '[{{"a":{}}},null]', [{"a": quarter}, None]),
    ]
    for type, value, came in cases:
        assert json_answer(tmp_path, value.format("0.25"), type) == [(None, "1e5"), (came, "3e12")]
        assert json_answer(tmp_path, value.format("97731.4"), type) == (
            str(tmp_path / "a.json"),
            12,
        )
    assert json_answer(tmp_path, '"0.25"', small) == [(None, "1e5"), (quarter, "3e12")], (
        "decimals often travel as text"
    )
    for text in ('"97731.4"', f'"{SMALLEST}"', '"x"', '"1_0"'):
        assert json_answer(tmp_path, text, small) == (str(tmp_path / "a.json"), 12)


DATE, TIME = datetime.date(2026, 1, 2), datetime.time(3, 4, 5)


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.date32(), DATE),
        (pa.date64(), DATE),
        (pa.timestamp("s"), datetime.datetime.combine(DATE, TIME)),
        (pa.timestamp("us", "UTC"), datetime.datetime.combine(DATE, TIME, datetime.UTC)),
    ],
)
def test_json_dates_and_times_are_texts_and_no_numbers(
    tmp_path: Path, type: pa.DataType, expected: Any
) -> None:
    text = json.dumps(expected.isoformat())
    cases: list[tuple[pa.DataType, str, Any]] = [
        (type, text, expected),
        (pa.list_(type), f"[{text}]", [expected]),
    ]
    for some, value, came in [
        *cases,
        (pa.struct([("a", type)]), f'{{"a":{text}}}', {"a": expected}),
    ]:
        assert json_answer(tmp_path, value, some) == [(None, "1e5"), (came, "3e12")]
        for other in (
            "0",
            "300",
            "86400000",
            "true",
            '"x"',
            '""',
            '"25:00:00"',
            '"2026-02-30"',
            '"10000-01-01"',
            '"2026-1-2"',
        ):
            assert json_answer(tmp_path, value.replace(text, other), some) == (
                str(tmp_path / "a.json"),
                12,
            )


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "type",
    [
        pa.time32("s"),
        pa.time64("us"),
        pa.duration("s"),
        pa.dictionary(pa.int32(), pa.string()),
        pa.large_list(pa.int64()),
    ],
)
def test_a_type_that_json_has_no_values_of_is_refused_when_the_spout_is_made(
    type: pa.DataType,
) -> None:
    for some in (type, pa.list_(type), pa.struct([("c", type)])):
        with pytest.raises(
            ConfigError,
            match=r"JSON spout: column 'a' cannot be read as .*\n  Declare types that JSON has: ",
        ):
            JsonLinesTransactionalSpout("a", pa.schema([("b", pa.string()), ("a", some)]))


@pytest.mark.rule(38)
def test_a_csv_duration_is_a_number_of_units_and_not_of_bits(tmp_path: Path) -> None:
    for type in (pa.duration("s"), pa.duration("us")):
        unit = (
            datetime.timedelta(seconds=1)
            if type.unit == "s"
            else datetime.timedelta(microseconds=1)
        )
        assert csv_answer(tmp_path, "-16", type) == [(None, "x"), (-16 * unit, "1e5")]
        assert csv_answer(tmp_path, "0x10", type) == (str(tmp_path / "a.csv"), 7)
