"""Damaged and odd files: the spout of tuples and the spout of columns give a bolt the same, for any
cut of batches.

Where one of them refuses a line both do, and both name the file and the byte at which the line
begins.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.topologies.columns import NotingArrowBolt
from tests.topologies.planned_spouts import Drive
from tests.topologies.recording import NotingBolt, builder, note, run_once
from txtopo import Fields, Tuple
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    FileTransactionalSpout,
    JsonLinesTransactionalSpout,
    LinesTransactionalSpout,
    blocks,
)
from txtopo.errors import ConfigError, InputError

SCHEMA = pa.schema(
    [
        ("w", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("l", pa.list_(pa.int64())),
        ("o", pa.struct([("a", pa.int64())])),
    ]
)
FIELDS = tuple(SCHEMA.names)
LF = b"\n"
CUTS = (1, 2, 13, 40, 1 << 20)

Answer = list[tuple[Any, ...]] | tuple[str, int]


def answer(spout: Any, path: Path) -> Answer:
    """The tuples of a bolt; or the beginning of the error, up to its byte, and the byte."""
    try:
        return [row for batch in Drive(spout).run() for row in batch[0]]
    except InputError as error:
        said = str(error)
    named = re.match(r"(.*): (?:the line at )?byte (\d+) .*\n  .", said)
    assert named is not None, said
    # Bytes that are no text are named by the spout of tuples, and their line by that of columns.
    return named[1], path.read_bytes().rfind(LF, 0, int(named[2])) + 1


def cut(answers: list[Answer]) -> Answer:
    """The one answer of all cuts. Errors may follow rows: emissions of an earlier batch do not
    concern the error."""
    assert all(repr(one) == repr(answers[0]) for one in answers), answers
    return answers[0]


JSON_ACCEPTED: dict[str, bytes] = {
    "nothing": b"",
    "a signature alone": b"\xef\xbb\xbf",
    "a signature": b'\xef\xbb\xbf{"n":1}\n{"n":2}\n',
    "blank lines": b'\n  \n{"n":1}\n\t\r\n\n{"n":2}\n ',
    "CRLF": b'{"n":1}\r\n\r\n{"n":2}\r\n',
    "no end of the last line": b'{"n":1}\n{"n":2}',
    "CR before the end of the file": b'{"n":1}\n{"n":2}\r',
    "white space around": b'  {"n":1}  \n\t{"n":2}\t\r\n',
    "CR as white space": b'{"n":\r1}\n',
    "braces in a text": b'{"w":"} {"}\n{"w":"}{\\"a\\":1}{"}\n{"w":"{}x"}\n',
    "words that begin as no number": b'{"w":"NaN"}\n{"w":"Infinity is Inf"}\n{"w":"-Inf"}\n',
    "a field that is not asked for, twice": b'{"q":1,"q":2,"n":3}\n',
    "null and nothing": b'{"n":null}\n{}\n{"w":null,"x":null,"l":null,"o":null}\n',
    "minus zero": b'{"n":-0}\n{"x":-0.0}\n',
    "an integer and its number": b'{"x":1.0}\n{"x":1}\n{"x":1e0}\n',
    "the largest integers": b'{"n":9223372036854775807}\n{"n":-9223372036854775808}\n',
    "integers that are numbers": b'{"x":9007199254740992}\n{"x":9007199254740994}\n{"x":-1e300}\n',
    "many digits": b'{"x":0.1000000000000000055511151231257827021181583404541015625}\n',
    "a pair of surrogates": b'{"w":"\\ud83d\\ude00"}\n{"w":"\\\\ud800"}\n',
    "escapes": b'{"w":"\\u0000\\/\\b\\"\\\\"}\n',
    "text that looks like a time": b'{"w":"2026-01-01T00:00:00Z"}\n{"w":"2026-01-01"}\n{"w":"007"}\n',
    "nested": b'{"l":[1,2],"o":{"a":1}}\n{"l":[],"o":{"a":null}}\n',
    "deep, as far as it goes": b'{"q":' + b"[" * 150 + b"]" * 150 + b"}\n",
    "long lines": b'{"w":"' + b"a" * 5000 + b'"}\n{"q":[' + b"{}," * 500 + b'{}],"n":1}\n',
}

JSON_REFUSED: dict[str, bytes] = {
    "null at the beginning": b'null\n{"n":1}\n',
    "null, later": b'{"n":1}\nnull\n{"n":2}\n',
    "null alone": b"null",
    "two objects in a line": b'{"n":0}\n{"n":1}{"n":2}\n',
    "two objects with white space between": b'{"n":1} \t {"n":2}\n',
    "two objects with CR between": b'{"n":1}\r{"n":2}\n',
    "null between two objects": b'{"n":1}null{"n":2}\n',
    "objects in a list": b'{"n":1}\n[{"n":2}]\n',
    "a comma between objects": b'{"n":1},{"n":2}\n',
    "an object over two lines": b'{"n":0}\n{"w":\n"cat","n":1}\n{"n":2}\n',
    "an object over two lines that look whole": b'{"o":{}\n,"l":[{}\n]}\n',
    "a text over two lines": b'{"w":"}\n{"}\n',
    "more behind the object": b'{"n":1} x\n',
    "a number alone": b'{"n":1}\n5\n',
    "a text alone": b'"a"\n',
    "a doubled field": b'{"n":0}\n{"n":1,"n":2}\n',
    "a doubled field within": b'{"o":{"a":1,"a":2}}\n',
    "NaN": b'{"x":1.5}\n{"x":NaN}\n',
    "Infinity": b'{"x":Infinity}\n',
    "minus Infinity": b'{"x":-Infinity}\n',
    "Inf, as Arrow has it": b'{"x":Inf}\n{"x":-Inf}\n',
    "NaN in a field that is not asked for": b'{"q":NaN}\n{"q":[Inf]}\n',
    "a number beyond 64 bits": b'{"x":1.5}\n{"x":1e400}\n',
    "a number just beyond 64 bits": b'{"x":1.5}\n{"x":1.7976931348623159e308}\n',
    "a number just beyond 64 bits in a field that is not asked for": b'{"x":1e300}\n{"x":1.5,"q":1e400}\n',
    "half a pair of surrogates": b'{"w":"a"}\n{"w":"\\ud800"}\n',
    "the other half": b'{"w":"\\udc00 \\ud800\\udc00"}\n',
    "halves in the wrong order": b'{"q":"\\udc00\\ud800"}\n',
    "bytes that are no text": b'{"w":"a"}\n{"w":"\xff"}\n',
    "bytes that are no text in a field that is not asked for": b'{"w":"a","q":"\xc3"}\n',
    "surrogates as bytes": b'{"w":"\xed\xa0\x80"}\n',
    "UTF-16": '{"n":1}\n'.encode("utf-16"),
    "a tab in a text": b'{"w":"a\tb"}\n',
    "NUL in a text": b'{"n":1}\n{"w":"a\x00b"}\n',
    "NUL behind an object": b'{"n":1}\x00{"n":2}\n',
    "NUL instead of a line": b'{"n":1}\n\x00\n{"n":2}\n',
    "another white space": b'{"n":1}\n\x0c\n',
    "a no-break space": b'{"n":1}\n\xc2\xa0\n',
    "a signature within the file": b'{"n":1}\n\xef\xbb\xbf{"n":2}\n',
    "single quotes": b"{'n':1}\n",
    "a comma too many": b'{"n":1,}\n',
    "leading zeros": b'{"n":007}\n',
    "a comment": b'{"n":1}//\n',
    "deeper than a parser goes": b'{"n":1}\n{"q":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "more digits than Python takes": b'{"n":1}\n{"q":' + b"1" * 5000 + b"}\n",
}

COLUMNS_REFUSE: dict[str, bytes] = {
    "an integer beyond 64 bits": b'{"n":1}\n{"n":9223372036854775808}\n',
    "a broken number for an integer": b'{"n":1}\n{"n":1.0}\n',
    "an integer that is no number of 64 bits": b'{"x":1}\n{"x":9007199254740993}\n',
    "a very large integer": b'{"x":123456789012345678901234567890}\n',
    "a text for a number": b'{"n":"1"}\n',
    "a number for a text": b'{"w":1}\n',
    "a truth value for a number": b'{"x":true}\n',
    "a truth value in a list": b'{"l":[1,true]}\n',
}


def json_answers(tmp_path: Path, content: bytes) -> tuple[Answer, Answer]:
    """Of tuples, and of columns."""
    path = tmp_path / "a.json"
    path.write_bytes(content)
    try:
        content.decode("utf-8-sig")
        taken: dict[str, Any] = {"fields": FIELDS, "errors": "replace"}
    except UnicodeDecodeError:
        taken = {"fields": ("w",), "errors": "strict"}
    of_tuples = [FileTransactionalSpout(path, size, format="json", **taken) for size in CUTS]
    of_columns = [JsonLinesTransactionalSpout(path, SCHEMA, size) for size in CUTS]
    return cut([answer(spout, path) for spout in of_tuples]), cut(
        [answer(spout, path) for spout in of_columns]
    )


@pytest.mark.rule(38)
@pytest.mark.parametrize("content", JSON_ACCEPTED.values(), ids=JSON_ACCEPTED)
def test_json_lines_are_the_same_in_tuples_and_in_columns(tmp_path: Path, content: bytes) -> None:
    of_tuples, of_columns = json_answers(tmp_path, content)
    assert isinstance(of_tuples, list), of_tuples
    assert of_columns == of_tuples
    assert len(of_columns) == sum(
        bool(line.strip(b" \t\r\xef\xbb\xbf")) for line in content.split(b"\n")
    )


@pytest.mark.rule(38)
@pytest.mark.parametrize("content", JSON_REFUSED.values(), ids=JSON_REFUSED)
def test_a_line_that_is_no_json_is_refused_by_its_byte_in_tuples_and_in_columns(
    tmp_path: Path, content: bytes
) -> None:
    of_tuples, of_columns = json_answers(tmp_path, content)
    assert isinstance(of_tuples, tuple), of_tuples
    assert of_columns == of_tuples


@pytest.mark.rule(38)
@pytest.mark.parametrize("content", COLUMNS_REFUSE.values(), ids=COLUMNS_REFUSE)
def test_a_value_that_its_column_would_change_is_refused_by_its_byte(
    tmp_path: Path, content: bytes
) -> None:
    of_tuples, of_columns = json_answers(tmp_path, content)
    assert isinstance(of_tuples, list), of_tuples
    assert of_columns == (str(tmp_path / "a.json"), content.rstrip().rfind(b"\n") + 1)


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "line", [b'{"x":1.5,"q":1.7976931348623159e308}', b'{"x":1.5,"o":{"a":1,"b":2,"b":3}}']
)
def test_a_large_number_makes_no_difference_to_other_lines_of_its_block(
    tmp_path: Path, line: bytes
) -> None:
    """In fields beyond its columns, a line may hold values that tuples refuse; for any cut of
    batches."""
    _, alone = json_answers(tmp_path, line + LF)
    _, together = json_answers(tmp_path, b'{"x":1e300}\n' + line + LF)
    assert isinstance(alone, list)
    assert together == [(None, None, 1e300, None, None), *alone]


def plans_of(spout: Any) -> list[dict[int, Any]]:
    drive = Drive(spout)
    while drive.coordinator.is_ready():
        drive.plan()
    return drive.plans


def got_by(bolt: Any, hook: str, spout: Any) -> list[tuple[Any, ...]] | str:
    """The tuples of ``bolt`` from the whole input of ``spout``, in a topology; or the failure, as
    far as it names file and byte."""
    topology = builder(spout)
    topology.set_bolt("bolt", bolt, 2).fields_grouping("spout", Fields("w"))
    got: list[tuple[Any, ...]] = []
    graph = topology.build_topology()
    for plan in plans_of(spout):
        ran = run_once(
            graph,
            {partition: metadata for partition, metadata in plan.items() if metadata is not None},
        )
        if ran.failure is not None:
            named = re.match(r".*: (?:the line at )byte \d+ ", str(ran.failure.to_error()))
            assert named is not None, ran.failure
            return named[0]
        for event in ran.events:
            if event.hook == hook:
                got += [event.details[0]] if hook == "execute" else event.details[3]
    return got


TEXT = {
    name: content
    for name, content in {**JSON_ACCEPTED, **JSON_REFUSED}.items()
    if not name.startswith(("bytes", "surrogates", "UTF"))
}


class TakingTuples(NotingBolt):
    """Notes all values of a tuple but the attempt."""

    def execute(self, tup: Tuple) -> None:
        note(self.context, "execute", tup.values[1:])


@pytest.mark.in_gate("*-13", "*-1048576")
@pytest.mark.rule(16, 38)
@pytest.mark.parametrize("size", CUTS[2:])
@pytest.mark.parametrize("content", TEXT.values(), ids=TEXT)
def test_a_bolt_gets_the_same_of_tuples_and_of_columns(
    tmp_path: Path, content: bytes, size: int
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    of_tuples = got_by(
        TakingTuples(),
        "execute",
        FileTransactionalSpout(path, size, fields=FIELDS, format="json", errors="replace"),
    )
    of_columns = got_by(
        NotingArrowBolt(), "execute_batch", JsonLinesTransactionalSpout(path, SCHEMA, size)
    )
    assert of_columns == of_tuples


TIMES = [
    (
        pa.timestamp("us"),
        b'{"t":"2026-01-01T00:00:00"}\n{"t":"2026-01-01 00:00:00+02:00"}\n',
        "expected no zone offset",
    ),
    (
        pa.timestamp("us", "UTC"),
        b'{"t":"2026-01-01T00:00:00Z"}\n{"t":"2026-01-01T00:00:00"}\n',
        "expected a zone offset",
    ),
    (
        pa.list_(pa.timestamp("us")),
        b'{"t":["2026-01-01T00:00:00"]}\n{"t":["2026-01-01T00:00:00Z"]}\n',
        "expected no zone offset",
    ),
    (
        pa.timestamp("us"),
        b'{"t":"2026-01-01T00:00:00"}\n{"t":"2026-01-01T00:00:00.1234567"}\n',
        "Failed to parse string",
    ),
    (
        pa.float32(),
        b'{"t":1.5}\n{"t":1e300}\n',
        "has 1e+300 in field 't', which is no number of the type float",
    ),
    (pa.list_(pa.float32()), b'{"t":[1.5]}\n{"t":[16777217]}\n', "has 16777217 in field 't'"),
    (
        pa.struct([("a", pa.float64())]),
        b'{"t":{"a":1}}\n{"t":{"a":9007199254740993}}\n',
        "has 9007199254740993 in field 't'",
    ),
    (pa.decimal128(5, 2), b'{"t":1.25}\n{"t":1.255}\n', "requires scale 3"),
]


@pytest.mark.rule(38)
@pytest.mark.parametrize(("type", "content", "said"), TIMES)
@pytest.mark.parametrize("size", CUTS)
def test_a_value_that_its_declared_type_would_change_is_refused(
    tmp_path: Path, type: pa.DataType, content: bytes, said: str, size: int
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        Drive(JsonLinesTransactionalSpout(path, pa.schema([("t", type)]), size)).run()
    assert str(raised.value).startswith(f"{path}: the line at byte {content.index(LF) + 1} ")
    assert said in str(raised.value)
    path.write_bytes(content.split(b"\n")[0])
    assert len(Drive(JsonLinesTransactionalSpout(path, pa.schema([("t", type)]), size)).run()) == 1


# -- CSV -----------------------------------------------------------------------------------------

TEXTS = pa.schema([("b", pa.string()), ("a", pa.string())])

CSV_ACCEPTED: dict[str, bytes] = {
    "a header alone": b"a,b\n",
    "a header without an end": b"a,b",
    "a signature": b"\xef\xbb\xbfa,b\n1,2\n",
    "CRLF": b"a,b\r\n1,2\r\n\r\n3,4\r\n",
    "LF and CRLF": b"a,b\r\n1,2\n3,4\r\n",
    "no end of the last line": b"a,b\n1,2\n3,4",
    "CR before the end of the file": b"a,b\n1,2\n3,4\r",
    "blank lines": b"a,b\n\n1,2\n\n\n3,4\n\n",
    "quoted values": b'a,b\n"1,""x""","2"\n"",""\n',
    "a quoted header": b'"a","b"\n1,2\n',
    "doubled quotes": b'a,b\n"x"",""","""y"\n"""""""",""""\n',
    "quotes within values": b'a,b\n5" pipe,x\n5" and 4",y\n3" pipe,z\n',
    "other columns": b"c,a,d,b\n0,1,2,3\n",
    "zeros, names and times": b"a,b\n007,NA\nnan,null\n2026-01-01,1e5\n",
    "white space": b"a,b\n 1 ,\t2\n  ,  \n",
    "NUL": b"a,b\nx\x00y,\x00\n",
    "not only ASCII": "a,b\ncafé,\u2028\n".encode(),
    "a signature within": b"a,b\n1,2\n\xef\xbb\xbf3,4\n\xef\xbb\xbf5,6\n",
    "quotes behind a signature": b'a,b\n1,2\n\xef\xbb\xbf"3,"4"\n\xef\xbb\xbf"5,"6"\n',
}

