"""A store in a PostgreSQL server: waits between tasks, statements per transaction, messages about
an unusable server, and the view of readers. Promises of every database server are in
``test_store_servers``."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S
from tests.processes.workers import Worker
from tests.servers import server_stores
from tests.servers.postgres import PASSWORD, PostgresServer
from txtopo.errors import FailedException, SetupError, UsageError
from txtopo.stores import ADD, SqlStore, StoreTransaction
from txtopo.topology.transaction import TransactionAttempt as A


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.new_database()
    yield name
    postgres.start()
    postgres.drop(name)


@pytest.fixture
def store(postgres: PostgresServer, database: str) -> SqlStore:
    return SqlStore(postgres.url(database), "counts", lock_timeout_s=PATIENCE_S)


class TestRivals:
    @pytest.mark.rule(32)
    def test_a_row_removed_after_it_was_read_fails_the_attempt(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        context = workers[0].process.task()
        contract.run(store, context, 1, 0, x=1)

        def lose_it(opened: StoreTransaction) -> None:
            opened.update("x", contract.plus(1))
            postgres.execute("DELETE FROM counts", database=database)

        with pytest.raises(FailedException, match='key "x" was changed by others'):
            contract.block(store, workers[0].process.task(), 2, 0, lose_it)

    @pytest.mark.rule(30, 31)
    def test_a_row_taken_back_in_the_same_transaction_is_not_taken_for_one_that_was_combined(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        """Both rows are written in this database transaction, but only one bears its stamp."""
        store, task = (
            SqlStore(postgres.url(database), "counts", opaque=True),
            workers[0].process.task,
        )
        contract.block(store, task(), 1, 0, lambda opened: opened.put_many({"half": 0.5, "one": 1}))
        for attempt in (0, 1):
            contract.block(
                store,
                task(),
                2,
                attempt,
                lambda opened: opened.merge_many({"half": 1, "one": 1, "new": 1}, ADD),
            )
        assert dict(store.items()) == {"half": 1.5, "new": 1, "one": 2}


class TestServerIsAsked:
    @pytest.mark.rule(31)
    def test_taking_back_and_sweeping_go_through_an_index(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        store, worker = SqlStore(postgres.url(database), "counts", opaque=True), workers[0]
        contract.run(store, worker.process.task(), 1, 0, **{str(n): 1 for n in range(5000)})
        contract.run(store, worker.process.task(), 2, 0, a=1)
        postgres.execute("ANALYZE counts", database=database)
        wheres = {
            "counts_pkey": "key = ANY('{1,2}'::text[]) AND txid = 2 AND attempt <= 0",
            "counts_deleted": "deleted AND topology = 'words'",
        }
        for index, where in wheres.items():
            plan = " ".join(
                line
                for (line,) in postgres.execute(
                    f"EXPLAIN DELETE FROM counts WHERE {where}", database=database
                )
            )
            assert index in plan, plan


class TestSettings:
    def test_transactions_are_read_committed_and_on_disk_under_any_defaults_of_the_server(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        postgres.execute(
            f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'"
        )
        postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
        store = SqlStore(
            postgres.url(database),
            "counts",
            lock_timeout_s=7,
            statement_timeout_s=8,
            idle_timeout_s=9,
        )
        with store.transaction(workers[0].process.task(), A(1, 0)) as opened:
            raw = server_stores.connection_of(opened)
            names = (
                "transaction_isolation",
                "synchronous_commit",
                "lock_timeout",
                "statement_timeout",
                "idle_in_transaction_session_timeout",
            )
            shown = [raw.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
        assert shown == ["read committed", "on", "7s", "8s", "9s"]

    def test_the_setting_to_wait_for_replicas_is_kept(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = remote_apply")
        with SqlStore(postgres.url(database), "counts").transaction(
            workers[0].process.task(), A(1, 0)
        ) as opened:
            assert (
                server_stores.connection_of(opened)
                .exec_driver_sql("SHOW synchronous_commit")
                .scalar_one()
                == "remote_apply"
            )

    def test_stores_of_one_database_each_have_their_own(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        store, other = (
            SqlStore(postgres.url(database), name, lock_timeout_s=limit)
            for name, limit in (("counts", 60), ("words", 70))
        )
        for each, limit in ((store, "1min"), (other, "70s"), (store, "1min")):
            with each.transaction(workers[0].process.task(), A(1, 0)) as opened:
                assert (
                    server_stores.connection_of(opened)
                    .exec_driver_sql("SHOW lock_timeout")
                    .scalar_one()
                    == limit
                )

    def test_options_of_libpq_in_the_url_are_heeded(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        postgres.execute("CREATE SCHEMA apart", database=database)
        store = SqlStore(
            postgres.url(database, options="options=-csearch_path%3Dapart&application_name=bank"),
            "counts",
        )
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        assert postgres.execute("SELECT key, curr FROM apart.counts", database=database) == [
            ('"x"', "1")
        ]
        assert postgres.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bank'"
        ) == [(1,)]


class TestAccess:
    @pytest.fixture
    def guarded(self, postgres: PostgresServer, database: str) -> str:
        return postgres.url(database, user="guarded")

    @pytest.fixture(autouse=True)
    def no_password_around(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("PGPASSWORD", raising=False)
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))

    def test_a_missing_or_wrong_password_is_told_with_where_to_give_it(
        self, guarded: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = server_stores.refusal(SqlStore(guarded, "counts"))
        assert "no password supplied" in told
        monkeypatch.setenv("WRONG", PASSWORD[:-1])
        told = server_stores.refusal(SqlStore(guarded, "counts", password_env="WRONG"))
        assert 'password authentication failed for user "guarded"' in told
        for place in ("PGPASSWORD", "~/.pgpass", "service file", "password_env=", "password_file="):
            assert place in told
        assert PASSWORD[:-1] not in told

    def test_a_database_or_role_that_does_not_exist_is_named(
        self, postgres: PostgresServer
    ) -> None:
        told = server_stores.refusal(
            SqlStore(f"postgresql+psycopg://postgres@127.0.0.1:{postgres.port}/nowhere", "counts")
        )
        assert 'database "nowhere" does not exist' in told
        assert "createdb" in told
        told = server_stores.refusal(
            SqlStore(
                f"postgresql+psycopg://nobody_here@127.0.0.1:{postgres.port}/postgres", "counts"
            )
        )
        assert 'role "nobody_here" does not exist' in told

    def test_missing_rights_are_named_with_those_that_are_needed(
        self, guarded: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        store = SqlStore(guarded, "counts")
        with pytest.raises(
            SetupError,
            match=r"permission denied for schema public \(42501\)\n  Grant the role .*CREATE on the schema",
        ):
            contract.run(store, contract.Process().task(), 1, 0, x=1)

    @pytest.mark.in_gate("pgpass", "password_env")
    @pytest.mark.parametrize(
        "source", ["PGPASSWORD", "pgpass", "service", "password_env", "password_file"]
    )
    def test_a_password_may_come_from_each_of_its_places_and_four_rights_are_enough(
        self,
        postgres: PostgresServer,
        database: str,
        guarded: str,
        workers: list[Worker],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        source: str,
    ) -> None:
        contract.run(
            SqlStore(postgres.url(database), "counts", opaque=True),
            workers[0].process.task(),
            1,
            0,
            x=1,
        )
        for right, tables in (
            (
                "SELECT, INSERT, UPDATE, DELETE",
                "counts, counts_written, txtopo_fence, txtopo_count",
            ),
            ("SELECT", "txtopo_schema"),
        ):
            postgres.execute(f"GRANT {right} ON {tables} TO guarded", database=database)
        secret = tmp_path / "secret"
        secret.write_text(PASSWORD + "\n")
        settings: dict[str, Any] = {}
        if source == "PGPASSWORD":
            monkeypatch.setenv("PGPASSWORD", PASSWORD)
        elif source == "pgpass":
            (tmp_path / "pgpass").write_text(
                f"127.0.0.1:{postgres.port}:{database}:guarded:{PASSWORD}\n"
            )
            (tmp_path / "pgpass").chmod(0o600)
        elif source == "service":
            lines = [
                "[bank]",
                "host=127.0.0.1",
                f"port={postgres.port}",
                "user=guarded",
                f"dbname={database}",
                f"password={PASSWORD}",
            ]
            (tmp_path / "services").write_text("\n".join(lines))
            monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
            guarded = "postgresql+psycopg://?service=bank"
        elif source == "password_env":
            monkeypatch.setenv("BANK_PASSWORD", PASSWORD)
            settings["password_env"] = "BANK_PASSWORD"
        else:
            settings["password_file"] = secret
        store = SqlStore(guarded, "counts", opaque=True, **settings)
        contract.run(store, workers[1].process.task(), 1, 1, y=1)
        contract.run(store, workers[1].process.task(), 2, 0, y=1)
        assert dict(store.items()) == {"y": 2}
        assert PASSWORD.encode() not in pickle.dumps(store)


class TestTables:
    def test_another_encoding_than_utf8_is_refused(
        self, postgres: PostgresServer, workers: list[Worker]
    ) -> None:
        postgres.execute("DROP DATABASE IF EXISTS latin")
        postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        with pytest.raises(
            SetupError,
            match=r"has the encoding LATIN1.*\n  Use a database that was made with ENCODING 'UTF8'",
        ):
            contract.run(
                SqlStore(
                    f"postgresql+psycopg://postgres@127.0.0.1:{postgres.port}/latin", "counts"
                ),
                workers[0].process.task(),
                1,
            )

    def test_a_key_too_long_for_an_index_is_refused(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        # A text that does not compress: an index may hold longer texts that do.
        longest, longer = (
            "".join(chr(0x4E00 + (n * n * 31 + n * 7) % 20000) for n in range(count))
            for count in (866, 867)
        )
        contract.run(store, workers[0].process.task(), 1, 0, **{longest: 1})
        with pytest.raises(UsageError, match="a key of 2603 bytes is too long"):
            contract.run(store, workers[0].process.task(), 2, 0, **{longer: 1})
        with pytest.raises(UsageError, match="a key of 2603 bytes is too long"):
            contract.block(
                store,
                workers[0].process.task(),
                2,
                0,
                lambda opened: opened.merge_many({longest: 1, longer: 1}, ADD),
            )
        assert store.get(longest) == 1


class TestReaders:
    def test_a_reader_fetches_a_long_answer_through_a_cursor(
        self,
        postgres: PostgresServer,
        database: str,
        store: SqlStore,
        workers: list[Worker],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("txtopo.stores.postgresql.backend.CURSOR_ROWS", 7)
        contract.run(store, workers[0].process.task(), 1, 0, **{f"k{n:03}": 1 for n in range(100)})
        items = store.items()
        next(items)
        asked = postgres.execute(
            "SELECT query FROM pg_stat_activity WHERE datname = %s AND state = 'idle in transaction'",
            [database],
        )
        assert [query.split()[:2] for (query,) in asked] == [["FETCH", "FORWARD"]]
        assert len(list(items)) == 99

    def test_keys_come_in_the_order_of_code_points_whatever_order_the_database_prefers(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        keys = ["a", "B", "b", "A", "ä", "é", "z", "Z", "_", " ", "😀", "\ufb00", "10", "9"]
        contract.run(store, workers[0].process.task(), 1, 0, **dict.fromkeys(keys, 1))
        assert [key for key, _ in store.items()] == sorted(keys)
        collations = "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_name = 'counts' AND data_type = 'text'"
        assert postgres.execute(collations, database=database) == [("C",)]
