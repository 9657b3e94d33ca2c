"""A sink before it is connected: allowed arguments, refusals with their cures, and the row made
from a tuple."""

from __future__ import annotations

import contextlib
import datetime
import math
import pickle
import sqlite3
from collections.abc import Callable, Container
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import psycopg
import pytest
import sqlalchemy as sa
from pyspark import TaskContext

from txtopo import (
    FailedException,
    Fields,
    InvalidTopologyError,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
    UsageError,
)
from txtopo.connectors.sql import SqlSink, parameters, postgresql, sqlite, values
from txtopo.connectors.sql import target as sql_target
from txtopo.errors import RowRefusedError, SetupError, TxtopoError
from txtopo.sinks import spool, tuple_rows
from txtopo.stores.stamps import Stamp
from txtopo.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.conf import TopologyConf
from txtopo.topology.stream import TupleSource

URL = "postgresql+psycopg://ann@db.example/shop"


class Collected:
    """Takes what a sink emits."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def emit(self, values: Any, stream: str = "default") -> None:
        self.values.append(values)


def prepared(sink: SqlSink) -> SqlSink:
    """A sink in a task."""
    collector: Any = Collected()
    sink.prepare(
        TopologyConf({}), WorkerProcess().task("write"), collector, TransactionAttempt(1, 0)
    )
    return sink


def taken(sink: SqlSink, fields: Fields, *rows: tuple[Any, ...]) -> SqlSink:
    """``sink`` after these tuples."""
    source = TupleSource("spout", 0, "default", fields)
    for row in rows:
        sink.execute(Tuple((TransactionAttempt(1, 0), *row), source))
    return sink


@pytest.mark.parametrize(
    ("database", "address"),
    [
        ("/data/shop.db", "/data/shop.db#sales"),
        ("sqlite:////data/shop.db", "/data/shop.db#sales"),
        (URL, "postgresql+psycopg://db.example/shop#sales"),
    ],
)
def test_its_database_is_a_file_or_a_server(database: str, address: str) -> None:
    sink = SqlSink(database, "sales")
    assert (sink.ledger.sink, repr(sink)) == (address, f"<SqlSink {address}>")
    again = pickle.loads(pickle.dumps(sink))
    assert (again.ledger.sink, again.ledger.target) == (sink.ledger.sink, sink.ledger.target)


def test_a_relative_path_means_the_same_file_everywhere(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        SqlSink("sqlite:///shop.db", "sales").ledger.sink
        == SqlSink("shop.db", "sales").ledger.sink
        == f"{tmp_path}/shop.db#sales"
    )


TABLE = sa.Table(
    "sales",
    sa.MetaData(schema="shop"),
    sa.Column("id", sa.Integer),
    sa.Column("cents", sa.Integer),
    sa.Column("by", sa.Text),
)


def test_a_table_object_says_its_schema_and_its_columns() -> None:
    assert SqlSink(URL, TABLE, ["id"]).ledger.target.quoted == '"shop"."sales"'
    with pytest.raises(
        UsageError, match=r"the table shop.sales has no column 'price'\n  It has id, cents, by"
    ):
        SqlSink(URL, TABLE, ["id", "price"])
    with pytest.raises(UsageError, match="has no column 'mark'"):
        SqlSink(URL, TABLE, ["id"], mark="mark")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs a table or a statement"),
        ({"table": "sales", "statement": "INSERT INTO sales VALUES (:id)"}, "and not both"),
        ({"table": ""}, "cannot write to a table ''"),
        ({"table": 7}, "cannot write to 7"),
        ({"table": "sales", "columns": "id"}, "are different names, not 'id'"),
        ({"table": "sales", "columns": ["id", "id"]}, "are different names"),
        (
            {"table": "sales", "key": ["id"]},
            r"the key of an SqlSink \(id\) is not among its columns \(none are given\)",
        ),
        (
            {"table": "sales", "columns": ["cents"], "key": "id"},
            r"\(id\) is not among its columns \(cents\)",
        ),
        (
            {"table": "sales", "columns": ["id"], "key": ["id"], "mark": "by"},
            "is useless with a key",
        ),
        ({"table": "sales", "columns": ["id", "by"], "mark": "by"}, "is one of its columns"),
        ({"statement": "INSERT INTO sales VALUES (1)"}, "has no values"),
        (
            {"statement": "INSERT INTO sales VALUES (:id)", "columns": ["id", "cents"]},
            "its columns are the statement's :names",
        ),
        (
            {"statement": "INSERT INTO sales VALUES (:id)", "key": ["id"]},
            "takes neither a key nor a mark",
        ),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        SqlSink("shop.db", **arguments)
    assert "\n  " in str(caught.value), "an error says what to do"


@pytest.mark.rule(31)
@pytest.mark.parametrize(
    "arguments",
    [
        {"table": "sales"},
        {"table": "sales", "columns": ["id"]},
        {"statement": "INSERT INTO sales VALUES (:id)"},
    ],
)
def test_an_opaque_sink_whose_rows_could_not_be_taken_back_is_refused(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(UsageError, match=r"cannot take back .*\(R31\)\n  Give (mark=|table=)"):
        SqlSink(URL, opaque=True, **arguments)


def test_a_password_in_the_address_is_refused() -> None:
    with pytest.raises(UsageError, match="holds a password") as caught:
        SqlSink("postgresql+psycopg://ann:sw0rdfish@db.example/shop", "sales")
    assert "sw0rdfish" not in str(caught.value)


def test_a_sink_in_a_file_is_refused_where_executors_are_elsewhere() -> None:
    builder = TransactionalTopologyBuilder(
        "sales", "spout", MemoryTransactionalSpout({0: [(1,)]}, Fields("id"), 1)
    )
    builder.set_bolt("write", SqlSink("shop.db", "sales")).shuffle_grouping("spout")
    assert builder.build_topology().local_only == (
        ("spout", "its rows are kept in temporary files on the driver's machine"),
        ("write", "SqlSink writes to a file on this machine"),
    )


@pytest.mark.parametrize("database", [":memory:", "postgresql+psycopg://ann:secret@host/shop"])
def test_a_sink_at_a_wrong_address_is_not_called_a_store(database: str) -> None:
    with pytest.raises(UsageError) as refused:
        SqlSink(database, "sales")
    assert "Store" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("database", "context"),
    [
        ("shop.db", {"phase": "processing"}),
        ("shop.db", {"local_master": False}),
        ("shop.db", {}),  # without a table
        ("missing/shop.db", {}),
        ("text.db", {}),
    ],
)
def test_no_error_of_a_sink_in_a_file_calls_the_sink_a_store(
    database: str, context: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "text.db").write_text("no database")
    ledger = SqlSink(tmp_path / database, "sales", ["id"]).ledger
    task = WorkerProcess().task("write", **context)
    with pytest.raises((FailedException, TxtopoError)) as refused:
        ledger.apply(task, TransactionAttempt(1, 0), (), [(1,)])
    assert "SqliteStore" not in str(refused.value)


def problems_of(sink: SqlSink, opaque: bool = False, by: str = "") -> tuple[str, ...]:
    """The mistakes of a topology of one spout and two tasks of ``sink``, fed by shuffle, or by the
    field ``by``."""
    make = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    builder = TransactionalTopologyBuilder(
        "sales", "spout", make({0: [(1, 10)]}, Fields("number", "cents"), 1)
    )
    write = builder.set_bolt("write", sink, 2)
    if by:
        write.fields_grouping("spout", Fields(by))
    else:
        write.shuffle_grouping("spout")
    try:
        builder.build_topology()
    except InvalidTopologyError as error:
        return error.problems
    return ()


INSERTS = SqlSink(URL, "sales", ["cents"])
UPSERTS = SqlSink(URL, "sales", {"id": "number", "cents": "cents"}, key=["id"])


@pytest.mark.rule(31)
@pytest.mark.parametrize(
    "sink", [INSERTS, UPSERTS, SqlSink(URL, statement="INSERT INTO sales VALUES (:cents)")]
)
def test_an_opaque_spout_needs_a_sink_that_takes_back(sink: SqlSink) -> None:
    [problem] = problems_of(sink, opaque=True, by="number")
    assert "db.example/shop#" in problem
    assert "(R31)" in problem
    assert "opaque=True" in problem
    assert problems_of(sink, by="number") == ()


@pytest.mark.rule(31)
@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": ["cents"], "mark": "by"},
        {"columns": {"id": "number", "cents": "cents"}, "key": ["id"]},
    ],
)
def test_a_sink_that_takes_back_fits_every_spout(arguments: dict[str, Any]) -> None:
    sink = SqlSink(URL, "sales", opaque=True, **arguments)
    assert problems_of(sink, opaque=True, by="number") == problems_of(sink, by="number") == ()


@pytest.mark.rule(32)
def test_rows_that_replace_each_other_must_meet_in_one_task_and_rows_that_do_not_need_not() -> None:
    assert problems_of(INSERTS) == ()
    [problem] = problems_of(UPSERTS)
    assert "Use fields_grouping on the key, number" in problem
    [problem] = problems_of(UPSERTS, by="cents")
    assert "goes by cents, but its keys have other fields" in problem


@pytest.mark.rule(31, 32)
@pytest.mark.parametrize("own", [False, True], ids=["perhaps of one key", "of keys of their own"])
def test_two_components_do_not_upsert_one_table_that_is_taken_back(own: bool) -> None:
    class OwnKeys(SqlSink):
        has_own_keys = True

    topology = TransactionalTopologyBuilder(
        "shop", "spout", OpaqueMemoryTransactionalSpout({0: [(1, 2)]}, Fields("id", "cents"), 1)
    )
    for id in ("first", "second"):
        sink = (OwnKeys if own else SqlSink)(
            "shop.db", "sales", ["id", "cents"], key=["id"], opaque=True
        )
        topology.set_bolt(id, sink).global_grouping("spout")
    topology.set_bolt(
        "marks", SqlSink("shop.db", "others", ["id"], mark="by", opaque=True)
    ).global_grouping("spout")
    topology.set_bolt(
        "more marks", SqlSink("shop.db", "others", ["id"], mark="by", opaque=True)
    ).global_grouping("spout")
    if own:
        topology.build_topology()
        return
    with pytest.raises(InvalidTopologyError) as refused:
        topology.build_topology()
    [problem] = refused.value.problems
    assert problem.startswith("components 'first', 'second': all write to SqlSink ")
    assert "Send all rows to one component" in problem


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("INSERT INTO sales VALUES (:id, :cents)", ("id", "cents")),
        ("INSERT INTO sales VALUES (:id, :id::text, now()::date)", ("id",)),
        ("UPDATE sales SET cents = :cents WHERE id = :id", ("cents", "id")),
    ],
)
def test_the_values_of_a_statement_are_its_names(statement: str, names: tuple[str, ...]) -> None:
    assert SqlSink(URL, statement=statement).fields == names


NO_NAMES = {
    "sqlite": ["'it''s :b'", '"a "":b"', "`:b`", "[:b]", "-- :b\n", "/* ' :b */", "'\\'"],
    "postgresql": [
        "'it''s :b'",
        '"a "":b"',
        "-- :b\n",
        "/* ' :b */",
        "/* a /* b */ :b */",
        "$$ :b ' $$",
        "$tag$ :b $$ :b $tag$",
        "$é1$ :b $é1$",
        "E'\\' :b'",
        "e'\\\\'",
        "'\\'",
        "U&'\\0041 :b'",
        "a::b",
        "$$ /* $$",
    ],
    "mysql": [
        "'it''s :b'",
        "'it\\'s :b'",
        '"it\\"s :b"',
        "`a ``:b`",
        "-- :b\n",
        "# ' :b\n",
        "/* ' :b */",
        "'\\\\'",
    ],
}


@pytest.mark.parametrize(
    ("dialect", "part"), [(dialect, part) for dialect, parts in NO_NAMES.items() for part in parts]
)
def test_placeholders_in_texts_names_and_comments_are_no_values(
    dialect: parameters.Dialect, part: str
) -> None:
    statement = f"INSERT INTO t VALUES (:a, {part}, :c, $1$2 :d)"
    target = sql_target.target_of(None, None, (), statement, None, False, dialect)
    assert target.columns == ("a", "c", "d")
    replaced = parameters.replaced(statement, dialect, str.upper)
    assert replaced == f"INSERT INTO t VALUES (A, {part}, C, $1$2 D)"


@pytest.mark.parametrize(
    ("database", "dialect"),
    [
        ("shop.db", "sqlite"),
        ("sqlite:///shop.db", "sqlite"),
        (URL, "postgresql"),
        ("mysql+pymysql://me@host/db", "mysql"),
    ],
)
def test_a_statement_is_read_as_its_database_reads_it(database: str, dialect: str) -> None:
    assert SqlSink(database, statement="INSERT INTO t VALUES (:a)").ledger.target.dialect == dialect


def test_all_fields_but_the_attempt_are_columns_unless_said_otherwise() -> None:
    sink = taken(
        prepared(SqlSink("shop.db", "sales")), Fields("tx", "id", "cents"), (1, 10), (2, 20)
    )
    assert (sink._columns_of(sink._fields), sink.rows) == (("id", "cents"), [(1, 10), (2, 20)])


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (["cents", "id"], [(10, 1)]),
        (["cents"], [(10,)]),
        ({"number": "id", "price": "cents"}, [(1, 10)]),
        (["id", "article"], [(1, "tea")]),
        (["cents", "article"], [(10, "tea")]),
    ],
)
def test_a_row_has_the_fields_that_were_named_in_their_order(
    columns: Any, rows: list[tuple[Any, ...]]
) -> None:
    sink = taken(
        prepared(SqlSink("shop.db", "sales", columns)),
        Fields("tx", "id", "cents", "article"),
        (1, 10, "tea"),
    )
    assert sink.rows == rows
    assert sink._columns_of(sink._fields) == tuple(columns)


def test_the_fields_of_a_statement_are_found_by_its_names_and_not_by_their_order() -> None:
    sink = SqlSink(
        "shop.db", statement="INSERT INTO sales VALUES (:a, :b)", columns={"b": "id", "a": "cents"}
    )
    assert taken(prepared(sink), Fields("tx", "id", "cents"), (1, 10)).rows == [(10, 1)]
    with pytest.raises(
        UsageError,
        match=r"gets no field 'cents'; there are id\n  Name a field in the statement, as :name\.",
    ):
        taken(prepared(sink), Fields("tx", "id"), (1,))


NOON = datetime.datetime(2026, 7, 1, 12, 30, 1, 250_001)
ZONED = NOON.replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "kept_by", "not_kept_by"),
    [
        (
            ZONED,
            ["timestamp with time zone", "text"],
            ["timestamp without time zone", "date", "time with time zone", "datetime"],
        ),
        (
            ZONED.timetz(),
            ["time with time zone"],
            ["time without time zone", "timestamp with time zone"],
        ),
        (
            NOON,
            ["timestamp without time zone", "timestamp", "datetime", "character varying"],
            ["timestamp with time zone", "date", "time"],
        ),
        (NOON.time(), ["time without time zone", "time"], ["date", "time with time zone"]),
        (NOON.date(), ["date", "datetime", "timestamp"], ["timestamp with time zone", "integer"]),
        (
            2**53 + 1,
            ["bigint", "numeric", "text"],
            ["double precision", "double", "date", "longblob", "enum", "year"],
        ),
        (2026, ["year"], ["date"]),
        (1.5, ["double", "real", "numeric", "jsonb"], ["integer", "money", "bytea"]),
        (Decimal("0.1"), ["decimal", "varchar"], ["double precision", "bit", "money"]),
        (Decimal("0.5"), ["decimal", "double"], ["bit"]),
        (b"a", ["bytea", "mediumblob", "varbinary"], ["text", "json"]),
        (True, ["boolean", "tinyint", "decimal"], ["text", "date"]),
        ("a ", ["text", "character varying", "uuid"], ["char", "character"]),
        ("a" * 64, ["text"], ["name"]),
        ("ä", ["character varying", "name"], ['"char"']),
        (5, ["integer", "jsonb"], ["interval"]),
        (
            "2026-07-01T12:30:00+02:00",
            ["timestamp with time zone", "text"],
            ["timestamp without time zone", "datetime", "date", "time without time zone"],
        ),
        ("2026-07-01 12:30 Europe/Berlin", ["timestamp with time zone"], ["datetime"]),
        (
            "2026-07-01 12:30",
            ["timestamp without time zone", "timestamp with time zone", "datetime"],
            ["date", "time", "time with time zone"],
        ),
        ("2026-07-01T00:00:00.000Z", ["date"], ["datetime"]),
        ("2026-07-01", ["date", "datetime", "timestamp with time zone"], []),
        ("12:30", ["time", "time with time zone"], []),
        ("12:30:00.1234567", ["text"], ["time", "time with time zone"]),
        ("12:30 01-07-2026", ["timestamp without time zone"], []),
        ("{2026-07-01 12:30:00+02}", ["timestamp with time zone[]"], []),
        (str(2**62), ["double precision", "double"], []),
        ("1:" * 9999, ["datetime", "text"], []),
        ("9007199254740993", ["bigint", "numeric", "real"], ["double precision", "double"]),
        ("0.1", ["double precision", "double", "real", "numeric", "money"], ["integer"]),
        ("1.0", ["integer", "double precision"], []),
        ("1e3", ["integer", "double precision"], []),
        ("12e-1", ["double precision", "numeric"], ["integer"]),
        ("NaN", ["numeric", "double precision", "integer"], []),
        ("infinity", ["date", "timestamp without time zone", "numeric"], []),
        ("1 July 2026", ["date", "timestamp without time zone"], []),
        ("{2026-07-01 12:30}", ["date[]"], []),
        ("26", ["year", "integer"], []),
    ],
)
def test_a_column_keeps_a_value_as_it_is_or_is_not_given_it(
    value: Any, kept_by: list[str], not_kept_by: list[str]
) -> None:
    for types, are_kept in ((kept_by, True), (not_kept_by, False)):
        for type in types:
            assert (
                values.objection(value, values.Column("c", type), "postgresql") == ""
            ) == are_kept, type


@pytest.mark.parametrize(
    ("kept", "cut", "column"),
    [
        (
            (1.25, Decimal("1.250"), 7, "1.250", "-7", "1.2E1", " 0125e-2"),
            (1.255, Decimal("1.2501"), "1.255", " 1.2551 ", "1255e-3"),
            values.Column("c", "numeric", scale=2),
        ),
        (
            (Decimal("2"), Decimal("2E+3"), 10**400),
            (Decimal("1.5"),),
            values.Column("c", "numeric", scale=0),
        ),
        (
            (100, Decimal("1E+2"), 200.0, "100"),
            (149, Decimal("149"), 149.0, "149"),
            values.Column("c", "numeric", scale=-2),
        ),
        ((b"ab",), (b"a", bytearray(b"a"), "a"), values.Column("c", "binary", characters=2)),
        ((NOON.replace(microsecond=250_000),), (NOON,), values.Column("c", "datetime", fraction=3)),
        (("ab", "a "), ("a  ",), values.Column("c", "varchar", characters=2)),
        (
            ("1.0000000000000000", "123456789012345"),
            ("9007199254740993", "1e400"),
            values.Column("c", "double precision"),
        ),
    ],
)
def test_a_column_with_fewer_digits_or_characters_is_not_given_a_value_with_more(
    kept: Any, cut: Any, column: values.Column
) -> None:
    assert [values.objection(value, column, "mysql") for value in kept] == [""] * len(kept)
    assert all(
        "would be rounded or cut" in values.objection(value, column, "mysql") for value in cut
    )


@pytest.mark.parametrize(
    ("value", "kept_by", "not_kept_by"),
    [
        (
            Decimal("1E+999999999"),
            [("numeric", 2), ("numeric", None)],
            [("double precision", None)],
        ),
        (
            Decimal("-1E-999999999"),
            [("numeric", None)],
            [("numeric", 2), ("double precision", None)],
        ),
        (10**4400, [], [("numeric", 2), ("numeric", None), ("double precision", None)]),
        (
            -(10**999),
            [("numeric", 2), ("numeric", None)],
            [("numeric", -1000), ("double precision", None)],
        ),
    ],
    ids=["large", "small", "too large", "a large int"],
)
def test_no_number_is_too_large_to_be_judged(value: Any, kept_by: Any, not_kept_by: Any) -> None:
    for types, are_kept in ((kept_by, True), (not_kept_by, False)):
        for type, scale in types:
            assert (
                values.objection(value, values.Column("c", type, scale), "postgresql") == ""
            ) == are_kept, (type, scale)


def work(
    rows: list[tuple[Any, ...]], dialect: Any = "sqlite", num_tasks: int = 1, **options: Any
) -> sql_target.Work:
    """Rows of a task."""
    columns = {
        name: column for name, column in options.items() if isinstance(column, values.Column)
    }
    target = sql_target.Target("sales", tuple(columns), key=options.get("key", ()), dialect=dialect)
    return sql_target.Work(
        "shop#sales", target, Stamp("shop", "g", "write", 0, 1, 0), num_tasks, rows, columns
    )


def test_a_text_says_no_more_than_a_column_of_time_keeps() -> None:
    column = values.Column("c", "datetime", fraction=3)
    assert not values.objection("2026-07-01 12:30:01.250", column, "mysql")
    assert "says more" in values.objection("2026-07-01 12:30:01.2501", column, "mysql")


@pytest.mark.parametrize(
    ("common", "odd", "column"),
    [
        ("a ", "a\0", values.Column("c", "text")),
        ("a", "a   ", values.Column("c", "varchar", characters=3)),
        (2**60, 10**1000, values.Column("c", "numeric")),
        (1.5, math.nan, values.Column("c", "double precision")),
        (1.5, 1.505, values.Column("c", "numeric", scale=2)),
        (Decimal("1.5"), Decimal("sNaN"), values.Column("c", "numeric")),
        (Decimal("1.5"), Decimal("1.505"), values.Column("c", "numeric", scale=2)),
        (NOON, ZONED, values.Column("c", "timestamp without time zone", fraction=6)),
        (NOON.replace(microsecond=0), NOON, values.Column("c", "datetime", fraction=0)),
    ],
)
def test_one_odd_value_among_many_is_found(
    common: Any, odd: Any, column: values.Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Mock(wraps=values.objection)
    monkeypatch.setattr(values, "objection", judge)
    values.check(work([(common,), (None,)] * 500, "postgresql", c=column))
    assert judge.call_count <= 3, "a look at each is dear"
    with pytest.raises(RowRefusedError, match=r"row 7 of") as caught:
        values.check(
            work([(common,), (None,), (common,)] * 2 + [(odd,), (common,)], "postgresql", c=column)
        )
    assert "'c'" in caught.value.why


@pytest.mark.parametrize(
    ("dialect", "type", "kept", "refused"),
    [
        ("sqlite", "number", ["a", "2026-07-01"], ["1", "01", " 1", "1e0"]),
        ("sqlite", "double", ["abc"], ["1", "1.0"]),
        ("postgresql", "bigint", [1], ["1", "01"]),
        ("mysql", "datetime", [NOON], ["2026-07-01"]),
        (
            "postgresql",
            "uuid",
            ["0a1b2c3d-0000-4000-8000-00000000000a"],
            ["0A1B2C3D-0000-4000-8000-00000000000a"],
        ),
        ("postgresql", "mood", ["glad"], []),
        ("postgresql", "text", ["1", "01"], []),
    ],
)
def test_a_key_of_several_tasks_is_no_text_that_the_column_reads_as_another_key(
    dialect: str, type: str, kept: Any, refused: Any
) -> None:
    column = values.Column("k", type)
    values.check(work([(value,) for value in kept], dialect, 2, k=column, key=("k",)))
    for value in refused:
        values.check(work([(value,)], dialect, 1, k=column, key=("k",)))
        with pytest.raises(RowRefusedError, match="reads other texts as the same key"):
            values.check(work([(value,)], dialect, 2, k=column, key=("k",)))


def test_a_cure_names_types_that_the_database_keeps() -> None:
    assert "Decimal" not in values.objection({1}, values.Column("c"), "sqlite")
    assert "Decimal" in values.objection({1}, values.Column("c"), "mysql")
    assert "Make it int" in values.objection(
        Decimal("2.0"), values.Column("c", "bigint", 0), "mysql"
    )
    assert "Make it float" in values.objection(
        Decimal("123456789012345678.25"), values.Column("c", "double", 2), "mysql"
    )
    assert "Make it float" in values.objection(
        Decimal("0.1"), values.Column("c", "double precision"), "postgresql"
    )
    assert "in a query by date_format" in values.objection(
        NOON, values.Column("c", "timestamp with time zone"), "postgresql"
    )


@pytest.mark.parametrize(
    ("type", "read_as"),
    [
        ("", ""),
        ("VARCHAR(9)", ""),
        ("blob", ""),
        ("CHARINT", "number"),
        ("Real", "double"),
        ("DECIMAL(30,\n10)", "number"),
        ("DATE", "number"),
    ],
)
def test_a_column_of_sqlite_reads_numerals_by_its_affinity(type: str, read_as: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE sales (c {type})")
        columns = sqlite.columns(connection, sql_target.Target("sales", ("c",)))
        assert columns["c"].type == read_as
        for text in (
            "12.50",
            "abc",
            "9007199254740993",
            " 1234567890123456789",
            "12345678901234567890.1234567890",
            "1.2345678901234567",
        ):
            connection.execute("INSERT INTO sales VALUES (?)", [text])
            ((came,),) = connection.execute("SELECT c FROM sales WHERE rowid = last_insert_rowid()")
            is_kept = came == text or Decimal(text) == Decimal(repr(came))
            assert (values.objection(text, columns["c"], "sqlite") == "") == is_kept, text
        assert (values.objection("1e99999999999999999999", columns["c"], "sqlite") == "") == (
            not read_as
        )


def test_the_implicit_number_of_a_row_of_sqlite_is_a_column() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE sales (v)")
        target = sql_target.Target("sales", ("rowid", "v"))
        values.check_table("shop", target, sqlite.columns(connection, target))


@pytest.mark.parametrize("name", ["rowid", "oid", "_rowid_", "ROWID"])
@pytest.mark.parametrize("table", ["sales", "main.SALES"])
def test_a_table_of_sqlite_without_rowid_has_only_its_own_columns(name: str, table: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE sales (id TEXT PRIMARY KEY, v) WITHOUT ROWID")
        target = sql_target.Target(table, (name, "v"))
        with pytest.raises(SetupError, match=f"has no column '{name}'\n  It has id, v. Name the"):
            values.check_table("shop", target, sqlite.columns(connection, target))


@pytest.mark.parametrize("without", ["", " WITHOUT ROWID"])
def test_a_column_with_the_name_rowid_is_told_with_the_others(without: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE sales (id TEXT PRIMARY KEY, rowid INT){without}")
        target = sql_target.Target("sales", ("v",))
        with pytest.raises(SetupError, match=r"column 'v'\n  It has id, rowid\."):
            values.check_table("shop", target, sqlite.columns(connection, target))


def searched(
    refuses: Callable[[list[Any]], str],
    hours_each: int,
    monkeypatch: pytest.MonkeyPatch,
    doubt: Exception | None = None,
) -> tuple[Any, int]:
    """The refusal of eight rows, and how often they were written."""
    writes, hours = 0, 0

    def write(some: sql_target.Work) -> None:
        nonlocal writes, hours
        writes, hours = writes + 1, hours + hours_each * (writes > 0)
        if why := refuses([row[0] for row in some.rows]):
            raise some.refusal(0, None, why)

    monkeypatch.setattr(sql_target, "time", SimpleNamespace(monotonic=lambda: hours * 3600.0))
    with pytest.raises((RowRefusedError, SetupError)) as caught:
        sql_target.write_or_blame(
            lambda statement: None,
            work([(number,) for number in range(1, 9)], c=values.Column("c")),
            write,
            lambda work, error: doubt,
        )
    return caught.value, writes


def test_a_refused_row_is_looked_for_as_long_as_an_attempt_can_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error, _ = searched(lambda rows: "bad" if 7 in rows else "", 0, monkeypatch)
    assert (error.number, error.row, error.why) == (7, "c=7", "bad")
    error, writes = searched(lambda rows: "bad" if 7 in rows else "", 1, monkeypatch)
    assert (error.number, writes, error.why) == (0, 2, "bad (one of the rows 5 to 8 of the task)")
    doubt = SetupError("a mistake")
    assert searched(lambda rows: "bad" if 7 in rows else "", 1, monkeypatch, doubt) == (doubt, 2)


def test_a_row_that_only_lacks_others_of_its_batch_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error, writes = searched(
        lambda rows: "its parent is missing" if 6 not in rows else "a check" if 7 in rows else "",
        0,
        monkeypatch,
    )
    assert (error.number, error.why, writes) == (0, "a check", 2)


def copied(state: str, refused: Container[int], counts: Container[int] = range(9)) -> None:
    """Copy the rows 1 to 8 to a PostgreSQL that refuses, with ``state``, these rows, and says so of
    the first, and writes of another number of rows than one of ``counts``."""
    cursor, session, error = MagicMock(), MagicMock(), psycopg.errors.lookup(state)
    session.connection.cursor.return_value.__enter__.return_value = cursor
    written: list[int] = []

    def execute(statement: bytes, values: object) -> None:
        if b"SAVEPOINT" in statement:
            written.clear()
        elif wrong := [number for number in written if number in refused]:
            raise error(f"refused {wrong[0]}")
        elif len(written) not in counts:
            raise error("refused")

    cursor.execute.side_effect = execute
    cursor.copy.return_value.__enter__.return_value.write_row = lambda row: written.extend(row)
    rows: list[tuple[Any, ...]] = [(number,) for number in range(1, 9)]
    postgresql.write(session, work(rows, "postgresql", c=values.Column("c")))


@pytest.mark.parametrize("state", ["0A000", "42501", "42601", "42P01", "55000", "XX000"])
def test_a_row_is_named_although_the_state_may_be_of_statement_or_server(state: str) -> None:
    for refused in ([7], [1, 5], [3, 8], range(1, 8), range(2, 9)):
        with pytest.raises(RowRefusedError, match=f"refused {refused[0]}") as caught:
            copied(state, refused)
        assert (caught.value.number, caught.value.row) == (refused[0], f"c={refused[0]}")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("0A000", "the store shop#sales failed: refused"),
        ("42501", r"the store shop#sales cannot be used: refused.*(.|\n)*Grant"),
        ("42P01", r"the sink shop#sales cannot write: refused.* \(42P01\)\n  Mend"),
        (
            "428C9",
            r"the sink shop#sales cannot write: refused.*\n  The database fills in the column",
        ),
        ("55000", "the store shop#sales failed: refused"),
        ("XX000", "the store shop#sales failed: refused"),
    ],
)
def test_no_row_is_named_for_a_mistake_of_statement_or_server(state: str, said: str) -> None:
    """Every row is refused alone, also for another reason, or none."""
    cases: list[tuple[Container[int], Container[int]]] = [
        ([], []),
        ([], range(8)),
        (range(1, 9), range(9)),
        ([1, 8], range(9)),
    ]
    for refused, counts in cases:
        with pytest.raises(TxtopoError, match=said) as caught:
            copied(state, refused, counts)
        assert not isinstance(caught.value, RowRefusedError)


@pytest.mark.parametrize(
    "state",
    ["08006", "25006", "28000", "40001", "53100", "55006", "55P03", "57P01", "58030", "XX001"],
)
def test_no_row_is_looked_for_where_a_new_try_or_setup_may_help(state: str) -> None:
    with pytest.raises(psycopg.errors.lookup(state), match="refused 7"):
        copied(state, [7])


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("INSERT INTO sales VALUES (:a)", "sales"),
        ("insert or replace into shop.sales(a) VALUES (:a)", "shop.sales"),
        ('INSERT INTO "sales" (a) SELECT :a', "sales"),
        ("INSERT INTO sales$x VALUES (:a)", ""),
        ("INSERT INTO main . sales VALUES (:a)", ""),
        ("INSERT INTO main/**/.sales VALUES (:a)", ""),
        ('INSERT INTO "shop.sales" VALUES (:a)', ""),
        ("INSERT INTO shop.public.sales VALUES (:a)", ""),
        ("INSERT INTO `sales` VALUES (:a)", ""),
    ],
)
def test_the_table_of_a_statement_is_known_where_its_name_is_plain(
    statement: str, table: str
) -> None:
    assert parameters.table_of(statement, "mysql") == table


def test_a_statement_whose_table_is_not_found_may_have_written_rows(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE sales (a)")
        sink = SqlSink(tmp_path / "shop.db", statement="INSERT INTO sales VALUES (:a)")
        sink.ledger.apply(WorkerProcess().task("write"), TransactionAttempt(1, 0), (), [(1,)])
        topology = sink.ledger.fences()[0].topology_id
        for change, may_hold in (
            ("SELECT 1", True),
            ("DELETE FROM sales", False),
            ("DROP TABLE sales", True),
        ):
            connection.execute(change)
            connection.commit()
            assert bool(sink.ledger.rows_left(topology)) == may_hold, change


def test_tuples_of_several_streams_may_have_their_fields_in_different_places() -> None:
    sink = taken(
        prepared(SqlSink("shop.db", "sales", ["id", "cents"])), Fields("tx", "id", "cents"), (1, 10)
    )
    assert taken(sink, Fields("tx", "cents", "more", "id"), (20, None, 2)).rows == [
        (1, 10),
        (2, 20),
    ]


def test_a_field_that_is_missing_is_named_and_so_are_those_there_are() -> None:
    with pytest.raises(
        UsageError,
        match=r"the sink of 'write' gets no field 'price'; there are id, cents\n.*columns=\{'column': 'field'\}",
    ):
        taken(
            prepared(SqlSink("shop.db", "sales", ["price"])), Fields("tx", "id", "cents"), (1, 10)
        )
    with pytest.raises(
        UsageError, match=r"fields id, cents, and before with id\n  Name the fields to write"
    ):
        taken(
            taken(prepared(SqlSink("shop.db", "sales")), Fields("tx", "id"), (1,)),
            Fields("tx", "id", "cents"),
            (1, 10),
        )
    with pytest.raises(UsageError, match="tuples without a value"):
        taken(prepared(SqlSink("shop.db", "sales")), Fields("tx"), ())


def test_a_sink_that_is_held_between_the_phases_keeps_its_rows() -> None:
    sink = taken(prepared(SqlSink("shop.db", "sales")), Fields("tx", "id", "cents"), (1, 10))
    kept = {
        name: value for name, value in vars(sink).items() if name not in ("context", "collector")
    }
    assert pickle.loads(pickle.dumps(kept))["rows"] == [(1, 10)]


def test_names_are_quoted() -> None:
    target = sql_target.target_of('a"b.c d', ['x"y', "z"], ["z"], None, None, True)
    assert (target.quoted, target.undo) == ('"a""b"."c d"', '"a""b"."c d_undo"')
    assert target.on_conflict() == ' ON CONFLICT ("z") DO UPDATE SET "x""y" = excluded."x""y"'
    assert (
        sql_target.target_of("t", ["z"], ["z"], None, None, False).on_conflict()
        == ' ON CONFLICT ("z") DO NOTHING'
    )


def test_a_row_in_a_message_is_bounded_and_never_the_failure_itself() -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    assert tuple_rows.described(("id", "text"), (1, "x")) == "id=1, text='x'"
    assert len(tuple_rows.described(("text",), ("x" * 1000,))) == tuple_rows.SHOWN_MAX
    assert tuple_rows.described(("id",), (Unprintable(),)) == "of type tuple"


def test_rows_on_their_way_can_be_gone_through_repeatedly_and_beyond_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "PORTION_ROWS", 3)
    monkeypatch.setattr(spool, "MEMORY_BYTES_MAX", 50)
    rows = spool.Spool()
    for number in range(10):
        rows.append((number, "x"))
        assert len(rows) == number + 1
    expected = [(number, "x") for number in range(10)]
    assert list(rows) == list(rows) == expected
    rows.append((10, "x"))
    assert list(rows) == [*expected, (10, "x")]
    rows.close()


def test_a_query_needs_an_id_and_partitions_of_its_own() -> None:
    sink = SqlSink("shop.db", "sales", ["id"])
    with pytest.raises(UsageError, match="a query's id is a text"):
        sink.foreach_batch("")
    with pytest.raises(UsageError, match="neither begins nor ends with white space: 'q '"):
        sink.foreach_batch("q ")
    with pytest.raises(UsageError, match="has 1 or more partitions, not 0"):
        sink.foreach_writer("q", partitions=0)
    writer = pickle.loads(pickle.dumps(sink.foreach_writer("q", partitions=2)))
    with pytest.raises(
        UsageError, match=r"has a partition 2, but .* partitions=2\n.*repartition\(2, 'key'\)"
    ):
        writer.open(2, 0)


@pytest.mark.parametrize(("sorts", "is_refused"), [("false", True), ("true", False), (None, False)])
def test_a_query_whose_partitions_may_change_is_refused_before_its_rows(
    monkeypatch: pytest.MonkeyPatch, sorts: str | None, is_refused: bool
) -> None:
    """A real-time trigger ends an epoch elsewhere when the epoch comes again."""
    properties = {"spark.sql.execution.sortBeforeRepartition": sorts}
    monkeypatch.setattr(
        TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=properties.get)
    )
    writer = SqlSink("shop.db", "sales", ["id"]).foreach_writer("q", partitions=2)
    if not is_refused:
        assert writer.open(0, 0)
        writer.close(Exception("of the task"))
        return
    with pytest.raises(
        UsageError,
        match=r"other rows in a replay\n.*realTime=.*\n.*processingTime='1 second'",
    ):
        writer.open(0, 0)