CSV_REFUSED: dict[str, tuple[bytes, int]] = {
    "CR alone ends lines": (b"a,b\r1,2\r3,4\r", 0),
    "CR alone ends lines, and LF the last": (b"a,b\r1,2\n", 0),
    "a bare CR": (b"a,b\n1,2\n3,4\r5,6\n", 8),
    "a bare CR in quotes": (b'a,b\n1,2\n"3\r",4\n', 8),
    "CR CR LF": (b"a,b\n1,2\n3,4\r\r\n", 8),
    "a quoted line break": (b'a,b\n1,2\n"3\n3",4\n5,6\n', 8),
    "a quoted line break, and no end of the last line": (b'a,b\n1,2\n"3\n3",4', 8),
    "two quoted line breaks": (b'a,b\n1,"x\ny"\n2,"x\ny"\n', 4),
    "a quoted blank line": (b'a,b\n1,"x\n\ny"\n', 4),
    "quotes that do not close": (b'a,b\n1,2\n3,"4\n', 8),
    "quotes that do not close before the end": (b'a,b\n1,"2\n3,4\n5,6\n', 4),
    "an even number of quotes that do not close": (b'a,b\nx"y,"1\nz"\n', 4),
    "quotes that do not close in the header": (b'a,"b\n1,2\n', 0),
    "a row too short": (b"a,b\n1,2\n3\n", 8),
    "a row too long": (b"a,b\n1,2\n3,4,5\n", 8),
    "letters behind a quoted value": (b'a,b\n1,2\n"x"y,1\n', 8),
    "quotes as Spark writes them": (b'a,b\n1,2\nsean,"\\"Jeff"\n', 8),
    "a quote within quotes behind a delimiter": (b'a,b\n1,2\n"3,"4",5\n', 8),
    "a space behind quotes": (b'a,b\n1,"2" \n', 4),
    "letters behind a quoted value in the header": (b'"a"x,b,a\n1,2,3\n', 0),
    "no header": (b"\na,b\n1,2\n", 0),
    "a column twice": (b"a,b,a\n1,2,3\n", 0),
    "two signatures before the header": (b"\xef\xbb\xbf\xef\xbb\xbfb,a\n1,2\n", 0),
    "a column missing": (b"a,c\n1,2\n", 0),
    "bytes that are no text": (b"a,b\n1,2\n\xff,4\n", 8),
    "bytes that are no text in the header": (b"a,b,\xff\n1,2,3\n", 0),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), 0),
}


