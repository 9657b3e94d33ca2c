"""Particulars of the SQLite store: file, layout and messages."""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S
from txtopo.errors import FailedException, SetupError, StateMismatchError, TxtopoError, UsageError
from txtopo.stores import SqliteStore, fencing, stamps
from txtopo.stores.sqlite import bulk
from txtopo.topology.transaction import TransactionAttempt


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "counts.db", "counts", busy_timeout_s=0.05)


def query(store: SqliteStore, statement: str) -> list[Any]:
    with closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(statement).fetchall()


class TestConfiguration:
    def test_the_path_is_made_absolute_when_the_store_is_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        store = SqliteStore("counts.db", "counts")
        monkeypatch.chdir("/")
        assert pickle.loads(pickle.dumps(store)).path == str(tmp_path / "counts.db")

    def test_paths_with_special_characters_are_read_as_they_are_written(
        self, tmp_path: Path, process: contract.Process
    ) -> None:
        store = SqliteStore(tmp_path / "a?b%20c#d 'é\".db", "counts")
        contract.run(store, process.task(), 1, dog=1)
        assert dict(store.items()) == {"dog": 1}

    @pytest.mark.rule(27, 32)
    def test_two_spellings_of_one_file_are_one_store(
        self, tmp_path: Path, process: contract.Process
    ) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        linked, real = (
            SqliteStore(tmp_path / name / "counts.db", "counts", busy_timeout_s=0.05)
            for name in ("link", "real")
        )
        other = SqliteStore(tmp_path / "real" / "counts.db", "others", busy_timeout_s=0.05)
        assert linked.address == real.address
        contract.run(linked, process.task(known_stores={}), 1, dog=1)
        contract.run(
            real, process.task(known_stores={"count/counts": TransactionAttempt(1, 0)}), 2, dog=1
        )
        assert dict(linked.items()) == {"dog": 2}
        with linked.transaction(process.task(), TransactionAttempt(3, 0)):
            with pytest.raises(UsageError, match=r"real/counts.db is open already in this task"):
                contract.run(other, process.task(), 3, cat=1)

    @pytest.mark.parametrize("path", ["", ":memory:"])
    def test_a_store_that_would_not_outlive_the_process_is_refused(self, path: str) -> None:
        with pytest.raises(UsageError, match="outlives the process"):
            SqliteStore(path, "counts")

    @pytest.mark.parametrize(
        "table",
        [
            "",
            "1st",
            "a b",
            'a"; DROP TABLE x',
            "sqlite_counts",
            "txtopo_fence",
            "TXTOPO_x",
            "a" * 64,
            "é",
            "a\n",
        ],
    )
    def test_a_name_that_is_no_table_name_is_refused(self, table: str) -> None:
        with pytest.raises(UsageError, match="cannot name a table"):
            SqliteStore("counts.db", table)

    @pytest.mark.parametrize("table", ["order", "group", "select"])
    def test_words_of_sql_are_names_like_others(
        self, tmp_path: Path, process: contract.Process, table: str
    ) -> None:
        store = SqliteStore(tmp_path / "counts.db", table, opaque=True)
        contract.run(store, process.task(), 1, 0, dog=1)
        contract.run(store, process.task(), 1, 1, dog=1)
        assert dict(store.items()) == {"dog": 1}

    def test_it_says_why_it_needs_a_local_master(self) -> None:
        assert SqliteStore.local_only_reason == "SqliteStore writes a file on this machine"


