"""Integers combined by a Redis server: commands per transaction, rows left to the rules, and
concurrent writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance import test_store_contract as contract
from tests.servers.redis_server import RedisServer
from txtopo.errors import BatchTooLargeError, TxtopoError
from txtopo.stores import ADD, RedisStore, StoreConflict, StoreTransaction
from txtopo.stores.redis import apply, connection, layout
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import TransactionAttempt

Link = connection.Link


@pytest.fixture
def other() -> Iterator[contract.Process]:
    """Another worker process, with a connection of its own."""
    process = contract.Process()
    yield process
    process.close()


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def store(request: pytest.FixtureRequest, redis_server: RedisServer) -> RedisStore:
    return RedisStore(redis_server.url(), redis_server.new_name(), opaque=request.param)


class Asked:
    """Requests to the server from now on: commands by name, and the script of each last step by its
    result."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.after_apply: Callable[[], None] = lambda: None
        self.after_reading: Callable[[], None] = lambda: None
        run, ask_all = Link.run, Link.ask_all

        def noting_run(link: Link, script: Any, keys: Any, arguments: Any) -> Any:
            answer = run(link, script, keys, arguments)
            if script is apply.APPLY and not arguments[4]:
                self.names.append(answer[0].decode())
                self.after_apply()
            else:
                self.names.append("open" if script is layout.OPEN else "raise")
            return answer

        def noting_ask(link: Link, commands: Any) -> Any:
            self.names += [command[0] for command in commands[:1]]
            answers = ask_all(link, commands)
            if commands[0][0] == "HMGET":
                self.after_reading()
            return answers

        monkeypatch.setattr(Link, "run", noting_run)
        monkeypatch.setattr(Link, "ask_all", noting_ask)

    def for_merging(
        self,
        store: RedisStore,
        context: TopologyContext,
        txid: int,
        attempt: int = 0,
        /,
        **deltas: int,
    ) -> list[str]:
        """Requests of a transaction that merges ``deltas``."""
        self.names.clear()
        merge(store, context, txid, attempt, **deltas)
        return list(self.names)


@pytest.fixture
def asked(store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch) -> Asked:
    contract.run(
        store, process.task(), 1, 0, first=1
    )  # The first transaction makes a connection, and the store.
    return Asked(monkeypatch)


def merge(
    store: RedisStore, context: TopologyContext, txid: int, attempt: int = 0, /, **deltas: int
) -> None:
    """A store transaction whose server adds ``deltas``."""
    contract.block(store, context, txid, attempt, lambda opened: opened.merge_many(deltas, ADD))


@pytest.mark.thorough
class TestServerIsAsked:
    @pytest.mark.parametrize("keys", [1, 10, 12_000])
    def test_only_for_the_last_step_with_any_number_of_keys(
        self, store: RedisStore, process: contract.Process, asked: Asked, keys: int
    ) -> None:
        more = {f"key {n}": n for n in range(keys)}
        assert asked.for_merging(store, process.task(), 2, **more) == ["open", "raise", "done"]
        assert asked.for_merging(store, process.task(), 3, **more) == ["open", "raise", "done"]
        assert asked.for_merging(
            store, process.task(task=1), 3, **{f"other {n}": n for n in range(keys)}
        ) == ["open", "done"]
        content = dict(store.items())
        assert {key: content[key] for key in more} == {key: 2 * n for key, n in more.items()}
        assert len(content) == 2 * keys + 1

    @pytest.mark.rule(28)
    def test_twice_more_for_a_row_that_the_rules_must_see_to(
        self, store: RedisStore, process: contract.Process, asked: Asked
    ) -> None:
        contract.block(store, process.task(), 2, 0, lambda opened: opened.put("half", 0.5))
        assert asked.for_merging(store, process.task(), 3, first=1, half=1) == [
            "open",
            "raise",
            "unmerged",
            "HMGET",
            "done",
        ]
        assert dict(store.items()) == {"first": 2, "half": 1.5}

    @pytest.mark.rule(32)
    def test_for_the_last_step_only_if_a_key_was_updated_repeatedly_before(
        self, store: RedisStore, process: contract.Process, asked: Asked
    ) -> None:
        contract.block(
            store,
            process.task(),
            2,
            0,
            lambda opened: [opened.update("first", contract.plus(n)) for n in (10, 100)],
        )
        assert asked.for_merging(store, process.task(), 3, first=1000) == ["open", "raise", "done"]
        assert contract.run(store, process.task(), 4, 0, first=0)["first"].prev == 1111

    @pytest.mark.parametrize("component", ["a],0,1,2", "é%d.*[", 'quo"ted\\', "line\nfeed"])
    def test_only_for_the_last_step_with_any_name_of_a_component(
        self, store: RedisStore, process: contract.Process, asked: Asked, component: str
    ) -> None:
        merge(store, process.task(component), 2, mine=1)
        assert asked.for_merging(store, process.task(component), 3, mine=1) == [
            "open",
            "raise",
            "done",
        ]
        assert store.get("mine") == 2


