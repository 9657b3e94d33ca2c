"""CSV files and files of JSON lines in columns: the records of a batch, and the messages about a
wrong file."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.topologies.planned_spouts import Drive
from tests.topologies.recording import NotingBolt
from txtopo import Sum, TransactionalTopologyBuilder, TransactionAttempt
from txtopo.connectors.files import (
    CsvTransactionalSpout,
    FileTransactionalSpout,
    JsonLinesTransactionalSpout,
    ParquetTransactionalSpout,
    blocks,
)
from txtopo.errors import ConfigError, InputError
from txtopo.stores import SqliteStore
from txtopo.topology.conf import TopologyConf
from txtopo.topology.stream import Fields, OutputFieldsDeclarer

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])


def batches_of(drive: Drive) -> list[dict[int, list[Any]]]:
    return drive.run()


def everything(spout: Any) -> list[Any]:
    return [row for batch in Drive(spout).run() for rows in batch.values() for row in rows]


@pytest.mark.rule(20)
def test_batches_of_a_csv_file_are_whole_records_up_to_bytes_per_batch(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,n\ncat,1\ndog,2\nchicken,3\n")
    drive = Drive(CsvTransactionalSpout(tmp_path / "a.csv", SCHEMA, bytes_per_batch=14))
    assert drive.run() == [{0: [("cat", 1)]}, {0: [("dog", 2)]}, {0: [("chicken", 3)]}]
    assert drive.plans[1][0]["start"] == 13


def test_columns_are_taken_by_their_names_in_the_order_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffn,other,word\n1,x,cat\n2,y,dog")
    (tmp_path / "b.csv").write_text("word;never,n\n")
    (tmp_path / "b.csv").write_text("word,n\r\ncow,3\r\n")
    assert everything(CsvTransactionalSpout(f"{tmp_path}/*", SCHEMA)) == [
        ("cat", 1),
        ("dog", 2),
        ("cow", 3),
    ]


def test_without_a_header_the_columns_are_those_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\ufeffcat\t1\n\ndog\t\n")
    assert everything(
        CsvTransactionalSpout(tmp_path / "a", SCHEMA, header=False, delimiter="\t")
    ) == [("cat", 1), ("dog", None)]


def test_text_is_never_null_and_other_columns_are_null_where_nothing_or_a_null_value_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text('word,n\n,\nNA,NA\n"a ""b"", c",7\n')
    assert everything(CsvTransactionalSpout(tmp_path / "a", SCHEMA, null_values=["", "NA"])) == [
        ("", None),
        ("NA", None),
        ('a "b", c', 7),
    ]


def test_quotes_are_letters_where_nothing_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('word,n\n5" pipe,1\n')
    assert everything(CsvTransactionalSpout(tmp_path / "a", SCHEMA, quote_char=False)) == [
        ('5" pipe', 1)
    ]


def test_quotes_and_delimiters_may_be_other_characters(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("word]n\n^a^^]^]1\nb^]2\n")
    assert everything(
        CsvTransactionalSpout(tmp_path / "a", SCHEMA, delimiter="]", quote_char="^")
    ) == [("a^]", 1), ("b^", 2)]
    (tmp_path / "a").write_text("word]n\n^a^b]1\n")
    with pytest.raises(InputError, match="has text behind a closing quote"):
        everything(CsvTransactionalSpout(tmp_path / "a", SCHEMA, delimiter="]", quote_char="^"))


def test_blocks_and_batches_begin_and_end_between_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 11)
    rows = [("x" * (i % 17), i) for i in range(100)]
    (tmp_path / "a").write_text("word,n\n" + "".join(f"{word},{n}\n" for word, n in rows))
    (tmp_path / "b").write_text("".join(f'{{"n": {n}, "word": "{word}"}}\n' for word, n in rows))
    for bytes_per_batch in (1, 30, 1000, 1 << 20):
        assert everything(CsvTransactionalSpout(tmp_path / "a", SCHEMA, bytes_per_batch)) == rows
        assert (
            everything(JsonLinesTransactionalSpout(tmp_path / "b", SCHEMA, bytes_per_batch)) == rows
        )


def test_objects_have_null_where_a_field_is_missing_and_others_are_passed_over(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text(
        '\ufeff{"n": 1, "word": "cat", "more": [1]}\n\n{"word": "dog"}\n{"n": 3}'
    )
    assert everything(JsonLinesTransactionalSpout(tmp_path / "a", SCHEMA)) == [
        ("cat", 1),
        ("dog", None),
        (None, 3),
    ]


def test_columns_called_tx_and_tx_with_an_underscore_are_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match=r"'tx' and '_tx'.*\n  Rename one, or leave it out"):
        FileTransactionalSpout("a", format="json", fields=("tx", "_tx"))


def test_a_column_called_tx_is_a_field_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "csv").write_text("tx,n\n7,1\n")
    (tmp_path / "json").write_text('{"tx": 7, "n": 1}\n')
    schema = pa.schema([("tx", pa.int64()), ("n", pa.int64())])
    pa.parquet.write_table(pa.table({"tx": [7], "n": [1]}), tmp_path / "parquet")
    spouts: list[Any] = [
        CsvTransactionalSpout(tmp_path / "csv", schema),
        JsonLinesTransactionalSpout(tmp_path / "json", schema),
        FileTransactionalSpout(tmp_path / "json", format="json", fields=("tx", "n")),
        ParquetTransactionalSpout(tmp_path / "parquet"),
    ]
    for spout in spouts:
        topology = TransactionalTopologyBuilder("t", "spout", spout)
        topology.set_aggregate("sums", Sum("n"), SqliteStore(tmp_path / "db", "sums")).group_by(
            "spout", "tx"
        )
        topology.set_bolt("bolt", NotingBolt()).fields_grouping("sums", "tx")
        graph = topology.build_topology()
        assert graph.components["spout"].outputs["default"].fields == Fields("_tx", "tx", "n")
        assert graph.components["sums"].outputs["default"].fields == Fields(
            "_tx", "tx", "prev", "curr"
        )
        assert [row[-2:] for row in everything(spout)] == [(7, 1)]


def test_values_are_of_the_declared_types(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us")),
            ("x", pa.float32()),
            ("d", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    (tmp_path / "a").write_text("t,x,d\n2026-01-02 03:04:05,1.5,a\n")
    spout = CsvTransactionalSpout(tmp_path / "a", schema)
    assert everything(spout) == [(datetime.datetime(2026, 1, 2, 3, 4, 5), 1.5, "a")]
    declarer = OutputFieldsDeclarer()
    spout.declare_output_fields(declarer)
    assert declarer.streams["default"].fields == Fields("tx", "t", "x", "d")
    assert declarer.streams["default"].schema == schema.serialize().to_pybytes()


@pytest.mark.rule(18, 20)
def test_files_are_dealt_out_and_added_files_are_read_by_the_next_run(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"word,n\n{name},1\n")
    drive = Drive(CsvTransactionalSpout(f"{tmp_path}/*", SCHEMA, partitions=2))
    assert drive.run() == [{0: [("a", 1)], 1: [("b", 1)]}]
    plan = drive.plans[0]
    with (tmp_path / "b").open("a") as file:
        file.write("b,2\n")
    assert drive.emitted(plan, attempt_id=1) == {0: [("a", 1)], 1: [("b", 1)]}, (
        "a replay reads the same bytes"
    )
    assert Drive(
        CsvTransactionalSpout(f"{tmp_path}/*", SCHEMA, partitions=2), drive.positions
    ).run() == [{0: [], 1: [("b", 2)]}]


WRONG: list[tuple[Any, str, int, str]] = [
    (
        CsvTransactionalSpout,
        "word,n\ndog,1\ncat,x\n",
        13,
        "CSV conversion error to int64: invalid value 'x'",
    ),
    (CsvTransactionalSpout, "word,n\ncat\n", 7, "Expected 2 columns, got 1"),
    (
        CsvTransactionalSpout,
        "word,m\ncat,1\n",
        0,
        "is the header, and has no column 'n'; it has 'word', 'm'",
    ),
    (CsvTransactionalSpout, "word,n,n\ncat,1,2\n", 0, "is the header, and names 2 columns 'n'"),
    (CsvTransactionalSpout, '"wo\nrd",n\ncat,1\n', 0, "ends within a quoted value"),
    (
        CsvTransactionalSpout,
        'word,n\n"\\"Jeff",1\n',
        7,
        "has text behind a closing quote\n  A record is one line, and a quote",
    ),
    (
        CsvTransactionalSpout,
        'word,n\n"a\\"",1\n',
        7,
        "ends within a quoted value\n  A record is one line, and a quote within quotes is doubled",
    ),
    (
        CsvTransactionalSpout,
        'word,n\n"c\nat",1\n"do\ng",2\n"e",3\n',
        7,
        "ends within a quoted value",
    ),
    (
        JsonLinesTransactionalSpout,
        '{"word": "cat", "n": 1.5}\n',
        0,
        "Failed to convert JSON to int64",
    ),
    (JsonLinesTransactionalSpout, '{"word": \n"cat", "n": 1}\n', 0, "is not JSON: Expecting value"),
    (JsonLinesTransactionalSpout, "{}\n[1]\n", 3, "is not a JSON object but a list"),
]


@pytest.mark.parametrize(("kind", "text", "at", "said"), WRONG)
def test_a_record_that_does_not_fit_is_an_error_that_names_the_file_and_the_line(
    tmp_path: Path, kind: Any, text: str, at: int, said: str
) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    for bytes_per_batch in (1, 12, 1 << 20):
        with pytest.raises(InputError) as raised:
            everything(kind(path, SCHEMA, bytes_per_batch))
        assert str(raised.value).startswith(f"{path}: the line at byte {at} ")
        assert said in str(raised.value)


def test_bytes_that_are_not_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"word,n\n\xff,1\n")
    with pytest.raises(InputError, match="invalid UTF8"):
        everything(CsvTransactionalSpout(tmp_path / "a", SCHEMA))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"schema": {"word": "string"}},
            r"schema is \{'word': 'string'\}; it names the columns and their types",
        ),
        ({"schema": pa.schema([])}, "it names the columns and their types"),
        ({"delimiter": "ab"}, "delimiter and quote_char are one character each"),
        ({"quote_char": True}, "delimiter and quote_char are one character each"),
        ({"quote_char": None}, "delimiter and quote_char are one character each"),
        ({"quote_char": b"'"}, "delimiter and quote_char are one character each"),
        (
            {"quote_char": "\n"},
            r"quote_char cannot be \\r or \\n; delimiter and quote_char are one character each",
        ),
        (
            {"delimiter": "\r"},
            r"delimiter cannot be \\r or \\n; delimiter and quote_char are one character each",
        ),
        (
            {"delimiter": ";", "quote_char": ";"},
            "';' cannot be both; delimiter and quote_char are one character each",
        ),
        (
            {"null_values": "NA"},
            r"null_values is 'NA'; it is a list of texts, for example \['', 'NA'\]",
        ),
        ({"null_values": [None]}, r"null_values is \[None\]; it is a list of texts"),
        ({"bytes_per_batch": 0}, "bytes_per_batch is 0"),
        ({"partitions": 0}, "partitions is 0"),
    ],
)
def test_impossible_arguments_are_refused(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        CsvTransactionalSpout(**{"paths_or_glob": tmp_path / "a", "schema": SCHEMA, **arguments})


def test_memory_is_bounded_by_a_block(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as file:
        file.write("word,n\n")
        for i in range(400_000):
            file.write(f"word{i % 1000},{i}\n")
    assert os.path.getsize(tmp_path / "a") > 5 * blocks.BLOCK_BYTES
    drive = Drive(CsvTransactionalSpout(tmp_path / "a", SCHEMA, bytes_per_batch=1 << 30))
    sizes: list[int] = []
    emitter = CsvTransactionalSpout(tmp_path / "a", SCHEMA).get_emitter(
        TopologyConf({}), cast(Any, None)
    )

    class Weighed:
        def emit_batch(self, batch: pa.RecordBatch) -> None:
            sizes.append(batch.nbytes)

    emitter.emit_partition_batch(TransactionAttempt(1, 0), cast(Any, Weighed()), 0, drive.plan()[0])
    assert len(sizes) > 4
    assert max(sizes) < 3 * blocks.BLOCK_BYTES


FROM_DIRECTORIES = pa.schema([("n", pa.int64()), ("dt", pa.date32()), ("kind", pa.string())])
DAY = datetime.date(2026, 1, 1)
SPOUTS: dict[str, Any] = {
    "csv": lambda files, schema: CsvTransactionalSpout(files, schema),
    "bare csv": lambda files, schema: CsvTransactionalSpout(files, schema, header=False),
    "json": lambda files, schema: JsonLinesTransactionalSpout(files, schema),
    "parquet": lambda files, schema: ParquetTransactionalSpout(files, schema=schema),
}


def partitioned(root: Path, kind: str) -> str:
    """Files of Spark's, in directories that name columns; returns their pattern."""
    for directory, number in (
        ("dt=2026-01-01/kind=a%2Fb%3D", 1),
        ("dt=__HIVE_DEFAULT_PARTITION__/kind=c", 2),
    ):
        (root / "x=1" / directory).mkdir(parents=True)
        file = root / "x=1" / directory / "part-0"
        file.write_text(
            {"csv": f"n\n{number}\n", "bare csv": f"{number}\n"}.get(
                kind, f'{{"n": {number}, "kind": null}}\n'
            )
        )
        if kind == "parquet":
            pa.parquet.write_table(pa.table({"n": [number]}), file)
    return f"{root}/x=1/**/part-0"