class TestFile:
    def test_a_commit_that_returned_is_on_disk(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        with store.transaction(process.task(), TransactionAttempt(1, 0)):
            connection = process.resource(f"sqlite:{store.path}:{os.getpid()}", lambda: None)
            assert connection._raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection._raw.execute("PRAGMA synchronous").fetchone() == (2,)

    def test_a_missing_directory_is_named(self, tmp_path: Path, process: contract.Process) -> None:
        store = SqliteStore(tmp_path / "none" / "counts.db", "counts")
        with pytest.raises(
            SetupError, match=f"there is no directory {tmp_path}/none\n  Make the directory"
        ):
            contract.run(store, process.task(), 1, dog=1)
        assert list(store.items()) == []

    def test_a_directory_that_cannot_be_written_is_named(self, process: contract.Process) -> None:
        store = SqliteStore("/proc/counts.db", "counts")  # not even root writes there
        with pytest.raises(
            SetupError,
            match=r"the store /proc/counts.db cannot be used: .*\n.*/proc can be written",
        ):
            contract.run(store, process.task(), 1, dog=1)

    def test_a_file_of_another_kind_is_named_and_left_alone(
        self, tmp_path: Path, process: contract.Process
    ) -> None:
        path = tmp_path / "counts.db"
        path.write_text("these are my notes, not a database\n" * 100)
        store = SqliteStore(path, "counts")
        with pytest.raises(
            SetupError, match=f"the store {path} cannot be used: file is not a database"
        ):
            contract.run(store, process.task(), 1, dog=1)
        with pytest.raises(SetupError, match="file is not a database"):
            store.get("dog")
        assert path.read_text().startswith("these are my notes")

    def test_a_damaged_file_is_named_with_the_command_that_checks_it(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        for txid in range(1, 4):
            contract.run(
                store,
                process.task(),
                txid,
                **{f"{'long ' * 50}{number}": 1 for number in range(100)},
            )
        process.close()
        with open(store.path, "r+b") as file:
            file.seek(4096 * 5)
            file.write(b"\xff" * 4096 * 20)
        with pytest.raises(
            TxtopoError,
            match=rf"the store {store.path} failed: .*\n  Check the file with `sqlite3 {store.path}",
        ):
            list(store.items())

    def test_a_full_disk_ends_the_run_and_keeps_nothing_of_the_transaction(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, dog=1)
        connection = process.resource(f"sqlite:{store.path}:{os.getpid()}", lambda: None)
        connection._raw.execute("PRAGMA max_page_count = 12")
        context = process.task()
        with pytest.raises(TxtopoError, match=f"the store {store.path} cannot grow"):
            contract.run(
                store,
                context,
                2,
                dog=1,
                **{"long " * 2000 + str(number): 1 for number in range(10)},
            )
        assert dict(store.items()) == {"dog": 1}
        assert (context.store_steps, context.touched_stores, store.fences()[0].txid) == ({}, {}, 1)

    @pytest.mark.rule(27)
    def test_a_file_removed_while_its_connection_is_open_is_noticed(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, dog=1)
        for file in Path(store.path).parent.iterdir():
            file.unlink()
        with pytest.raises(
            StateMismatchError,
            match="The store was emptied, or the address names a different store",
        ):
            contract.run(
                store,
                process.task(known_stores={"count/counts": TransactionAttempt(1, 0)}),
                2,
                dog=1,
            )

    @pytest.mark.rule(32)
    def test_a_row_removed_by_hand_between_two_blocks_of_a_task_is_noticed(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        context = process.task()
        contract.run(store, context, 1, dog=1)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute("DELETE FROM counts")
        with pytest.raises(
            StateMismatchError,
            match=r'update of key "dog" is gone \(updates committed: 1\)',
        ):
            contract.run(store, context, 1, dog=1)

    @pytest.mark.parametrize("name", ["counts", "counts_written"])
    def test_tables_of_others_are_left_alone(
        self, store: SqliteStore, process: contract.Process, name: str
    ) -> None:
        with closing(sqlite3.connect(store.path)) as connection:
            connection.executescript(
                f"PRAGMA user_version = 7; CREATE TABLE {name}(mine); CREATE TABLE other(mine); INSERT INTO other VALUES (1)"
            )
        assert not store.exists()
        assert list(store.items()) == []
        with pytest.raises(SetupError, match=f"has a table '{name}' that is not a store of txtopo"):
            contract.run(store, process.task(), 1, dog=1)
        contract.run(SqliteStore(store.path, "words"), process.task(), 1, dog=1)
        assert query(store, "SELECT * FROM other") == [(1,)]
        assert query(store, "PRAGMA user_version") == [(7,)]

    def test_names_that_sqlite_cannot_tell_apart_are_not_mixed(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, dog=1)
        with pytest.raises(SetupError, match="has a table 'counts' that is not a store"):
            contract.run(SqliteStore(store.path, "Counts"), process.task(), 1, dog=1)

    def test_another_layout_is_refused_by_readers_and_writers(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, dog=1)
        process.close()
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute("UPDATE txtopo_schema SET version = 3")
        for action in (
            lambda: store.get("dog"),
            lambda: contract.run(store, process.task(), 2, dog=1),
            lambda: store.clear("words"),
        ):
            with pytest.raises(
                StateMismatchError,
                match="holds store 'counts' in layout 3; this txtopo knows layout 4",
            ):
                action()
        assert query(store, "SELECT txid FROM txtopo_fence") == [(1,)]

    def test_a_dry_run_on_a_file_without_this_store_changes_not_a_byte(
        self, store: SqliteStore
    ) -> None:
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute("CREATE TABLE other(mine)")
        before = Path(store.path).read_bytes()
        assert (
            store.adopt("words", "first", 1, ["count"], dry_run=True).fences,
            store.clear("words").fences,
        ) == (1, 0)
        assert Path(store.path).read_bytes() == before


class TestLayout:
    def test_steps_are_stored_only_for_keys_updated_repeatedly(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        with store.transaction(process.task(), TransactionAttempt(1, 0)) as t:
            t.update("once", contract.plus(1))
            t.update("twice", contract.plus(1))
            t.update("twice", contract.plus(1))
        assert query(store, "SELECT key, curr, prev, steps FROM counts ORDER BY key") == [
            ('"once"', "1", None, None),
            ('"twice"', "2", None, '["1", "2"]'),
        ]

    def test_tombstones_go_with_the_next_transaction(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, dog=1, cat=1)
        contract.block(store, process.task(), 2, 0, lambda t: [t.delete("dog"), t.delete("never")])
        assert query(store, "SELECT count(*) FROM counts") == [(3,)]
        contract.run(store, process.task(), 2, 1)
        assert query(store, "SELECT count(*) FROM counts") == [(3,)], "a replay still needs them"
        contract.run(store, process.task(), 3, 0)
        assert query(store, "SELECT key FROM counts") == [('"cat"',)]

    @pytest.mark.rule(31)
    def test_taking_back_and_sweeping_go_through_an_index(
        self, tmp_path: Path, process: contract.Process
    ) -> None:
        store = SqliteStore(tmp_path / "counts.db", "counts", opaque=True)
        contract.run(store, process.task(), 1, dog=1)
        statements: list[str] = []
        connection = process.resource(f"sqlite:{store.path}:{os.getpid()}", lambda: None)
        connection._raw.set_trace_callback(statements.append)
        contract.run(store, process.task(), 1, 1)
        contract.run(store, process.task(), 2, 0)
        touching = [
            statement
            for statement in statements
            if statement.startswith(("DELETE", "UPDATE")) and '"counts"' in statement
        ]
        assert len(touching) == 3
        for statement in touching:
            plan = " ".join(str(row[-1]) for row in query(store, f"EXPLAIN QUERY PLAN {statement}"))
            assert (
                "USING PRIMARY KEY (key=?)" in plan
                or "USING INDEX counts_deleted (topology=?)" in plan
            ), plan

    def test_a_store_may_become_opaque_later(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, dog=1)
        opaque = SqliteStore(store.path, "counts", opaque=True)
        contract.run(opaque, process.task(), 1, 1, cat=1)
        assert dict(opaque.items()) == {"cat": 1}

    def test_many_keys_are_read_and_written_in_few_statements(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, dog=1)
        statements: list[str] = []
        connection = process.resource(f"sqlite:{store.path}:{os.getpid()}", lambda: None)
        connection._raw.set_trace_callback(statements.append)
        contract.run(store, process.task(), 2, **{str(number): 1 for number in range(2000)})
        assert (
            sum("SELECT" in statement and '"counts"' in statement for statement in statements) == 2
        )


class TestTurns:
    @pytest.mark.rule(29)
    def test_a_fence_that_a_task_has_read_is_not_raised_before_the_task_has_committed(
        self, store: SqliteStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decide, looked = fencing.decide, []

        def decide_under_lock(*arguments: Any) -> fencing.Decision:
            assert not may_write()
            looked.append("at the fence")
            return decide(*arguments)

        def may_write() -> bool:
            with closing(sqlite3.connect(store.path, timeout=0, isolation_level=None)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    return False
                return True

        contract.run(store, process.task(), 1, dog=1)
        assert may_write()
        monkeypatch.setattr(fencing, "decide", decide_under_lock)
        with store.transaction(process.task(), TransactionAttempt(1, 0)):
            assert not may_write()
        assert looked == ["at the fence"]

    def test_a_writer_that_does_not_get_its_turn_fails_the_attempt_only(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, dog=1)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(
                FailedException, match=f"the store {store.path} is busy: database is locked"
            ):
                contract.run(store, process.task(), 2, dog=1)
            with pytest.raises(UsageError, match="Stop the topology that writes the store"):
                store.clear("words")
        contract.run(store, process.task(), 2, dog=1)
        assert store.get("dog") == 2

    def test_a_second_transaction_on_the_same_file_in_one_task_is_refused_at_once(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        second = SqliteStore(store.path, "words")
        with store.transaction(process.task(), TransactionAttempt(1, 0)) as t:
            t.update("dog", contract.plus(1))
            with pytest.raises(UsageError, match="is open already in this task"):
                contract.run(second, process.task(), 1, dog=1)
        contract.run(second, process.task(), 1, dog=1)
        assert (store.get("dog"), second.get("dog")) == (1, 1)

    def test_threads_of_one_process_take_turns(
        self, tmp_path: Path, process: contract.Process
    ) -> None:
        store = SqliteStore(tmp_path / "counts.db", "counts")
        contract.run(store, process.task(), 1)
        threads = [
            threading.Thread(
                target=contract.run, args=(store, process.task(task=n), 2), kwargs={f"key {n}": n}
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert dict(store.items()) == {f"key {n}": n for n in range(8)}

    def test_a_thread_that_does_not_get_its_turn_fails_the_attempt_only(
        self, store: SqliteStore, process: contract.Process
    ) -> None:
        failures: list[BaseException] = []

        def late() -> None:
            try:
                contract.run(store, process.task(task=1), 1, dog=1)
            except FailedException as error:
                failures.append(error)

        with store.transaction(process.task(), TransactionAttempt(1, 0)):
            thread = threading.Thread(target=late)
            thread.start()
            thread.join(PATIENCE_S)
        assert "is busy: another thread held the file" in str(failures[0])


def test_a_long_new_row_never_replaces_a_row_that_was_not_seen(
    store: SqliteStore, process: contract.Process
) -> None:
    """The file's lock keeps other writers away. Should the lock fail, the attempt does."""
    kept = {"a": 1, "b": 2}
    contract.run(store, process.task(), 1, 0, **kept)
    unseen = stamps.Row('"a"', stamps.Stamp("words", "g", "count", 0, 2, 0), None, 0, ['"y"'])
    with (
        closing(sqlite3.connect(store.path)) as connection,
        pytest.raises(FailedException, match="changed while a transaction had the file to itself"),
    ):
        bulk.insert(connection, store.name, [unseen])
    assert dict(store.items()) == kept


@pytest.mark.rule(31)
def test_lists_of_written_keys_do_not_grow_with_the_transactions(
    tmp_path: Path, process: contract.Process
) -> None:
    store = SqliteStore(tmp_path / "counts.db", "counts", opaque=True)
    for txid in range(1, 31):
        for task in (0, 1):
            contract.run(store, process.task(task=task), txid, 0, **{f"key {task}": 1})
        assert query(store, "SELECT count(*) FROM counts_written") == [(2,)], (
            f"after transaction {txid}"
        )


def test_a_store_of_another_layout_blocks_no_other_store(
    tmp_path: Path, process: contract.Process
) -> None:
    path = tmp_path / "results.db"
    for name in ("counts", "older"):
        contract.run(SqliteStore(path, name), process.task(), 1, 0, x=1)
    process.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE txtopo_schema SET version = 1 WHERE store = 'older'")
    for name in ("counts", "newer"):
        contract.run(SqliteStore(path, name), process.task(), 2, 0, x=1)
    assert (SqliteStore(path, "counts").get("x"), SqliteStore(path, "newer").get("x")) == (2, 1)
    with pytest.raises(StateMismatchError, match="holds store 'older' in layout 1"):
        SqliteStore(path, "older").get("x")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE txtopo_schema SET version = 1")
    with pytest.raises(StateMismatchError, match="in layout 1"):
        contract.run(SqliteStore(path, "newest"), contract.Process().task(), 1, 0, x=1)


def test_stores_import_the_standard_library_only() -> None:
    """Executors may have a bare interpreter."""
    import txtopo.stores

    allowed = {"txtopo", *sys.stdlib_module_names}
    for source in Path(txtopo.stores.__path__[0]).glob("*.py"):
        if source.stem.startswith(
            ("relational", "postgresql", "mysql", "redis_", "arrow")
        ):  # imported where a connection is made, or a table
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, source
            elif isinstance(node, ast.ImportFrom):
                assert str(node.module).split(".")[0] in allowed, source
