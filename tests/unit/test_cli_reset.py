"""``txtopo reset TARGET``: state and stores of a topology are emptied together; after a crash
between the two, a run is refused and a second reset finishes."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from txtopo import (
    Fields,
    StateMismatchError,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    UsageError,
)
from txtopo.command import cli, show_state
from txtopo.command.reset import places_of
from txtopo.connectors.kafka import client
from txtopo.connectors.sql import SqlSink
from txtopo.state import opening
from txtopo.state.memory import MemoryServer, MemoryStateStore
from txtopo.state.records import TxidRecord
from txtopo.state.topology import Holder, TopologyState
from txtopo.stores import SqliteStore, Store
from txtopo.testing import MemoryTransactionalSpout
from txtopo.testing.contracts.worker_process import WorkerProcess

ALICE = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00", "bank-run")
COMPONENTS = {"payments": 1, "balances": 1, "totals": 1, "sales": 1}

TOPOLOGY = """\
from txtopo import BaseTransactionalBolt, Destination, Fields, Guarantee, ICommitter, TransactionalTopologyBuilder
from txtopo.connectors.kafka import KafkaSink
from txtopo.connectors.sql import SqlSink
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout


class Keeps(BaseTransactionalBolt, ICommitter):
    def __init__(self, *stores):
        self.stores = stores

    def execute(self, tup):
        pass


class Queue(Destination):
    def guarantee(self):
        return Guarantee("the queue of orders", "rows", takes_back=True, is_keyed=False, cure="")


def topology(extra=None, mark=None, statement=None):
    builder = TransactionalTopologyBuilder("bank", "payments", MemoryTransactionalSpout({0: [("ann", 1)]}, Fields("account", "cents"), 1))
    balances = SqliteStore("bank.db", "balances")
    builder.set_bolt("balances", Keeps(balances, [balances]), 1).global_grouping("payments")
    builder.set_bolt("totals", Keeps({"a": SqliteStore("bank.db", "totals")}), 1).global_grouping("payments")
    if extra == "sink":
        place = {"statement": statement} if statement else {"table": "sales", "columns": ["account", "cents"], "mark": mark}
        builder.set_bolt("sales", SqlSink("bank.db", **place), 1).global_grouping("payments")
    if extra == "two sinks":
        for name, fields in (("sales", ["account", "cents"]), ("accounts", ["account"])):
            builder.set_bolt(name, SqlSink("bank.db", "sales", fields), 1).global_grouping("payments")
    if extra == "elsewhere":
        builder.set_bolt("orders", Keeps(Queue()), 1).global_grouping("payments")
        builder.set_bolt("mail", Keeps(), 1).global_grouping("payments")
    if extra == "kafka":
        builder.set_bolt("told", KafkaSink("127.0.0.1:1", "told", value="account", name="k"), 1).global_grouping("payments")
    return builder.build_topology()

"""


class Bank:
    """The topology's runs from the view of its stores and its state."""

    def __init__(self, place: Path, mark: str | None = None) -> None:
        self.server = MemoryServer()
        self.balances, self.totals = (
            SqliteStore(place / "bank.db", "balances"),
            SqliteStore(place / "bank.db", "totals"),
        )
        with contextlib.closing(sqlite3.connect(place / "bank.db")) as database:
            database.execute("CREATE TABLE sales(account TEXT, cents INTEGER, who TEXT)")
        self.sink = SqlSink(place / "bank.db", "sales", ["account", "cents"], mark=mark)
        self._place = place
        self._kept: dict[str, Any] = {}

    def run(self, has_sink: bool = False) -> None:
        """A run of a single transaction: 10 to each store, and a row."""
        state = TopologyState.open(MemoryStateStore(self.server), "bank", ALICE, wait_s=1.0)
        try:
            txid = state.current
            attempt = TransactionAttempt(txid, (state.epoch - 1) * 1_000_000)
            state.txids.get_state(txid, lambda txid, last: TxidRecord(txid=txid))
            state.seal(attempt, COMPONENTS, None)
            for component, store in (("balances", self.balances), ("totals", self.totals)):
                with store.transaction(self._context(state, component), attempt) as transaction:
                    transaction.update("all", lambda count: (count or 0) + 10)
            counts = {"balances/balances": 1, "totals/totals": 1}
            if has_sink:
                self.sink.ledger.apply(self._context(state, "sales"), attempt, (), [("ann", 10)])
                counts[f"sales/{self.sink.ledger.name}"] = 1
            state.record(attempt, {}, counts, None)
        finally:
            state.close()

    def _context(self, state: TopologyState, component: str) -> TopologyContext:
        return TopologyContext(
            "bank",
            state.generation,
            component,
            0,
            COMPONENTS,
            "commit",
            self._resource,
            known_stores=state.known_stores,
        )

    def _resource(self, name: str, factory: Callable[[], Any]) -> Any:
        return self._kept.setdefault(name, factory())

    def contents(self) -> tuple[Any, Any, list[Any]]:
        """Balances, totals and rows."""
        with contextlib.closing(sqlite3.connect(self._place / "bank.db")) as database:
            rows = database.execute("SELECT account, cents FROM sales").fetchall()
        return self.balances.get("all"), self.totals.get("all"), rows

    def empty_sales(self) -> None:
        with contextlib.closing(sqlite3.connect(self._place / "bank.db")) as database, database:
            database.execute("DELETE FROM sales")

    def current(self) -> int | None:
        """The next txid of the state; ``None`` if there is no state."""
        store = MemoryStateStore(self.server)
        if store.get("/bank") is None:
            return None
        current: int = show_state.status_of(opening.Opened(store, "memory", False), "bank")[
            "current"
        ]
        return current

    @contextlib.contextmanager
    def opened(self, *where: Any) -> Iterator[opening.Opened]:
        yield opening.Opened(MemoryStateStore(self.server), "memory", True)

    def close(self) -> None:
        for resource in self._kept.values():
            resource.close()


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.py").write_text(TOPOLOGY)
    bank = Bank(tmp_path)
    for name in ("opened", "owned"):
        monkeypatch.setattr(opening, name, bank.opened)
    yield bank
    bank.close()