@pytest.mark.parametrize("kind", SPOUTS)
def test_a_column_that_directories_name_has_the_value_in_their_names(
    tmp_path: Path, kind: str
) -> None:
    assert everything(SPOUTS[kind](partitioned(tmp_path, kind), FROM_DIRECTORIES)) == [
        (1, DAY, "a/b="),
        (2, None, "c"),
    ]
    wrong = SPOUTS[kind](
        f"{tmp_path}/**/kind=c/part-0", pa.schema([("n", pa.int64()), ("kind", pa.int8())])
    )
    with pytest.raises(
        InputError, match=r"a directory says kind=c, which is no int8\n.*the schema"
    ):
        everything(wrong)
    of_directories = SPOUTS[kind](
        f"{tmp_path}/**/part-0", pa.schema([("dt", pa.string()), ("kind", pa.string())])
    )
    if kind == "json":
        assert everything(of_directories) == [("2026-01-01", "a/b="), (None, "c")]
        return
    with pytest.raises(InputError, match=r"its directories name every column, dt, kind\n"):
        everything(of_directories)


def test_directories_name_columns_of_parquet_that_no_schema_declares_and_fields_of_json(
    tmp_path: Path,
) -> None:
    files = partitioned(tmp_path / "parquet", "parquet")
    assert ParquetTransactionalSpout(files).schema.names == ["n"]
    assert everything(ParquetTransactionalSpout(files, ["kind", "n"])) == [("a/b=", 1), ("c", 2)]
    assert everything(ParquetTransactionalSpout(files, ["x", "n"])) == [("1", 1), ("1", 2)]
    fields = FileTransactionalSpout(
        partitioned(tmp_path / "json", "json"), format="json", fields=("kind", "n", "dt")
    )
    assert everything(fields) == [("a/b=", 1, "2026-01-01"), ("c", 2, None)]


