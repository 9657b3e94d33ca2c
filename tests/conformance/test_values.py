"""The same answer to a value in every database and every file: the table of ``docs/sinks.md``, line
by line, for tuples, columns and rows of Structured Streaming."""

from __future__ import annotations

import datetime
import enum
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import deltalake
import pyarrow as pa
import pytest

from tests.servers import mariadb, postgres, redis_server
from tests.topologies.file_sinks import Writing
from tests.topologies.micro_batches import Frame, forget_resources, part
from tests.topologies.sinks import BACKENDS, Shop, WorkerProcess, shop
from tests.wrong.circles import CIRCLES
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.files import FileSink, read_committed
from txtopo.connectors.kafka.messages import Convert, RefusedError, Shape
from txtopo.connectors.sql import SqlSink
from txtopo.dataplane.columns import values as columns
from txtopo.errors import RowRefusedError, SetupError, UsageError
from txtopo.stores import RedisStore, SqliteStore, SqlStore, Store, StoreTransaction
from txtopo.testing import MemoryStore
from txtopo.topology.transaction import TransactionAttempt

DOCS = Path(__file__).parents[2] / "docs" / "sinks.md"
ZONE = datetime.timezone(datetime.timedelta(hours=2))
NOON = datetime.datetime(2026, 7, 1, 12, 30, 1, 250_001)


