"""Messages of a sink about a wrong table or row: once, with the row and the cure, and no row is
written.

Over the databases that name the wrong row; MariaDB's messages are in ``test_sql_sink_mariadb``.
"""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.patience import wait_until
from tests.servers.postgres import PostgresServer
from tests.topologies.sinks import (
    BACKENDS,
    KINDS,
    LOOSE,
    SALES,
    UNDOING,
    Shop,
    WorkerProcess,
    cases,
    shop,
    write,
)
from txtopo import Fields
from txtopo.connectors.sql import postgresql
from txtopo.errors import FailedException, RowRefusedError, SetupError, TxtopoError
from txtopo.topology.transaction import TransactionAttempt


@pytest.fixture(params=UNDOING)
def sales(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return shop(request.param, tmp_path)


REFUSALS = {
    "sqlite": [
        "CREATE TRIGGER no BEFORE INSERT ON sales WHEN NEW.cents = 13 BEGIN SELECT RAISE(ABORT, 'not thirteen'); END"
    ],
    "postgresql": [
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql"
        " AS $$BEGIN IF NEW.cents = 13 THEN RAISE EXCEPTION 'not thirteen'; END IF; RETURN NEW; END$$",
        "CREATE TRIGGER no BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION no()",
    ],
    "mariadb": [
        "CREATE TRIGGER no BEFORE INSERT ON sales FOR EACH ROW"
        " IF NEW.cents = 13 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not thirteen'; END IF"
    ],
}


class Unknown:
    """A value that no database knows."""


@pytest.mark.in_gate("sqlite*", "postgresql-a check-*", "postgresql-a type *-inserts")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param((7, -5), "(?i)check constraint", id="a check"),
        pytest.param((7, None), "(?i)not.null constraint", id="not null"),
        pytest.param(
            (7, Unknown()), "'cents' is of type Unknown", id="a type the driver does not know"
        ),
        pytest.param((2**70, 1), "(too large|out of range)", id="a number that is too large"),
    ],
)
def test_a_row_that_the_table_does_not_take_is_named_and_nothing_of_its_transaction_is_kept(
    sales: Shop, process: WorkerProcess, kind: str, wrong: tuple[Any, Any], said: str
) -> None:
    sink = sales.sink(kind)
    write(sink, process.task(), 1, 0, [(1, 10)])
    with pytest.raises(RowRefusedError, match=said) as caught:
        write(sink, process.task(task=3), 2, 0, [(2, 20), wrong, (3, 30)])
    error = caught.value
    assert (error.component, error.task, error.attempt, error.exit_code) == ("count", 3, "2:0", 1)
    assert (error.number, error.row.partition("=")[0]) == (2, "id")
    assert sales.sales == [(1, 10)]
    assert write(sink, process.task(task=3), 2, 1, [(2, 20)]), "mended"
    assert sales.sales == [(1, 10), (2, 20)]


def test_a_row_that_is_there_already_is_refused_by_its_number(
    sales: Shop, process: WorkerProcess
) -> None:
    sales.execute("INSERT INTO sales VALUES (3, 33, NULL)")
    with pytest.raises(RowRefusedError, match=r"(?i)unique") as caught:
        write(sales.sink(), process.task(), 1, 0, [(1, 10), (2, 20), (3, 30)])
    assert (caught.value.number, caught.value.row) == (3, "id=3, cents=30")
    assert sales.sales == [(3, 33)]


@pytest.mark.in_gate("sqlite*")
@pytest.mark.parametrize("kind", ["upserts", "undo log"])
def test_a_row_without_a_key_is_refused_by_a_sink_that_replaces_rows(
    sales: Shop, process: WorkerProcess, kind: str
) -> None:
    with pytest.raises(RowRefusedError, match="its key is None") as caught:
        write(sales.sink(kind), process.task(), 1, 0, [(1, 10), (None, 20)])
    assert (caught.value.number, caught.value.row) == (2, "id=None, cents=20")
    assert sales.sales == []


@pytest.mark.in_gate("sqlite*")
@pytest.mark.parametrize("kind", ["upserts", "undo log"])
def test_nan_is_refused_as_a_key(sales: Shop, process: WorkerProcess, kind: str) -> None:
    """SQLite would keep a row without a key, once for each transaction."""
    with pytest.raises(RowRefusedError, match="'id' is NaN or infinite") as caught:
        write(sales.sink(kind), process.task(), 1, 0, [(1, 10), (math.nan, 20)])
    assert (caught.value.number, caught.value.row) == (2, "id=nan, cents=20")
    assert sales.sales == []


