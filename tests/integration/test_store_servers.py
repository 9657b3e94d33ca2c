"""A store in a database server of either kind: waits between tasks, messages about other users of
the server, connections, and commands."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S, wait_until
from tests.processes.workers import Worker
from tests.servers import server_stores
from tests.servers.databases import Database
from txtopo.command import cli
from txtopo.errors import (
    FailedException,
    SetupError,
    StaleAttemptError,
    StateMismatchError,
    UsageError,
)
from txtopo.state import opening
from txtopo.state.memory import MemoryStateStore
from txtopo.state.topology import Holder, TopologyState
from txtopo.stores import ADD, Fence, SqlStore, StoreConflict, StoreTransaction, by_address
from txtopo.stores.stamps import CLOSED_ATTEMPT, Stamp
from txtopo.topology.transaction import TransactionAttempt as A


@pytest.fixture
def store(server_store: SqlStore) -> SqlStore:
    return server_store


def dialect_of(database: Database) -> str:
    """The part of its URL that names database and driver."""
    return database.url.partition(":")[0]


SOON_IDLE = {
    "mysql+pymysql": "SET SESSION idle_transaction_timeout = 1",
    "postgresql+psycopg": "SET SESSION idle_in_transaction_session_timeout = 100",
}
"""By dialect, the setting of a session whose transaction the server ends soon."""


class TestFence:
    @pytest.mark.in_gate("mariadb")
    @pytest.mark.rule(29)
    def test_tasks_of_one_attempt_have_write_transactions_open_side_by_side(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        """The first task, which raised the fence, blocks no other task either."""
        tasks = [worker.process.task(task=task, num_tasks=3) for task, worker in enumerate(workers)]
        with store.transaction(tasks[0], A(1, 0)) as first:
            first.update("a", contract.plus(1))
            first._write()
            with (
                store.transaction(tasks[1], A(1, 0)) as second,
                store.transaction(tasks[2], A(1, 0)) as third,
            ):
                second.update("b", contract.plus(1))
                second._write()
                third.update("c", contract.plus(1))
                assert list(store.items()) == []
            assert dict(store.items()) == {"b": 1, "c": 1}
        assert dict(store.items()) == {"a": 1, "b": 1, "c": 1}

    @pytest.mark.in_gate("postgresql-opaque-with a sibling")
    @pytest.mark.rule(29)
    @pytest.mark.parametrize("num_tasks", [1, 2], ids=["alone", "with a sibling"])
    @pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
    def test_a_newer_attempt_waits_for_the_open_transaction_of_an_older_one_and_then_stands_above_it(
        self, database: Database, workers: list[Worker], opaque: bool, num_tasks: int
    ) -> None:
        store = SqlStore(database.url, "counts", opaque=opaque, lock_timeout_s=PATIENCE_S)
        zombie, live, _ = workers
        contract.run(store, zombie.process.task(), 1, 0, x=1)
        with store.transaction(zombie.process.task(num_tasks=num_tasks), A(2, 0)) as opened:
            opened.update("x", contract.plus(10))
            opened.update("y", contract.plus(10))
            opened._write()
            live.start(
                lambda: contract.run(
                    store, live.process.task(num_tasks=num_tasks), 2, 1, x=100 if opaque else 10
                )
            )
            database.wait_for_waiting()
        assert live.ended()["x"].curr == (101 if opaque else 11)
        # Opaque: the zombie's commit was taken back, since the fence was raised later.
        # Transactional: the batch is the same.
        assert dict(store.items()) == ({"x": 101} if opaque else {"x": 11, "y": 10})
        with pytest.raises(StaleAttemptError):
            contract.run(store, zombie.process.task(), 2, 0, z=1)

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(29)
    def test_a_zombie_that_comes_while_a_newer_attempt_is_raising_loses(
        self, database: Database, workers: list[Worker]
    ) -> None:
        """The newer attempt waits for one task of the older; another task of the older comes, and
        may write until the raise, not after it."""
        store = SqlStore(database.url, "counts", opaque=True, lock_timeout_s=PATIENCE_S)
        slow, live, late = workers
        with store.transaction(slow.process.task(), A(1, 0)) as opened:
            opened.update("slow", contract.plus(1))
            live.start(lambda: contract.run(store, live.process.task(), 1, 1, live=1))
            database.wait_for_waiting()
            late.start(lambda: contract.run(store, late.process.task(task=1), 1, 0, late=1))
            database.wait_for_waiting(1)
        assert live.ended()["live"].applied
        ended = late.ended()
        assert isinstance(ended, StaleAttemptError) or ended["late"].applied
        assert dict(store.items()) == {"live": 1}, (
            "what the older attempt wrote before the raise was taken back, and after it nothing was written"
        )

    @pytest.mark.in_gate("mariadb-fewer tasks now")
    @pytest.mark.rule(29)
    @pytest.mark.parametrize(
        "num_tasks", [(1, 3), (3, 1)], ids=["fewer tasks before", "fewer tasks now"]
    )
    def test_a_newer_attempt_of_a_component_with_another_number_of_tasks_waits_as_well(
        self, database: Database, store: SqlStore, workers: list[Worker], num_tasks: tuple[int, int]
    ) -> None:
        before, now = num_tasks
        zombie, live, _ = workers
        contract.run(store, zombie.process.task(), 1, 0, x=1)
        with store.transaction(zombie.process.task(num_tasks=before), A(2, 0)) as opened:
            opened.update("x", contract.plus(10))
            live.start(lambda: contract.run(store, live.process.task(num_tasks=now), 2, 1, x=10))
            database.wait_for_waiting()
        assert (live.ended()["x"].applied, store.get("x")) == (False, 11)
        with pytest.raises(StaleAttemptError):
            contract.run(store, zombie.process.task(num_tasks=before), 2, 0, z=1)

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(29)
    def test_an_only_task_raises_the_fence_together_with_its_writes_or_not_at_all(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        alone = workers[0].process.task
        contract.run(store, alone(), 1, 0, x=1)

        def die(opened: StoreTransaction) -> None:
            opened.update("x", contract.plus(1))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            contract.block(store, alone(), 2, 0, die)
        assert ([fence.txid for fence in store.fences()], store.get("x")) == ([1], 1)
        with pytest.raises(ZeroDivisionError):
            contract.block(store, alone(num_tasks=2), 2, 0, die)
        assert ([fence.txid for fence in store.fences()], store.get("x")) == ([2], 1)

    @pytest.mark.in_gate("mariadb")
    @pytest.mark.rule(29)
    def test_attempts_that_raise_the_first_fence_at_once_leave_the_newest(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task("other"), 1, 0)
        barrier = threading.Barrier(3)
        for attempt, worker in enumerate(workers):

            def race(worker: Worker = worker, attempt: int = attempt) -> Any:
                barrier.wait(PATIENCE_S)
                return contract.run(store, worker.process.task(), 1, attempt, **{f"k{attempt}": 1})

            worker.start(race)
        outcomes = [worker.ended() for worker in workers]
        assert Fence("words", "count", "first", 1, 2) in store.fences()
        assert all(isinstance(outcome, dict | StaleAttemptError) for outcome in outcomes)

    @pytest.mark.in_gate("mariadb")
    @pytest.mark.rule(29)
    def test_a_task_that_waited_for_the_fence_does_not_wait_for_the_writes_of_the_raising_task(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        zombie, *live = workers
        both = threading.Barrier(2)

        def write(worker: Worker, task: int) -> str:
            with store.transaction(worker.process.task(task=task, num_tasks=2), A(1, 1)) as opened:
                opened.update(str(task), contract.plus(1))
                both.wait(PATIENCE_S)
            return "written"

        with store.transaction(zombie.process.task(), A(1, 0)):
            for task, worker in enumerate(live):
                worker.start(functools.partial(write, worker, task))
            database.wait_for_waiting(2)
        assert [worker.ended() for worker in live] == ["written"] * 2

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(27, 29)
    def test_a_fence_that_was_adopted_while_an_attempt_was_about_to_make_it_is_not_overwritten(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task("other"), 1, 0)
        connection = store._connection(workers[0].process.resource)
        late = Stamp("words", "first", "count", 0, 3, 0)

        def make(session: Any) -> None:
            assert session.read_fence("words", "count") is None
            store.adopt("words", "first", 9, ["count"])
            session.write_fence(Fence("words", "count", "first", late.txid, late.attempt))

        with (
            pytest.raises(FailedException, match="another transaction has made the row first"),
            connection.transaction(store._place, late) as session,
        ):
            make(session)
        assert Fence("words", "count", "first", 9, CLOSED_ATTEMPT) in store.fences()

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(29)
    def test_a_zombie_that_keeps_its_transaction_open_for_ever_is_ended_by_the_server(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        zombie, live, _ = workers
        contract.run(store, live.process.task(), 1, 0, x=1)

        def hang(opened: StoreTransaction) -> None:
            opened.update("x", contract.plus(10))
            # The setting that idle_timeout_s makes, but not before the row is locked: on a slow
            # machine the server would end the session too early.
            server_stores.connection_of(opened).exec_driver_sql(SOON_IDLE[dialect_of(database)])
            contract.run(store, live.process.task(), 2, 1, x=100)

        with pytest.raises(FailedException, match="connection is lost"):
            contract.block(store, zombie.process.task(), 2, 0, hang)
        assert dict(store.items()) == {"x": 101}

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(7)
    def test_a_wait_longer_than_the_limit_fails_the_attempt_only(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        impatient = SqlStore(database.url, "counts", lock_timeout_s=0.1)
        with store.transaction(workers[0].process.task(), A(1, 0)):
            with pytest.raises(
                FailedException, match="is busy: it waited for a lock longer than lock_timeout_s"
            ):
                contract.run(impatient, workers[1].process.task(), 1, 1, x=1)
            with pytest.raises(UsageError, match="Stop the topology that writes the store"):
                impatient.clear("words")
        contract.run(store, workers[1].process.task(), 1, 1, x=1)
        assert dict(store.items()) == {"x": 1}

    @pytest.mark.in_gate("mariadb")
    @pytest.mark.rule(7)
    def test_a_statement_that_takes_too_long_fails_the_attempt_only(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        impatient = SqlStore(
            database.url, "counts", statement_timeout_s=0.2, lock_timeout_s=PATIENCE_S
        )
        with store.transaction(workers[0].process.task(), A(1, 0)):
            with pytest.raises(
                FailedException, match="a statement took longer than statement_timeout_s"
            ):
                contract.run(impatient, workers[1].process.task(), 1, 1, x=1)
        contract.run(store, workers[1].process.task(), 1, 1, x=1)

    @pytest.mark.in_gate("mariadb")
    @pytest.mark.rule(27, 29)
    def test_adopting_waits_for_open_transactions_and_counts_their_writes(
        self, database: Database, workers: list[Worker]
    ) -> None:
        store = SqlStore(database.url, "counts", lock_timeout_s=PATIENCE_S)
        zombie, person, _ = workers
        with store.transaction(zombie.process.task(), A(3, 0)) as opened:
            opened.update("x", contract.plus(1))
            opened._write()
            person.start(lambda: store.adopt("words", "second", 9, ["count"]))
            database.wait_for_waiting()
        assert person.ended().rows == 1
        row = store.inspect("x")
        assert row is not None
        assert (row.generation, row.txid, row.prev) == ("second", 9, None)
        with pytest.raises(StateMismatchError):
            contract.run(store, zombie.process.task(), 3, 0, x=1)


def change(opened: StoreTransaction, way: str, deltas: dict[str, int]) -> None:
    """Add ``deltas``, in the database before this returns."""
    if way == "merged":
        opened.merge_many(deltas, ADD)
    else:
        opened.update_many(deltas, contract.add)
    opened.flush()


WAYS = pytest.mark.parametrize("way", ["updated", "merged"])


class TestRivals:
    @pytest.mark.in_gate("postgresql-a new key-opaque-merged")
    @WAYS
    @pytest.mark.rule(32)
    @pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
    @pytest.mark.parametrize("existed", [False, True], ids=["a new key", "a key that was there"])
    def test_two_tasks_that_write_a_key_at_the_same_time_are_told(
        self, database: Database, workers: list[Worker], opaque: bool, existed: bool, way: str
    ) -> None:
        store = SqlStore(database.url, "counts", opaque=opaque, lock_timeout_s=PATIENCE_S)
        first, second, third = workers
        if existed:
            contract.run(store, third.process.task(), 1, 0, x=1)
        with store.transaction(first.process.task(num_tasks=2), A(2, 0)) as opened:
            change(opened, way, {"x": 10})
            second.start(
                lambda: contract.block(
                    store,
                    second.process.task(task=1),
                    2,
                    0,
                    lambda late: change(late, way, {"a": 1, "x": 100}),
                )
            )
            database.wait_for_waiting()
        error = second.ended()
        assert isinstance(error, StoreConflict), error
        assert (error.key, "task 0" in error.first_writer, "task 1" in error.second_writer) == (
            '"x"',
            True,
            True,
        )
        assert dict(store.items()) == {"x": 11 if existed else 10}

    @pytest.mark.in_gate("mariadb-alone")
    @pytest.mark.rule(32)
    @pytest.mark.parametrize(
        "also_existing", [False, True], ids=["alone", "beside a key that was there"]
    )
    def test_a_task_that_adds_a_key_added_since_its_read_is_refused(
        self, store: SqlStore, workers: list[Worker], also_existing: bool
    ) -> None:
        if also_existing:
            contract.run(store, workers[0].process.task(), 1, 0, there=1)

        def too_late(opened: StoreTransaction) -> None:
            opened.update_many(
                dict.fromkeys((["there"] if also_existing else []) + ["a", "x"], 100), contract.add
            )
            contract.run(store, workers[0].process.task(num_tasks=2), 2, 0, x=10)

        with pytest.raises(
            StoreConflict, match=r'key "x" was written by component .count. task 0 .* task 1'
        ):
            contract.block(store, workers[1].process.task(task=1), 2, 0, too_late)
        assert dict(store.items()) == {"x": 10} | ({"there": 1} if also_existing else {})

    @pytest.mark.in_gate("mariadb-new keys-updated")
    @WAYS
    @pytest.mark.rule(32)
    @pytest.mark.parametrize("existed", [False, True], ids=["new keys", "keys that were there"])
    def test_one_of_two_tasks_in_a_deadlock_fails_with_a_conflict(
        self, database: Database, workers: list[Worker], existed: bool, way: str
    ) -> None:
        """Portions are written before the end, so that two tasks can each hold a row the other
        wants: the server ends one of the tasks."""
        store = SqlStore(database.url, "counts", opaque=True, lock_timeout_s=PATIENCE_S)
        if existed:
            contract.run(store, workers[2].process.task(), 1, 0, x=1, y=1)
        barrier = threading.Barrier(2)

        def write(worker: Worker, task: int, keys: str) -> Any:
            with store.transaction(worker.process.task(task=task, num_tasks=2), A(2, 0)) as opened:
                for key in keys:
                    change(opened, way, {key: 10})
                    if not barrier.broken and key == keys[0]:
                        barrier.wait(PATIENCE_S)
            return "written"

        workers[0].start(lambda: write(workers[0], 0, "xy"))
        workers[1].start(lambda: write(workers[1], 1, "yx"))
        outcomes = [worker.ended() for worker in workers[:2]]
        assert "written" in outcomes
        [error] = [outcome for outcome in outcomes if outcome != "written"]
        assert isinstance(error, StoreConflict), error
        assert dict(store.items()) == ({"x": 11, "y": 11} if existed else {"x": 10, "y": 10})


MANY_KEYS = {
    # The fence: asked for, once more, for a store that lists nothing; its raisers' lock, read,
    # locked, raised; tombstones. Then the fence is ours, which counts this transaction (R34) in the
    # same statement; rows are locked, replaced, added.
    "mysql+pymysql": (
        "INSERT SELECT INSERT SELECT SELECT UPDATE SELECT INSERT SELECT INSERT INSERT",
        "INSERT SELECT INSERT",
        "SELECT UPDATE SELECT SELECT INSERT",
    ),
    # The fence: asked for, its raisers' lock, read, locked, raised; tombstones. Then the fence is
    # ours, which counts this transaction (R34) in the same statement; rows are read, changed,
    # added.
    "postgresql+psycopg": (
        "WITH SELECT SELECT SELECT UPDATE DELETE WITH SELECT WITH INSERT",
        "WITH SELECT INSERT",
        "SELECT UPDATE DELETE SELECT WITH",
    ),
}
"""By dialect, the statements of the first of two tasks, of the second, and of a task alone, whose
fence is locked and raised."""
SWEEP = {"mysql+pymysql": ["SELECT"], "postgresql+psycopg": ["DELETE"]}
"""The statements that forget tombstones, where there are none."""
WRITE_ONE_MORE = {
    "mysql+pymysql": ["SELECT", "INSERT"],
    "postgresql+psycopg": ["SELECT", "SELECT", "WITH"],
}
"""The statements for keys that the server cannot combine: MySQL and MariaDB then read and write all
keys, in PostgreSQL a query finds the one key."""


class TestServerIsAsked:
    @pytest.mark.thorough
    @pytest.mark.parametrize("keys", [1, 10, 1000])
    def test_many_keys_take_as_many_requests_as_one_key(
        self, database: Database, store: SqlStore, workers: list[Worker], keys: int
    ) -> None:
        worker, (first, second, alone) = workers[0], MANY_KEYS[dialect_of(database)]

        def commands(
            txid: int, values: dict[str, int], task: int = 0, num_tasks: int | None = None
        ) -> str:
            context = worker.process.task(task=task, num_tasks=num_tasks)
            return " ".join(
                server_stores.commands(
                    store, worker, lambda: contract.run(store, context, txid, 0, **values)
                )
            )

        half = {str(n): 1 for n in range(keys)}
        contract.run(store, worker.process.task(), 1, 0, **half)
        assert commands(2, half | {f"new {n}": 1 for n in range(keys)}, num_tasks=2) == first
        assert commands(2, {f"other {n}": 1 for n in range(keys)}, task=1) == second
        contract.run(store, worker.process.task(), 3, 0, **half)
        assert commands(4, half) == alone

    @pytest.mark.thorough
    @pytest.mark.parametrize("keys", [1, 1000])
    def test_combining_many_integers_takes_as_many_requests_as_one_integer(
        self, database: Database, workers: list[Worker], keys: int
    ) -> None:
        worker, dialect = workers[0], dialect_of(database)
        deltas: dict[str | int, int] = dict.fromkeys(range(keys), 1) | {
            f"new {number}": 1 for number in range(keys)
        }
        for opaque in (False, True):
            store = SqlStore(database.url, f"counts{opaque:d}", opaque=opaque)
            contract.block(
                store,
                worker.process.task(),
                1,
                0,
                lambda opened: opened.put_many(dict.fromkeys(range(keys), 1) | {"half": 0.5}),
            )

            def merged(txid: int, more: dict[str | int, int], store: SqlStore = store) -> list[str]:
                def merge(opened: StoreTransaction) -> None:
                    opened.merge_many(more, ADD)

                return server_stores.commands(
                    store,
                    worker,
                    lambda: contract.block(store, worker.process.task(), txid, 0, merge),
                )

            # The fence is locked and raised; tombstones and lists are forgotten; rows are combined,
            # and listed.
            begin, listed = (
                ["SELECT", "UPDATE", *SWEEP[dialect], *["DELETE"] * opaque, "INSERT"],
                ["INSERT"] * opaque,
            )
            assert merged(2, deltas) == [*begin, *listed]
            assert merged(3, {**deltas, "half": 1}) == [*begin, *WRITE_ONE_MORE[dialect], *listed]
            assert (store.get(0), store.get("new 0"), store.get("half")) == (3, 2, 1.5)

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(12)
    def test_all_stores_of_a_worker_process_share_one_connection(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        worker, words = workers[0], SqlStore(store.url, "words", lock_timeout_s=PATIENCE_S)
        for txid in range(1, 4):
            contract.run(store, worker.process.task(), txid, 0, x=1)
            contract.run(words, worker.process.task(), txid, 0, x=1)
        assert len(database.backends()) == 1
        worker.process.close()
        wait_until(lambda: database.backends() == [], "the end of the session")


@pytest.mark.parametrize("dialect", sorted(MANY_KEYS))
def test_a_server_that_is_not_there_fails_the_attempt_only(
    dialect: str, process: contract.Process
) -> None:
    store = SqlStore(f"{dialect}://ann@127.0.0.1:1/bank", "counts")
    with pytest.raises(
        FailedException, match=r"is not there: it cannot be connected to \(.*Connection refused"
    ):
        contract.run(store, process.task(), 1, 0, x=1)
    with pytest.raises(UsageError, match="Try again when the server can be reached"):
        by_address.open_store(store.url, "counts")


@pytest.mark.thorough
class TestTables:
    @pytest.mark.parametrize("name", ["counts", "counts_written"])
    def test_tables_of_others_are_left_alone(
        self, database: Database, store: SqlStore, workers: list[Worker], name: str
    ) -> None:
        database.execute(f"CREATE TABLE {name}(mine text)")
        assert not store.exists()
        assert list(store.items()) == []
        with pytest.raises(SetupError, match=f"has a table '{name}' that is not a store of txtopo"):
            contract.run(store, workers[0].process.task(), 1, 0, x=1)
        assert database.execute(f"SELECT * FROM {name}") == []
        tables = (
            "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', %s)"
        )
        assert database.execute(tables, [database.name]) == [(name,)]

    def test_another_layout_is_refused_by_readers_and_writers(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        database.execute("UPDATE txtopo_schema SET version = 3")
        actions: list[Callable[[], Any]] = [
            lambda: store.get("x"),
            lambda: contract.run(store, workers[1].process.task(), 2, 0, x=1),
            lambda: store.clear("words"),
        ]
        for action in actions:
            with pytest.raises(
                StateMismatchError,
                match="holds store 'counts' in layout 3; this txtopo knows layout 4",
            ):
                action()

    def test_a_store_of_another_layout_blocks_no_other_store(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        others = [
            SqlStore(store.url, name, lock_timeout_s=PATIENCE_S) for name in ("older", "newer")
        ]
        for each in (store, *others):
            contract.run(each, workers[0].process.task(), 1, 0, x=1)
        for version, other in zip((1, 99), others, strict=True):
            database.execute(
                "UPDATE txtopo_schema SET version = %s WHERE store = %s", [version, other.name]
            )
        contract.run(store, workers[1].process.task(), 2, 0, x=1)
        contract.run(
            SqlStore(store.url, "newest", lock_timeout_s=PATIENCE_S),
            workers[1].process.task(),
            1,
            0,
            x=1,
        )
        assert dict(store.items()) == {"x": 2}
        with pytest.raises(StateMismatchError, match="holds store 'older' in layout 1"):
            others[0].get("x")

    def test_no_store_is_made_among_stores_that_are_all_of_another_layout(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        """The shared tables belong to a txtopo of the other layout."""
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        database.execute("UPDATE txtopo_schema SET version = 99")
        with pytest.raises(StateMismatchError, match="holds store 'counts' in layout 99"):
            contract.run(
                SqlStore(store.url, "words", lock_timeout_s=PATIENCE_S),
                workers[1].process.task(),
                1,
                0,
                x=1,
            )

    @pytest.mark.rule(27)
    def test_tables_dropped_under_an_open_connection_are_noticed(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        worker = workers[0]
        contract.run(store, worker.process.task(), 1, 0, x=1)
        database.execute("DROP TABLE counts, counts_written, txtopo_fence, txtopo_schema")
        known = {"count/counts": A(1, 0)}
        with pytest.raises(FailedException, match="a table was removed"):
            contract.run(store, worker.process.task(known_stores=known), 2, 0, x=1)
        with pytest.raises(
            StateMismatchError,
            match="The store was emptied, or the address names a different store",
        ):
            contract.run(store, worker.process.task(known_stores=known), 2, 1, x=1)

    def test_a_store_may_become_opaque_later(self, store: SqlStore, workers: list[Worker]) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        opaque = SqlStore(store.url, "counts", opaque=True)
        contract.run(opaque, workers[0].process.task(), 1, 1, y=1)
        assert dict(opaque.items()) == {"y": 1}


PORTIONS = (
    "txtopo.stores.mysql.backend.PORTION_ROWS",
    "txtopo.stores.postgresql.backend.CURSOR_ROWS",
)


class TestReaders:
    @pytest.mark.in_gate("postgresql")
    def test_a_reader_sees_one_state_while_others_write_and_fetches_it_in_portions(
        self, store: SqlStore, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in PORTIONS:
            monkeypatch.setattr(name, 7)
        contract.run(store, workers[0].process.task(), 1, 0, **{f"k{n:03}": 1 for n in range(100)})
        items = store.items()
        first = next(items)
        contract.run(store, workers[0].process.task(), 2, 0, **{f"k{n:03}": 1 for n in range(200)})
        assert [first, *items] == [(f"k{n:03}", 1) for n in range(100)]
        assert len(list(store.items())) == 200

    @pytest.mark.in_gate("mariadb")
    def test_looking_does_not_wait_for_writers_nor_keep_a_connection(
        self, database: Database, store: SqlStore, workers: list[Worker]
    ) -> None:
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        with store.transaction(workers[0].process.task(), A(2, 0)) as opened:
            opened.update("x", contract.plus(1))
            opened._write()
            assert (store.get("x"), dict(store.items()), store.exists()) == (1, {"x": 1}, True)
            next(store.scan("x"))
        # The server ends the sessions of readers a moment later.
        wait_until(lambda: len(database.backends()) == 1, "the end of the sessions of readers")


class TestCommands:
    @pytest.mark.in_gate("mariadb")
    def test_store_clear_takes_a_url(
        self,
        store: SqlStore,
        workers: list[Worker],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        contract.run(store, workers[0].process.task(), 1, 0, x=1)
        command = ["store", "clear", store.url, "counts", "--topology", "words"]
        assert cli.main(command) == 0
        assert (
            f"would remove from {store.address}, of topology 'words': 1 row, 1 fence"
            in capsys.readouterr().out
        )
        assert store.get("x") == 1
        assert cli.main([*command, "--execute"]) == 0
        assert (store.get("x"), store.fences()) == (None, [])

    @pytest.mark.in_gate("postgresql")
    @pytest.mark.rule(27)
    def test_store_adopt_takes_a_url(
        self,
        store: SqlStore,
        workers: list[Worker],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        state = MemoryStateStore()
        TopologyState.open(
            state, "words", Holder("here", 1, "2024-05-01T10:00:00+00:00", "words"), wait_s=1.0
        ).close()
        for how in ("opened", "owned"):
            monkeypatch.setattr(
                opening,
                how,
                lambda *_: contextlib.nullcontext(opening.Opened(state, "memory", False)),
            )
        contract.run(store, workers[0].process.task(generation="lost"), 7, 0, x=1)
        command = [
            "store",
            "adopt",
            store.url,
            "counts",
            "--topology",
            "words",
            "--data-dir",
            str(tmp_path),
        ]
        assert cli.main(command) == 0
        assert (
            f"would adopt {store.address}, for component count of topology 'words': 1 row, 1 fence"
            in capsys.readouterr().out
        )
        assert store.fences()[0].generation == "lost"
        assert cli.main([*command, "--execute"]) == 0
        assert (store.fences()[0].txid, store.fences()[0].generation == "lost", store.get("x")) == (
            0,
            False,
            1,
        )

    @pytest.mark.in_gate("postgresql")
    def test_a_store_that_is_not_there_is_told(
        self, store: SqlStore, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["store", "clear", store.url, "counts", "--topology", "words"]) == 2
        assert f"{store.address} is no store of txtopo" in capsys.readouterr().err
        assert not store.exists()

    @pytest.mark.in_gate("mariadb")
    @pytest.mark.rule(27)
    def test_the_command_in_an_error_can_be_typed(
        self, store: SqlStore, workers: list[Worker]
    ) -> None:
        with pytest.raises(StateMismatchError) as caught:
            contract.run(
                store, workers[0].process.task(known_stores={"count/counts": A(1, 0)}), 2, 0, x=1
            )
        assert f"`txtopo store adopt {store.url} counts --topology words`" in str(caught.value)