def csv_answer(
    tmp_path: Path, content: bytes, schema: pa.Schema = TEXTS, **arguments: Any
) -> Answer:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    return cut(
        [answer(CsvTransactionalSpout(path, schema, size, **arguments), path) for size in CUTS]
    )


def by_line(tmp_path: Path, names: list[str] | None = None) -> list[tuple[Any, ...]]:
    """The result of Python's own reader for each line that the spout of tuples emits."""
    lines = [
        row[0]
        for batch in Drive(FileTransactionalSpout(tmp_path / "a.csv")).run()
        for row in batch[0]
    ]
    rows = [next(csv.reader([line])) for line in lines if line]
    header = names or rows.pop(0)
    return [tuple(row[header.index(name)] for name in TEXTS.names) for row in rows]


@pytest.mark.rule(38)
@pytest.mark.parametrize("content", CSV_ACCEPTED.values(), ids=CSV_ACCEPTED)
def test_csv_files_are_the_same_line_by_line_and_in_columns(tmp_path: Path, content: bytes) -> None:
    assert csv_answer(tmp_path, content) == by_line(tmp_path)
    headless = content.split(b"\n", 1)[-1] if b"\n" in content else b""
    if b"c,a" not in content:
        assert csv_answer(tmp_path, headless, header=False) == by_line(tmp_path, ["b", "a"])