def test_a_constraint_that_waits_for_the_commit_is_asked_before_it(
    tmp_path: Path, process: WorkerProcess
) -> None:
    sales = shop(
        "postgresql",
        tmp_path,
        SALES.replace("PRIMARY KEY", "PRIMARY KEY DEFERRABLE INITIALLY DEFERRED"),
    )
    sales.execute("INSERT INTO sales VALUES (3, 33, NULL)")
    with pytest.raises(
        RowRefusedError, match=r"(?s)violates unique constraint .*Key \(id\)=\(3\) already exists"
    ):
        write(sales.sink(), process.task(), 1, 0, [(3, 30)])


def test_the_number_of_a_row_counts_on_where_rows_are_copied_in_portions(
    tmp_path: Path, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "COPY_ROWS", 4)
    sales = shop("postgresql", tmp_path)
    rows = [(n, n) for n in range(10)]
    write(sales.sink("marks"), process.task(), 1, 0, rows)
    assert sales.sales == rows
    parts = Mock(wraps=postgresql._write)
    monkeypatch.setattr(postgresql, "_write", parts)
    with pytest.raises(RowRefusedError) as caught:
        write(
            sales.sink("marks"),
            process.task(),
            2,
            0,
            [(100 + n, n if n != 6 else "x") for n in range(10)],
        )
    assert parts.call_count == 1, "COPY says which"
    assert (caught.value.number, caught.value.row) == (7, "id=106, cents='x'")
    write(
        sales.sink("upserts", auxiliary_table="others"),
        process.task(),
        3,
        0,
        [(n % 5, 100 + n) for n in range(10)],
    )
    assert sales.sales == [(n, 105 + n) for n in range(5)] + rows[5:]


@pytest.mark.in_gate("sqlite*", "postgresql-inserts")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", UNDOING)
def test_a_table_that_is_not_there_is_named_with_the_cure(
    backend: str, tmp_path: Path, process: WorkerProcess, kind: str
) -> None:
    empty = shop(backend, tmp_path, layout=None)
    with pytest.raises(SetupError, match=r"(?s)sales.*\n  (Make|Mend)") as caught:
        write(empty.sink(kind), process.task(), 1, 0, [(1, 10)])
    assert caught.value.exit_code == 2


def test_columns_that_are_not_there_are_named_with_the_cure(
    sales: Shop, process: WorkerProcess
) -> None:
    with pytest.raises(SetupError, match=r"(?s)price.*\n.*columns="):
        write(sales.sink(columns=["id", "price"]), process.task(), 1, 0, [(1, 10)])
    with pytest.raises(SetupError, match="writer"):
        write(
            sales.sink("marks", mark="writer", auxiliary_table="others"),
            process.task(),
            1,
            0,
            [(1, 10)],
        )


@pytest.mark.in_gate("sqlite*", "postgresql-upserts")
@pytest.mark.parametrize("kind", ["upserts", "undo log"])
@pytest.mark.parametrize("backend", UNDOING)
def test_a_key_that_is_not_unique_in_its_table_is_refused_with_the_index_to_make(
    backend: str, tmp_path: Path, process: WorkerProcess, kind: str
) -> None:
    sales = shop(backend, tmp_path, LOOSE)
    with pytest.raises(SetupError, match="CREATE UNIQUE INDEX") as refused:
        write(sales.sink(kind), process.task(), 1, 0, [(1, 10)])
    assert sales.sales == []
    if backend == "sqlite":
        sales.execute(f"CREATE UNIQUE{str(refused.value).rpartition('CREATE UNIQUE')[2]}")
        assert write(sales.sink(kind), process.task(), 1, 1, [(1, 10)]), "it is what can be typed"


@pytest.mark.in_gate("undo log")
@pytest.mark.parametrize("kind", ["upserts", "undo log"])
def test_a_role_that_may_make_no_temporary_table_is_told_what_to_grant(
    postgres: PostgresServer, process: WorkerProcess, kind: str
) -> None:
    database = postgres.new_database()
    clerk = f"Clerk of {database}"
    for statement in (
        SALES,
        f'CREATE ROLE "{clerk}" LOGIN',
        f'GRANT CREATE, USAGE ON SCHEMA public TO "{clerk}"',
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON sales TO "{clerk}"',
        f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC",
    ):
        postgres.execute(statement, database=database)
    sales = Shop(postgres.url(database, user=urllib.parse.quote(clerk)), layout=None)
    assert write(sales.sink(), process.task("insert"), 1, 0, [(1, 10)]), (
        "rows that are inserted need none"
    )
    with pytest.raises(
        SetupError, match=r"makes a temporary table.*\n  Type: GRANT TEMPORARY ON DATABASE"
    ) as refused:
        write(sales.sink(kind), process.task(), 1, 0, [(1, 11)])
    assert sales.sales == [(1, 10)]
    postgres.execute(
        str(refused.value).rpartition("Type: ")[2].partition("\n")[0], database=database
    )
    assert write(sales.sink(kind), process.task(), 1, 1, [(1, 11)])
    assert sales.sales == [(1, 11)]