class TestRowsThatAreNotOrdinary:
    @pytest.mark.rule(30)
    @pytest.mark.parametrize("sign", [1, -1])
    def test_integers_of_many_digits_are_added_exactly_by_the_server(
        self, store: RedisStore, process: contract.Process, asked: Asked, sign: int
    ) -> None:
        first, delta = sign * (10**14 - 1), sign * (10**15 - 1)
        assert asked.for_merging(store, process.task(), 2, key=first, new=delta) == [
            "open",
            "raise",
            "done",
        ]
        assert asked.for_merging(store, process.task(), 3, key=delta) == ["open", "raise", "done"]
        assert dict(store.items()) == {"first": 1, "key": first + delta, "new": delta}

    @pytest.mark.rule(30)
    @pytest.mark.parametrize("value", [2.5, -0.0, 1e20, 10**15, -(10**15), 10**30, True])
    def test_numbers_that_lua_would_not_keep_are_added_by_python(
        self, store: RedisStore, process: contract.Process, value: Any
    ) -> None:
        contract.block(store, process.task(), 1, 0, lambda opened: opened.put("key", value))
        merge(store, process.task(), 2, key=3)
        resource = store.get("key")
        assert (type(resource), resource) == (type(value + 3), value + 3)

    @pytest.mark.rule(30)
    @pytest.mark.parametrize(
        "value", ["5", 'a","5', '","5"]', '\n[0,null,"5"]', "5\\", ["a", "5"], {"a": "5"}, [5]]
    )
    def test_text_that_only_looks_like_an_integer_is_not_merged(
        self, store: RedisStore, process: contract.Process, value: Any
    ) -> None:
        contract.block(store, process.task(), 1, 0, lambda opened: opened.put("key", value))
        with pytest.raises(TypeError):
            merge(store, process.task(), 2, key=3)
        assert store.get("key") == value

    @pytest.mark.rule(30)
    def test_a_deleted_key_begins_anew_and_is_listed_as_deleted_no_more(
        self, redis_server: RedisServer, store: RedisStore, process: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, key=5)
        contract.block(store, process.task(), 2, 0, lambda opened: opened.delete("key"))
        merge(store, process.task("other"), 3, key=7)
        assert (store.get("key"), redis_server.ask("SCARD", layout.Names(store.name).deleted)) == (
            7,
            0,
        )

    @pytest.mark.rule(31)
    def test_leftovers_of_another_components_dead_attempt_do_not_count(
        self, store: RedisStore, process: contract.Process
    ) -> None:
        merge(store, process.task("other", known_stores={}), 1, key=1)
        recorded = {f"other/{store.name}": TransactionAttempt(1, 0)}
        merge(store, process.task("other", known_stores=recorded), 2, key=100)
        merge(store, process.task(known_stores=recorded), 3, mine=1)
        merge(
            store,
            process.task(
                known_stores={**recorded, f"count/{store.name}": TransactionAttempt(3, 0)}
            ),
            4,
            key=5,
            mine=1,
        )
        assert dict(store.items()) == {"key": 6, "mine": 2}

    @pytest.mark.rule(28)
    def test_rows_left_to_the_rules_hold_back_the_whole_transaction(
        self, store: RedisStore, process: contract.Process, asked: Asked
    ) -> None:
        contract.block(store, process.task(), 2, 0, lambda opened: opened.put("half", 0.5))
        seen: list[dict[Any, Any]] = []
        asked.after_apply = lambda: seen.append(dict(store.items()))

        def write(opened: StoreTransaction) -> None:
            opened.update("written", contract.plus(1))
            opened.merge_many({"first": 1, "half": 1, "new": 1}, ADD)

        contract.block(store, process.task(), 3, 0, write)
        assert seen == [
            {"first": 1, "half": 0.5},
            {"first": 2, "half": 1.5, "new": 1, "written": 1},
        ]