@pytest.mark.rule(38)
@pytest.mark.parametrize(("content", "at"), CSV_REFUSED.values(), ids=CSV_REFUSED)
def test_a_csv_file_with_other_records_than_lines_is_refused_by_the_byte_of_the_first(
    tmp_path: Path, content: bytes, at: int
) -> None:
    assert csv_answer(tmp_path, content) == (str(tmp_path / "a.csv"), at)


@pytest.mark.rule(38)
@pytest.mark.parametrize("type", [pa.float32(), pa.float64()])
def test_a_csv_number_beyond_its_column_is_refused_and_infinity_is_not(
    tmp_path: Path, type: pa.DataType
) -> None:
    schema = pa.schema([("a", type)])
    assert csv_answer(tmp_path, b"a\n-inf\n1.5\nInfinity\n", schema) == [
        (-math.inf,),
        (1.5,),
        (math.inf,),
    ]
    assert csv_answer(tmp_path, b"a\ninf\n\n-1e400\n", schema) == (str(tmp_path / "a.csv"), 7)


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    ("type", "kept", "changed"),
    [
        (pa.float64(), b"9007199254740994", b"9007199254740993"),
        (pa.float32(), b"16777216", b" 16777217"),
        (pa.float32(), b"16777217.0", b"-16777217"),
        (pa.dictionary(pa.int32(), pa.float64()), b"inf", b"1e400"),
        (pa.dictionary(pa.int32(), pa.float64()), b"-9007199254740992", b"-9007199254740993"),
        (pa.int64(), b"-1", b"0xFFFFFFFFFFFFFFFF"),
        (pa.int8(), b"-1", b"0Xff"),
        (pa.dictionary(pa.int32(), pa.int64()), b"10", b"0x10"),
        (pa.decimal128(5, 2), b"999.99", b"1000"),
        (pa.time32("s"), b"23:59:59", b"24:00:00"),
    ],
)
def test_a_csv_number_that_its_column_would_change_is_refused(
    tmp_path: Path, type: pa.DataType, kept: bytes, changed: bytes
) -> None:
    schema = pa.schema([("a", type), ("b", pa.string())])
    rows: Any = csv_answer(tmp_path, b"a,b\n%b,0x1\n,\n" % kept, schema)
    assert [row[1:] for row in rows] == [("0x1",), ("",)]
    assert rows[1][0] is None
    assert csv_answer(tmp_path, b"a,b\n%b,0x1\n,\n%b,\n" % (kept, changed), schema) == (
        str(tmp_path / "a.csv"),
        11 + len(kept),
    )