def test_a_statement_that_is_wrong_is_told_from_a_row_that_is(
    sales: Shop, process: WorkerProcess
) -> None:
    with pytest.raises(SetupError, match=r"syntax error.*\n  Mend"):
        write(
            sales.sink("a statement", statement="INSRT INTO sales VALUES (:id, :cents)"),
            process.task(),
            1,
            0,
            [(1, 10)],
        )


@pytest.mark.in_gate("sqlite*", "postgresql-undo log")
@pytest.mark.parametrize("kind", ["upserts", "undo log"])
@pytest.mark.parametrize("backend", UNDOING)
def test_values_that_look_like_sql_and_names_with_every_character_are_taken_as_they_are(
    backend: str, tmp_path: Path, process: WorkerProcess, kind: str
) -> None:
    rows: list[tuple[Any, int]] = [
        ("'; DROP TABLE t; --", 1),
        ("\\N", 2),
        ("a\tb\nc\\", 3),
        ("%s :id", 4),
        ("", 5),
    ]
    odd = shop(
        backend, tmp_path, 'CREATE TABLE "100% ""x""" ("a%b" TEXT PRIMARY KEY, "c d" INTEGER)'
    )
    sink = odd.sink(kind, table='100% "x"', columns=["a%b", "c d"], key=["a%b"])
    write(sink, process.task(), 1, 0, rows)
    write(sink, process.task(), 2, 0, [("\\N", 22), *rows[2:]])
    write(sink, process.task(), 3, 0, [("\\N", 23), *rows[2:]])
    if kind == "undo log":
        write(sink, process.task(), 3, 1, [("\\N", 23)])
    assert sorted(odd.execute('SELECT * FROM "100% ""x"""')) == sorted(
        [*rows[:1], ("\\N", 23), *rows[2:]]
    )


def test_a_statement_may_calculate_with_every_sign(sales: Shop, process: WorkerProcess) -> None:
    sink = sales.sink(
        "a statement", statement="INSERT INTO sales(id, cents) VALUES (:id, :cents % 7)"
    )
    write(sink, process.task(), 1, 0, [(1, 10)])
    assert sales.sales == [(1, 3)]


def test_the_texts_of_a_statement_stay_as_they_are(sales: Shop, process: WorkerProcess) -> None:
    statement = """/* :one */ INSERT INTO sales(id, cents, written_by) -- :two, it's
                   VALUES (:id, :cents, 'it''s :cents, {"kind":true} 5 %')"""
    write(sales.sink("a statement", statement=statement), process.task(), 1, 0, [(1, 10)])
    assert sales.execute("SELECT id, cents, written_by FROM sales") == [
        (1, 10, 'it\'s :cents, {"kind":true} 5 %')
    ]


class TestConnections:
    def test_a_worker_keeps_one_connection_for_all_its_sinks_and_transactions(
        self, postgres: PostgresServer, process: WorkerProcess
    ) -> None:
        database = postgres.new_database()
        sales = Shop(postgres.url(database))
        for txid in range(1, 5):
            write(sales.sink("undo log"), process.task("a"), txid, 0, [(txid, 1)])
            write(sales.sink("undo log"), process.task("b"), txid, 0, [(-txid, 1)])
        wait_until(
            lambda: len(postgres.backends(database)) == 1,
            "the end of the connection that looked on",
        )

    @pytest.mark.in_gate("inserts", "undo log")
    @pytest.mark.rule(7, 28)
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_connection_that_is_lost_among_the_rows_fails_the_attempt_and_its_replay_writes_once(
        self, postgres: PostgresServer, process: WorkerProcess, kind: str
    ) -> None:
        database = postgres.new_database()
        sales = Shop(postgres.url(database))
        sink = sales.sink(kind)
        write(sink, process.task(), 1, 0, [(1, 10)])

        class Cutting(list[tuple[int, int]]):
            def __iter__(self) -> Iterator[tuple[int, int]]:
                yield (2, 20)
                postgres.disconnect(database)
                for number in range(3, 30_000):
                    yield (number, 1)

            def __len__(self) -> int:
                return 2

        with pytest.raises(FailedException, match="the connection is lost"):
            sink.ledger.apply(process.task(), TransactionAttempt(2, 0), (), Cutting())
        assert write(sink, process.task(), 2, 1, [(2, 20)])
        assert sales.sales == [(1, 10), (2, 20)]


