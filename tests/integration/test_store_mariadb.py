"""A store in a MariaDB server: statements per transaction, locks, messages about an unusable
server, and particulars of MariaDB. Promises of every database server are in ``test_store_servers``.
"""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S
from tests.processes.workers import Worker
from tests.servers import server_stores
from tests.servers.databases import Database
from tests.servers.mariadb import PASSWORD, MariaServer
from txtopo.errors import FailedException, SetupError, UsageError
from txtopo.stores import ADD, SqlStore, StoreConflict, StoreTransaction
from txtopo.stores.keys import encode_key
from txtopo.stores.mysql import backend
from txtopo.stores.mysql import connection as mysql_connection
from txtopo.stores.servers import session as relational
from txtopo.topology.transaction import TransactionAttempt as A


@pytest.fixture
def database(mariadb: MariaServer) -> Iterator[str]:
    name = mariadb.new_database()
    yield name
    mariadb.start()
    mariadb.drop(name)


@pytest.fixture
def store(mariadb: MariaServer, database: str) -> SqlStore:
    return SqlStore(mariadb.url(database), "counts", lock_timeout_s=PATIENCE_S)


@pytest.mark.thorough
class TestServerIsAsked:
    def test_portions_that_are_not_all_integers_are_combined_as_far_as_they_are(
        self, store: SqlStore, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backend, "PORTION_CHARACTERS", 100)
        keys = [f"key {number:03}" for number in range(50)]
        contract.block(
            store,
            workers[0].process.task(),
            1,
            0,
            lambda opened: opened.put_many(dict.fromkeys(keys, 1) | {"key 025": 0.5}),
        )
        for _ in range(2):
            contract.block(
                store,
                workers[0].process.task(),
                2,
                0,
                lambda opened: opened.merge_many(dict.fromkeys(keys, 2), ADD),
            )
        assert dict(store.items()) == dict.fromkeys(keys, 3) | {"key 025": 2.5}

    def test_a_key_that_is_too_long_is_refused_to_a_merge_too(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        with pytest.raises(UsageError, match="a key of 769 characters is too long for the store"):
            contract.block(
                store,
                workers[0].process.task(),
                1,
                0,
                lambda opened: opened.merge_many({"x" * 767: 1, "y": 1}, ADD),
            )
        contract.block(
            store,
            workers[0].process.task(),
            1,
            0,
            lambda opened: opened.merge_many({"x" * 766: 1}, ADD),
        )
        assert dict(store.items()) == {"x" * 766: 1}

    @pytest.mark.rule(30)
    @pytest.mark.parametrize("value", [10**15, -(10**30), 0.5, True, None, "1", [1], ""], ids=repr)
    def test_a_value_that_is_no_small_integer_ends_the_statement_and_not_the_transaction(
        self, store: SqlStore, workers: list[Worker], value: Any
    ) -> None:
        def put(opened: StoreTransaction) -> None:
            opened.put_many({"a": 1, "m": value, "z": 1})

        def merge(opened: StoreTransaction) -> None:
            settled, stamp = 1, opened._steps.stamp
            refused = opened.session.merge_rows(
                {'"a"': 1, '"m"': 1, '"new"': 1, '"z"': 1}, ADD, stamp, settled
            )
            assert set(refused) == {'"a"', '"m"', '"new"', '"z"'}
            assert {
                text: row.stamp.txid
                for text, row in opened.session.read_rows(['"a"', '"m"', '"new"', '"z"']).items()
            } == {
                '"a"': 1,
                '"m"': 1,
                '"z"': 1,
            }
            assert opened.session.merge_rows({'"a"': 1, '"z"': 1}, ADD, stamp, settled) == []

        contract.block(store, workers[0].process.task(), 1, 0, put)
        contract.block(store, workers[0].process.task(), 2, 0, merge)
        assert dict(store.items()) == {"a": 2, "m": value, "z": 2}

    def test_single_updates_take_one_read_for_each_key_and_one_write_for_all(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, a=1)

        def one_by_one() -> None:
            with store.transaction(workers[0].process.task(), A(1, 0)) as opened:
                for key in ("b", "c", "d", "b", "c", "d"):
                    opened.update(key, contract.plus(1))

        # The task runs again in the attempt of the fence, which is not raised: to count it takes a
        # statement.
        assert server_stores.commands(store, workers[0], one_by_one) == [
            "SELECT",
            "UPDATE",
            "SELECT",
            "SELECT",
            "SELECT",
            "INSERT",
        ]

    @pytest.mark.rule(31)
    def test_taking_back_many_rows_takes_as_many_requests_as_a_few_rows(
        self, mariadb: MariaServer, database: str, workers: list[Worker]
    ) -> None:
        store, worker = SqlStore(mariadb.url(database), "counts", opaque=True), workers[0]
        asked = []
        for txid, keys in ((1, 2), (2, 2000)):
            contract.run(
                store, worker.process.task(), txid, 0, **{str(n): 1 for n in range(keys // 2)}
            )
            contract.run(store, worker.process.task(), txid, 1, **{str(n): 1 for n in range(keys)})
            asked.append(
                server_stores.commands(
                    store,
                    worker,
                    functools.partial(contract.run, store, worker.process.task(), txid, 2, z=1),
                )
            )
        # The fence is locked; lists, and the rows they name, are read; rows and lists are removed;
        # the fence is raised; a row is added and listed.
        assert asked[0] == [
            "SELECT",
            "SELECT",
            "SELECT",
            "DELETE",
            "DELETE",
            "UPDATE",
            "SELECT",
            "INSERT",
            "INSERT",
        ]
        assert len(asked[1]) <= len(asked[0]) + 1
        assert dict(store.items()) == {"z": 2}

    def test_many_keys_are_sent_in_portions_that_fit_into_a_packet(
        self, store: SqlStore, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backend, "PORTION_CHARACTERS", 100)
        deltas = {f"key {n:03}": n for n in range(50)}
        for _ in range(2):
            contract.run(store, workers[0].process.task(), 1, 0, **deltas)
        contract.run(store, workers[0].process.task(), 2, 0, **deltas)
        assert dict(store.items()) == {key: 2 * n for key, n in deltas.items()}

    @pytest.mark.rule(31)
    def test_lists_have_room_in_a_packet(
        self,
        mariadb: MariaServer,
        database: str,
        workers: list[Worker],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(relational, "LIST_CHARACTERS", 100)
        store, task = (
            SqlStore(mariadb.url(database), "counts", opaque=True),
            workers[0].process.task,
        )
        contract.run(store, task(), 1, 0, **{f"key {number:03}": 1 for number in range(50)})
        lists = [
            keys for (keys,) in mariadb.execute(f"SELECT `keys` FROM `{database}`.counts_written")
        ]
        assert len(lists) > 4
        assert max(map(len, lists)) <= 100
        contract.run(store, task(), 1, 1, dog=1)
        assert dict(store.items()) == {"dog": 1}

    @pytest.mark.thorough
    @pytest.mark.rule(31)
    def test_keys_that_no_packet_has_room_for_together_are_listed_and_taken_back(
        self, mariadb: MariaServer, database: str, workers: list[Worker]
    ) -> None:
        [(limit,)] = mariadb.execute("SELECT @@max_allowed_packet")
        store, task = (
            SqlStore(mariadb.url(database), "counts", opaque=True),
            workers[0].process.task,
        )
        keys = dict.fromkeys(
            [f"{number:07}".ljust(700, "x") for number in range(limit // 700 + 1)], 1
        )
        contract.block(store, task(), 1, 0, lambda opened: opened.merge_many(keys, ADD))
        assert store.count() == len(keys)
        contract.run(store, task(), 1, 1, dog=1)
        assert dict(store.items()) == {"dog": 1}

    def test_a_value_that_no_packet_has_room_for_is_refused(
        self, mariadb: MariaServer, store: SqlStore, workers: list[Worker]
    ) -> None:
        [(limit,)] = mariadb.execute("SELECT @@max_allowed_packet")
        largest, larger = "ä" * (limit // 2 - 1000), "ä" * (limit // 2)

        def put(value: str) -> Callable[[StoreTransaction], Any]:
            return lambda opened: opened.update("x", contract.set_to(value))

        contract.block(store, workers[0].process.task(), 1, 0, put(largest))
        with pytest.raises(
            UsageError,
            match=rf'key "x" needs a packet of \d+ bytes, .* up to {limit}\n  Raise max_allowed_packet',
        ):
            contract.block(store, workers[0].process.task(), 2, 0, put(larger))
        assert store.get("x") == largest


class TestLocks:
    @pytest.mark.rule(29)
    def test_tasks_that_want_to_raise_the_fence_at_once_never_block_each_other(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        zombie, *live = workers
        for number in range(12):
            both = threading.Barrier(2, timeout=PATIENCE_S)

            def write(
                task: int, both: threading.Barrier = both, topology: str = f"words-{number}"
            ) -> str:
                with store.transaction(
                    live[task].process.task(task=task, num_tasks=2, topology_id=topology), A(1, 1)
                ) as opened:
                    both.wait()
                    opened.update((topology, task), contract.plus(1))
                return "written"

            with store.transaction(zombie.process.task(topology_id=f"words-{number}"), A(1, 0)):
                for task, worker in enumerate(live):
                    worker.start(functools.partial(write, task))
            assert [worker.ended() for worker in live] == ["written"] * 2

    @pytest.mark.rule(32)
    @pytest.mark.parametrize("existed", [False, True], ids=["new keys", "keys that were there"])
    def test_a_task_waits_for_no_rows_but_its_own(
        self, store: SqlStore, workers: list[Worker], existed: bool
    ) -> None:
        """Also in a table so small that the server would rather read all of it."""
        if existed:
            contract.run(store, workers[2].process.task(), 1, 0, a=1, b=1, c=1)
        tasks = [worker.process.task(task=task, num_tasks=3) for task, worker in enumerate(workers)]
        begun = [store.transaction(task, A(2, 0)) for task in tasks]
        with begun[0] as first, begun[1] as second, begun[2] as third:
            for opened, key in ((second, "b"), (first, "a"), (third, "c")):
                opened.update_many({key: 1, f"{key}{key}": 1}, contract.add)
                opened._write()
                assert opened.get("a") == (1 if existed else None) or opened is first
        before = 1 if existed else 0
        assert dict(store.items()) == {
            "a": before + 1,
            "b": before + 1,
            "c": before + 1,
            "aa": 1,
            "bb": 1,
            "cc": 1,
        }

    @pytest.mark.rule(31)
    def test_raising_the_fence_of_one_component_waits_for_no_rows_of_another(
        self, mariadb: MariaServer, database: str, workers: list[Worker]
    ) -> None:
        store = SqlStore(mariadb.url(database), "counts", opaque=True, lock_timeout_s=PATIENCE_S)
        contract.run(store, workers[0].process.task("sum"), 1, 0, s=1)
        contract.block(
            store,
            workers[0].process.task("count"),
            1,
            0,
            lambda opened: [opened.update("x", contract.plus(1)), opened.delete("gone")],
        )
        with store.transaction(workers[0].process.task("sum"), A(2, 1)) as opened:
            opened.update("s", contract.plus(1))
            opened.delete("t")
            opened._write()
            contract.run(store, workers[1].process.task("count"), 2, 0, x=1, y=1)
            contract.run(store, workers[1].process.task("count"), 2, 1, x=1)
        assert dict(store.items()) == {"s": 2, "x": 2}

    @pytest.mark.rule(32)
    def test_a_waiting_transaction_sees_the_new_value(
        self, mariadb: MariaServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        with store.transaction(workers[0].process.task(num_tasks=2), A(2, 0)) as opened:
            opened.update("x", contract.plus(1))
            workers[1].start(
                lambda: contract.run(store, workers[1].process.task(task=1), 2, 0, x=1)
            )
            Database(mariadb, database).wait_for_waiting()
        error = workers[1].ended()
        assert isinstance(error, StoreConflict), error
        assert dict(store.items()) == {"x": 2}


class TestSettings:
    def test_session_settings_do_not_depend_on_the_servers(
        self, mariadb: MariaServer, database: str, workers: list[Worker]
    ) -> None:
        store = SqlStore(
            mariadb.url(database),
            "counts",
            lock_timeout_s=6.5,
            statement_timeout_s=8.25,
            idle_timeout_s=9,
        )
        assert mariadb.execute("SELECT @@global.tx_isolation, @@global.default_storage_engine") == [
            ("SERIALIZABLE", "MyISAM")
        ]
        names = (
            "tx_isolation",
            "innodb_lock_wait_timeout",
            "lock_wait_timeout",
            "max_statement_time",
            "idle_transaction_timeout",
            "autocommit",
        )
        with store.transaction(workers[0].process.task(), A(1, 0)) as opened:
            shown = (
                server_stores.connection_of(opened)
                .exec_driver_sql("SELECT " + ", ".join(f"@@session.{name}" for name in names))
                .one()
            )
        assert tuple(shown) == ("READ-COMMITTED", 7, 7, 8.25, 9, 0)
        select = "SELECT DISTINCT engine, table_collation FROM information_schema.tables WHERE table_schema = %s"
        assert mariadb.execute(select, [database]) == [("InnoDB", "utf8mb4_bin")]

    @pytest.mark.rule(7)
    def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
        self, mariadb: MariaServer, database: str, workers: list[Worker]
    ) -> None:
        store = SqlStore(
            mariadb.url(database), "counts", statement_timeout_s=200, lock_timeout_s=100
        )
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        driver = store._connection(workers[0].process.resource)._raw.connection.driver_connection
        assert driver._read_timeout == 300 + mysql_connection.ANSWER_MARGIN_S
        mariadb.pause()
        driver._read_timeout = 0.1  # from here on, no answer can come
        try:
            with pytest.raises(FailedException, match=r"the connection is lost \(.*timed out"):
                contract.run(store, workers[0].process.task(), 2, 0, x=1)
        finally:
            mariadb.resume()
        contract.run(store, workers[0].process.task(), 2, 1, x=1)
        assert dict(store.items()) == {"x": 2}

    def test_a_server_that_forgets_commits_is_refused(
        self, mariadb: MariaServer, store: SqlStore, workers: list[Worker]
    ) -> None:
        mariadb.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        try:
            with pytest.raises(
                SetupError,
                match=r"innodb_flush_log_at_trx_commit=0\)\n  Set innodb_flush_log_at_trx_commit=1",
            ):
                contract.run(store, workers[0].process.task(), 1, 0, x=1)
        finally:
            mariadb.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")


class TestAccess:
    @pytest.fixture
    def guarded(self, mariadb: MariaServer, database: str) -> str:
        mariadb.execute("REVOKE ALL PRIVILEGES, GRANT OPTION FROM guarded@'127.0.0.1'")
        return mariadb.url(database, user="guarded")

    def test_a_missing_or_wrong_password_is_told_with_where_to_give_it(
        self, guarded: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WRONG", PASSWORD[:-1])
        for store in (
            SqlStore(guarded, "counts"),
            SqlStore(guarded, "counts", password_env="WRONG"),
        ):
            told = server_stores.refusal(store)
            assert "Access denied for user 'guarded'@'127.0.0.1'" in told
            for place in ("password_env=", "password_file=", "read_default_file"):
                assert place in told
            assert PASSWORD[:-1] not in told

    def test_a_database_or_user_that_does_not_exist_is_named(self, mariadb: MariaServer) -> None:
        told = server_stores.refusal(
            SqlStore(f"mysql+pymysql://root@127.0.0.1:{mariadb.port}/nowhere", "counts")
        )
        assert "Unknown database 'nowhere'" in told
        assert "CREATE DATABASE" in told
        assert "nobody_here" in server_stores.refusal(
            SqlStore(f"mysql+pymysql://nobody_here@127.0.0.1:{mariadb.port}/mysql", "counts")
        )

    def test_missing_rights_are_named_with_those_that_are_needed(
        self, mariadb: MariaServer, database: str, guarded: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BANK_PASSWORD", PASSWORD)
        mariadb.execute(f"GRANT SELECT ON {database}.* TO guarded@'127.0.0.1'")
        told = server_stores.refusal(
            SqlStore(guarded, "counts", password_env="BANK_PASSWORD"), may_read=True
        )
        assert "CREATE command denied to user" in told
        assert (
            "Grant the user SELECT, INSERT, UPDATE and DELETE on the tables, and for the first use CREATE"
            in told
        )

    @pytest.mark.in_gate("read_default_file", "password_env")
    @pytest.mark.parametrize("source", ["password_env", "password_file", "read_default_file"])
    def test_a_password_may_come_from_each_of_its_places_and_four_rights_are_enough(
        self,
        mariadb: MariaServer,
        database: str,
        guarded: str,
        workers: list[Worker],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        source: str,
    ) -> None:
        contract.run(
            SqlStore(mariadb.url(database), "counts", opaque=True),
            workers[0].process.task(),
            1,
            0,
            x=1,
        )
        mariadb.execute(f"GRANT SELECT ON {database}.txtopo_schema TO guarded@'127.0.0.1'")
        for table in ("counts", "counts_written", "txtopo_fence", "txtopo_count", "txtopo_lock"):
            mariadb.execute(
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.{table} TO guarded@'127.0.0.1'"
            )
        secret = tmp_path / "secret"
        secret.write_text(
            PASSWORD + "\n" if source == "password_file" else f"[client]\npassword={PASSWORD}\n"
        )
        monkeypatch.setenv("BANK_PASSWORD", PASSWORD)
        places: dict[str, dict[str, Any]] = {
            "password_env": {"password_env": "BANK_PASSWORD"},
            "password_file": {"password_file": secret},
        }
        settings = places.get(source, {})
        store = SqlStore(
            guarded + (f"?read_default_file={secret}" if not settings else ""),
            "counts",
            opaque=True,
            **settings,
        )
        contract.run(store, workers[1].process.task(), 1, 1, y=1)
        contract.run(store, workers[1].process.task(), 2, 0, y=1)
        assert dict(store.items()) == {"y": 2}
        assert PASSWORD.encode() not in pickle.dumps(store)

    def test_an_option_that_the_driver_does_not_know_is_told(
        self, mariadb: MariaServer, database: str
    ) -> None:
        told = server_stores.refusal(
            SqlStore(mariadb.url(database, options="colour=red"), "counts")
        )
        assert "Mend the options in the URL" in told


class TestTables:
    def test_a_process_completes_tables_left_by_a_dying_process(
        self,
        mariadb: MariaServer,
        database: str,
        store: SqlStore,
        workers: list[Worker],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Here a statement that makes a table commits."""

        def die(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("txtopo.stores.mysql.layout._make_index", die)
            with pytest.raises(KeyboardInterrupt):
                contract.run(store, workers[0].process.task(), 1, 0, x=1)
        assert mariadb.execute("SELECT version FROM txtopo_schema", database=database) == [(0,)]
        assert (store.exists(), store.get("x"), list(store.items())) == (False, None, [])
        contract.run(store, workers[1].process.task(), 1, 0, x=1)
        assert dict(store.items()) == {"x": 1}

    def test_workers_that_begin_at_once_make_the_tables_once(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        barrier = threading.Barrier(3)

        def begin(worker: Worker, task: int) -> Any:
            barrier.wait(PATIENCE_S)
            return contract.run(store, worker.process.task(task=task), 1, 0, **{str(task): 1})

        for task, worker in enumerate(workers):
            worker.start(functools.partial(begin, worker, task))
        outcomes = [worker.ended() for worker in workers]
        assert all(isinstance(outcome, dict) for outcome in outcomes), outcomes
        assert dict(store.items()) == {"0": 1, "1": 1, "2": 1}

    def test_a_table_without_transactions_is_refused(
        self, mariadb: MariaServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        mariadb.execute("ALTER TABLE txtopo_lock ENGINE=MyISAM", database=database)
        with pytest.raises(
            SetupError,
            match=r"table txtopo_lock .* uses the engine MyISAM.*\n.*ALTER TABLE `txtopo_lock` ENGINE=InnoDB",
        ):
            contract.run(store, workers[1].process.task(), 2, 0, x=1)

    def test_a_key_too_long_for_an_index_is_refused(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        longest, longer = "😀" * 766, "😀" * 767
        contract.run(store, workers[0].process.task(), 1, 0, **{longest: 1})
        with pytest.raises(UsageError, match="a key of 769 characters is too long"):
            contract.run(store, workers[0].process.task(), 2, 0, **{longer: 1})
        assert store.get(longest) == 1

    def test_a_name_too_long_for_a_column_is_refused(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        with pytest.raises(
            SetupError, match=r"too long for column 'component'.*\n.*up to 255 characters"
        ):
            contract.run(store, workers[0].process.task("c" * 256), 1, 0, x=1)

    def test_texts_come_back_as_they_were_also_from_a_database_that_prefers_latin(
        self, mariadb: MariaServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        assert mariadb.execute("SELECT @@character_set_database", database=database) == [
            ("latin1",)
        ]
        texts = [
            "",
            "é",
            "Ж",
            "😀",
            "\\",
            "\\n",
            "\n",
            "'",
            '"',
            "%s",
            ":x",
            "`",
            "\x00",
            "\x1a",
            "\u2028",
            " a ",
            "null",
            "[]",
            "a" * 100_000,
        ]
        for attempt in range(2):
            with store.transaction(workers[0].process.task(), A(1, attempt)) as opened:
                for text in texts[:-1]:
                    opened.update(text, contract.set_to([text, texts[-1] if text == "é" else text]))
                    opened.update(text, contract.set_to({text: text}))
        assert dict(store.items()) == {text: {text: text} for text in texts[:-1]}
        contract.block(
            store,
            workers[0].process.task(),
            2,
            0,
            lambda opened: [opened.update(text, lambda old: [old]) for text in texts[:-1]],
        )
        assert dict(store.items()) == {text: [{text: text}] for text in texts[:-1]}
        assert [key for key, _ in store.items()] == sorted(texts[:-1], key=encode_key)

    def test_keys_that_look_alike_to_people_are_different(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        keys = ["a", "A", "ä", "Ä", "ss", "ß", "e\u0301", "é", "a ", "a\t"]
        contract.run(
            store,
            workers[0].process.task(),
            1,
            0,
            **{key: number for number, key in enumerate(keys, start=1)},
        )
        assert {key: store.get(key) for key in keys} == {
            key: number for number, key in enumerate(keys, start=1)
        }


class TestReaders:
    def test_a_reader_cannot_write(self, store: SqlStore, workers: list[Worker]) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        with store._reading() as reader:
            with pytest.raises(FailedException, match="the server is read-only"):
                reader._run(sa.text("DELETE FROM counts"))
        assert store.get("x") == 1