@pytest.mark.rule(38)
def test_a_csv_type_is_the_declared_one_for_values_of_any_look(tmp_path: Path) -> None:
    content = b"a,b\n7,1\n007,2\n2026-01-01,3\n"
    assert csv_answer(tmp_path, content, pa.schema([("a", pa.string()), ("b", pa.int64())])) == [
        ("7", 1),
        ("007", 2),
        ("2026-01-01", 3),
    ]
    assert csv_answer(tmp_path, content, pa.schema([("a", pa.int64())])) == (
        str(tmp_path / "a.csv"),
        14,
    )


@pytest.mark.rule(38)
def test_a_block_is_cut_like_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 7)
    for content in CSV_ACCEPTED.values():
        csv_answer(tmp_path, content)
    for content, at in CSV_REFUSED.values():
        assert csv_answer(tmp_path, content) == (str(tmp_path / "a.csv"), at)


@pytest.mark.rule(38)
def test_bytes_that_are_no_text_are_replaced_and_the_end_of_their_line_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\r\n\x810\n\x810\r\n\n\x81")
    answers = [
        answer(FileTransactionalSpout(path, size, encoding="gb18030", errors="replace"), path)
        for size in CUTS
    ]
    assert cut(answers) == [("a",), ("\ufffd",), ("\ufffd",), ("",), ("\ufffd",)]