class Plain(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class Fraction(float, enum.Enum):
    HALF = 0.5


class Half(float):
    pass


class Unknown:
    pass


VALUES: dict[str, tuple[str, list[Any]]] = {
    "`None`": ("text", [None]),
    "`bool`": ("boolean", [True, False]),
    "`int` of 64 bits": ("bigint", [0, 2**63 - 1, -(2**63)]),
    "larger `int`": ("numeric(40)", [2**63, -(2**63) - 1, 10**39]),
    "finite `float`": ("double precision", [0.1, -0.5, 1e300, 5e-324]),
    "NaN, infinity": (
        "double precision",
        [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity")],
    ),
    "`str`": ("text", ["", "it's \\N \t\n%s", "\N{GRINNING FACE}"]),
    "text with NUL": ("text", ["a\0b", "\0"]),
    "text with half of a surrogate pair": ("text", ["a\udc80", "\ud83d b"]),
    "`Decimal`": (
        "numeric(40, 20)",
        [Decimal("0.10"), Decimal("-12345678901234567890.00000000000000000001")],
    ),
    "`bytes`, `bytearray`": ("bytea", [b"", b"\0\xff'\\", bytearray(b"ab")]),
    "`date`": ("date", [datetime.date(2026, 7, 1), datetime.date(9999, 12, 31)]),
    "`datetime` without a zone": ("timestamp", [NOON, datetime.datetime(9999, 12, 31)]),
    "`datetime` with a zone": (
        "timestamptz",
        [NOON.replace(tzinfo=ZONE), NOON.replace(tzinfo=datetime.UTC)],
    ),
    "`time`": ("time", [NOON.time()]),
    "enum, another subclass": ("text", [Plain.A, Number.ONE, Fraction.HALF, Half(0.5)]),
    "`list`, `dict`": ("text", [[1, 2], [1, "a"], [], {"a": [None]}, {}]),
    "`tuple`": ("text", [(1, 2), (1, "a"), ()]),
    "a value that contains itself": ("text", [*CIRCLES.values()]),
    "`set`, any other object": (
        "text",
        [
            {2},
            frozenset(),
            Unknown(),
            Unknown,
            len,
            1j,
            datetime.timedelta(1),
            memoryview(b"a"),
            range(3),
        ],
    ),
}
"""By the first cell of a line: a type of column that keeps such values, and some of them."""
MARIADB = {
    "bytea": "longblob",
    "timestamp": "datetime(6)",
    "timestamptz": "datetime(6)",
    "time": "time(6)",
    "text": "longtext CHARACTER SET utf8mb4",
}


def answers() -> dict[tuple[str, str], str]:
    """The cells of the table, by value and column."""
    lines = re.search(r"^\| value \|.*?\n\n", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert lines is not None
    heads, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[0].strip().splitlines()
    ]
    return {
        (row[0], head): cell for row in rows for head, cell in zip(heads[1:], row[1:], strict=True)
    }


ANSWERS = answers()
NAMES = (f"query{number}" for number in itertools.count())
PLACES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MySQL, MariaDB"}


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    yield
    forget_resources()


def made(answer: str, value: Any) -> Any:
    """The value that comes back."""
    if answer == "as text":
        return str(value)
    if answer in ("as plain value", "as list"):
        return json.loads(json.dumps(value))
    return value


def ways(sales: Shop, process: WorkerProcess) -> Iterator[Callable[[tuple[int, Any]], object]]:
    """A tuple, a row of columns, a tuple for a statement, a micro-batch, a partition of one; each
    time of another topology or query."""

    def sink(**options: Any) -> Any:
        return sales.sink(table="kept", columns=["id", "cents"], **options)

    def apply(row: tuple[int, Any], to: SqlSink | None = None) -> None:
        (to or sink()).ledger.apply(
            process.task(next(NAMES)), TransactionAttempt(1, 0), (), [(row[0] + 1000, None), row]
        )

    by_statement = sales.sink(
        "a statement", statement="INSERT INTO kept (id, cents) VALUES (:id, :cents)"
    )
    yield apply
    if not sales.address.startswith("postgresql"):  # it takes a text for a boolean only with a cast
        yield lambda row: apply(row, by_statement)
    yield lambda row: apply((row[0], of_a_column(row[1])))
    yield lambda row: sink(key=["id"]).foreach_batch(next(NAMES))(Frame([row]), 0)
    yield lambda row: part(sink().foreach_writer(next(NAMES), partitions=1), 0, 0, [row])


def column_of(value: Any) -> pa.Array | None:
    """A column of one value, if a column can hold it."""
    if any(value is circle for circle in CIRCLES.values()):  # it would end the process
        return None
    try:
        return pa.array([value])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def of_a_column(value: Any) -> Any:
    """The value as a bolt gets it from a column, if a column holds such values."""
    column = column_of(value)
    (came,) = [value] if column is None else columns.values(column, "cents")
    return came if type(came) is type(value) else value


def test_every_line_of_the_table_is_tried() -> None:
    assert {value for value, _ in ANSWERS} == set(VALUES)


@pytest.mark.in_gate("sqlite")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sink_answers_as_the_table_says(
    backend: str, tmp_path: Path, process: WorkerProcess
) -> None:
    wrong: list[tuple[Any, ...]] = []
    sales = shop(backend, tmp_path, None)
    for label, (type, values) in VALUES.items():
        answer = ANSWERS[label, PLACES[backend]]
        type = (
            "" if backend == "sqlite" else MARIADB.get(type, type) if backend == "mariadb" else type
        )
        sales.execute(f"CREATE TABLE kept (id INTEGER PRIMARY KEY, cents {type})")
        for number, (write, value) in enumerate(itertools.product(ways(sales, process), values)):
            try:
                write((number, value))
            except RowRefusedError as error:
                is_right = (
                    answer == "refused"
                    and "'cents'" in error.why
                    and error.number in (1, 2)
                    and f"id={number}" in error.row
                )
                kept = sales.execute(f"SELECT cents FROM kept WHERE id = {number}")
                if not is_right or kept:
                    wrong.append((label, value, answer, kept, str(error)))
                continue
            ((came,),) = sales.execute(f"SELECT cents FROM kept WHERE id = {number}")
            if isinstance(came, datetime.timedelta):  # The time of MariaDB's driver.
                came = (datetime.datetime.min + came).time()
            if answer == "refused" or came != made(answer, value):
                wrong.append((label, value, answer, came))
        sales.execute("DROP TABLE kept")
    assert wrong == []


def store_of(backend: str, tmp_path: Path) -> Store:
    """An empty store."""
    match backend:
        case "memory":
            return MemoryStore("kept", str(tmp_path))
        case "sqlite":
            return SqliteStore(tmp_path / "kept.db", "kept")
        case "redis":
            server = redis_server.running_server()
            return RedisStore(server.url(), server.new_name())
    server_of = {"postgresql": postgres.running_server, "mariadb": mariadb.running_server}[backend]
    return SqlStore(server_of().new_url(), "kept")


@pytest.mark.in_gate("memory", "sqlite")
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql", "mariadb", "redis"])
def test_a_store_answers_as_the_table_says(
    backend: str, tmp_path: Path, process: WorkerProcess
) -> None:
    store, wrong = store_of(backend, tmp_path), []
    kept: dict[int, Any] = {}
    ways: list[Callable[[StoreTransaction, int, Any], object]] = [
        lambda opened, key, value: opened.put(key, value),
        lambda opened, key, value: opened.update(key, lambda _: value),
        lambda opened, key, value: opened.merge_many({key: value}, lambda _, delta: delta),
    ]
    for label, (_, values) in VALUES.items():
        answer = ANSWERS[label, "stores"]
        for value, write in itertools.product(values, ways):
            number = len(kept)
            try:
                with store.transaction(process.task(), TransactionAttempt(number + 1, 0)) as opened:
                    write(opened, number, value)
            except UsageError:
                if answer != "refused":
                    wrong.append((label, value, answer))
                continue
            kept[number] = made(answer, value)
            if (
                answer == "refused"
                or store.get(number) != kept[number]
                or type(store.get(number)) is not type(kept[number])
            ):
                wrong.append((label, value, answer))
    assert wrong == []
    assert dict(store.items()) == kept


@pytest.mark.parametrize("label", VALUES)
def test_a_record_of_kafka_answers_as_the_table_says(label: str) -> None:
    answer, convert = (
        ANSWERS[label, "JSON"],
        Convert(Shape("topic", format="json"), ("tx", "id", "cents"), "write"),
    )
    for value in VALUES[label][1]:
        if answer == "refused":
            with pytest.raises(RefusedError):
                convert(("1:0", 7, value))
        else:
            written = convert(("1:0", 7, value)).value
            assert written is not None
            assert json.loads(written) == {"id": 7, "cents": made(answer, value)}


SOME: dict[str, Callable[[Any], bool]] = {
    "`float` kept": lambda value: isinstance(value, float),
    "`bytes` kept": lambda value: type(value) is bytes,
    "`timedelta` kept": lambda value: isinstance(value, datetime.timedelta),
    "to 38 digits": lambda value: len(value.as_tuple().digits) <= 38,
    "in UTC": lambda value: value.tzinfo is datetime.UTC,
    "with one type": lambda value: value not in ([1, "a"], (1, "a"), {}),
}
"""The values of a line of which this is the answer: which of them are kept."""


def text_of(value: Any) -> str:
    """A value in CSV."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    is_plain = isinstance(value, bool | float | enum.Enum)
    text = json.dumps(value) if is_plain else str(value)
    return text.strip('"')


def shown(value: Any) -> str:
    """A value with its type. Times of one zone are equal."""
    is_time = isinstance(value, datetime.datetime)
    return repr(value.isoformat(" ") if is_time else value)


def through_a_file(kind: str, root: Path, value: Any, way: str = "tuple") -> Any:
    """What a sink for files of ``kind`` gives back of a value, a text if the sink refuses it."""
    options: dict[str, Any] = {}
    if way == "partition":
        options["columns"] = {"account": "id", "cents": "cents"}
    if value is None and kind in ("Parquet", "Delta"):
        options["schema"] = pa.schema([("account", pa.string()), ("cents", pa.string())])
    sink = (
        DeltaSink(root, **options)
        if kind == "Delta"
        else FileSink(root, format=cast(Any, kind.lower()), **options)
    )
    try:
        match way:
            case "tuple":
                Writing(sink).write(1, 0, [("ann", value)])
            case "micro-batch":
                sink.foreach_batch("query")(
                    Frame([("ann", value)], columns=("account", "cents")), 0
                )
            case "partition":
                part(sink.foreach_writer("query", partitions=1), 0, 0, [("ann", value)])
            case _:
                writing = Writing(sink)
                writing.begin(1, 0)
                sink.execute_batch(
                    pa.RecordBatch.from_pydict({"account": ["ann"], "cents": [value]})
                )
                sink.finish_batch()
    except (RowRefusedError, SetupError):
        assert list(read_committed(root)) == []
        return "refused"
    if kind == "Delta":
        (came,) = deltalake.DeltaTable(root).to_pyarrow_table()["cents"].to_pylist()
        return came
    committed = read_committed(root)
    ((_, [file]),) = committed
    ((_, came),) = committed.rows(file)
    return came


@pytest.mark.in_gate("tuple-*")
@pytest.mark.parametrize("kind", ["JSON", "CSV", "Parquet", "Delta"])
@pytest.mark.parametrize("way", ["tuple", "micro-batch", "partition"])
def test_a_file_answers_as_the_table_says(way: str, kind: str, tmp_path: Path) -> None:
    wrong: list[tuple[Any, ...]] = []
    numbers = itertools.count()
    for label, (_, values) in VALUES.items():
        answer = ANSWERS[label, kind]
        for value in values:
            came = through_a_file(kind, tmp_path / str(next(numbers)), value, way)
            is_kept = SOME.get(answer, lambda value, answer=answer: answer != "refused")(value)
            if answer == "as text" and kind == "CSV":
                expected: Any = text_of(value)
            elif isinstance(value, tuple):
                expected = list(value)
            else:
                expected = made(answer, value)
            if shown(came) != shown(expected if is_kept else "refused"):
                wrong.append((label, value, answer, came))
    assert wrong == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Parquet", "Delta"])
def test_a_file_of_columns_keeps_a_value_or_refuses_it(kind: str, tmp_path: Path) -> None:
    wrong: list[tuple[Any, ...]] = []
    numbers = itertools.count()
    for label, (_, values) in VALUES.items():
        for value in values:
            if (column := column_of(value)) is None:
                continue
            (held,) = column.to_pylist()
            came = through_a_file(kind, tmp_path / str(next(numbers)), value, "columns")
            answer = ANSWERS[label, kind]
            if shown(came) != shown(held) and (answer == "kept" or came != "refused"):
                wrong.append((label, value, answer, came))
    assert next(numbers) > 40
    assert wrong == []


LOSSY: list[tuple[Any, str, str]] = [
    (NOON.replace(tzinfo=ZONE), "timestamp", "datetime(6)"),
    (NOON.replace(tzinfo=ZONE), "date", "timestamp(6)"),
    (NOON.replace(tzinfo=ZONE), "time", "varchar(50)"),
    (NOON, "timestamptz", "date"),
    (NOON, "date", "time"),
    (NOON, "timestamp(3)", "datetime(3)"),
    (NOON, "timestamp(0)", "datetime"),
    (NOON.time(), "time(0)", "time"),
    (NOON.timetz().replace(tzinfo=ZONE), "time", "time(6)"),
    (Decimal("1.005"), "numeric(9, 2)", "decimal(9, 2)"),
    (1.005, "numeric(9, 2)", "decimal(9, 2)"),
    (1.5, "integer", "int"),
    (Decimal("1.5"), "bigint", "bigint"),
    (2**53 + 1, "double precision", "double"),
    (Decimal("0.1"), "double precision", "double"),
    (20260701, "date", "date"),
    ("2026-07-01T12:30:00+02:00", "timestamp", "datetime"),
    ("2026-07-01 12:30:00.7", "timestamp(0)", "datetime"),
    ("2026-07-01 12:30:00", "date", "date"),
    ("2026-07-01 12:30:00", "time", "time"),
    ("1.005", "numeric(9, 2)", "decimal(9, 2)"),
    ("1.5", "integer", "int"),
    ("9007199254740993", "double precision", "double"),
    (5, "interval", "time"),
    ("ab", '"char"', "char(1)"),
    ("a ", "char(5)", "char(5)"),
    ("a  ", "varchar(1)", "varchar(1)"),
    (b"a", "text", "text"),
    (b"a", "text", "binary(2)"),
    (149, "numeric(5, -2)", "year"),
    (True, "text", "text"),
    ("abc", "varchar(2)", "varchar(2)"),
    (2**31, "integer", "int"),
]
"""A value, and columns of PostgreSQL and of MariaDB that would round, cut or convert it."""


KEPT: list[tuple[Any, str, str]] = [
    (Decimal("2"), "bigint", "bigint"),
    (2026, "integer", "year"),
    (True, "boolean", "decimal(3, 1)"),
    (100, "numeric(5, -2)", "decimal(5)"),
    (b"ab", "bytea", "binary(2)"),
]
"""A value, and columns of PostgreSQL and of MariaDB that keep it, but few values of its type."""


def tables(
    backend: str, kind: str, columns: list[tuple[Any, str, str]], place: Path
) -> Iterator[tuple[Any, Shop, SqlSink]]:
    """Each value of ``columns``, and a new, empty table with its column."""
    sales = shop(backend, place, None)
    for value, *types in columns:
        sales.execute(
            f"CREATE TABLE kept (id INTEGER PRIMARY KEY, cents {types[backend == 'mariadb']})"
        )
        yield value, sales, sales.sink(kind, table="kept")
        sales.execute("DROP TABLE kept")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["inserts", "upserts"])
@pytest.mark.parametrize("backend", ["postgresql", "mariadb"])
def test_a_column_is_given_the_values_that_it_keeps_and_no_others(
    backend: str, kind: str, tmp_path: Path, process: WorkerProcess
) -> None:
    for number, (value, sales, sink) in enumerate(tables(backend, kind, KEPT, tmp_path)):
        sink.ledger.apply(process.task(f"k{number}"), TransactionAttempt(1, 0), (), [(1, value)])
        assert sales.execute("SELECT cents FROM kept") == [(value,)]
    for number, (value, sales, sink) in enumerate(tables(backend, kind, LOSSY, tmp_path)):
        with pytest.raises(RowRefusedError) as caught:
            sink.ledger.apply(
                process.task(f"c{number}"),
                TransactionAttempt(1, 0),
                (),
                [(1, None), (2, value), (3, None)],
            )
        assert (caught.value.number, caught.value.row.partition(",")[0]) == (2, "id=2"), (
            value,
            str(caught.value),
        )
        assert not sales.execute("SELECT * FROM kept")
