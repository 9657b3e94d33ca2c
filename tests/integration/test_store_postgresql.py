"""A store in a PostgreSQL server: who waits for whom, how often the server is asked, what it says when it cannot be used, what readers see."""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.conformance import test_store_contract as contract
from tests.postgres import PASSWORD, PostgresServer
from txtopo import cli
from txtopo.errors import FailedException, SetupError, StaleAttemptError, StateMismatchError, UsageError
from txtopo.runtime import inspection
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.stores import Fence, SqlStore, StoreConflict, StoreTransaction, opening
from txtopo.stores.stamps import CLOSED_ATTEMPT, Stamp
from txtopo.topology.transaction import TransactionAttempt as A

BOUND_S = 60


class Worker:
    """A worker process of its own, as far as a store can tell: it has a connection of its own. ``start`` runs in a thread."""

    def __init__(self) -> None:
        self.process = contract.Process()
        self.outcome: Any = None
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.outcome = work()
            except Exception as error:
                self.outcome = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ended(self) -> Any:
        """What the work returned or raised."""
        assert self._thread is not None
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), "it still waits"
        return self.outcome


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    workers = [Worker() for _ in range(3)]
    yield workers
    for worker in workers:
        worker.process.close()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.new_database()
    yield name
    postgres.start()
    postgres.drop(name)


@pytest.fixture
def store(postgres: PostgresServer, database: str) -> SqlStore:
    return SqlStore(postgres.url(database), "counts", lock_timeout_s=BOUND_S)


def waiting(postgres: PostgresServer, database: str, count: int = 1) -> None:
    """Wait until so many sessions of ``database`` wait for a lock."""
    select = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    for _ in range(BOUND_S * 100):
        if postgres.execute(select, [database])[0][0] >= count:
            return
        threading.Event().wait(0.01)
    raise AssertionError("nobody waits for a lock")


def connection_of(opened: StoreTransaction) -> Any:
    """The connection that ``opened`` works on, to ask the server about it."""
    session: Any = opened._session
    return session._raw


