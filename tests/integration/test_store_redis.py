"""A store in a Redis server: commands per transaction, refused servers, messages about an unusable
server, and the view of readers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S
from tests.servers.redis_server import PASSWORD, RedisServer
from txtopo.command import cli
from txtopo.errors import (
    BatchTooLargeError,
    FailedException,
    SetupError,
    StateMismatchError,
    TxtopoError,
    UsageError,
)
from txtopo.stores import Fence, RedisStore, StoreConflict, StoreTransaction, by_address
from txtopo.stores.redis import connection, layout, reading
from txtopo.stores.stamps import CLOSED_ATTEMPT

Link = connection.Link


@pytest.fixture
def other() -> Iterator[contract.Process]:
    process = contract.Process()
    yield process
    process.close()


@pytest.fixture
def store(redis_server: RedisServer) -> RedisStore:
    return RedisStore(redis_server.url(), redis_server.new_name(), opaque=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests to the server from now on, one entry for each round trip."""
    asked: list[str] = []
    exchange = Link._exchange

    @contextlib.contextmanager
    def noting(link: Link) -> Iterator[None]:
        asked.append("exchange")
        with exchange(link):
            yield

    monkeypatch.setattr(Link, "_exchange", noting)
    return asked


class TestServerIsAsked:
    @pytest.mark.parametrize("keys", [10, 1000])
    def test_many_keys_take_as_many_requests_as_one_key(
        self, store: RedisStore, process: contract.Process, asked: list[str], keys: int
    ) -> None:
        old = {str(n): 1 for n in range(keys)}
        contract.run(store, process.task(), 1, 0, **old)
        both = old | {f"new {n}": 1 for n in range(keys)}

        def round_trips(*arguments: Any, **deltas: int) -> int:
            asked.clear()
            contract.run(store, *arguments, **deltas)
            return len(asked)

        assert round_trips(process.task(), 2, 0, **both) == 4, (
            "the fence, raising it, the rows, the last step"
        )
        assert (
            round_trips(process.task(task=1), 2, 0, **{f"other {n}": 1 for n in range(keys)}) == 3
        )
        assert round_trips(process.task(), 2, 1, **both) == 6, (
            "what is to be taken back is listed, and read"
        )
        assert round_trips(process.task(task=2), 2, 1) == 1

    @pytest.mark.rule(12)
    def test_all_stores_of_a_worker_process_share_one_connection(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        words = RedisStore(store.url, redis_server.new_name())
        before = set(redis_server.connections())
        for txid in range(1, 4):
            contract.run(store, process.task(), txid, 0, x=1)
            contract.run(words, process.task(), txid, 0, x=1)
        new = set(redis_server.connections()) - before
        assert len(new) == 1
        process.close()
        redis_server.wait_until(lambda: not new & set(redis_server.connections()))

    def test_the_script_is_sent_again_to_a_server_that_has_forgotten_it(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)
        redis_server.ask("SCRIPT", "FLUSH")
        contract.run(store, process.task(), 2, 0, x=1)
        assert dict(store.items()) == {"x": 2}

    @pytest.mark.rule(31)
    def test_lists_of_written_and_deleted_keys_do_not_grow(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        names = layout.Names(store.name)

        def churn(opened: StoreTransaction) -> None:
            opened.update_many(dict.fromkeys(range(50), 1), contract.add)
            for n in range(25):
                opened.delete(n)

        for txid in range(1, 6):
            for attempt in range(2):
                contract.block(store, process.task(), txid, attempt, churn)
                assert redis_server.ask("LLEN", names.written("words", "count")) == 1
                assert redis_server.ask("SCARD", names.deleted) == 25
        assert redis_server.ask("HLEN", names.rows) == redis_server.ask("ZCARD", names.order) == 50
        contract.run(store, process.task(), 6, 0)
        assert redis_server.ask("EXISTS", names.written("words", "count"), names.deleted) == 0
        assert redis_server.ask("HLEN", names.rows) == redis_server.ask("ZCARD", names.order) == 25


class TestRivals:
    @pytest.mark.rule(32)
    @pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
    @pytest.mark.parametrize("existed", [False, True], ids=["a new key", "a key that was there"])
    def test_two_tasks_that_write_a_key_at_the_same_time_are_told(
        self,
        redis_server: RedisServer,
        process: contract.Process,
        other: contract.Process,
        opaque: bool,
        existed: bool,
    ) -> None:
        store = RedisStore(redis_server.url(), redis_server.new_name(), opaque=opaque)
        if existed:
            contract.run(store, process.task(), 1, 0, x=1)

        def write(opened: StoreTransaction) -> None:
            opened.update_many({"a": 1, "x": 100}, contract.add)
            contract.run(store, process.task(), 2, 0, x=10)

        with pytest.raises(StoreConflict) as caught:
            contract.block(store, other.task(task=1), 2, 0, write)
        assert (
            caught.value.key,
            "task 0" in caught.value.first_writer,
            "task 1" in caught.value.second_writer,
        ) == ('"x"', True, True)
        assert dict(store.items()) == {"x": 11 if existed else 10}

    @pytest.mark.rule(32)
    def test_a_row_that_others_changed_after_it_was_read_fails_the_attempt(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)
        names = layout.Names(store.name)

        def lose_it(opened: StoreTransaction) -> None:
            opened.update("x", contract.plus(1))
            redis_server.ask("HDEL", names.rows, '"x"')

        with pytest.raises(FailedException, match='key "x" was changed by others'):
            contract.block(store, process.task(), 2, 0, lose_it)

    @pytest.mark.rule(27)
    def test_a_store_that_a_task_writes_meanwhile_is_not_adopted(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)
        run = Link.run

        def late(link: Link, script: Any, keys: Any, arguments: Any) -> Any:
            if script is layout.HOLD:
                monkeypatch.setattr(Link, "run", run)
                contract.run(store, process.task(), 2, 0, x=10)
            return run(link, script, keys, arguments)

        monkeypatch.setattr(Link, "run", late)
        with pytest.raises(
            UsageError,
            match=r"the store was written to while maintenance was reading it\n  Stop the topology",
        ):
            store.adopt("words", "second", 9, ["count"])
        assert (dict(store.items()), [fence.generation for fence in store.fences()]) == (
            {"x": 11},
            ["first"],
        )

    @pytest.mark.rule(27)
    def test_a_task_whose_last_step_comes_while_the_store_is_held_writes_nothing(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)

        def late(opened: StoreTransaction) -> None:
            opened.update("x", contract.plus(10))
            redis_server.ask("HSET", layout.Names(store.name).meta, "held", "maintained 7")

        with pytest.raises(FailedException, match="is being adopted or cleared"):
            contract.block(store, process.task(), 2, 0, late)
        assert dict(store.items()) == {"x": 1}
        store.adopt("words", "first", 1, ["count"])
        assert store.fences() == [Fence("words", "count", "first", 1, CLOSED_ATTEMPT)]
        contract.run(store, process.task(), 2, 0, x=10)


class TestBounds:
    def test_a_transaction_of_too_many_rows_is_refused_and_writes_nothing(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.redis.session.ROWS_MAX", 20)
        contract.run(store, process.task(), 1, 0, **{str(n): 1 for n in range(20)})
        with pytest.raises(
            TxtopoError, match=r"has 21 rows, and the bound is 20\n  Make the batches smaller"
        ):
            contract.run(store, process.task(), 2, 0, **{str(n): 1 for n in range(21)})
        assert set(dict(store.items()).values()) == {1}

    @pytest.mark.rule(31)
    def test_tasks_that_together_write_more_than_could_be_taken_back_are_refused(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.redis.session.ROWS_TOGETHER_MAX", 20)
        for attempt in range(3):
            contract.run(store, process.task(task=0), 1, attempt, **{f"a{n}": 1 for n in range(10)})
            contract.run(store, process.task(task=1), 1, attempt, **{f"b{n}": 1 for n in range(10)})
        with pytest.raises(
            TxtopoError,
            match=r"a transaction by component 'count' .* has 21 rows, and the bound is 20\n  Make the batches smaller",
        ):
            contract.run(store, process.task(task=2), 1, 2, c=1)
        contract.run(store, process.task(task=2), 2, 0, c=1)
        assert len(dict(store.items())) == 21

    def test_tombstones_that_are_too_many_are_removed_little_by_little(
        self,
        redis_server: RedisServer,
        store: RedisStore,
        process: contract.Process,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("txtopo.stores.redis.session.SWEPT_MAX", 4)
        contract.block(
            store, process.task(), 1, 0, lambda opened: [opened.delete(n) for n in range(10)]
        )
        left = []
        for txid in range(2, 6):
            contract.run(store, process.task(), txid, 0)
            left.append(redis_server.ask("HLEN", layout.Names(store.name).rows))
        assert left == [6, 2, 0, 0]

    def test_a_transaction_of_too_many_bytes_is_refused_and_writes_nothing(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.redis.session.BYTES_MAX", 1000)
        with pytest.raises(BatchTooLargeError, match="the bound is BYTES_MAX = 1000"):
            contract.block(
                store,
                process.task(),
                1,
                0,
                lambda opened: opened.update("x", contract.set_to("y" * 1000)),
            )
        assert dict(store.items()) == {}

    def test_a_server_whose_memory_is_full_writes_nothing(self, process: contract.Process) -> None:
        with RedisServer() as server:
            store = RedisStore(server.url(), "counts")
            contract.run(store, process.task(), 1, 0, x=1)
            server.ask("CONFIG", "SET", "maxmemory", 1)
            with pytest.raises(
                TxtopoError,
                match=r"cannot grow: the server has used all of its maxmemory .*\n  Nothing of the transaction is kept",
            ):
                contract.run(store, process.task(), 2, 0, **{str(n): 1 for n in range(1000)})
            server.ask("CONFIG", "SET", "maxmemory", 0)
            assert dict(store.items()) == {"x": 1}
            contract.run(store, process.task(), 2, 1, x=1)


class TestServersThatAreRefused:
    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"appendonly": "no"}, "it keeps no append-only file"),
            ({"appendfsync": "everysec"}, "appendfsync is everysec"),
            ({"appendfsync": "no"}, "appendfsync is no"),
        ],
    )
    def test_a_server_that_may_forget_is_refused_unless_loss_is_accepted(
        self, settings: dict[str, str], told: str, process: contract.Process
    ) -> None:
        with RedisServer(settings) as server:
            with pytest.raises(
                SetupError,
                match=rf"may forget acknowledged writes: {told}\n  Type `redis-cli CONFIG SET appendonly yes`",
            ):
                contract.run(RedisStore(server.url(), "counts"), process.task(), 1, 0, x=1)
            assert server.ask("DBSIZE") == 0
            store = RedisStore(server.url(), "counts", accept_loss=True)
            contract.run(store, process.task(), 1, 0, x=1)
            assert dict(store.items()) == {"x": 1}

    @pytest.mark.parametrize("accept_loss", [False, True])
    def test_a_server_that_evicts_keys_is_refused(
        self, accept_loss: bool, process: contract.Process, other: contract.Process
    ) -> None:
        with RedisServer({"maxmemory-policy": "allkeys-lru"}) as server:
            with pytest.raises(
                SetupError,
                match="removes any keys when its memory is full: maxmemory-policy is allkeys-lru",
            ):
                contract.run(
                    RedisStore(server.url(), "counts", accept_loss=accept_loss),
                    process.task(),
                    1,
                    0,
                    x=1,
                )
            server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
            contract.run(RedisStore(server.url(), "counts"), other.task(), 1, 0, x=1)

    @pytest.mark.thorough
    @pytest.mark.rule(7)
    def test_a_replica_is_read_and_not_written(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)
        with RedisServer({"replicaof": f"127.0.0.1 {redis_server.port}"}) as replica:
            copy = RedisStore(replica.url(), store.name)
            replica.wait_until(
                lambda: "master_link_status:up" in replica.told("INFO", "replication")
            )
            assert (dict(copy.items()), copy.get("x"), len(copy.fences())) == ({"x": 1}, 1, 1)
            with pytest.raises(
                FailedException, match=r"the server is a replica: give the master's address"
            ):
                contract.run(copy, contract.Process().task(), 2, 0, x=1)

    def test_a_server_where_other_data_has_the_stores_name_is_refused(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        redis_server.ask("SET", layout.Names(store.name).rows, "mine")
        with pytest.raises(
            SetupError, match="has keys of that name that are not a store of txtopo"
        ):
            contract.run(store, process.task(), 1, 0, x=1)

    def test_a_store_of_another_layout_is_refused(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        redis_server.ask("HSET", layout.Names(store.name).meta, "layout", "1")
        for action in (
            lambda: contract.run(store, process.task(), 1, 0, x=1),
            store.exists,
            store.fences,
            lambda: store.get("x"),
        ):
            with pytest.raises(StateMismatchError, match="in layout 1; this txtopo knows layout 2"):
                action()


class TestAccess:
    @pytest.fixture(autouse=True)
    def no_password_around(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("REDISCLI_AUTH", raising=False)

    def refusal(self, store: RedisStore) -> str:
        with pytest.raises(SetupError) as caught:
            contract.run(store, contract.Process().task(), 9, 0, x=1)
        assert PASSWORD not in str(caught.value)
        return str(caught.value)

    def test_a_password_comes_from_the_environment_or_a_file(
        self,
        redis_server: RedisServer,
        process: contract.Process,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        file = tmp_path / "password"
        file.write_text(f"{PASSWORD}\n")
        monkeypatch.setenv("BANK_PASSWORD", PASSWORD)
        url, name = redis_server.url("guarded"), redis_server.new_name()
        stores = [
            RedisStore(url, name, password_env="BANK_PASSWORD"),
            RedisStore(url, name, password_file=str(file)),
        ]
        for txid, store in enumerate(stores, start=1):
            contract.run(store, process.task(), txid, 0, x=1)
        monkeypatch.setenv("REDISCLI_AUTH", PASSWORD)
        contract.run(RedisStore(url, name), process.task(), 3, 0, x=1)
        assert RedisStore(url, name).get("x") == 3

    def test_a_wrong_password_ends_the_run_with_the_cure(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BANK_PASSWORD", "wrong")
        told = self.refusal(
            RedisStore(redis_server.url("guarded"), "counts", password_env="BANK_PASSWORD")
        )
        assert (
            "\n  Check the user in the URL, and the password: REDISCLI_AUTH, password_env= or password_file=."
            in told
        )

    def test_a_user_who_may_only_read_reads(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)
        reader = RedisStore(
            redis_server.url("reader"), store.name, password_env="READER", accept_loss=True
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("READER", PASSWORD)
            assert dict(reader.items()) == {"x": 1}
            assert "\n  Give the user the rights" in self.refusal(reader)

    def test_the_rights_on_the_page_about_redis_are_enough(
        self, redis_server: RedisServer, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = (Path(__file__).parents[2] / "docs" / "stores" / "redis.md").read_text()
        rights = page.partition("ACL SETUSER bank ")[2].partition("`")[0].split()
        redis_server.ask("ACL", "SETUSER", "bank", "on", f">{PASSWORD}", *rights)
        monkeypatch.setenv("REDISCLI_AUTH", PASSWORD)
        store = RedisStore(redis_server.url("bank"), redis_server.new_name(), opaque=True)
        for txid, attempt in ((1, 0), (2, 0), (2, 1), (3, 0)):
            contract.block(
                store,
                process.task(),
                txid,
                attempt,
                lambda opened: (opened.update("x", contract.plus(1)), opened.delete("y")),
            )
        store.adopt("words", "first", 3, ["count"])
        assert (dict(store.items()), store.clear("words").rows) == ({"x": 3}, 2)

    def test_a_server_that_is_not_there_fails_the_attempt_only(
        self, process: contract.Process
    ) -> None:
        with pytest.raises(FailedException, match="is not there: it cannot be connected to"):
            contract.run(RedisStore("redis://127.0.0.1:1/0", "counts"), process.task(), 1, 0, x=1)

    def test_a_database_that_the_server_does_not_have_is_named(
        self, redis_server: RedisServer
    ) -> None:
        assert "\n  Mend the database number in the URL" in self.refusal(
            RedisStore(redis_server.url(database=99_999), "counts")
        )


class TestReaders:
    @pytest.mark.rule(28)
    @pytest.mark.parametrize("page", [1, 3, 1000])
    def test_readers_see_one_state_of_the_store_however_much_is_written_meanwhile(
        self,
        store: RedisStore,
        process: contract.Process,
        other: contract.Process,
        monkeypatch: pytest.MonkeyPatch,
        page: int,
    ) -> None:
        """Every transaction moves one from every key to the next, so that all keys have the same
        sum in every state."""
        monkeypatch.setattr(reading, "PAGE_ROWS", page)
        contract.run(store, process.task(), 1, 0, **{f"{n:03}": 100 for n in range(100)})
        txids, run = iter(range(2, 10_000)), Link.run

        def interrupted(link: Link, script: Any, keys: Any, arguments: Any) -> Any:
            answer = run(link, script, keys, arguments)
            if script is layout.RANGES:
                txid = next(txids)
                contract.run(store, other.task(), txid, 0, **{"000": -txid, "099": txid})
            return answer

        monkeypatch.setattr(Link, "run", interrupted)
        items = list(store.items())
        assert [key for key, _ in items] == [f"{n:03}" for n in range(100)]
        assert sum(value for _, value in items) == 10_000

    def test_a_read_ends_although_a_task_never_stops_writing(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "PAGE_ROWS", 1)
        contract.run(store, process.task(), 1, 0, **{str(n): 1 for n in range(5000)})
        stop = threading.Event()

        def write() -> None:
            writer = contract.Process()
            for txid in range(2, 1_000_000):
                if stop.is_set():
                    break
                contract.run(store, writer.task(), txid, 0, last=1)
            writer.close()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            content = dict(store.items())
        finally:
            stop.set()
            thread.join(PATIENCE_S)
        assert len(content) in (5000, 5001)

    @pytest.mark.parametrize(
        ("prefix", "expected"), [("b", ["b", "ba", "bé", "b😀"]), (("p",), [("p", 1), ("p", 2)])]
    )
    def test_scan_asks_for_no_more_than_it_shows(
        self,
        store: RedisStore,
        process: contract.Process,
        monkeypatch: pytest.MonkeyPatch,
        prefix: Any,
        expected: list[Any],
    ) -> None:
        def fill(opened: StoreTransaction) -> None:
            opened.update_many(dict.fromkeys(["a", "b", "ba", "bé", "b😀", "c"], 1), contract.add)
            opened.update_many(dict.fromkeys([("p", 1), ("p", 2), ("q", 1)], 1), contract.add)

        contract.block(store, process.task(), 1, 0, fill)
        pages: list[list[bytes]] = []
        run = Link.run

        def noting(link: Link, script: Any, keys: Any, arguments: Any) -> Any:
            answer = run(link, script, keys, arguments)
            if script is layout.RANGES:
                pages.append(answer[-1][0])
            return answer

        monkeypatch.setattr(Link, "run", noting)
        assert [key for key, _ in store.scan(prefix)] == expected
        assert [len(page) for page in pages] == [len(expected)]


@pytest.mark.thorough
class TestCluster:
    @pytest.fixture
    def nodes(self) -> Iterator[tuple[RedisServer, RedisServer]]:
        """Two nodes, each with half of the slots."""
        # No node takes the other for dead because it is slow.
        settings = {
            "cluster-enabled": "yes",
            "databases": "1",
            "cluster-node-timeout": f"{PATIENCE_S * 1000:.0f}",
        }
        with RedisServer(settings) as one, RedisServer(settings) as two:
            one.ask("CLUSTER", "ADDSLOTS", *range(8192))
            two.ask("CLUSTER", "ADDSLOTS", *range(8192, 16384))
            two.ask("CLUSTER", "SET-CONFIG-EPOCH", 2)
            one.ask("CLUSTER", "MEET", "127.0.0.1", two.port)
            one.wait_until(
                lambda: all(
                    "cluster_state:ok" in node.told("CLUSTER", "INFO") for node in (one, two)
                )
            )
            yield one, two

    @pytest.mark.rule(12, 29)
    def test_a_store_is_found_on_any_node(
        self, nodes: tuple[RedisServer, RedisServer], process: contract.Process
    ) -> None:
        one, two = nodes
        names = [f"counts{number}" for number in range(6)]
        stores = [RedisStore(one.url(), name, opaque=True) for name in names]
        for txid, attempt in ((1, 0), (2, 0), (2, 1), (3, 0)):
            for store in stores:
                contract.run(store, process.task(), txid, attempt, x=1, y=1)
        for store in stores:
            assert (dict(store.items()), store.get("x"), store.exists()) == (
                {"x": 3, "y": 3},
                3,
                True,
            )
            assert dict(RedisStore(two.url(), store.name).items()) == {"x": 3, "y": 3}, (
                "whichever node is asked"
            )
        held = [len(node.ask("KEYS", "*:meta")) for node in nodes]
        assert sum(held) == 6
        assert all(held), "both nodes have some of them"
        assert one.clients() == two.clients() == 1, "one connection to each node"
        assert stores[0].clear("words").rows == 2

    @pytest.mark.rule(7)
    def test_a_node_that_is_gone_fails_the_attempt_only(
        self, nodes: tuple[RedisServer, RedisServer], process: contract.Process
    ) -> None:
        one, two = nodes
        store_of_two = next(
            store
            for store in (RedisStore(one.url(), f"counts{n}") for n in range(100))
            if _slot(one, store) >= 8192
        )
        contract.run(store_of_two, process.task(), 1, 0, x=1)
        two.kill()
        with pytest.raises(FailedException, match="is not there"):
            contract.run(store_of_two, process.task(), 2, 0, x=1)
        two.start()
        one.wait_until(
            lambda: all("cluster_state:ok" in node.told("CLUSTER", "INFO") for node in nodes)
        )
        contract.run(store_of_two, process.task(), 2, 1, x=1)
        assert store_of_two.get("x") == 2


def _slot(node: RedisServer, store: RedisStore) -> int:
    return int(node.ask("CLUSTER", "KEYSLOT", layout.Names(store.name).meta))


class TestCommandLine:
    def test_a_store_is_opened_by_its_url(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)
        assert by_address.open_store(store.url, store.name).get("x") == 1
        with pytest.raises(UsageError, match="is no store of txtopo"):
            by_address.open_store(store.url, redis_server.new_name())
        with pytest.raises(UsageError, match="Try again when the server can be reached"):
            by_address.open_store("redis://127.0.0.1:1/0", "counts")

    def test_a_store_is_cleared_from_the_command_line(
        self,
        store: RedisStore,
        process: contract.Process,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1, y=1)
        command = [
            "store",
            "clear",
            store.url,
            store.name,
            "--topology",
            "words",
            "--data-dir",
            str(tmp_path),
        ]
        assert cli.main(command) == 0
        assert (
            f"would remove from {store.address}, of topology 'words': 2 rows, 1 fence"
            in capsys.readouterr().out
        )
        assert dict(store.items()) == {"x": 1, "y": 1}
        assert cli.main([*command, "--execute"]) == 0
        assert dict(store.items()) == {}
