"""The promise of a sink, over every database and every kind of sink: the rows of a transaction
once, after any replay and any late task."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import store_clauses
from tests.patience import PATIENCE_S, wait_until
from tests.topologies.sinks import (
    BACKENDS,
    KINDS,
    LOOSE,
    OPAQUE,
    TRANSACTIONAL,
    UNDOING,
    Shop,
    WorkerProcess,
    cases,
    shop,
    write,
)
from txtopo.connectors.sql import ledger as sql_ledger
from txtopo.connectors.sql import parameters
from txtopo.connectors.sql import target as sql_target
from txtopo.errors import SetupError, StaleAttemptError, StateMismatchError, TxtopoError
from txtopo.stores import StoreConflict, stamps
from txtopo.testing.contracts import store as contract
from txtopo.topology.transaction import TransactionAttempt

A = TransactionAttempt


@pytest.fixture(params=BACKENDS)
def sales(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return shop(request.param, tmp_path)


@pytest.fixture(params=BACKENDS)
def loose(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return shop(request.param, tmp_path, LOOSE)


@pytest.fixture(params=["postgresql", "sqlite"])
def crowded(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return shop(request.param, tmp_path, CROWDED[request.param])


_CROWDED = "id INTEGER NOT NULL PRIMARY KEY, cents INTEGER NOT NULL UNIQUE, twice INTEGER GENERATED ALWAYS AS (cents * 2) STORED"
CROWDED = {
    "sqlite": f"CREATE TABLE sales ({_CROWDED}, number TEXT DEFAULT (hex(randomblob(8))), written_by TEXT DEFAULT 'nobody')",
    "postgresql": f"CREATE TABLE sales ({_CROWDED}, number INTEGER GENERATED ALWAYS AS IDENTITY, written_by TEXT DEFAULT 'nobody')",
}
"""By backend: a table whose rows may not have the same cents, with columns that the database fills.
"""

CASELESS = {
    "a column": ("CREATE TABLE sales (id TEXT COLLATE NOCASE PRIMARY KEY, cents INTEGER)",),
    "a table without row ids": (
        "CREATE TABLE sales (id TEXT COLLATE NOCASE, cents INTEGER, PRIMARY KEY (id)) WITHOUT ROWID",
    ),
    "an index": (
        "CREATE TABLE sales (id TEXT, cents INTEGER)",
        "CREATE UNIQUE INDEX sales_key ON sales(id COLLATE NOCASE)",
    ),
}
"""By database: column types and options for a table whose keys are equal in upper and lower
case.
"""

STAMPED: tuple[stamps.Kind, ...] = ("transactional", "opaque")
CLAUSES = [
    pytest.param(backend, kind, clause, id=f"{backend}, {kind}: {clause.claim}")
    for backend in BACKENDS
    for kind in STAMPED
    for clause in store_clauses.clauses_for(kind, True)
]


class TestTheLedgerIsAStore:
    @pytest.mark.usefixtures("few_rows")
    @pytest.mark.in_gate("sqlite, opaque*")
    @pytest.mark.rule(27, 28, 29, 30, 31)
    @pytest.mark.parametrize(("backend", "kind", "clause"), CLAUSES)
    def test_it_keeps_the_contract_of_stores(
        self, backend: str, kind: stamps.Kind, clause: Any, tmp_path: Path
    ) -> None:
        address = shop(backend, tmp_path).address
        limit = {"busy_timeout_s" if backend == "sqlite" else "lock_timeout_s": PATIENCE_S}

        def ledger(name: str, *, opaque: bool = False, **form: Any) -> sql_ledger.Ledger:
            target = sql_target.Target(
                "sales",
                ("id", "cents"),
                mark="written_by",
                opaque=opaque,
                dialect=parameters.dialect_of(address),
            )
            return sql_ledger.open_ledger(address, name, target, {**limit, **form})

        contract.check_clause(clause, ledger, kind=kind, prefix="contract")


class TestRowsThatAResetMeets:
    @pytest.mark.in_gate("sqlite-*", "postgresql-undo log", "mariadb-marks")
    @pytest.mark.parametrize(("backend", "kind"), cases(KINDS))
    def test_rows_are_told_that_the_topology_may_have_written_and_no_others(
        self, backend: str, kind: str, tmp_path: Path, process: WorkerProcess
    ) -> None:
        sales = shop(backend, tmp_path)
        sink = sales.sink(kind)
        assert not sink.ledger.rows_left("shop")
        write(sink, process.task(), 1, 0, [(1, 10)])
        topology = sink.ledger.fences()[0].topology_id
        assert sink.ledger.rows_left(topology)
        assert not sink.ledger.rows_left("another")
        sales.execute("DELETE FROM sales")
        assert not sink.ledger.rows_left(topology)

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.parametrize(("sales", "kind"), cases(("inserts", "marks")), indirect=["sales"])
    def test_a_table_that_was_dropped_holds_none(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        write(sink, process.task(), 1, 0, [(1, 10)])
        sales.execute("DROP TABLE sales")
        assert not sink.ledger.rows_left("words")


class TestReplays:
    @pytest.mark.rule(28, 40)
    @pytest.mark.parametrize("kind", TRANSACTIONAL)
    def test_rows_of_a_transaction_that_is_replayed_are_there_once(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        for attempt in range(3):
            assert write(sink, process.task(), 1, attempt, [(1, 10), (2, 20)]) == (attempt == 0)
            assert write(sink, process.task(task=1), 1, attempt, [(3, 30)]) == (attempt == 0)
        assert sales.sales == [(1, 10), (2, 20), (3, 30)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(28, 40)
    @pytest.mark.parametrize("kind", TRANSACTIONAL)
    def test_a_transaction_of_which_one_task_was_written_is_completed_by_the_others(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        write(sink, process.task(), 1, 0, [(1, 10)])
        assert not write(sink, process.task(), 1, 1, [(1, 10)])
        assert write(sink, process.task(task=1), 1, 1, [(2, 20)])
        assert sales.sales == [(1, 10), (2, 20)]

    @pytest.mark.rule(28, 31, 40)
    @pytest.mark.parametrize(("sales", "kind"), cases(OPAQUE), indirect=["sales"])
    def test_rows_of_a_failed_attempt_of_an_opaque_batch_are_taken_back(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        write(sink, process.task(), 1, 0, [(1, 10)])
        write(sink, process.task(), 2, 0, [(2, 20), (3, 30)])
        write(sink, process.task(task=1), 2, 0, [(4, 40)])
        # The replay has fewer rows, in another task; the next transaction has other rows again.
        assert write(sink, process.task(task=1), 2, 1, [(2, 22)])
        assert write(sink, process.task(), 2, 1)
        assert sales.sales == [(1, 10), (2, 22)]
        assert write(sink, process.task(), 2, 2, [(5, 50)])
        assert sales.sales == [(1, 10), (5, 50)]
        assert write(sink, process.task(), 3, 0, [(3, 30)])
        assert sales.sales == [(1, 10), (3, 30), (5, 50)]

    @pytest.mark.rule(31)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_rows_replaced_by_an_upsert_of_a_failed_attempt_are_restored(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink("undo log")
        sales.execute("INSERT INTO sales VALUES (7, 70, 'somebody else')")
        write(sink, process.task(), 1, 0, [(1, 10), (2, 20)])
        write(sink, process.task(), 2, 0, [(1, 11), (3, 33), (7, 77), (1, 12)])
        assert sales.sales == [(1, 12), (2, 20), (3, 33), (7, 77)]
        write(sink, process.task(), 2, 1, [(2, 21)])
        assert sales.sales == [(1, 10), (2, 21), (7, 70)]
        assert sales.execute("SELECT written_by FROM sales WHERE id = 7") == [("somebody else",)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(29, 31)
    @pytest.mark.parametrize(("sales", "kind"), cases(OPAQUE), indirect=["sales"])
    def test_a_task_that_has_nothing_to_write_takes_back_as_well(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        write(sink, process.task(), 1, 0, [(1, 10)])
        write(sink, process.task(task=3), 1, 1)
        assert sales.sales == []

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(28, 40)
    def test_a_batch_that_changes_on_replay_is_refused_without_an_undo_log(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink()
        write(sink, process.task(), 1, 0, [(1, 10), (2, 20)])
        with pytest.raises(
            TxtopoError,
            match=r"wrote 2 rows of component 'count', task 0, for transaction 1, whose replay now has 1\n.*opaque=True",
        ):
            write(sink, process.task(), 1, 1, [(1, 10)])
        assert sales.sales == [(1, 10), (2, 20)]


class TestLateTasks:
    @pytest.mark.in_gate("*-sqlite-*", "of an older attempt-postgresql-inserts")
    @pytest.mark.rule(29, 40)
    @pytest.mark.parametrize(("sales", "kind"), cases(KINDS), indirect=["sales"])
    @pytest.mark.parametrize(
        "late", [(2, 0), (1, 5)], ids=["of an older attempt", "of an older transaction"]
    )
    def test_a_late_task_fails_and_changes_nothing(
        self, sales: Shop, process: WorkerProcess, kind: str, late: tuple[int, int]
    ) -> None:
        sink = sales.sink(kind)
        write(sink, process.task(), 1, 5, [(1, 10)])
        write(sink, process.task(), 2, 1, [(2, 20)])
        with pytest.raises(StaleAttemptError):
            write(sink, process.task(task=1), *late, [(3, 30), (1, 99)])
        assert sales.sales == [(1, 10), (2, 20)]

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(29, 31)
    def test_a_zombie_in_the_middle_of_its_rows_ends_before_the_next_attempt_begins(
        self, sales: Shop, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink, zombie = sales.sink("marks"), WorkerProcess()
        write(sink, process.task(), 1, 0, [(1, 10)])
        write(sink, zombie.task(), 2, 0)
        writer: Any = sink.ledger._writer()
        is_writing, may_go_on = threading.Event(), threading.Event()
        original = writer.write

        def slow(session: Any, work: Any) -> None:
            original(session, work)
            is_writing.set()
            assert may_go_on.wait(PATIENCE_S)

        with monkeypatch.context() as patch:
            patch.setattr(writer, "write", slow)
            late = threading.Thread(
                target=write, args=(sink, zombie.task(task=1), 2, 0, [(2, 20)]), daemon=True
            )
            late.start()
            assert is_writing.wait(PATIENCE_S)
        next_one = threading.Thread(
            target=write, args=(sink, process.task(), 2, 1, [(3, 30)]), daemon=True
        )
        next_one.start()
        next_one.join(0.2)
        assert next_one.is_alive(), "the fence was raised under a transaction of an older attempt"
        may_go_on.set()
        late.join(PATIENCE_S)
        next_one.join(PATIENCE_S)
        zombie.close()
        assert sales.sales == [(1, 10), (3, 30)]

    @pytest.mark.in_gate("mariadb")
    @pytest.mark.rule(28)
    def test_the_same_task_of_the_same_attempt_twice_at_once_writes_once_and_blames_no_row(
        self, sales: Shop, process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink, rows, twin = sales.sink(), [(n, n) for n in range(100)], WorkerProcess()
        write(sink, process.task(), 1, 0)
        outcomes: dict[str, object] = {}
        writer: Any = sink.ledger._writer()
        original, is_writing, may_go_on = writer.write, threading.Event(), threading.Event()

        def slow(session: Any, work: Any) -> None:
            is_writing.set()
            assert may_go_on.wait(PATIENCE_S)
            original(session, work)

        def run(name: str, process: WorkerProcess) -> None:
            try:
                outcomes[name] = write(sink, process.task(), 2, 0, rows)
            except Exception as error:
                outcomes[name] = type(error).__name__

        with monkeypatch.context() as patch:
            patch.setattr(writer, "write", slow)
            first = threading.Thread(target=run, args=("first", process), daemon=True)
            first.start()
            assert is_writing.wait(PATIENCE_S)
        second = threading.Thread(target=run, args=("second", twin), daemon=True)
        second.start()
        second.join(0.3)
        assert second.is_alive(), "it did not wait for the one that began before it"
        may_go_on.set()
        first.join(PATIENCE_S)
        second.join(PATIENCE_S)
        twin.close()
        assert outcomes["first"] is True
        assert outcomes["second"] in (False, "FailedException")
        assert sales.sales == rows


class TestOtherNumbersOfTasks:
    """A transaction that was sealed is replayed with its task counts (R23); the next transaction
    may have others."""

    @pytest.mark.in_gate("sqlite-*", "postgresql-undo log")
    @pytest.mark.rule(23, 28)
    @pytest.mark.parametrize(("sales", "kind"), cases(KINDS), indirect=["sales"])
    def test_rows_are_there_once_also_where_the_tasks_of_a_component_change_between_runs(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        expected: list[tuple[int, int]] = []
        for txid, tasks in enumerate((1, 4, 2, 3, 1, 5), start=1):
            parts = [
                [(100 * txid + task, txid), (100 * txid + task + 50, txid)] for task in range(tasks)
            ]
            # The first attempt dies when half of the tasks have written; the driver begins again,
            # and its replay has as many.
            for task, rows in list(enumerate(parts))[: (tasks + 1) // 2]:
                write(sink, process.task(task=task), txid, 0, rows)
            for task, rows in enumerate(parts):
                write(sink, process.task(task=task), txid, 1_000_000, rows)
            expected += [row for rows in parts for row in rows]
        assert sales.sales == sorted(expected)

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_the_undo_log_keeps_one_transaction_of_the_tasks_there_are(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink("undo log")
        for task in range(4):
            write(sink, process.task(task=task), 1, 0, [(task, 1)])
        write(sink, process.task(), 2, 0, [(0, 2)])
        assert sorted(sales.execute("SELECT sink_task, id FROM sales_undo")) == [(0, 0)]

    @pytest.mark.in_gate("*-sqlite")
    @pytest.mark.rule(27, 31)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    @pytest.mark.parametrize("tasks", [2, 1])
    def test_after_an_adoption_rows_are_taken_back_to_the_adopted_content(
        self, sales: Shop, process: WorkerProcess, tasks: int
    ) -> None:
        sink = sales.sink("undo log")
        for task, row in enumerate([(1, 10), (2, 20)]):
            write(sink, process.task(task=task, num_tasks=2), 9, 0, [row])
        write(sink, process.task(num_tasks=2), 10, 0, [(1, 11)])
        sink.ledger.adopt("words", "first", 8, ["count"])
        # Transaction 9 comes again, and with it the number that is in the undo log.
        rows = [[(1, 12)], [(2, 22)]] if tasks == 2 else [[(2, 22), (1, 12)]]
        for task in range(tasks):
            assert write(sink, process.task(task=task, num_tasks=tasks), 9, 1, rows[task])
        for task in range(tasks):
            write(sink, process.task(task=task, num_tasks=tasks), 9, 2)
        assert sales.sales == [(1, 11), (2, 20)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    @pytest.mark.parametrize("loose", UNDOING, indirect=True)
    def test_restored_values_go_into_their_own_columns_in_any_order_of_columns(
        self, loose: Shop, process: WorkerProcess
    ) -> None:
        loose.execute("CREATE UNIQUE INDEX sales_key ON sales(id)")
        for txid, columns in (
            (1, ["id", "cents", "written_by"]),
            (2, ["written_by", "id", "cents"]),
        ):
            row = {"id": 1, "cents": 10 * txid, "written_by": f"somebody {txid}"}
            sink = loose.sink("undo log", columns=columns)
            sink.ledger.apply(
                process.task(),
                TransactionAttempt(txid, 0),
                tuple(columns),
                [[row[column] for column in columns]],
            )
        sink.ledger.apply(process.task(), TransactionAttempt(2, 1), tuple(columns), [])
        assert loose.execute("SELECT id, cents, written_by FROM sales") == [(1, 10, "somebody 1")]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_an_undo_log_of_other_columns_is_refused_before_anything_is_written(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        write(sales.sink("undo log"), process.task(), 1, 0, [(1, 10)])
        other = sales.sink("undo log", columns=["id", "cents", "written_by"])
        for component, txid, attempt in (("count", 1, 1), ("other", 1, 0)):
            with pytest.raises(
                SetupError,
                match=r'(?s)made for .* id, cents, and this sink writes id, cents, written_by.*DROP TABLE "sales_undo"',
            ):
                other.ledger.apply(
                    process.task(component),
                    TransactionAttempt(txid, attempt),
                    ("id", "cents", "written_by"),
                    [(2, 20, "x")],
                )
        assert sales.sales == [(1, 10)]
        write(sales.sink("undo log"), process.task(), 2, 0)
        sales.execute("DROP TABLE sales_undo")
        assert other.ledger.apply(
            process.task(), TransactionAttempt(3, 0), ("id", "cents", "written_by"), [(2, 20, "x")]
        )

    @pytest.mark.rule(31)
    def test_unique_values_that_moved_between_rows_and_columns_beyond_the_sink_are_restored(
        self, crowded: Shop, process: WorkerProcess
    ) -> None:
        sink = crowded.sink("undo log")
        write(sink, process.task(), 1, 0, [(1, 10), (2, 20), (3, 30)])
        crowded.execute("UPDATE sales SET written_by = 'somebody else' WHERE id = 2")
        write(sink, process.task(), 2, 0, [(1, 40), (2, 10), (3, 20), (4, 30)])
        crowded.execute("UPDATE sales SET written_by = 'later' WHERE id = 3")
        before = crowded.execute("SELECT number, id FROM sales WHERE id < 4 ORDER BY id")
        assert write(sink, process.task(), 2, 1, [(5, 40)])
        assert crowded.execute("SELECT id, cents, twice, written_by FROM sales ORDER BY id") == [
            (1, 10, 20, "nobody"),
            (2, 20, 40, "somebody else"),
            (3, 30, 60, "later"),
            (5, 40, 80, "nobody"),
        ]
        assert crowded.execute("SELECT number, id FROM sales WHERE id < 4 ORDER BY id") == before
        assert crowded.execute("SELECT id FROM sales_undo") == [(5,)]

    @pytest.mark.rule(31)
    def test_two_rows_that_have_changed_places_are_restored(
        self, tmp_path: Path, process: WorkerProcess
    ) -> None:
        crowded = shop("sqlite", tmp_path, CROWDED["sqlite"])
        sink = crowded.sink("undo log")
        write(sink, process.task(), 1, 0, [(1, 10), (2, 20)])
        write(sink, process.task(), 2, 0, [(1, 99), (2, 10), (1, 20)])
        assert crowded.sales == [(1, 20), (2, 10)]
        write(sink, process.task(), 2, 1)
        assert crowded.sales == [(1, 10), (2, 20)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    def test_a_unique_value_taken_by_another_program_ends_the_restoring_with_the_cure(
        self, crowded: Shop, process: WorkerProcess
    ) -> None:
        sink = crowded.sink("undo log")
        write(sink, process.task(), 1, 0, [(1, 10)])
        write(sink, process.task(), 2, 0, [(1, 11)])
        crowded.execute("INSERT INTO sales(id, cents) VALUES (7, 10)")
        with pytest.raises(
            StateMismatchError,
            match=r"(?is)cannot be taken back: .*unique.*was changed from outside",
        ) as caught:
            write(sink, process.task(), 2, 1)
        assert caught.value.exit_code == 6
        assert crowded.sales == [(1, 11), (7, 10)], "nothing was changed"
        crowded.execute("DELETE FROM sales WHERE id = 7")
        write(sink, process.task(), 2, 1)
        assert crowded.sales == [(1, 10)]

    @pytest.mark.rule(31)
    def test_rows_that_others_go_with_are_not_removed_to_be_restored(
        self, tmp_path: Path, process: WorkerProcess
    ) -> None:
        crowded = shop("postgresql", tmp_path, CROWDED["postgresql"])
        crowded.execute("CREATE TABLE parts (sale INTEGER REFERENCES sales(id) ON DELETE CASCADE)")
        sink = crowded.sink("undo log")
        write(sink, process.task(), 1, 0, [(1, 10), (2, 20)])
        crowded.execute("INSERT INTO parts VALUES (1), (2)")
        write(sink, process.task(), 2, 0, [(1, 40), (2, 10)])
        with pytest.raises(StateMismatchError, match=r"(?s)the table parts\b.* DEFERRABLE"):
            write(sink, process.task(), 2, 1)
        assert crowded.sales == [(1, 40), (2, 10)]
        crowded.execute(
            "ALTER TABLE sales DROP CONSTRAINT sales_cents_key, ADD UNIQUE (cents) DEFERRABLE"
        )
        write(sink, process.task(), 2, 1)
        assert crowded.sales == [(1, 10), (2, 20)]
        assert crowded.execute("SELECT sale FROM parts ORDER BY sale") == [(1,), (2,)]

    @pytest.mark.rule(31)
    def test_keys_are_found_again_as_the_table_compares_them(
        self, tmp_path: Path, process: WorkerProcess
    ) -> None:
        sales = shop(
            "sqlite",
            tmp_path,
            "CREATE TABLE sales (id TEXT COLLATE NOCASE PRIMARY KEY, cents INTEGER)",
        )
        sink = sales.sink("undo log")
        write(sink, process.task(), 1, 0, [("Tea", 10)])
        write(sink, process.task(), 2, 0, [("tea", 20), ("Milk", 20), ("milk", 21)])
        assert sales.execute("SELECT * FROM sales ORDER BY id") == [("Milk", 21), ("Tea", 20)]
        write(sink, process.task(), 2, 1)
        assert sales.execute("SELECT id, cents FROM sales") == [("Tea", 10)]


class TestRecordedAttempts:
    """Knowledge of the sink in ZooKeeper: whether the database is still the same."""

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(27)
    @pytest.mark.parametrize(("sales", "kind"), cases(KINDS), indirect=["sales"])
    def test_a_database_that_was_emptied_is_refused_and_can_be_adopted(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        known = {"count/sink_transactions": A(7, 0)}
        with pytest.raises(
            StateMismatchError, match=r"txtopo store adopt .* sink_transactions --topology words"
        ) as caught:
            write(sink, process.task(known_stores=known), 8, 0, [(1, 10)])
        assert caught.value.exit_code == 6
        assert sales.sales == []
        sink.ledger.adopt("words", "first", 7, ["count"])
        assert write(sink, process.task(known_stores=known), 8, 0, [(1, 10)])

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(27, 29)
    def test_an_older_copy_of_the_database_and_another_generation_are_refused(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink()
        write(sink, process.task(), 3, 0, [(1, 10)])
        with pytest.raises(StateMismatchError, match="is behind"):
            write(
                sink,
                process.task(known_stores={"count/sink_transactions": A(7, 0)}),
                8,
                0,
                [(2, 20)],
            )
        with pytest.raises(StateMismatchError, match="belongs to generation first"):
            write(sink, process.task(generation="second"), 1, 0, [(2, 20)])
        assert sales.sales == [(1, 10)]
        sink.ledger.clear("words")
        assert write(sink, process.task(generation="second"), 1, 0, [(2, 20)])

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    def test_rows_of_an_attempt_that_does_not_count_are_taken_back_by_the_next_transaction(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink(mark="written_by")
        write(sink, process.task(known_stores={}), 1, 0, [(1, 10)])
        # 1 was replayed by code that had no such component.
        write(sink, process.task(known_stores={}), 2, 0, [(2, 20)])
        assert sales.sales == [(2, 20)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    @pytest.mark.parametrize("kind", TRANSACTIONAL)
    def test_indistinguishable_rows_end_the_run_with_the_command_to_type(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        sink = sales.sink(kind)
        write(sink, process.task(known_stores={}), 1, 0, [(1, 10)])
        said = r"attempt 1:0, which was replayed without the sink\n.*Remove the rows by hand.*\n.*txtopo store adopt"
        with pytest.raises(StateMismatchError, match=said):
            write(sink, process.task(known_stores={}), 2, 0, [(2, 20)])
        sales.execute("DELETE FROM sales")
        sink.ledger.adopt("words", "first", 1, ["count"])
        write(sink, process.task(known_stores={}), 2, 0, [(2, 20)])
        assert sales.sales == [(2, 20)]


class TestWriters:
    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(32)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_two_tasks_that_write_one_key_are_refused_with_an_undo_log(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink("undo log")
        write(sink, process.task(), 1, 0, [(1, 10), (2, 20)])
        with pytest.raises(
            StoreConflict, match=r"(?s)1.*task 1 of topology 'words'.*fields_grouping"
        ):
            write(sink, process.task(task=1), 1, 0, [(3, 30), (1, 11)])
        assert sales.sales == [(1, 10), (2, 20)]

    @pytest.mark.rule(32)
    @pytest.mark.parametrize("case", CASELESS)
    def test_keys_that_the_table_takes_for_the_same_are_one_key_also_of_two_tasks(
        self, case: str, tmp_path: Path, process: WorkerProcess
    ) -> None:
        sales = shop("sqlite", tmp_path, None)
        for statement in CASELESS[case]:
            sales.execute(statement)
        sink = sales.sink("undo log")
        write(sink, process.task(), 1, 0, [("Tea", 10)])
        write(sink, process.task(), 2, 0, [("tea", 20), ("Milk", 20), ("milk", 21)])
        with pytest.raises(
            StoreConflict, match=r"(?s)(?i)milk.*task 1 of topology 'words'.*fields_grouping"
        ):
            write(sink, process.task(task=1), 2, 0, [("MILK", 30)])
        assert sales.execute("SELECT id, cents FROM sales ORDER BY cents") == [
            ("Tea", 20),
            ("Milk", 21),
        ]
        write(sink, process.task(), 2, 1)
        assert sales.execute("SELECT id, cents FROM sales") == [("Tea", 10)]

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_tasks_that_find_no_undo_log_at_the_same_moment_make_it_once(self, sales: Shop) -> None:
        sink, tasks = sales.sink("undo log"), range(5)
        processes = [WorkerProcess() for _ in tasks]
        for process, task in zip(processes, tasks, strict=True):
            write(sink, process.task(task=task), 1, 0)
        together, outcomes = threading.Barrier(len(processes)), list[object]()

        def run(process: WorkerProcess, task: int) -> None:
            together.wait(PATIENCE_S)
            try:
                outcomes.append(write(sink, process.task(task=task), 2, 0, [(task, 1)]))
            except Exception as error:
                outcomes.append(error)

        threads = [
            threading.Thread(target=run, args=pair, daemon=True)
            for pair in zip(processes, tasks, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        for process in processes:
            process.close()
        assert outcomes == [True] * len(processes)
        assert sorted(sales.execute("SELECT sink_task FROM sales_undo")) == [
            (task,) for task in tasks
        ]

    @pytest.mark.in_gate("sqlite*")
    def test_components_and_topologies_share_a_table_of_auxiliary_rows(
        self, loose: Shop, process: WorkerProcess
    ) -> None:
        sink = loose.sink("marks")
        write(sink, process.task("a"), 1, 0, [(1, 1)])
        write(sink, process.task("b"), 1, 0, [(1, 1)])
        write(sink, process.task("a", topology_id="other"), 1, 0, [(1, 1)])
        write(sink, process.task("b"), 1, 1)
        assert loose.sales == [(1, 1), (1, 1)]
        assert sorted(loose.execute("SELECT written_by FROM sales")) == [
            ("other/a/first/1",),
            ("words/a/first/1",),
        ]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.parametrize(("sales", "kind"), cases(["upserts", "undo log"]), indirect=["sales"])
    def test_the_last_row_of_a_key_wins(
        self, sales: Shop, process: WorkerProcess, kind: str
    ) -> None:
        write(sales.sink(kind), process.task(), 1, 0, [(1, 10), (2, 20), (1, 11), (1, 12)])
        assert sales.sales == [(1, 12), (2, 20)]


class TestTwoTopologies:
    """Both upsert into the same table, opaque. Taking back the rows of one component must not undo
    the rows of the other."""

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_a_row_that_one_topology_may_take_back_is_refused_to_another_until_it_has_gone_on(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink("undo log")

        def write_other(attempt: int) -> bool:
            return write(
                sink,
                process.task("write", topology_id="shop's"),
                1,
                attempt,
                [(3, 30 + attempt), (2, 20 + attempt)],
            )

        write(sink, process.task(), 1, 0, [(1, 10), (2, 20)])
        who = r"id=2 .*'sales'.* words/count \(words/count/first/1\).*shop's/write"
        refused = rf"(?s){who}.*\n.*DELETE FROM \"sales_undo\" WHERE sink_writer = 'words/count'"
        for attempt in range(2):
            with pytest.raises(StateMismatchError, match=refused) as caught:
                write_other(attempt)
            assert caught.value.exit_code == 6
        assert sales.sales == [(1, 10), (2, 20)], "nothing was written"
        assert write(sink, process.task(), 1, 1, [(1, 12)])
        for attempt in (2, 3):
            assert write_other(attempt), "row 2 was taken back, and is free again"
        with pytest.raises(StateMismatchError, match=r"id=3 .* shop's/write \(.*words/count"):
            write(sink, process.task(), 2, 0, [(3, 13)])
        assert sales.sales == [(1, 12), (2, 23), (3, 33)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_the_command_in_the_refusal_removes_leftovers_of_a_vanished_topology(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink, heir = sales.sink("undo log"), process.task("write", topology_id="heir")
        write(sink, process.task(topology_id="o'ld"), 7, 0, [(1, 10)])
        with pytest.raises(StateMismatchError) as caught:
            write(sink, heir, 1, 0, [(1, 11)])
        sales.execute(str(caught.value).splitlines()[-1].strip())
        assert write(sink, heir, 1, 0, [(1, 11)])
        assert sales.sales == [(1, 11)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(31)
    @pytest.mark.parametrize("sales", UNDOING, indirect=True)
    def test_a_component_that_was_renamed_and_a_state_that_began_anew_are_no_other_topology(
        self, sales: Shop, process: WorkerProcess
    ) -> None:
        sink = sales.sink("undo log")
        write(sink, process.task("a"), 1, 0, [(1, 10)])
        assert write(sink, process.task("b"), 2, 0, [(1, 20)])
        sink.ledger.clear("words")
        assert write(sink, process.task("b", generation="second"), 1, 0, [(1, 30)])
        assert sales.sales == [(1, 30)]

    @pytest.mark.thorough  # it measures time
    def test_many_rows_are_not_compared_each_with_each(
        self, tmp_path: Path, process: WorkerProcess
    ) -> None:
        """The database cannot know yet how many rows an undo log has that was just filled;
        comparing all would take minutes."""
        sink = shop("postgresql", tmp_path).sink("undo log", statement_timeout_s=60)
        for topology, first in (("words", 0), ("other", 20_000), ("words", 40_000)):
            assert write(
                sink,
                process.task(topology_id=topology),
                1 + first,
                0,
                [(first + n, 1) for n in range(20_000)],
            )

    @pytest.mark.rule(31)
    def test_of_two_that_write_a_row_at_the_same_moment_the_second_waits_and_is_refused(
        self, tmp_path: Path
    ) -> None:
        sales = shop("postgresql", tmp_path)
        sink, words, other, outcomes = (
            sales.sink("undo log"),
            WorkerProcess(),
            WorkerProcess(),
            list[object](),
        )
        write(sink, words.task(), 1, 0, [(0, 0)])
        write(sink, other.task(topology_id="other"), 1, 0)

        def write_other() -> None:
            try:
                outcomes.append(write(sink, other.task(topology_id="other"), 2, 0, [(1, 20)]))
            except Exception as error:
                outcomes.append(error)

        second = threading.Thread(target=write_other, daemon=True)
        with sink.ledger.transaction(words.task(), A(2, 0)) as opened:
            opened.update(("words", "count", 0), lambda old: {"rows": 1})
            opened.flush()
            stamp = stamps.Stamp("words", "first", "count", 0, 2, 0)
            sink.ledger._writer().write(
                opened.session, sql_target.Work("sales", sink.ledger.target, stamp, 1, [(1, 10)])
            )
            second.start()
            wait_until(
                lambda: sales.execute(
                    "SELECT 1 FROM pg_catalog.pg_locks WHERE NOT granted AND locktype = 'transactionid'"
                )
            )
        second.join(PATIENCE_S)
        words.close()
        other.close()
        assert [type(outcome) for outcome in outcomes] == [StateMismatchError]
        assert sales.sales == [(0, 0), (1, 10)]