class TestFence:
    @pytest.mark.rule(29)
    def test_tasks_of_one_attempt_have_write_transactions_open_side_by_side(self, store: SqlStore, workers: list[Worker]) -> None:
        """Also the first of them, which raised the fence, keeps nobody waiting."""
        tasks = [worker.process.task(task=task) for task, worker in enumerate(workers)]
        with store.transaction(tasks[0], A(1, 0)) as first:
            first.update("a", contract.plus(1))
            first._write()
            with store.transaction(tasks[1], A(1, 0)) as second, store.transaction(tasks[2], A(1, 0)) as third:
                second.update("b", contract.plus(1))
                second._write()
                third.update("c", contract.plus(1))
                assert list(store.items()) == []
            assert dict(store.items()) == {"b": 1, "c": 1}
        assert dict(store.items()) == {"a": 1, "b": 1, "c": 1}

    @pytest.mark.rule(29)
    @pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
    def test_a_newer_attempt_waits_for_the_open_transaction_of_an_older_one_and_then_stands_above_it(
        self, postgres: PostgresServer, database: str, workers: list[Worker], opaque: bool
    ) -> None:
        store = SqlStore(postgres.url(database), "counts", opaque=opaque, lock_timeout_s=BOUND_S)
        zombie, live, _ = workers
        contract.run(store, zombie.process.task(), 1, 0, x=1)
        with store.transaction(zombie.process.task(), A(2, 0)) as opened:
            opened.update("x", contract.plus(10))
            opened.update("y", contract.plus(10))
            opened._write()
            live.start(lambda: contract.run(store, live.process.task(), 2, 1, x=100 if opaque else 10))
            waiting(postgres, database)
        assert live.ended()["x"].curr == (101 if opaque else 11)
        # Opaque: what the zombie committed was taken back, since the raise came after it. Transactional: the batch is the same.
        assert dict(store.items()) == ({"x": 101} if opaque else {"x": 11, "y": 10})
        with pytest.raises(StaleAttemptError):
            contract.run(store, zombie.process.task(), 2, 0, z=1)

    @pytest.mark.rule(29)
    def test_a_zombie_that_comes_while_a_newer_attempt_is_raising_loses(self, postgres: PostgresServer, database: str, workers: list[Worker]) -> None:
        """The newer attempt waits for one task of the older; another task of the older comes, and may write until the raise, not after it."""
        store = SqlStore(postgres.url(database), "counts", opaque=True, lock_timeout_s=BOUND_S)
        slow, live, late = workers
        with store.transaction(slow.process.task(), A(1, 0)) as opened:
            opened.update("slow", contract.plus(1))
            live.start(lambda: contract.run(store, live.process.task(), 1, 1, live=1))
            waiting(postgres, database)
            late.start(lambda: contract.run(store, late.process.task(task=1), 1, 0, late=1))
            waiting(postgres, database, 1)
        assert live.ended()["live"].applied
        ended = late.ended()
        assert isinstance(ended, StaleAttemptError) or ended["late"].applied
        assert dict(store.items()) == {"live": 1}, "what the older attempt wrote before the raise was taken back, and after it nothing was written"

    @pytest.mark.rule(29)
    def test_attempts_that_raise_the_first_fence_at_once_leave_the_newest(self, store: SqlStore, workers: list[Worker]) -> None:
        contract.run(store, workers[0].process.task("other"), 1, 0)
        barrier = threading.Barrier(3)
        for attempt, worker in enumerate(workers):

            def race(worker: Worker = worker, attempt: int = attempt) -> Any:
                barrier.wait(BOUND_S)
                return contract.run(store, worker.process.task(), 1, attempt, **{f"k{attempt}": 1})

            worker.start(race)
        outcomes = [worker.ended() for worker in workers]
        assert Fence("words", "count", "first", 1, 2) in store.fences()
        assert all(isinstance(outcome, dict | StaleAttemptError) for outcome in outcomes)

    @pytest.mark.rule(29)
    def test_a_task_that_waited_to_raise_the_fence_does_not_wait_for_what_the_one_that_raised_it_writes(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        zombie, *live = workers
        both = threading.Barrier(2)

        def write(worker: Worker, task: int) -> str:
            with store.transaction(worker.process.task(task=task), A(1, 1)) as opened:
                opened.update(str(task), contract.plus(1))
                both.wait(BOUND_S)
            return "written"

        with store.transaction(zombie.process.task(), A(1, 0)):
            for task, worker in enumerate(live):
                worker.start(functools.partial(write, worker, task))
            waiting(postgres, database, 2)
        assert [worker.ended() for worker in live] == ["written"] * 2

    @pytest.mark.rule(27, 29)
    def test_a_fence_that_was_adopted_while_an_attempt_was_about_to_make_it_is_not_overwritten(self, store: SqlStore, workers: list[Worker]) -> None:
        contract.run(store, workers[0].process.task("other"), 1, 0)
        connection = store._connection(workers[0].process.resource)
        late = Stamp("words", "first", "count", 0, 3, 0)

        def make(session: Any) -> None:
            assert session.read_fence("words", "count") is None
            store.adopt("words", "first", 9, ["count"])
            session.write_fence(Fence("words", "count", "first", late.txid, late.attempt))

        with pytest.raises(FailedException, match="somebody else has made the same row"), connection.transaction(store, late) as session:
            make(session)
        assert Fence("words", "count", "first", 9, CLOSED_ATTEMPT) in store.fences()

    @pytest.mark.rule(29)
    def test_a_zombie_that_keeps_its_transaction_open_for_ever_is_ended_by_the_server(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        store = SqlStore(postgres.url(database), "counts", lock_timeout_s=BOUND_S, idle_timeout_s=0.2)
        zombie, live, _ = workers
        contract.run(store, live.process.task(), 1, 0, x=1)

        def hang(opened: StoreTransaction) -> None:
            opened.update("x", contract.plus(10))
            contract.run(store, live.process.task(), 2, 1, x=100)

        with pytest.raises(FailedException, match="connection is lost"):
            contract.block(store, zombie.process.task(), 2, 0, hang)
        assert dict(store.items()) == {"x": 101}

    @pytest.mark.rule(7)
    def test_a_wait_longer_than_the_limit_fails_the_attempt_only(self, postgres: PostgresServer, database: str, workers: list[Worker]) -> None:
        store = SqlStore(postgres.url(database), "counts", lock_timeout_s=0.1)
        with store.transaction(workers[0].process.task(), A(1, 0)):
            with pytest.raises(FailedException, match="is busy: it waited for a lock longer than lock_timeout_s"):
                contract.run(store, workers[1].process.task(), 1, 1, x=1)
            with pytest.raises(UsageError, match="Stop the topology that writes it"):
                store.clear("words")
        contract.run(store, workers[1].process.task(), 1, 1, x=1)
        assert dict(store.items()) == {"x": 1}

    @pytest.mark.rule(27, 29)
    def test_adopting_waits_for_open_transactions_and_counts_what_they_wrote(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        store = SqlStore(postgres.url(database), "counts", lock_timeout_s=BOUND_S)
        zombie, person, _ = workers
        with store.transaction(zombie.process.task(), A(3, 0)) as opened:
            opened.update("x", contract.plus(1))
            opened._write()
            person.start(lambda: store.adopt("words", "second", 9, ["count"]))
            waiting(postgres, database)
        assert person.ended().rows == 1
        row = store.inspect("x")
        assert row is not None
        assert (row.generation, row.txid, row.prev) == ("second", 9, None)
        with pytest.raises(StateMismatchError):
            contract.run(store, zombie.process.task(), 3, 0, x=1)


class TestRivals:
    @pytest.mark.rule(32)
    @pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
    @pytest.mark.parametrize("existed", [False, True], ids=["a new key", "a key that was there"])
    def test_two_tasks_that_write_a_key_at_the_same_time_are_told(
        self, postgres: PostgresServer, database: str, workers: list[Worker], opaque: bool, existed: bool
    ) -> None:
        store = SqlStore(postgres.url(database), "counts", opaque=opaque, lock_timeout_s=BOUND_S)
        first, second, third = workers
        if existed:
            contract.run(store, third.process.task(), 1, 0, x=1)
        with store.transaction(first.process.task(), A(2, 0)) as opened:
            opened.update("x", contract.plus(10))
            opened._write()
            second.start(lambda: contract.run(store, second.process.task(task=1), 2, 0, a=1, x=100))
            waiting(postgres, database)
        error = second.ended()
        assert isinstance(error, StoreConflict), error
        assert (error.key, "task 0" in error.first_writer, "task 1" in error.second_writer) == ('"x"', True, True)
        assert dict(store.items()) == {"x": 11 if existed else 10}

    @pytest.mark.rule(32)
    @pytest.mark.parametrize("existed", [False, True], ids=["new keys", "keys that were there"])
    def test_two_tasks_that_block_each_other_are_told_too(
        self, postgres: PostgresServer, database: str, workers: list[Worker], existed: bool
    ) -> None:
        """Portions are written before the end, so that two tasks can hold what the other wants: the server ends one of them."""
        store = SqlStore(postgres.url(database), "counts", opaque=True, lock_timeout_s=BOUND_S)
        if existed:
            contract.run(store, workers[2].process.task(), 1, 0, x=1, y=1)
        barrier = threading.Barrier(2)

        def write(worker: Worker, task: int, keys: str) -> Any:
            with store.transaction(worker.process.task(task=task), A(2, 0)) as opened:
                for key in keys:
                    opened.update(key, contract.plus(10))
                    opened._write()
                    if not barrier.broken and key == keys[0]:
                        barrier.wait(BOUND_S)
            return "written"

        workers[0].start(lambda: write(workers[0], 0, "xy"))
        workers[1].start(lambda: write(workers[1], 1, "yx"))
        outcomes = [worker.ended() for worker in workers[:2]]
        assert "written" in outcomes
        [error] = [outcome for outcome in outcomes if outcome != "written"]
        assert isinstance(error, StoreConflict), error
        assert dict(store.items()) == ({"x": 11, "y": 11} if existed else {"x": 10, "y": 10})

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


class TestServerIsAsked:
    @staticmethod
    def statements(store: SqlStore, worker: Worker, action: Callable[[], Any]) -> list[str]:
        raw = store._connection(worker.process.resource)._raw
        seen: list[str] = []

        def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement)

        sa.event.listen(raw, "before_cursor_execute", note)
        try:
            action()
        finally:
            sa.event.remove(raw, "before_cursor_execute", note)
        return seen

    @pytest.mark.parametrize("keys", [1, 1000])
    def test_as_often_for_many_keys_as_for_one(self, store: SqlStore, workers: list[Worker], keys: int) -> None:
        worker = workers[0]
        half = {str(n): 1 for n in range(keys)}
        both = half | {f"new {n}": 1 for n in range(keys)}
        contract.run(store, worker.process.task(), 1, 0, **half)
        first = self.statements(store, worker, lambda: contract.run(store, worker.process.task(), 2, 0, **both))
        # The fence: asked for, its raisers' lock, read, locked, raised; tombstones. Then the fence is ours, rows are read, changed, added.
        assert [statement.split()[0] for statement in first] == [
            "SELECT", "SELECT", "SELECT", "SELECT", "UPDATE", "DELETE", "SELECT", "SELECT", "WITH", "INSERT",
        ]  # fmt: skip
        others = {f"other {n}": 1 for n in range(keys)}
        other = self.statements(store, worker, lambda: contract.run(store, worker.process.task(task=1), 2, 0, **others))
        assert [statement.split()[0] for statement in other] == ["SELECT", "SELECT", "INSERT"]

    @pytest.mark.rule(12)
    def test_over_one_connection_per_worker_process(self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]) -> None:
        worker, words = workers[0], SqlStore(store.url, "words", lock_timeout_s=BOUND_S)
        for txid in range(1, 4):
            contract.run(store, worker.process.task(), txid, 0, x=1)
            contract.run(words, worker.process.task(), txid, 0, x=1)
        assert len(postgres.backends(database)) == 1
        worker.process.close()
        assert postgres.backends(database) == []

    @pytest.mark.rule(31)
    def test_taking_back_and_sweeping_go_through_an_index(self, postgres: PostgresServer, database: str, workers: list[Worker]) -> None:
        store, worker = SqlStore(postgres.url(database), "counts", opaque=True), workers[0]
        contract.run(store, worker.process.task(), 1, 0, **{str(n): 1 for n in range(5000)})
        contract.run(store, worker.process.task(), 2, 0, a=1)
        postgres.execute("ANALYZE counts", database=database)
        wheres = {"counts_writer": "component = 'count' AND txid = 2 AND attempt <= 0", "counts_deleted": "deleted AND topology = 'words'"}
        for index, where in wheres.items():
            plan = " ".join(line for (line,) in postgres.execute(f"EXPLAIN DELETE FROM counts WHERE {where}", database=database))
            assert index in plan, plan


class TestSettings:
    def test_it_is_read_committed_and_on_disk_whatever_the_servers_defaults_are(
        self, postgres: PostgresServer, database: str, workers: list[Worker]
    ) -> None:
        postgres.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
        postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
        store = SqlStore(postgres.url(database), "counts", lock_timeout_s=7, statement_timeout_s=8, idle_timeout_s=9)
        with store.transaction(workers[0].process.task(), A(1, 0)) as opened:
            raw = connection_of(opened)
            names = ("transaction_isolation", "synchronous_commit", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
            shown = [raw.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
        assert shown == ["read committed", "on", "7s", "8s", "9s"]

    def test_who_waits_for_replicas_goes_on_doing_so(self, postgres: PostgresServer, database: str, workers: list[Worker]) -> None:
        postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = remote_apply")
        with SqlStore(postgres.url(database), "counts").transaction(workers[0].process.task(), A(1, 0)) as opened:
            assert connection_of(opened).exec_driver_sql("SHOW synchronous_commit").scalar_one() == "remote_apply"

    def test_stores_of_one_database_each_have_their_own(self, store: SqlStore, workers: list[Worker]) -> None:
        other = SqlStore(store.url, "words", lock_timeout_s=1)
        for each, limit in ((store, "1min"), (other, "1s"), (store, "1min")):
            with each.transaction(workers[0].process.task(), A(1, 0)) as opened:
                assert connection_of(opened).exec_driver_sql("SHOW lock_timeout").scalar_one() == limit

    @pytest.mark.rule(7)
    def test_a_statement_that_takes_too_long_fails_the_attempt_only(self, postgres: PostgresServer, database: str, workers: list[Worker]) -> None:
        store = SqlStore(postgres.url(database), "counts", statement_timeout_s=0.2, lock_timeout_s=BOUND_S)
        with store.transaction(workers[0].process.task(), A(1, 0)):
            with pytest.raises(FailedException, match="a statement took longer than statement_timeout_s"):
                contract.run(store, workers[1].process.task(), 1, 1, x=1)

    def test_options_of_libpq_in_the_url_are_heeded(self, postgres: PostgresServer, database: str, workers: list[Worker]) -> None:
        postgres.execute("CREATE SCHEMA apart", database=database)
        store = SqlStore(postgres.url(database, options="options=-csearch_path%3Dapart&application_name=bank"), "counts")
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        assert postgres.execute("SELECT key, curr FROM apart.counts", database=database) == [('"x"', "1")]
        assert postgres.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bank'") == [(1,)]


class TestAccess:
    @pytest.fixture
    def guarded(self, postgres: PostgresServer, database: str) -> str:
        return postgres.url(database, user="guarded")

    @pytest.fixture(autouse=True)
    def no_password_around(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("PGPASSWORD", raising=False)
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))

    def refusal(self, store: SqlStore) -> str:
        with pytest.raises(SetupError) as caught:
            contract.run(store, contract.Process().task(), 1, 0, x=1)
        with pytest.raises(SetupError):
            store.get("x")
        assert PASSWORD not in str(caught.value) + repr(caught.value.__cause__) + repr(store) + store.address
        error = pickle.loads(pickle.dumps(caught.value))
        assert type(error).__module__ == "txtopo.errors", "who unpickles it needs no driver"
        return str(error)

    def test_a_missing_or_wrong_password_is_told_with_where_to_give_it(self, guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
        told = self.refusal(SqlStore(guarded, "counts"))
        assert "no password supplied" in told
        monkeypatch.setenv("WRONG", PASSWORD[:-1])
        told = self.refusal(SqlStore(guarded, "counts", password_env="WRONG"))
        assert 'password authentication failed for user "guarded"' in told
        for place in ("PGPASSWORD", "~/.pgpass", "service file", "password_env=", "password_file="):
            assert place in told
        assert PASSWORD[:-1] not in told

    def test_a_database_or_role_that_does_not_exist_is_named(self, postgres: PostgresServer) -> None:
        told = self.refusal(SqlStore(f"postgresql+psycopg://postgres@127.0.0.1:{postgres.port}/nowhere", "counts"))
        assert 'database "nowhere" does not exist' in told
        assert "createdb" in told
        told = self.refusal(SqlStore(f"postgresql+psycopg://nobody_here@127.0.0.1:{postgres.port}/postgres", "counts"))
        assert 'role "nobody_here" does not exist' in told

    def test_missing_rights_are_named_with_those_that_are_needed(self, guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        store = SqlStore(guarded, "counts")
        with pytest.raises(SetupError, match=r"permission denied for schema public \(42501\)\n  Grant the role .*CREATE on the schema"):
            contract.run(store, contract.Process().task(), 1, 0, x=1)

    @pytest.mark.parametrize("source", ["PGPASSWORD", "pgpass", "service", "password_env", "password_file"])
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
        contract.run(SqlStore(postgres.url(database), "counts", opaque=True), workers[0].process.task(), 1, 0, x=1)
        for right, tables in (("SELECT, INSERT, UPDATE, DELETE", "counts, txtopo_fence"), ("SELECT", "txtopo_schema")):
            postgres.execute(f"GRANT {right} ON {tables} TO guarded", database=database)
        secret = tmp_path / "secret"
        secret.write_text(PASSWORD + "\n")
        settings: dict[str, Any] = {}
        if source == "PGPASSWORD":
            monkeypatch.setenv("PGPASSWORD", PASSWORD)
        elif source == "pgpass":
            (tmp_path / "pgpass").write_text(f"127.0.0.1:{postgres.port}:{database}:guarded:{PASSWORD}\n")
            (tmp_path / "pgpass").chmod(0o600)
        elif source == "service":
            lines = ["[bank]", "host=127.0.0.1", f"port={postgres.port}", "user=guarded", f"dbname={database}", f"password={PASSWORD}"]
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

    def test_a_server_that_is_not_there_fails_the_attempt_only(self) -> None:
        store = SqlStore("postgresql+psycopg://ann@127.0.0.1:1/bank", "counts")
        with pytest.raises(FailedException, match=r"is not there: it cannot be connected to \(.*Connection refused"):
            contract.run(store, contract.Process().task(), 1, 0, x=1)
        with pytest.raises(UsageError, match="Try again when the server can be reached"):
            opening.open_store(store.url, "counts")


class TestTables:
    def test_another_encoding_than_utf8_is_refused(self, postgres: PostgresServer, workers: list[Worker]) -> None:
        postgres.execute("DROP DATABASE IF EXISTS latin")
        postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        with pytest.raises(SetupError, match=r"has the encoding LATIN1.*\n  Use one that was made with ENCODING 'UTF8'"):
            contract.run(SqlStore(f"postgresql+psycopg://postgres@127.0.0.1:{postgres.port}/latin", "counts"), workers[0].process.task(), 1)

    def test_tables_of_others_are_left_alone(self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]) -> None:
        postgres.execute("CREATE TABLE counts(mine text)", database=database)
        assert not store.exists()
        assert list(store.items()) == []
        with pytest.raises(SetupError, match="has a table 'counts' that is not a store of txtopo"):
            contract.run(store, workers[0].process.task(), 1, 0, x=1)
        assert postgres.execute("SELECT * FROM counts", database=database) == []
        assert postgres.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'txtopo%'", database=database) == [(0,)]

    def test_another_layout_is_refused_by_readers_and_writers(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        postgres.execute("UPDATE txtopo_schema SET version = 3", database=database)
        actions: list[Callable[[], Any]] = [
            lambda: store.get("x"), lambda: contract.run(store, workers[1].process.task(), 2, 0, x=1), lambda: store.clear("words"),
        ]  # fmt: skip
        for action in actions:
            with pytest.raises(StateMismatchError, match="holds store 'counts' in layout 3; this txtopo knows layout 2"):
                action()

    @pytest.mark.rule(27)
    def test_tables_dropped_under_an_open_connection_are_noticed(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        worker = workers[0]
        contract.run(store, worker.process.task(), 1, 0, x=1)
        postgres.execute("DROP TABLE counts, txtopo_fence, txtopo_schema", database=database)
        known = {"count/counts": A(1, 0)}
        with pytest.raises(FailedException, match="a table of it was removed"):
            contract.run(store, worker.process.task(known_stores=known), 2, 0, x=1)
        with pytest.raises(StateMismatchError, match="It was emptied, or it is another store"):
            contract.run(store, worker.process.task(known_stores=known), 2, 1, x=1)

    def test_a_key_too_long_for_an_index_is_refused(self, store: SqlStore, workers: list[Worker]) -> None:
        # A text that does not compress: an index may hold longer ones that do.
        longest, longer = ("".join(chr(0x4E00 + (n * n * 31 + n * 7) % 20000) for n in range(count)) for count in (866, 867))
        contract.run(store, workers[0].process.task(), 1, 0, **{longest: 1})
        with pytest.raises(UsageError, match="a key of 2603 bytes is too long"):
            contract.run(store, workers[0].process.task(), 2, 0, **{longer: 1})
        assert store.get(longest) == 1

    def test_a_store_may_become_opaque_later(self, store: SqlStore, workers: list[Worker]) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        opaque = SqlStore(store.url, "counts", opaque=True)
        contract.run(opaque, workers[0].process.task(), 1, 1, y=1)
        assert dict(opaque.items()) == {"y": 1}


class TestReaders:
    def test_a_reader_sees_one_state_while_others_write_and_fetches_it_in_portions(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.postgresql.CURSOR_ROWS", 7)
        contract.run(store, workers[0].process.task(), 1, 0, **{f"k{n:03}": 1 for n in range(100)})
        items = store.items()
        first = next(items)
        asked = postgres.execute("SELECT query FROM pg_stat_activity WHERE datname = %s AND state = 'idle in transaction'", [database])
        assert [query.split()[:2] for (query,) in asked] == [["FETCH", "FORWARD"]]
        contract.run(store, workers[0].process.task(), 2, 0, **{f"k{n:03}": 1 for n in range(200)})
        assert [first, *items] == [(f"k{n:03}", 1) for n in range(100)]
        assert len(list(store.items())) == 200

    def test_keys_come_in_the_order_of_code_points_whatever_order_the_database_prefers(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        keys = ["a", "B", "b", "A", "ä", "é", "z", "Z", "_", " ", "😀", "\ufb00", "10", "9"]
        contract.run(store, workers[0].process.task(), 1, 0, **dict.fromkeys(keys, 1))
        assert [key for key, _ in store.items()] == sorted(keys)
        collations = "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_name = 'counts' AND data_type = 'text'"
        assert postgres.execute(collations, database=database) == [("C",)]

    def test_looking_does_not_wait_for_writers_nor_keep_a_connection(
        self, postgres: PostgresServer, database: str, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        with store.transaction(workers[0].process.task(), A(2, 0)) as opened:
            opened.update("x", contract.plus(1))
            opened._write()
            assert (store.get("x"), dict(store.items()), store.exists()) == (1, {"x": 1}, True)
            next(store.scan("x"))
        assert len(postgres.backends(database)) == 1


class TestCommands:
    def test_store_clear_takes_a_url(
        self, store: SqlStore, workers: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        command = ["store", "clear", store.url, "counts", "--topology", "words"]
        assert cli.main(command) == 0
        assert f"would remove from {store.address}, of topology 'words': 1 row, 1 fence" in capsys.readouterr().out
        assert store.get("x") == 1
        assert cli.main([*command, "--execute"]) == 0
        assert (store.get("x"), store.fences()) == (None, [])

    @pytest.mark.rule(27)
    def test_store_adopt_takes_a_url(
        self, store: SqlStore, workers: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        state = MemoryStateStore()
        TopologyState.open(state, "words", Holder("here", 1, "2024-05-01T10:00:00+00:00", "words"), wait_s=1.0).close()
        monkeypatch.setattr(inspection, "opened", lambda *_: contextlib.nullcontext(inspection.Opened(state, "memory", False)))
        contract.run(store, workers[0].process.task(generation="lost"), 7, 0, x=1)
        command = ["store", "adopt", store.url, "counts", "--topology", "words", "--data-dir", str(tmp_path)]
        assert cli.main(command) == 0
        assert f"would adopt {store.address}, for component count of topology 'words': 1 row, 1 fence" in capsys.readouterr().out
        assert store.fences()[0].generation == "lost"
        assert cli.main([*command, "--execute"]) == 0
        assert (store.fences()[0].txid, store.fences()[0].generation == "lost", store.get("x")) == (0, False, 1)

    def test_a_store_that_is_not_there_is_told(self, store: SqlStore, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["store", "clear", store.url, "counts", "--topology", "words"]) == 2
        assert f"{store.address} is no store of txtopo" in capsys.readouterr().err
        assert not store.exists()

    @pytest.mark.rule(27)
    def test_the_command_in_an_error_can_be_typed(self, store: SqlStore, workers: list[Worker]) -> None:
        with pytest.raises(StateMismatchError) as caught:
            contract.run(store, workers[0].process.task(known_stores={"count/counts": A(1, 0)}), 2, 0, x=1)
        assert f"`txtopo store adopt {store.url} counts --topology words`" in str(caught.value)