def test_neither_the_current_directory_nor_one_above_names_a_column_of_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "kind=b" / "word=up"
    (directory / "in" / "word=ant").mkdir(parents=True)
    for place in ("a.json", "in/a.json", "in/word=ant/a.json"):
        (directory / place).write_text('{"n": 1, "kind": null, "word": null}\n')
    monkeypatch.chdir(directory)
    schema = pa.schema([("kind", pa.string()), ("word", pa.string())])
    assert [
        everything(JsonLinesTransactionalSpout(patterns, schema))
        for patterns in (
            "*.json",
            "../*/in/a.json",
            "../word=*/*.json",
            ["in/word=*/a.json", "a.json"],
            f"{directory}/*.json",
        )
    ] == [
        [(None, None)],
        [(None, "up")],
        [(None, "up")],
        [(None, None), (None, "ant")],
        [("b", "up")],
    ]
    texts = FileTransactionalSpout("*.json", format="json", fields=("kind", "word"))
    assert everything(texts) == [(None, None)]
    pa.parquet.write_table(pa.table({"n": [1]}), "a.parquet")
    with pytest.raises(ConfigError, match="there is no column 'kind'"):
        ParquetTransactionalSpout("*.parquet", ["kind", "n"])
    with pytest.raises(InputError, match="no column 'word'"):
        everything(ParquetTransactionalSpout("*.parquet", schema=SCHEMA))
    Path("a.csv").write_text("n\n1\n")
    with pytest.raises(InputError, match="'word'"):
        everything(CsvTransactionalSpout("*.csv", SCHEMA))