def reset(*options: str, target: str = "bank.py:topology()") -> int:
    return cli.main(["reset", target, *options])


def test_a_reset_lists_its_changes_and_makes_them_only_if_executed(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    bank.run()
    bank.run()
    assert reset() == 0
    assert capsys.readouterr().out.splitlines() == [
        "would remove from .txtopo: the state of topology 'bank', which has committed 2 transactions",
        f"would remove from {bank.balances.address}: 1 row, 1 fence",
        f"would remove from {bank.totals.address}: 1 row, 1 fence",
        "nothing was changed: type the same command with --execute to do it",
    ]
    assert (bank.current(), bank.contents()[:2]) == (3, (20, 20))
    assert reset("--execute") == 0
    assert capsys.readouterr().out.splitlines() == [
        "removed from .txtopo: the state of topology 'bank', which has committed 2 transactions",
        f"removed from {bank.balances.address}: 1 row, 1 fence",
        f"removed from {bank.totals.address}: 1 row, 1 fence",
    ]
    assert (bank.current(), bank.contents()[:2]) == (None, (None, None))
    bank.run()
    assert (bank.current(), bank.contents()[:2]) == (2, (10, 10))


@pytest.mark.rule(27)
@pytest.mark.parametrize("survives", [0, 1])
def test_after_a_crash_half_way_a_run_is_refused_and_a_second_reset_finishes(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, survives: int, capsys: pytest.CaptureFixture[str]
) -> None:
    class Crash(BaseException):
        """The process dies here."""

    bank.run()
    cleared, left = SqliteStore.clear, [survives]

    def clear(store: Store, *arguments: Any, dry_run: bool = False) -> Any:
        if not dry_run and not left[0]:
            raise Crash
        left[0] -= not dry_run
        return cleared(store, *arguments, dry_run=dry_run)

    with monkeypatch.context() as crashing:
        crashing.setattr(SqliteStore, "clear", clear)
        with pytest.raises(Crash):
            reset("--execute")
    with pytest.raises(StateMismatchError, match="belongs to generation"):
        bank.run()
    assert bank.contents()[1] == 10, "counted once"
    capsys.readouterr()
    assert reset("--execute") == 0
    assert bank.contents()[:2] == (None, None)
    bank.run()
    assert bank.contents()[:2] == (10, 10)
    assert reset("--execute") == 0
    assert reset("--execute") == 0, "and once more, with nothing left"
    assert "there is no state of topology 'bank' in .txtopo" in capsys.readouterr().out


@pytest.mark.rule(26)
def test_a_topology_that_runs_is_not_reset(bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    bank.run()
    running = TopologyState.open(MemoryStateStore(bank.server), "bank", ALICE, wait_s=1.0)
    for options in ([], ["--execute"]):
        assert reset(*options) == 4
        assert "topology 'bank' is running: pid 11 on alpha.example" in capsys.readouterr().err
    running.close()
    assert bank.contents()[:2] == (10, 10)


def test_rows_in_a_table_of_the_users_are_told_and_nothing_is_reset_while_they_are_there(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    target = "bank.py:topology('sink')"
    bank.run(has_sink=True)
    assert reset(target=target) == 0
    said = capsys.readouterr().out
    assert (
        f"would stay: the rows in {bank.sink.ledger.sink}, which are yours (the next run writes them again)"
        in said
    )
    assert "--execute is refused until these places are empty" in said
    assert reset("--execute", target=target) == 2
    assert "are not empty, and are yours: nothing was changed" in capsys.readouterr().err
    assert (bank.current(), bank.contents()) == (2, (10, 10, [("ann", 10)]))
    bank.empty_sales()
    assert reset("--execute", target=target) == 0
    assert bank.contents() == (None, None, [])
    bank.run(has_sink=True)
    assert bank.contents() == (10, 10, [("ann", 10)])
    assert reset("--execute", "--leave-rows", target=target) == 0
    assert f"stays: the rows in {bank.sink.ledger.sink}" in capsys.readouterr().out
    assert bank.contents() == (None, None, [("ann", 10)])


@pytest.mark.parametrize(
    ("statement", "codes"),
    [
        ("INSERT OR REPLACE INTO sales(account, cents) VALUES (:account, :cents)", (2, 0)),
        ("insert into \"sales\" VALUES (:account, :cents, 'x')", (2, 0)),
        (
            "WITH one AS (SELECT 1) INSERT INTO sales(account, cents) VALUES (:account, :cents)",
            (2, 2),
        ),
    ],
)
def test_the_table_of_a_statement_is_looked_at_where_it_is_plain(
    bank: Bank,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    statement: str,
    codes: tuple[int, int],
) -> None:
    target = f"bank.py:topology('sink', None, {statement!r})"
    bank.sink = SqlSink(tmp_path / "bank.db", statement=statement)
    bank.run(has_sink=True)
    assert reset("--execute", target=target) == codes[0]
    bank.empty_sales()
    assert reset("--execute", target=target) == codes[1]
    said = capsys.readouterr().err
    assert "columns=" not in said
    assert "a statement that does not begin with INSERT INTO" in said
    assert reset("--execute", "--leave-rows", target=target) == 0


def test_the_tables_of_two_sinks_are_told_and_emptied_once(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    target = "bank.py:topology('two sinks')"
    bank.run(has_sink=True)
    for options in ([], ["--execute", "--leave-rows"]):
        assert reset(*options, target=target) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(set(lines))
        assert sum("#sink_transactions: 1 row, 1 fence" in line for line in lines) == 1
    bank.run(has_sink=True)
    assert reset("--execute", target=target) == 2
    assert capsys.readouterr().err.count(bank.sink.ledger.sink) == 1


def test_sinks_that_differ_in_their_marks_alone_are_both_asked(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("CREATE TABLE sales(id INTEGER, one TEXT, other TEXT)")
    sinks = [SqlSink(tmp_path / "shop.db", "sales", ["id"], mark=mark) for mark in ("one", "other")]
    builder = TransactionalTopologyBuilder(
        "words", "spout", MemoryTransactionalSpout({0: [(1,)]}, Fields("id"), 1)
    )
    for number, sink in enumerate(sinks):
        builder.set_bolt(f"write-{number}", sink).global_grouping("spout")
    sinks[0].ledger.apply(WorkerProcess().task("write-0"), TransactionAttempt(1, 0), (), [(1,)])
    assert places_of(builder.build_topology()).rows_left("words") == [f"{tmp_path}/shop.db#sales"]


def test_where_rows_are_marked_only_those_of_the_topology_count(bank: Bank, tmp_path: Path) -> None:
    target = "bank.py:topology('sink', 'who')"
    marking = Bank.__new__(Bank)
    marking.__dict__ |= bank.__dict__
    marking.sink = SqlSink(tmp_path / "bank.db", "sales", ["account", "cents"], mark="who")
    with contextlib.closing(sqlite3.connect(tmp_path / "bank.db")) as database, database:
        database.execute(
            "INSERT INTO sales VALUES ('bob', 7, 'another/sales/x/1'), ('cid', 8, NULL)"
        )
    marking.run(has_sink=True)
    assert reset("--execute", target=target) == 2
    with contextlib.closing(sqlite3.connect(tmp_path / "bank.db")) as database, database:
        database.execute("DELETE FROM sales WHERE who LIKE 'bank/%'")
    assert reset("--execute", target=target) == 0
    assert bank.contents()[2] == [("bob", 7), ("cid", 8)]


def test_places_that_cannot_be_emptied_here_are_named(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    bank.run(has_sink=True)
    assert reset(target="bank.py:topology('elsewhere')") == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        "would stay: the rows of component 'orders' in the queue of orders, which only you can empty"
        in said
    )
    assert "would stay: the writes of component 'mail': no store or sink is known in it" in said
    (unknown,) = [line for line in said if "'sales'" in line]
    assert (
        "a store that this topology does not have: `txtopo store clear ADDRESS sink_transactions --topology bank`"
        in unknown
    )


def test_brokers_out_of_reach_are_found_out_before_anything_is_changed(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.5)
    bank.run()
    assert reset("--execute", "--leave-rows", target="bank.py:topology('kafka')") == 2
    assert "Try again when the brokers can be reached" in capsys.readouterr().err
    assert (bank.current(), bank.contents()[:2]) == (2, (10, 10))


def test_a_store_that_does_not_answer_is_found_out_before_anything_is_changed(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bank.run()
    cleared = SqliteStore.clear

    def clear(store: Store, *arguments: Any, dry_run: bool = False) -> Any:
        if store.name == "totals":
            raise UsageError("the server does not answer")
        return cleared(store, *arguments, dry_run=dry_run)

    monkeypatch.setattr(SqliteStore, "clear", clear)
    assert reset("--execute") == 2
    assert "does not answer" in capsys.readouterr().err
    assert (bank.current(), bank.contents()[:2]) == (2, (10, 10))


def test_the_state_is_looked_for_where_a_run_of_the_target_would_keep_it(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    bank.run()
    assert reset("--set", "data_dir=elsewhere") == 0
    assert "would remove from elsewhere: the state" in capsys.readouterr().out