@pytest.mark.rule(38)
@pytest.mark.parametrize(
    "content",
    [
        *CSV_ACCEPTED.values(),
        b"a\xff\r\n\r\n\xc3\n\xff\xfe,\n\xe2\x82",
        b"\xef\xbb\xbf\xff\n\xff\r",
    ],
)
def test_lines_of_text_are_the_same_in_tuples_and_in_columns(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    several: list[dict[str, Any]] = [{}, {"errors": "replace"}, {"encoding": "latin-1"}]
    for arguments in several:
        of_tuples = cut(
            [answer(FileTransactionalSpout(path, size, **arguments), path) for size in CUTS]
        )
        assert (
            cut([answer(LinesTransactionalSpout(path, size, **arguments), path) for size in CUTS])
            == of_tuples
        )
    with pytest.raises(ConfigError, match="format is 'json'; it is one of 'lines'"):
        LinesTransactionalSpout(path, format="json")


@pytest.mark.rule(38)
def test_bytes_of_a_csv_record_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    content = b'b,a\n\xff,"\xc3"\n\xc3\r\n1,\xe2\x82\n'
    assert csv_answer(tmp_path, content, errors="replace") == (str(tmp_path / "a.csv"), 10), (
        "a value is missing at this byte"
    )
    content = content.replace(b"\xc3\r", b"2,\xc3\r")
    assert csv_answer(tmp_path, content, errors="replace") == [
        ("\ufffd", "\ufffd"),
        ("2", "\ufffd"),
        ("1", "\ufffd"),
    ]
    with pytest.raises(ConfigError, match="errors is 'ignore'; it is one of 'strict', 'replace'"):
        csv_answer(tmp_path, content, errors="ignore")


@pytest.mark.rule(38)
def test_a_signature_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    for size in CUTS:
        assert answer(FileTransactionalSpout(path, size), path) == [("a",), ("\ufeffb",)]
        assert answer(FileTransactionalSpout(path, size, encoding="utf-8-sig"), path) == [
            ("a",),
            ("\ufeffb",),
        ]
    path.write_bytes(b"\xef\xbb\xbf")
    assert answer(FileTransactionalSpout(path), path) == []
