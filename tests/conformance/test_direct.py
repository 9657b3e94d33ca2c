"""Direct access to a store's rows, over every backend: ranges, exchanges, and reserved rows, which
readers of results do not see."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_store_contract import FACTORIES, Process, block
from tests.patience import PATIENCE_S
from tests.servers.redis_server import RedisServer
from tests.servers.server_stores import StorePlace
from txtopo.errors import FailedException, StateMismatchError
from txtopo.stores import RedisStore, SqliteStore, Store, StoreTransaction
from txtopo.stores.direct import Direct
from txtopo.stores.redis import layout
from txtopo.stores.stamps import Row, Stamp
from txtopo.testing.contracts.store_subject import put, recorded, visible_at
from txtopo.topology.transaction import TransactionAttempt

ROUNDS = 50
ALL = ("~", "\U0010ffff")
EXPORTER = Stamp("words", "first", "~exporter", 0, 0, 0)

everywhere = pytest.mark.parametrize("backend", sorted(FACTORIES))
in_servers = pytest.mark.parametrize("backend", ["mariadb", "postgresql", "redis"])
gate_is_local = pytest.mark.in_gate("memory", "sqlite")


@pytest.fixture
def store(backend: str, tmp_path: Path, process: Process) -> Store:
    """An opaque store with a result."""
    store = FACTORIES[backend](tmp_path, opaque=True)
    put(store, process.task(known_stores={}), 1, 0, dog=1)
    return store


def row(key: str, value: object, stamp: Stamp = EXPORTER) -> Row:
    return Row(key, stamp, None, 0, [json.dumps(value, ensure_ascii=False)])


def fill(direct: Direct, *rows: Row) -> None:
    assert direct.exchange({each.key: None for each in rows}, rows)


def values(direct: Direct) -> dict[str, str | None]:
    """All reserved rows' values."""
    return {each.key: each.curr for each in direct.read_ranges([ALL], 100)[0]}


def enqueue(opened: StoreTransaction, texts: Mapping[str, str | None]) -> None:
    """Write reserved rows in a task's transaction, as a queue does."""
    opened._load(list(texts))
    for key, text in texts.items():
        opened._steps.put(key, text)
    opened.flush()


@contextlib.contextmanager
def abort_on_error(barrier: threading.Barrier) -> Iterator[None]:
    """If the block raises, the other thread stops waiting."""
    try:
        yield
    except BaseException:
        barrier.abort()
        raise


@everywhere
def test_the_first_rows_in_each_range_are_read_in_order(
    backend: str, tmp_path: Path, process: Process
) -> None:
    store = FACTORIES[backend](tmp_path)
    with store.direct() as direct:
        assert direct.read_ranges([ALL, ("", "~")], 5) == [[], []]
        with pytest.raises(FailedException, match="no task has written to it yet"):
            direct.exchange({"~a": None}, [row("~a", 1)])
        assert not store.exists(), "neither reading nor exchanging makes a store"
        put(store, process.task(), 1, 0, dog=1)
        keys = ["~a", "~b/1", "~b/2", "~b/é", "~b/\uffff", "~b/\U00010000", "~c"]
        rows = [row(key, {"'\"\\\n": [key, None]}) for key in keys]
        fill(direct, *reversed(rows))
        bounds = [("~b/", "~b0"), ("~a", "~b/2"), ("~b/2", "~b/3"), ("~d", "~e"), ("", ALL[1])] * 4
        assert direct.read_ranges(bounds, 4)[:4] == [rows[1:5], rows[:2], rows[2:3], []]
        assert direct.read_ranges(bounds, 4)[5:] == direct.read_ranges(bounds[5:], 4)
        assert [each.key for each in direct.read_ranges(bounds, 2)[4]] == ['"dog"', "~a"]
        assert direct.read_ranges([ALL], 100) == [rows]
        assert direct.read_ranges([], 4) == []


@everywhere
@gate_is_local
def test_rows_are_exchanged_if_all_values_are_as_expected(
    store: Store, process: Process, backend: str
) -> None:
    with store.direct() as direct:
        fill(direct, row("~a", 1), row("~b", 2), row("~c", 3))
        block(store, process.task(), 2, 0, lambda opened: enqueue(opened, {"~t": "0"}))
        block(store, process.task(), 3, 0, lambda opened: enqueue(opened, {"~t": None}))
        before = direct.read_ranges([("", ALL[1])], 100)
        for wrong in ({"~a": "2"}, {"~a": None}, {"~x": "1"}, {"~t": None}, {"~b": "2", "~c": "2"}):
            new = [row(key, 9) for key in wrong]
            assert not direct.exchange(wrong, new, ["~a", "~c"]), wrong
            assert direct.read_ranges([("", ALL[1])], 100) == before, wrong
        new = [
            row("~a", 10),
            row("~new", 4, EXPORTER),
            row("~b", 20, Stamp("w", "g", "c", 1, 2, 3)),
        ]
        expected = {"~b": "2", "~new": None, "~a": "1", "~absent": None}
        assert direct.exchange(expected, new, ["~t", "~c", "~never"])
        assert direct.read_ranges([ALL], 100)[0] == [new[0], new[2], new[1]]
        put(store, process.task(), 4, 0, cat=2)
        assert dict(store.items()) == {"cat": 2, "dog": 1}