def test_a_directory_names_the_columns_of_its_own_files_and_only_those_that_they_lack(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "run=7" / "n=9"
    directory.mkdir(parents=True)
    (directory / "a.csv").write_text("word,n\ncat,1\n")
    pa.parquet.write_table(pa.table({"word": ["cat"], "n": [1]}), directory / "a.parquet")
    assert everything(CsvTransactionalSpout(f"{directory}/*.csv", SCHEMA)) == [("cat", 1)]
    assert everything(CsvTransactionalSpout(f"{directory}/*.csv", SCHEMA.remove(0))) == [(1,)]
    assert everything(ParquetTransactionalSpout(f"{directory}/*.parquet", schema=SCHEMA)) == [
        ("cat", 1)
    ]
    (tmp_path / "z.json").write_text('{"word": "elk", "n": 5, "run": null}\n')
    (directory / "b.json").write_text(
        '{"word": "dog", "n": 2, "run": 3}\n{"word": "cow", "n": 4, "run": null}\n{"word": "bee"}\n'
    )
    schema = pa.schema([*SCHEMA, ("run", pa.int64())])
    rows = [("dog", 2, 3), ("cow", 4, 7), ("bee", 9, 7)]
    assert everything(JsonLinesTransactionalSpout(f"{tmp_path}/**/*.json", schema)) == [
        *rows,
        ("elk", 5, None),
    ]
    assert everything(JsonLinesTransactionalSpout(f"{directory}/b.json", schema)) == rows
    texts = FileTransactionalSpout(
        f"{directory}/b.json", format="json", fields=("word", "n", "run")
    )
    assert everything(texts) == [("dog", 2, 3), ("cow", 4, "7"), ("bee", "9", "7")]
    with pytest.raises(InputError, match="has no field 'day'"):
        everything(
            FileTransactionalSpout(f"{directory}/b.json", format="json", fields=("word", "day"))
        )
