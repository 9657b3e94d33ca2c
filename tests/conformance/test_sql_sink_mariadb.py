"""The promise of a sink over MariaDB, where rows are loaded another way: rows once, marks taken
back, and tables that cannot keep a promise refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.servers.mariadb import MariaServer
from tests.topologies.sinks import WorkerProcess, write
from txtopo.connectors.sql import SqlSink
from txtopo.errors import (
    FailedException,
    RowRefusedError,
    SetupError,
    StaleAttemptError,
    UsageError,
)
from txtopo.topology.transaction import TransactionAttempt

SALES = "CREATE TABLE sales (id INTEGER NOT NULL PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0), written_by TEXT) ENGINE=InnoDB"
UPSERT = "INSERT INTO sales(id, cents) VALUES (:id, :cents) ON DUPLICATE KEY UPDATE cents = sales.cents + VALUES(cents)"
KINDS: dict[str, dict[str, Any]] = {
    "inserts": {},
    "upserts": {"key": ["id"]},
    "a statement": {"table": None, "columns": None, "statement": UPSERT},
    "marks": {"mark": "written_by", "opaque": True},
}


class MariaShop:
    """A database of its own with a table ``sales``."""

    def __init__(self, server: MariaServer, layout: str | None = SALES) -> None:
        self._server, self.database = server, server.new_database()
        self.address = server.url(self.database)
        if layout is not None:
            self.execute(layout)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self._server.execute(statement, database=self.database)

    @property
    def sales(self) -> Sequence[tuple[int, int]]:
        return sorted(self.execute("SELECT id, cents FROM sales"))

    def sink(self, kind: str = "inserts", **changed: Any) -> SqlSink:
        return SqlSink(
            self.address, **{"table": "sales", "columns": ["id", "cents"], **KINDS[kind], **changed}
        )


@pytest.fixture
def sales(mariadb: MariaServer) -> MariaShop:
    return MariaShop(mariadb)


@pytest.mark.rule(28, 29, 31)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_written_once_under_any_replay_and_any_late_task(
    sales: MariaShop, process: WorkerProcess, kind: str
) -> None:
    sink = sales.sink(kind)
    other = [(2, 20)] if kind != "marks" else [(3, 30)]
    write(sink, process.task(), 1, 0, [(1, 10)])
    write(sink, process.task(), 2, 0, [(2, 20)])
    write(sink, process.task(task=1), 2, 1, [(4, 40)])
    assert write(sink, process.task(), 2, 1, other) == (kind == "marks")
    with pytest.raises(StaleAttemptError):
        write(sink, process.task(task=2), 2, 0, [(5, 50)])
    assert sales.sales == sorted([(1, 10), (4, 40), *other])


def test_the_last_row_of_a_key_wins_and_a_key_of_none_is_refused(
    sales: MariaShop, process: WorkerProcess
) -> None:
    sink = sales.sink("upserts")
    write(sink, process.task(), 1, 0, [(1, 10), (2, 20), (1, 11)])
    write(sink, process.task(), 2, 0, [(2, 21)])
    assert sales.sales == [(1, 11), (2, 21)]
    with pytest.raises(RowRefusedError, match=r"row 1 .*its key is None"):
        write(sink, process.task(), 3, 0, [(None, 1)])


@pytest.mark.in_gate("a check-*")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wrong",
    [(7, -5), (7, None), (2**70, 1), (7, "x")],
    ids=["a check", "not null", "too large", "a type"],
)
def test_a_row_that_the_table_does_not_take_ends_the_transaction_and_is_no_replay(
    sales: MariaShop, process: WorkerProcess, kind: str, wrong: tuple[Any, Any]
) -> None:
    sink = sales.sink(kind)
    with pytest.raises(RowRefusedError, match="component 'count', task 0, attempt 1:0"):
        write(sink, process.task(), 1, 0, [(2, 20), wrong])
    assert sales.sales == []
    assert write(sink, process.task(), 1, 1, [(2, 20)])


def test_a_table_that_cannot_keep_the_promise_is_refused_with_what_to_type(
    mariadb: MariaServer, process: WorkerProcess
) -> None:
    for layout, kind, said in [
        (SALES.replace("InnoDB", "MyISAM"), "inserts", "ALTER TABLE `sales` ENGINE=InnoDB"),
        (
            SALES.replace("PRIMARY KEY", ""),
            "upserts",
            r"CREATE UNIQUE INDEX name ON `sales`\(`id`\)",
        ),
        (
            SALES.replace("id INTEGER NOT NULL PRIMARY KEY", "id VARCHAR(9), UNIQUE(id(3))"),
            "upserts",
            r"CREATE UNIQUE INDEX name ON `sales`\(`id`\)",
        ),
        (None, "inserts", "Make the table"),
        (SALES.replace("cents", "price"), "inserts", "columns="),
    ]:
        shop = MariaShop(mariadb, layout)
        with pytest.raises(SetupError, match=said):
            write(shop.sink(kind), process.task(), 1, 0, [(1, 10)])
        if layout is not None:
            assert shop.execute("SELECT * FROM sales") in ([], ())


@pytest.mark.rule(32)
def test_a_row_never_replaces_one_of_another_key(
    mariadb: MariaServer, process: WorkerProcess
) -> None:
    columns = ("id", "mail", "cents")
    refused = [
        "UNIQUE(mail)",
        "UNIQUE(mail, cents)",
        "UNIQUE(mail(3))",
        "UNIQUE(mail, id), UNIQUE u (mail(3), id)",
    ]
    for indexes, is_refused in [
        *((each, True) for each in refused),
        ("UNIQUE(mail, id), n INT AUTO_INCREMENT UNIQUE", False),
    ]:
        shop = MariaShop(
            mariadb,
            f"CREATE TABLE sales (id INT PRIMARY KEY, mail VARCHAR(50), cents INT, {indexes}) ENGINE=InnoDB",
        )
        sink = shop.sink("upserts", columns=columns)
        if is_refused:
            with pytest.raises(
                SetupError, match=r"(?s)has another unique index, on .*mail.*Drop the other index"
            ):
                sink.ledger.apply(
                    process.task(), TransactionAttempt(1, 0), columns, [(1, "a@b", 10)]
                )
            continue
        for txid in (1, 2):
            assert sink.ledger.apply(
                process.task(),
                TransactionAttempt(txid, 0),
                columns,
                [(txid, "a@b", 10), (7, "a@b", txid)],
            )
        assert sorted(shop.execute("SELECT id, mail, cents FROM sales")) == [
            (1, "a@b", 10),
            (2, "a@b", 10),
            (7, "a@b", 2),
        ]


@pytest.mark.rule(31)
def test_rows_to_take_back_are_found_letter_by_letter(
    sales: MariaShop, process: WorkerProcess
) -> None:
    sink = sales.sink("marks")
    write(sink, process.task("Count"), 1, 0, [(1, 10)])
    write(sink, process.task("count"), 1, 0, [(2, 20)])
    write(sink, process.task("count"), 1, 1)
    assert sales.sales == [(1, 10)]


@pytest.mark.rule(31)
def test_an_opaque_upsert_is_refused_when_the_sink_is_made(sales: MariaShop) -> None:
    with pytest.raises(
        UsageError, match=r"cannot make inside a transaction \(sales\)\n  Give mark="
    ):
        sales.sink("upserts", opaque=True)


@pytest.mark.rule(7, 28)
def test_a_connection_that_is_lost_among_the_rows_fails_the_attempt_and_its_replay_writes_once(
    mariadb: MariaServer, sales: MariaShop, process: WorkerProcess
) -> None:
    write(sales.sink(), process.task(), 1, 0, [(1, 10)])

    class Cutting(list[tuple[int, int]]):
        def __iter__(self) -> Iterator[tuple[int, int]]:
            yield (2, 20)
            mariadb.disconnect(sales.database)

        def __len__(self) -> int:
            return 1

    with pytest.raises(FailedException, match="the connection is lost"):
        sales.sink().ledger.apply(process.task(), TransactionAttempt(2, 0), (), Cutting())
    assert write(sales.sink(), process.task(), 2, 1, [(2, 20)])
    assert sales.sales == [(1, 10), (2, 20)]