@everywhere
@pytest.mark.parametrize("way", ["replaced", "inserted"])
def test_of_two_exchanges_of_one_row_exactly_one_succeeds(store: Store, way: str) -> None:
    barrier = threading.Barrier(2, timeout=PATIENCE_S)

    def compete() -> int:
        """How many exchanges succeeded. The values' sum counts the generations."""
        won = 0
        with store.direct() as direct, abort_on_error(barrier):
            while True:
                barrier.wait()
                kept = values(direct)
                generation = sum(int(text or 0) for text in kept.values())
                barrier.wait()
                if generation >= ROUNDS:
                    return won
                key = "~r" if way == "replaced" else f"~r{generation:02}"
                value = generation + 1 if way == "replaced" else 1
                with contextlib.suppress(FailedException):
                    won += direct.exchange({key: kept.get(key)}, [row(key, value)])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        racers = [pool.submit(compete) for _ in range(2)]
    assert sum(racer.result() for racer in racers) == ROUNDS


@in_servers
@pytest.mark.in_gate("mariadb", "postgresql")
def test_an_exchange_does_not_wait_for_a_task_that_has_written_other_rows(
    store: Store, process: Process, backend: str
) -> None:
    with store.direct() as direct:
        fill(direct, row("~q/0", 0), row("~q/3", 3), row("~q/4", 4))

        def meanwhile(opened: StoreTransaction) -> None:
            enqueue(opened, {"~q/1": "1", "~q/3": "30"})
            expected = {"~q/0": "0", "~q/2": None}
            assert direct.exchange(expected, [row("~q/0", 9), row("~q/2", 9)], ["~q/4"])
            assert values(direct) == {"~q/0": "9", "~q/2": "9", "~q/3": "3"}

        block(store, process.task(), 2, 0, meanwhile)
        assert values(direct) == {"~q/0": "9", "~q/1": "1", "~q/2": "9", "~q/3": "30"}


@pytest.mark.in_gate("postgresql")
def test_a_lost_connection_is_opened_again(place: StorePlace, process: Process) -> None:
    store = place.store()
    put(store, process.task(), 1, 0, dog=1)
    with store.direct() as direct:
        fill(direct, row("~a", 1))
        place.disconnect()
        with contextlib.suppress(FailedException):  # the goodbye may still be under way
            direct.read_ranges([ALL], 1)
        assert direct.exchange({"~a": "1"}, [row("~a", 2)])
        assert values(direct) == {"~a": "2"}
        assert len(place.connections()) == 1


def test_a_removed_file_reads_as_empty_and_is_not_made(tmp_path: Path, process: Process) -> None:
    store = SqliteStore(tmp_path / "results.db", "results")
    put(store, process.task(), 1, 0, dog=1)
    with store.direct() as direct:
        fill(direct, row("~a", 1))
        process.close()
        for path in tmp_path.iterdir():
            os.unlink(path)
        assert values(direct) == {}
        with pytest.raises(FailedException, match="no task has written to it yet"):
            direct.exchange({"~a": "1"})
        assert list(tmp_path.iterdir()) == []
        put(store, process.task(), 1, 0, dog=1)
        fill(direct, row("~a", 2))
        assert values(direct) == {"~a": "2"}


@everywhere
@gate_is_local
def test_readers_of_results_see_no_reserved_row(store: Store, backend: str) -> None:
    with store.direct() as direct:
        fill(direct, row("~a", 1), row("~b", 2))
    as_of: Any = visible_at(1, recorded(store, 1))
    for visible in (None, as_of):
        assert list(store.items(as_of=visible)) == [("dog", 1)]
        assert list(store.scan("", as_of=visible)) == [("dog", 1)]
        assert store.count(as_of=visible) == len(store.to_pandas(as_of=visible)) == 1
    assert list(store.scan(())) == [], "a list of keys begins below the reserved rows"


@everywhere
@gate_is_local
def test_reserved_rows_are_taken_back_adopted_and_cleared_as_any_row(
    store: Store, process: Process, backend: str
) -> None:
    def attempt(txid: int, number: int, texts: Mapping[str, str | None], last: int) -> None:
        with store.transaction(
            process.task(known_stores=recorded(store, last)), TransactionAttempt(txid, number)
        ) as opened:
            enqueue(opened, texts)

    with store.direct() as direct:
        attempt(2, 0, {"~q/0": "0", "~q/1": "1"}, last=1)
        attempt(3, 0, {"~q/0": "9", "~q/1": None, "~q/2": "9"}, last=2)
        attempt(3, 1, {}, last=2)
        assert values(direct) == {"~q/0": "0", "~q/1": "1"}
        attempt(3, 2, {"~q/0": None}, last=2)
        put(store, process.task(known_stores=recorded(store, 3, 2)), 4, 0, cat=2)
        assert values(direct) == {"~q/1": "1"}, "a later transaction sweeps the tombstone"
        store.adopt("words", "second", 7, ["count"])
        assert [each.stamp.txid for each in direct.read_ranges([ALL], 9)[0]] == [7]
        store.clear("words")
        assert direct.read_ranges([("", ALL[1])], 9) == [[]]


def test_a_store_in_redis_that_is_held_or_lost_writes_refuses_an_exchange(
    redis_server: RedisServer, process: Process
) -> None:
    store = RedisStore(redis_server.url(), redis_server.new_name())
    put(store, process.task(), 1, 0, dog=1)
    meta = layout.Names(store.name).meta
    with store.direct() as direct:
        fill(direct, row("~a", 1))
        redis_server.ask("HSET", meta, "held", "maintained 7")
        for value in ("1", "2"):
            with pytest.raises(FailedException, match="being adopted or cleared"):
                direct.exchange({"~a": value}, [row("~a", 2)])
        redis_server.ask("HDEL", meta, "held")
        redis_server.ask("HINCRBY", meta, "version", -1)
        for _ in range(2):
            with pytest.raises(StateMismatchError, match="lost acknowledged writes"):
                direct.exchange({"~a": "1"}, [row("~a", 2)])
        assert values(direct) == {"~a": "1"}
    with store.direct() as direct:
        assert direct.exchange({"~a": "1"}, [row("~a", 2)])
