"""A Redis server and its connections end at every moment of a store's transaction, or lose
acknowledged writes; a replay counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance import test_store_contract as contract
from tests.patience import PATIENCE_S
from tests.servers.redis_server import RedisServer, running_server
from txtopo.errors import FailedException, StaleAttemptError, StateMismatchError
from txtopo.stores import ADD, RedisStore, StoreTransaction
from txtopo.stores.redis import apply, connection, layout
from txtopo.topology.transaction import TransactionAttempt

A = TransactionAttempt
Link = connection.Link


@pytest.fixture
def other() -> Iterator[contract.Process]:
    """Another worker process, with a connection and a memory of its own."""
    process = contract.Process()
    yield process
    process.close()


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def opaque(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def store(opaque: bool, redis_server: RedisServer) -> Iterator[RedisStore]:
    yield RedisStore(redis_server.url(), redis_server.new_name(), opaque=opaque)
    running_server()


@pytest.fixture
def forgetful() -> Iterator[RedisServer]:
    """A server of the test's own, which may be set back."""
    with RedisServer() as server:
        yield server


class Steps:
    """Strikes before or after the script of a step: ``open``, ``raise`` or ``apply``; counts how
    often the server was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.strikes: dict[tuple[str, str], Callable[[], None]] = {}
        self.reached: list[str] = []
        run = Link.run
        names = {layout.OPEN.digest: "open", apply.APPLY.digest: "apply"}

        def striking(link: Link, script: Any, keys: Any, arguments: Any) -> Any:
            name = names.get(script.digest, "other")
            if name == "apply" and arguments[4]:
                name = "raise"
            self.reached.append(name)
            self.strikes.pop((name, "before"), lambda: None)()
            answer = run(link, script, keys, arguments)
            self.strikes.pop((name, "after"), lambda: None)()
            return answer

        monkeypatch.setattr(Link, "run", striking)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


ENDS: dict[str, Callable[[RedisServer], None]] = {
    "the server is killed": lambda server: server.kill(),
    "the server is shut down": lambda server: server.stop(),
    "the connection is cut": lambda server: server.disconnect(),
}
WAYS: dict[str, Callable[[StoreTransaction, dict[str, int]], Any]] = {
    "updated": lambda opened, deltas: opened.update_many(deltas, contract.add),
    "merged": lambda opened, deltas: opened.merge_many(deltas, ADD),
}
"""Who makes the sum: the task, or the server in its last step."""
MOMENTS = [(step, when) for step in ("open", "raise", "apply") for when in ("before", "after")]


# -- connections and servers that end ------------------------------------------------------------


@pytest.mark.in_gate("opaque-*-the server is killed-merged")
@pytest.mark.rule(7, 28, 31)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("step", "when"), MOMENTS, ids=[f"{when} {step}" for step, when in MOMENTS]
)
def test_a_transaction_counts_once_if_client_or_server_ends_around_a_step(
    redis_server: RedisServer,
    store: RedisStore,
    process: contract.Process,
    steps: Steps,
    step: str,
    when: str,
    end: str,
    way: str,
) -> None:
    def write(opened: StoreTransaction) -> None:
        WAYS[way](opened, {"x": 10, "y": 10})

    contract.run(store, process.task(), 1, 0, x=1)
    steps.strikes[step, when] = lambda: ENDS[end](redis_server)
    try:
        contract.block(store, process.task(), 2, 0, write)
        said = ""
    except FailedException as error:
        said = str(error)
    # After the last step nothing is asked any more.
    assert ("is not there" in said) is ((step, when) != ("apply", "after")), said
    assert steps.strikes == {}, "the fault was hit"
    redis_server.start()
    assert dict(store.items()) in ({"x": 1}, {"x": 11, "y": 10}), "all or nothing"
    contract.block(store, process.task(), 2, 1, write)
    assert dict(store.items()) == {"x": 11, "y": 10}
    contract.run(store, process.task(), 3, 0, x=1)
    assert store.get("x") == 12


@pytest.mark.in_gate("opaque-merged")
@pytest.mark.rule(28)
@pytest.mark.parametrize("way", WAYS)
def test_a_last_step_whose_answer_is_lost_is_not_applied_again(
    store: RedisStore, process: contract.Process, steps: Steps, way: str
) -> None:
    contract.run(store, process.task(), 1, 0, x=1)
    contract.run(store, process.task(task=1), 2, 0)

    def lose_the_answer() -> None:
        raise FailedException("the connection is lost")

    steps.strikes["apply", "after"] = lose_the_answer
    context = process.task()
    with pytest.raises(FailedException, match="the connection is lost"):
        contract.block(store, context, 2, 0, lambda opened: WAYS[way](opened, {"x": 10}))
    assert (context.store_steps, context.touched_stores, store.get("x")) == ({}, {}, 11)
    contract.block(store, process.task(), 2, 1, lambda opened: WAYS[way](opened, {"x": 10}))
    assert dict(store.items()) == {"x": 11}
    assert contract.run(store, process.task(), 2, 2, x=10)["x"].curr == 11


@pytest.mark.in_gate("opaque-updated")
@pytest.mark.rule(29)
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_the_server_does_only_after_a_newer_attempt_came_changes_nothing(
    redis_server: RedisServer,
    opaque: bool,
    process: contract.Process,
    other: contract.Process,
    way: str,
) -> None:
    """The server hangs with the last step of an attempt unread in its socket; its client gives up,
    and a newer attempt is faster."""
    store = RedisStore(
        redis_server.url(), redis_server.new_name(), opaque=opaque, answer_timeout_s=PATIENCE_S
    )
    contract.run(store, other.task(), 1, 0, x=1)

    def hang(opened: StoreTransaction) -> None:
        WAYS[way](opened, {"x": 100})
        redis_server.pause()
        session: Any = opened._session
        assert session._link._raw.socket_timeout == PATIENCE_S
        session._link._raw._sock.settimeout(0.1)  # from here on, no answer can come

    with pytest.raises(FailedException, match="did not answer in time"):
        contract.block(store, process.task(), 2, 0, hang)
    redis_server.resume()
    contract.run(store, other.task(), 2, 1, x=10)
    # Transactional: the batch is the same, so that possible writes of the first attempt count.
    assert dict(store.items()) in ([{"x": 11}] if opaque else [{"x": 101}, {"x": 11}])


# -- late tasks ----------------------------------------------------------------------------------


@pytest.mark.in_gate("opaque-changed-*-updated")
@pytest.mark.rule(29, 31)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "newest", [(2, 1), (3, 0)], ids=["of an older attempt", "of an older txid"]
)
@pytest.mark.parametrize("value", ["changed", "new", "deleted", "untouched by the newer attempt"])
def test_a_late_task_that_comes_to_its_last_step_after_a_newer_attempt_changes_nothing(
    store: RedisStore,
    process: contract.Process,
    other: contract.Process,
    newest: tuple[int, int],
    value: str,
    way: str,
) -> None:
    key = {"changed": "x", "new": "n", "deleted": "d", "untouched by the newer attempt": "u"}[value]
    contract.run(store, process.task(), 1, 0, x=1, d=1, u=1)

    def newer(opened: StoreTransaction) -> None:
        opened.update_many({"x": 10, "n": 10}, contract.add)
        opened.delete("d")

    def write_late(opened: StoreTransaction) -> None:
        WAYS[way](opened, {key: 1000})
        contract.block(store, other.task(), *newest, newer)

    with pytest.raises(StaleAttemptError, match=rf"fenced at attempt {newest[0]}:{newest[1]}"):
        contract.block(store, process.task(), 2, 0, write_late)
    assert dict(store.items()) == {"x": 11, "n": 10, "u": 1}
    with pytest.raises(StaleAttemptError):
        contract.run(store, process.task(), 2, 0, **{key: 1000})


@pytest.mark.thorough
@pytest.mark.rule(31)
@pytest.mark.parametrize("way", WAYS)
def test_late_writes_during_a_take_back_are_taken_back_too(
    redis_server: RedisServer,
    process: contract.Process,
    other: contract.Process,
    steps: Steps,
    way: str,
) -> None:
    store = RedisStore(redis_server.url(), redis_server.new_name(), opaque=True)
    contract.run(store, process.task(), 1, 0, x=1, y=1)
    contract.run(store, process.task(), 2, 0, x=100)
    late = {"y": 100, "z": 100}
    steps.strikes["raise", "before"] = lambda: void(
        contract.block(store, process.task(task=1), 2, 0, lambda opened: WAYS[way](opened, late))
    )
    steps.reached.clear()
    contract.run(store, other.task(), 2, 1, x=10)
    assert steps.reached.count("raise") == 2, "the first one found more written than it had seen"
    assert dict(store.items()) == {"x": 11, "y": 1}


def void(_: Any) -> None:
    """For commands issued for their effect."""


# -- what servers forget -------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_a_server_that_syncs_before_it_answers_keeps_what_it_acknowledged_however_often_it_is_killed(
    forgetful: RedisServer, opaque: bool, process: contract.Process
) -> None:
    store = RedisStore(forgetful.url(), "counts", opaque=opaque)
    for txid in range(1, 6):
        contract.run(store, process.task(), txid, 0, x=1)
        forgetful.kill()
        forgetful.start()
        assert store.get("x") == txid


FORGETTING = {
    "syncs every second": {"appendfsync": "everysec"},
    "keeps nothing": {"appendonly": "no"},
}


@pytest.mark.thorough
@pytest.mark.rule(27, 28)
@pytest.mark.parametrize("how", FORGETTING)
def test_a_server_that_is_killed_and_may_forget_has_everything_or_is_refused(
    how: str, opaque: bool, process: contract.Process
) -> None:
    with RedisServer(FORGETTING[how]) as server:
        store = RedisStore(server.url(), "counts", opaque=opaque, accept_loss=True)
        recorded: A | None = None
        for txid in range(1, 6):
            known = None if recorded is None else {"count/counts": recorded}
            try:
                contract.run(store, process.task(known_stores=known or {}), txid, 0, x=1)
            except StateMismatchError:
                break
            recorded = A(txid, 0)
            assert store.get("x") == txid
            server.kill()
            server.start()
        if how == "keeps nothing":
            assert recorded == A(1, 0), "the second transaction was refused"


@pytest.mark.thorough
@pytest.mark.rule(27)
def test_a_store_that_was_emptied_is_refused(
    forgetful: RedisServer, opaque: bool, process: contract.Process, other: contract.Process
) -> None:
    store = RedisStore(forgetful.url(), "counts", opaque=opaque)
    contract.run(store, process.task(), 1, 0, x=1)
    forgetful.ask("FLUSHALL")
    # A worker that has written here knows by itself; another one by the record.
    with pytest.raises(StateMismatchError, match="holds nothing of component 'count'"):
        contract.run(store, other.task(known_stores={"count/counts": A(1, 0)}), 2, 0, x=1)
    contract.run(RedisStore(forgetful.url(), "counts", opaque=opaque), other.task("sum"), 1, 0, y=1)
    with pytest.raises(StateMismatchError, match="has lost acknowledged writes"):
        contract.run(store, process.task(), 2, 0, x=1)
    assert dict(store.items()) == {"y": 1}


@pytest.mark.rule(27, 29)
def test_a_server_that_was_started_on_older_data_is_refused_by_the_record(
    forgetful: RedisServer, opaque: bool, process: contract.Process, other: contract.Process
) -> None:
    store = RedisStore(forgetful.url(), "counts", opaque=opaque)
    contract.run(store, process.task(), 1, 0, x=1)
    forgetful.remember()
    contract.run(store, process.task(), 2, 0, x=1)
    forgetful.go_back()
    with pytest.raises(
        StateMismatchError,
        match="is behind: component 'count' is at attempt 1:0 there, but ZooKeeper has recorded 2:0",
    ):
        contract.run(store, other.task(known_stores={"count/counts": A(2, 0)}), 3, 0, x=1)
    assert dict(store.items()) == {"x": 1}


@pytest.mark.thorough
@pytest.mark.rule(27, 29)
def test_a_loss_without_a_trace_in_the_fence_is_noticed_by_the_writing_worker_and_stops_all_writers(
    forgetful: RedisServer, opaque: bool, process: contract.Process, other: contract.Process
) -> None:
    """The fence of the transaction is kept, the writes of one of its tasks are not."""
    store = RedisStore(forgetful.url(), "counts", opaque=opaque)
    contract.run(store, process.task(), 1, 0, x=1)
    contract.run(store, process.task(task=1), 2, 0)
    forgetful.remember()
    contract.run(store, process.task(), 2, 0, x=10)
    forgetful.go_back()
    known = {"count/counts": A(2, 0)}
    # A second worker writes without an acknowledgement: from now on the number of changes is no
    # proof.
    for _ in range(3):
        contract.run(store, other.task("sum"), 2, 0, y=1)
    for worker in (process, other):
        with pytest.raises(
            StateMismatchError,
            match=r"has lost acknowledged writes: change \d+ was done, later there were \d+",
        ):
            contract.run(store, worker.task(known_stores=known), 3, 0, x=1)
    assert dict(store.items()) == {"x": 1, "y": 1}
    store.adopt("words", "first", 2, ["count", "sum"])
    forgetful.disconnect()
    fresh = contract.Process()
    contract.run(store, fresh.task(), 3, 0, x=1)
    fresh.close()
    assert store.get("x") == 2


@pytest.mark.in_gate("opaque")
@pytest.mark.rule(28)
def test_an_attempt_across_whose_middle_the_server_lost_something_fails_and_is_written_again(
    forgetful: RedisServer, opaque: bool, process: contract.Process, other: contract.Process
) -> None:
    store = RedisStore(forgetful.url(), "counts", opaque=opaque)
    contract.run(store, process.task(), 1, 0, x=1)
    contract.run(store, other.task(task=1), 2, 0)
    forgetful.remember()
    contract.run(store, process.task(), 2, 0, x=10)
    process.close()
    forgetful.go_back()
    with pytest.raises(
        FailedException,
        match=r"a new server process took over the store .* in the middle of an attempt",
    ):
        contract.run(store, other.task(task=1), 2, 0, y=10)
    contract.run(store, other.task(), 2, 1, x=10)
    contract.run(store, other.task(task=1), 2, 1, y=10)
    assert dict(store.items()) == {"x": 11, "y": 10}


# -- maintenance that dies -----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.rule(27)
@pytest.mark.parametrize("portion", [1, 2])
def test_an_adoption_that_dies_half_way_keeps_all_writers_out_until_it_is_repeated(
    redis_server: RedisServer,
    store: RedisStore,
    process: contract.Process,
    monkeypatch: pytest.MonkeyPatch,
    portion: int,
) -> None:
    monkeypatch.setattr("txtopo.stores.redis.maintenance.PORTION_ROWS", 10)
    contract.run(store, process.task(), 3, 0, **{str(number): 1 for number in range(30)})
    run, done = Link.run, 0

    def dying(link: Link, script: Any, keys: Any, arguments: Any) -> Any:
        nonlocal done
        if script is apply.APPLY and (done := done + 1) > portion:
            raise KeyboardInterrupt
        return run(link, script, keys, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Link, "run", dying)
        with pytest.raises(KeyboardInterrupt):
            store.adopt("words", "second", 9, ["count"])
    with pytest.raises(
        StateMismatchError,
        match="is being adopted or cleared, or an adoption or clearing was never finished",
    ):
        contract.run(store, process.task(generation="second"), 10, 0, x=1)
    store.adopt("words", "second", 9, ["count"])
    contract.run(store, process.task(generation="second"), 10, 0, **{"0": 1})
    assert dict(store.items()) == {"0": 2} | {str(number): 1 for number in range(1, 30)}
    assert {
        row.generation for number in range(30) if (row := store.inspect(str(number))) is not None
    } == {"second"}