class TestRivals:
    @pytest.mark.rule(32)
    @pytest.mark.parametrize("existed", [False, True], ids=["a new key", "a key that was there"])
    def test_two_tasks_that_merge_with_a_key_at_the_same_time_are_told(
        self, store: RedisStore, process: contract.Process, other: contract.Process, existed: bool
    ) -> None:
        if existed:
            contract.run(store, process.task(), 1, 0, x=1)

        def write(opened: StoreTransaction) -> None:
            opened.merge_many({"a": 1, "x": 100}, ADD)
            merge(store, process.task(), 2, x=10)

        with pytest.raises(StoreConflict) as caught:
            contract.block(store, other.task(task=1), 2, 0, write)
        assert (
            caught.value.key,
            "task 0" in caught.value.first_writer,
            "task 1" in caught.value.second_writer,
        ) == ('"x"', True, True)
        assert dict(store.items()) == {"x": 11 if existed else 10}

    @pytest.mark.rule(32)
    def test_a_rival_who_comes_between_the_rules_reading_and_the_last_step_is_named(
        self, store: RedisStore, process: contract.Process, other: contract.Process, asked: Asked
    ) -> None:
        contract.block(store, process.task(), 2, 0, lambda opened: opened.put("half", 0.5))

        def come_between() -> None:
            asked.after_reading = lambda: None
            merge(store, process.task(), 3, first=10)

        asked.after_reading = come_between
        with pytest.raises(StoreConflict, match='"first"'):
            merge(store, other.task(task=1), 3, first=100, half=100)
        assert asked.names[-3:] == ["open", "done", "rows"], (
            "the rival was there before the last step"
        )
        assert dict(store.items()) == {"first": 11, "half": 0.5}

    @pytest.mark.rule(28)
    def test_another_run_of_the_same_attempt_applies_nothing_again(
        self, store: RedisStore, process: contract.Process, other: contract.Process
    ) -> None:
        contract.run(store, process.task(), 1, 0, x=1)

        def write(opened: StoreTransaction) -> None:
            opened.merge_many({"x": 10, "y": 10}, ADD)
            merge(store, other.task(), 2, x=10, y=10)

        contract.block(store, process.task(), 2, 0, write)
        assert dict(store.items()) == {"x": 11, "y": 10}


class TestLists:
    @pytest.mark.rule(31)
    def test_merged_keys_are_listed_and_taken_back_like_written_keys(
        self, redis_server: RedisServer, process: contract.Process
    ) -> None:
        store = RedisStore(redis_server.url(), redis_server.new_name(), opaque=True)
        names = layout.Names(store.name)
        contract.run(store, process.task(), 1, 0, x=1, y=1)

        def write(opened: StoreTransaction) -> None:
            opened.update("y", contract.plus(100))
            opened.merge_many({"x": 100, "new\nkey": 100}, ADD)

        for attempt in range(3):
            contract.block(store, process.task(), 2, attempt, write)
            assert (
                int(
                    redis_server.ask(
                        "HGET", names.meta, f"written:{layout.fence_field('words', 'count')}"
                    )
                )
                == 3
            )
        assert redis_server.ask("ZRANGE", names.order, 0, -1) == ['"new\\nkey"', '"x"', '"y"']
        contract.run(store, process.task(), 2, 3)
        assert dict(store.items()) == {"x": 1, "y": 1}
        assert redis_server.ask("ZRANGE", names.order, 0, -1) == ['"x"', '"y"']


class TestBounds:
    def test_merges_count_as_rows_of_the_transaction(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.redis.session.ROWS_MAX", 20)
        merge(store, process.task(), 1, **{str(n): 1 for n in range(20)})

        def write(opened: StoreTransaction) -> None:
            opened.update("written", contract.plus(1))
            opened.merge_many({str(n): 1 for n in range(20)}, ADD)

        with pytest.raises(
            TxtopoError, match=r"has 21 rows, and the bound is 20\n  Make the batches smaller"
        ):
            contract.block(store, process.task(), 2, 0, write)
        assert set(dict(store.items()).values()) == {1}

    def test_merges_count_as_bytes_of_the_transaction(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.redis.session.BYTES_MAX", 1000)
        with pytest.raises(BatchTooLargeError, match="the bound is BYTES_MAX = 1000"):
            merge(store, process.task(), 1, **{"y" * 1000: 1})
        assert dict(store.items()) == {}

    @pytest.mark.rule(31)
    def test_merges_count_among_the_writes_of_all_tasks(
        self, store: RedisStore, process: contract.Process, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("txtopo.stores.redis.session.ROWS_TOGETHER_MAX", 20)
        for task in range(2):
            merge(store, process.task(task=task), 1, **{f"{task} {n}": 1 for n in range(10)})
        with pytest.raises(
            TxtopoError,
            match=r"a transaction by component 'count' .* has 21 rows, and the bound is 20\n  Make the batches smaller",
        ):
            merge(store, process.task(task=2), 1, c=1)
        merge(store, process.task(task=2), 2, c=1)
        assert len(dict(store.items())) == 21