@pytest.mark.in_gate("sqlite-inserts", "postgresql-upserts", "mariadb-*statement*")
@pytest.mark.parametrize(("backend", "kind"), cases(KINDS))
def test_a_row_that_a_trigger_refuses_is_named(
    backend: str, kind: str, tmp_path: Path, process: WorkerProcess
) -> None:
    """Nothing but the class of an error tells that no second try can help."""
    sales = shop(backend, tmp_path)
    for statement in REFUSALS[backend]:
        sales.execute(statement)
    with pytest.raises(
        RowRefusedError, match=r"row 3 of component 'count', task 0, attempt 1:0: .*thirteen"
    ) as caught:
        write(sales.sink(kind), process.task(), 1, 0, [(1, 10), (2, 20), (3, 13), (4, 40), (5, 13)])
    assert caught.value.row.startswith("id=3, cents=13")
    assert sales.sales == []
    assert write(sales.sink(kind), process.task(), 1, 1, [(1, 10)]), "mended"


@pytest.mark.in_gate("55000-inserts")
@pytest.mark.parametrize("kind", ["inserts", "upserts", "a statement"])
@pytest.mark.parametrize("state", ["0A000", "42501", "42P01", "55000", "XX000", "1146"])
def test_a_row_that_a_trigger_refuses_is_named_although_the_state_has_another_meaning(
    state: str, kind: str, tmp_path: Path, process: WorkerProcess
) -> None:
    backend = "mariadb" if state == "1146" else "postgresql"
    sales = shop(backend, tmp_path)
    for statement in REFUSALS[backend]:
        coded = statement.replace("'not thirteen';", f"'not thirteen' USING ERRCODE = '{state}';")
        if backend == "mariadb":
            coded = statement.replace("SET ", f"SET MYSQL_ERRNO = {state}, ")
        sales.execute(coded)
    sink = sales.sink(kind)
    for rows in ([(1, 10), (2, 20), (3, 13), (4, 40), (5, 13)], [(3, 13), (4, 40)]):
        with pytest.raises(RowRefusedError, match=r"row [13] of .*not thirteen") as caught:
            write(sink, process.task(), 1, 0, rows)
        assert caught.value.row.startswith("id=3, cents=13")
    for rows in ([(3, 13)], [(3, 13), (4, 40), (5, 13)]):  # nothing shows that rows may pass
        with pytest.raises(TxtopoError, match="not thirteen") as doubted:
            write(sink, process.task(), 1, 0, rows)
        assert not isinstance(doubted.value, RowRefusedError)
    assert write(sink, process.task(), 1, 1, [(1, 10)]), "mended"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["inserts", "upserts", "a statement"])
def test_a_text_that_a_type_of_postgresql_calls_a_syntax_error_is_named(
    kind: str, tmp_path: Path, process: WorkerProcess
) -> None:
    sales = shop(
        "postgresql", tmp_path, "CREATE TABLE sales (id INTEGER PRIMARY KEY, cents tsquery)"
    )
    statement = "INSERT INTO sales(id, cents) VALUES (:id, CAST(:cents AS tsquery))"
    sink = sales.sink(kind, **({"statement": statement} if kind == "a statement" else {}))
    with pytest.raises(RowRefusedError, match=r"row 2 of .*syntax error in tsquery"):
        write(sink, process.task(), 1, 0, [(1, "a & b"), (2, "a b"), (3, "c")])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["inserts", "upserts", "a statement"])
def test_a_trigger_that_never_runs_is_a_mistake_of_the_table(
    kind: str, tmp_path: Path, process: WorkerProcess
) -> None:
    sales = shop("postgresql", tmp_path)
    for statement in REFUSALS["postgresql"]:
        sales.execute(statement.replace("IF NEW", "INSERT INTO audit VALUES (1); IF NEW"))
    with pytest.raises(SetupError, match=r'"audit" does not exist \(42P01\)\n  Mend'):
        write(sales.sink(kind), process.task(), 1, 0, [(1, 10), (2, 20)])


def test_a_row_is_named_although_its_message_shows_another_number_at_each_try(
    tmp_path: Path, process: WorkerProcess
) -> None:
    sales = shop("postgresql", tmp_path)
    sales.execute(
        "CREATE TABLE numbered (number serial, id INTEGER PRIMARY KEY, cents INTEGER CHECK (cents > 0))"
    )
    with pytest.raises(RowRefusedError, match=r"row 3 of .*violates check constraint"):
        write(
            sales.sink("upserts", table="numbered"),
            process.task(),
            1,
            0,
            [(1, 10), (2, 20), (3, -9), (4, 40), (5, 50)],
        )


@pytest.mark.in_gate("sqlite")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_database_can_be_asked_for_table_and_columns_before_a_run(
    backend: str, tmp_path: Path
) -> None:
    sales = shop(backend, tmp_path)
    sales.sink().check_destination(Fields("tx", "id", "cents"))
    with pytest.raises(SetupError, match="has no column 'price'"):
        sales.sink(columns=None).check_destination(Fields("tx", "id", "price"))
    with pytest.raises(SetupError, match="finds no table 'sale'"):
        sales.sink(table="sale").check_destination(Fields("tx", "id"))
    assert not sales.sink().ledger.exists(), "nothing is made"
