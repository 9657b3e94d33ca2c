"""The state of a topology, over every store: durable in the right order, exactly once, and written
by its holder only."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.state_backends import (
    Backend,
    MemoryBackend,
    RoundTrips,
    Unreliable,
    ZooKeeperBackend,
)
from txtopo import errors
from txtopo.state import administration, liveness, memory
from txtopo.state.base import Create, Delete, Operation, Set, StateConflictError, StateStore
from txtopo.state.embedded import EmbeddedZooKeeper
from txtopo.state.records import TxidRecord
from txtopo.state.rotating import StrictOrderError
from txtopo.state.topology import End, Holder, Seal, TopologyState
from txtopo.topology.transaction import RecordedAttempt, TransactionAttempt

ALICE = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00", "words-run")
BOB = Holder("beta.example", 22, "2024-05-01T11:00:00+00:00")
TASKS = {"spout": 2, "count": 3}
ENDED = End("2024-05-01T12:00:00+00:00", 3, "one batch failed", "/data", 7, 3, 2)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["memory", "zookeeper"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = (
        MemoryBackend()
        if request.param == "memory"
        else ZooKeeperBackend(request.getfixturevalue("zookeeper"))
    )
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend) -> Unreliable:
    return Unreliable(backend.connect())


def opened(store: StateStore, holder: Holder = ALICE, **options: Any) -> TopologyState:
    return TopologyState.open(store, "words", holder, **{"wait_s": PATIENCE_S, **options})


def attempt(txid: int, n: int = 0) -> TransactionAttempt:
    return TransactionAttempt(txid, n)


def recorded(txid: int, n: int = 0, *, count: int = 1) -> RecordedAttempt:
    return RecordedAttempt(txid, n, count)


def planned(txid: int, last: TxidRecord | None) -> TxidRecord:
    return TxidRecord(
        txid=txid, metadata={"from": 0 if last is None else last.metadata["from"] + 10}
    )


def commit(
    state: TopologyState, txid: int, positions: dict[int, Any] | None = None, **options: Any
) -> None:
    if state.sealed() is None:
        state.seal(attempt(txid), TASKS, {"from": 10 * (txid - 1)})
    state.record(attempt(txid), positions or {}, **options)


def contents(store: StateStore, path: str = "/words") -> dict[str, bytes]:
    node = store.get(path)
    nodes = {} if node is None else {path: node.data}
    for name in store.children(path):
        nodes.update(contents(store, f"{path}/{name}"))
    return nodes


def put(store: StateStore, path: str, data: bytes) -> None:
    store.multi([Set(path, data) if store.get(path) else Create(path, data)])


# Opening


@pytest.mark.rule(1, 2, 27)
def test_a_new_topology_begins_at_txid_1_in_epoch_1_of_a_random_generation(
    store: Unreliable,
) -> None:
    state = opened(store)
    assert (state.current, state.epoch, state.known_stores, state.positions()) == (1, 1, {}, {})
    assert (state.sealed(), state.txids.txids()) == (None, [])
    other = TopologyState.open(store, "others", ALICE)
    assert len({state.generation, other.generation, ""}) == 3
    assert administration.topologies(store) == ["others", "words"]


@pytest.mark.rule(1, 23, 26, 27)
def test_a_restart_goes_on_where_the_last_run_stopped_in_the_next_epoch(store: Unreliable) -> None:
    first = opened(store)
    commit(first, 1, {0: {"to": 10}, 17: {"to": 3}}, touched_stores={"count/counts": 1})
    commit(first, 2, {0: {"to": 20}})
    first.close()
    second = opened(store, BOB)
    assert (second.generation, second.epoch, second.current) == (first.generation, 2, 3)
    assert second.positions() == {0: {"to": 20}, 17: {"to": 3}}
    assert second.known_stores == {"count/counts": recorded(1)}
    assert second.txids.get_state(3, planned) == TxidRecord(txid=3, metadata={"from": 20})


def test_a_coordinator_that_gives_up_while_opening_takes_no_topology(backend: Backend) -> None:
    given_up = threading.Event()
    given_up.set()
    store = backend.connect()
    with pytest.raises(errors.ZooKeeperUnavailableError, match="not waited for any longer"):
        opened(store, abandoned=given_up)
    assert contents(store) == {}


@pytest.mark.rule(26)
def test_a_second_coordinator_is_refused_with_the_name_of_the_holder(
    backend: Backend, store: Unreliable
) -> None:
    opened(store)
    before = contents(store)
    with pytest.raises(
        errors.FencedError,
        match=r"'words-run', pid 11 on host alpha\.example, started 2024-05-01T10:00:00\+00:00",
    ) as refused:
        opened(backend.connect(), BOB)
    assert refused.value.exit_code == 4
    assert contents(store) == before


@pytest.mark.rule(26)
def test_of_several_coordinators_that_open_at_once_exactly_one_gets_the_topology(
    backend: Backend,
) -> None:
    stores = [backend.connect() for _ in range(4)]
    barrier = threading.Barrier(len(stores))
    outcomes: list[object] = []

    def run(store: StateStore) -> None:
        barrier.wait(PATIENCE_S)
        try:
            outcomes.append(opened(store))
        except errors.FencedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["HeldError"] * 3 + [
        "TopologyState"
    ]


@pytest.mark.rule(26)
def test_the_owner_of_all_leases_takes_an_existing_lease_and_its_holder_can_write_no_more(
    backend: Backend, store: Unreliable
) -> None:
    zombie = opened(store)
    zombie.seal(attempt(1), TASKS, None)
    heir = opened(backend.connect(), BOB, displaces=True)
    assert heir.epoch == 2
    before = contents(store)
    writes: list[Callable[[], None]] = [
        lambda: zombie.record(attempt(1), {0: 1}),
        lambda: zombie.seal(attempt(1, 1), TASKS, None),
    ]
    for write in writes:
        with pytest.raises(
            errors.FencedError, match=r"epoch 2, now held by pid 22 on host beta\.example"
        ):
            write()
    zombie.close()
    assert contents(store) == before


@pytest.mark.rule(26)
def test_a_lease_given_back_can_be_taken_at_once(backend: Backend, store: Unreliable) -> None:
    state = opened(store)
    state.close()
    state.close()
    assert opened(backend.connect(), BOB).epoch == 2


@pytest.mark.rule(25, 26)
@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("existed", [False, True])
def test_an_open_whose_answer_is_lost_raises_the_epoch_once(
    store: Unreliable, fault: memory.Fault, existed: bool
) -> None:
    if existed:
        opened(store).close()
    store.lose_next(fault)
    state = opened(store)
    assert state.epoch == (2 if existed else 1)
    commit(state, 1)
    assert state.current == 2


@pytest.mark.rule(27)
def test_an_open_during_which_the_state_begins_anew_is_of_the_new_generation(
    backend: Backend, store: Unreliable
) -> None:
    """The new epoch has the version that the old one had, so that the epoch alone does not tell."""
    opened(store).close()
    rival = backend.connect()
    reborn: list[TopologyState] = []

    def begin_anew(_: object) -> None:
        store.fault = None
        administration.reset(rival, "words")
        reborn.append(opened(rival, BOB))
        reborn[0].close()

    store.fault = begin_anew
    state = opened(store)
    assert (state.generation, state.epoch) == (reborn[0].generation, 2)
    commit(state, 1)


@pytest.mark.rule(1, 26)
def test_an_open_during_which_another_had_the_topology_gets_an_epoch_of_its_own(
    backend: Backend, store: Unreliable
) -> None:
    """The other has ended again, so that there is no lease to meet; the attempts of the two must
    not have the same ids."""
    opened(store).close()
    rival = backend.connect()
    others: list[int] = []

    def come_and_go(_: object) -> None:
        store.fault = None
        other = opened(rival, BOB)
        commit(other, 1)
        others.append(other.epoch)
        other.close()

    store.fault = come_and_go
    state = opened(store)
    assert (others, state.epoch) == ([2], 3)
    commit(state, 2)


# Seal and record


@pytest.mark.rule(23)
def test_a_sealed_transaction_survives_with_its_attempt_tasks_and_metadata(
    store: Unreliable,
) -> None:
    state = opened(store)
    state.seal(attempt(1, 4), TASKS, {"0": [1, 2]})
    expected = TxidRecord(
        txid=1, status="sealed", attempt_id=4, tasks=TASKS, metadata={"0": [1, 2]}
    )
    assert state.sealed() == expected
    state.close()
    assert opened(store, BOB).sealed() == expected


@pytest.mark.rule(23)
def test_an_open_transaction_is_not_sealed_and_a_replay_may_seal_again(store: Unreliable) -> None:
    state = opened(store)
    state.txids.get_state(1, planned)
    assert state.sealed() is None
    state.seal(attempt(1), TASKS, None)
    state.seal(attempt(1, 1), TASKS, None)
    with pytest.raises(
        ValueError, match="attempt 1:0 cannot be recorded: the sealed attempt is 1:1"
    ):
        state.record(attempt(1), {})
    state.record(attempt(1, 1), {})
    assert state.current == 2


@pytest.mark.rule(23)
def test_a_write_out_of_order_is_refused_before_its_effect(store: Unreliable) -> None:
    state = opened(store)
    before = contents(store)
    with pytest.raises(ValueError, match="cannot be recorded"):
        state.record(attempt(1), {})
    with pytest.raises(ValueError, match="next txid to commit is 1"):
        state.seal(attempt(2), TASKS, None)
    assert contents(store) == before
    state.seal(attempt(1), TASKS, None)
    with pytest.raises(ValueError, match="cannot follow"):
        state.record(attempt(1), {}, next_seal=Seal(attempt(3), TASKS))
    assert state.current == 1


@pytest.mark.rule(25)
def test_a_record_is_one_multi_with_everything_that_follows_from_it(store: Unreliable) -> None:
    state = opened(store)
    commit(state, 1)
    state.seal(attempt(2), TASKS, {"from": 10})
    state.txids.get_state(3, planned)
    state.txids.get_state(4, planned)
    store.log.clear()
    state.record(
        attempt(2),
        {0: "a", 16: "b", 1: "c"},
        {"count/counts": 1},
        Seal(attempt(3), TASKS, {"from": 20}),
    )
    (operations,) = store.log
    assert [
        (type(operation).__name__, operation.path.removeprefix("/words/"))
        for operation in operations
    ] == [
        ("Check", f"generation/{state.generation}"),
        ("Check", "epoch"),
        ("Check", "lease"),
        ("Set", "current"),
        ("Create", "positions/0"),
        ("Create", "positions/1"),
        ("Set", "stores"),
        ("Delete", "txids/0000000001"),
        ("Create", "txids/0000000003"),
        ("Create", "txids/0000000004"),
    ]
    assert (state.current, state.txids.txids(), state.txids.pending) == (3, [2, 3, 4], frozenset())
    sealed = state.sealed()
    assert sealed is not None
    assert sealed.attempt_id == 0


@pytest.mark.rule(25)
def test_metadata_of_open_transactions_rides_along_with_the_seal(store: Unreliable) -> None:
    state = opened(store)
    for txid in (1, 2, 3):
        state.txids.get_state(txid, planned)
    state.seal(attempt(1), TASKS, {"from": 0})
    state.close()
    again = opened(store, BOB)
    assert again.txids.txids() == [1, 2, 3]
    assert again.txids.find(3) == TxidRecord(txid=3, metadata={"from": 20})


@pytest.mark.rule(25)
@pytest.mark.parametrize("partitions", [1, 1000])
@pytest.mark.parametrize("components", [1, 200])
def test_a_steady_transaction_costs_two_round_trips_or_one_however_large(
    store: Unreliable, partitions: int, components: int
) -> None:
    state = opened(store)
    tasks = {f"component-{n}": 2 for n in range(components)}
    moved = {partition: [partition, 0] for partition in range(partitions)}
    for txid in range(1, 4):
        before = store.round_trips
        state.txids.get_state(
            txid,
            lambda txid, last: TxidRecord(
                txid=txid, metadata={str(p): m for p, m in moved.items()}
            ),
        )
        state.seal(attempt(txid), tasks, {str(p): m for p, m in moved.items()})
        state.record(attempt(txid), moved, {"count/counts": 1})
        assert store.round_trips - before == 2
    state.seal(attempt(4), tasks, None)
    for txid in range(4, 7):
        before = store.round_trips
        state.record(
            attempt(txid), moved, {"count/counts": 1}, Seal(attempt(txid + 1), tasks, None)
        )
        assert store.round_trips - before == 1


@pytest.mark.rule(25)
def test_ten_transactions_leave_no_more_behind_than_two(store: Unreliable) -> None:
    state = opened(store)
    sizes = []
    for txid in range(1, 11):
        commit(state, txid, {0: txid})
        sizes.append(len(contents(store)))
    assert len(set(sizes[1:])) == 1


# Lost answers


@pytest.mark.rule(25)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_seal_and_a_record_whose_answer_is_lost_take_effect_exactly_once(
    store: Unreliable, fault: memory.Fault, times: int
) -> None:
    state = opened(store)
    for txid in (1, 2, 3):
        store.lose_next(fault, times)
        state.seal(attempt(txid), TASKS, {"from": 10 * (txid - 1)})
        store.lose_next(fault, times)
        state.record(attempt(txid), {0: txid, txid: "x"}, {f"count/{txid}": 1})
    store.fault = None
    assert state.current == 4
    shown = administration.show(store, "words")
    assert (shown["current"], shown["positions"]["0"], shown["stores"]) == (
        4,
        3,
        ["count/1", "count/2", "count/3"],
    )
    assert json.loads(contents(store)["/words/current"])["write"] == 6


@pytest.mark.rule(25, 27, 31)
def test_the_last_recorded_attempt_that_opened_a_store_is_remembered_in_the_same_multi(
    backend: Backend, store: Unreliable
) -> None:
    state = opened(store)
    commit(state, 1, touched_stores={"count/counts": 2, "sum/counts": 1})
    state.seal(attempt(2, 3), TASKS, None)
    before, before_trips = state.known_stores, store.round_trips
    state.record(attempt(2, 3), {}, {"count/counts": 5})
    assert store.round_trips - before_trips == 1
    assert before == {"count/counts": recorded(1, count=2), "sum/counts": recorded(1)}, (
        "what a job was given does not change under it"
    )
    assert state.known_stores == {
        "count/counts": recorded(2, 3, count=5),
        "sum/counts": recorded(1),
    }
    state.close()
    assert opened(backend.connect(), BOB).known_stores == state.known_stores
    shown = administration.show(store, "words")
    assert (shown["recorded"], shown["counts"]) == (
        {"count/counts": "2:3", "sum/counts": "1:0"},
        {"count/counts": 5, "sum/counts": 1},
    )


@pytest.mark.rule(25, 31)
def test_the_names_of_stores_count_when_it_is_asked_whether_a_transaction_could_be_recorded(
    store: Unreliable,
) -> None:
    state = opened(store, metadata_bytes_max=6000)
    commit(state, 1, touched_stores={"component/" + "n" * 3000: 1})
    positions = {0: "p" * 2500}
    with pytest.raises(errors.BatchTooLargeError):
        state.require_recordable(2, positions)
    assert state.sealed() is None, "no effects can exist"


@pytest.mark.rule(25)
def test_a_transaction_that_opens_no_store_does_not_write_the_record_of_stores(
    store: Unreliable,
) -> None:
    state = opened(store)
    commit(state, 1, touched_stores={"count/counts": 1})
    before = store.get("/words/stores")
    commit(state, 2)
    assert store.get("/words/stores") == before


@pytest.mark.rule(25, 27)
def test_a_list_of_stores_of_another_format_is_unreadable_and_not_taken_as_none(
    backend: Backend, store: Unreliable
) -> None:
    opened(store).close()
    put(store, "/words/stores", b'{"version":1,"stores":{"count/counts": 1}}')
    with pytest.raises(
        errors.UnreadableStateError,
        match="/words/stores cannot be read: it has format version 1, but this txtopo reads 2",
    ):
        opened(backend.connect(), BOB)


@pytest.mark.rule(25)
def test_after_a_lost_answer_the_outcome_is_read_before_anything_is_sent_again(
    store: Unreliable,
) -> None:
    state = opened(store)
    store.log.clear()
    store.lose_next("after")
    state.seal(attempt(1), TASKS, None)
    assert len(store.log) == 1


@pytest.mark.rule(25)
def test_a_request_that_arrives_only_after_the_outcome_was_read_still_counts_once(
    store: Unreliable,
) -> None:
    state = opened(store)
    late: list[list[Operation]] = []

    def delay(operations: Sequence[Operation]) -> memory.Fault | None:
        if not late:
            late.append(list(operations))
            return "before"
        store.fault = None
        store.inner.multi(late[0])
        return None

    store.fault = delay
    state.seal(attempt(1), TASKS, None)
    assert len(late) == 1
    state.record(attempt(1), {0: "a"})
    assert (state.current, json.loads(contents(store)["/words/current"])["write"]) == (2, 2)


@pytest.mark.rule(25)
def test_a_request_that_arrives_after_later_writes_changes_nothing(store: Unreliable) -> None:
    state = opened(store)
    state.seal(attempt(1), TASKS, None)
    late: list[list[Operation]] = []

    def delay(operations: Sequence[Operation]) -> memory.Fault:
        store.fault = None
        late.append(list(operations))
        return "before"

    store.fault = delay
    state.seal(attempt(1, 1), TASKS, None)
    state.record(attempt(1, 1), {0: "a"})
    before = contents(store)
    with pytest.raises(StateConflictError):
        store.inner.multi(late[0])
    assert contents(store) == before
    commit(state, 2)


@pytest.mark.rule(25)
@pytest.mark.parametrize("is_applied", [False, True])
def test_after_a_write_that_was_interrupted_nothing_more_is_written(
    backend: Backend, store: Unreliable, is_applied: bool
) -> None:
    state = opened(store)
    state.seal(attempt(1), TASKS, None)

    def interrupt(operations: Sequence[Operation]) -> memory.Fault | None:
        store.fault = None
        if is_applied:
            store.inner.multi(operations)
        raise KeyboardInterrupt

    store.fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        state.record(attempt(1), {0: "a"})
    before = contents(store)
    record, seal = (
        lambda: state.record(attempt(1), {0: "b"}),
        lambda: state.seal(attempt(1, 1), TASKS, None),
    )
    writes: list[Callable[[], None]] = [record, seal, state.require_held]
    for write in writes:
        with pytest.raises(
            errors.ZooKeeperUnavailableError, match="was interrupted, its outcome is unknown"
        ):
            write()
    assert contents(store) == before
    state.close()
    assert opened(backend.connect(), BOB).current == (2 if is_applied else 1)


@pytest.mark.rule(25)
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_crash_in_the_middle_of_a_record_leaves_it_done_or_not_done(
    backend: Backend, store: Unreliable, fault: memory.Fault
) -> None:
    state = opened(store, wait_s=0.05 if fault == "before" else PATIENCE_S)
    state.seal(attempt(1), TASKS, {"from": 0})
    store.fault = lambda _: fault
    with (
        pytest.raises(errors.ZooKeeperUnavailableError)
        if fault == "before"
        else contextlib.nullcontext()
    ):
        state.record(
            attempt(1), {5: "five"}, {"count/counts": 1}, Seal(attempt(2), TASKS, {"from": 10})
        )
    again = opened(backend.connect(), BOB, displaces=True)
    sealed = again.sealed()
    assert sealed is not None
    done = fault == "after"
    assert (again.current, sealed.txid, again.positions()) == (
        (2, 2, {5: "five"}) if done else (1, 1, {})
    )
    assert again.known_stores == ({"count/counts": recorded(1)} if done else {})


@pytest.mark.rule(25, 26)
def test_a_write_that_was_applied_before_another_took_over_counts_and_the_next_is_refused(
    backend: Backend, store: Unreliable
) -> None:
    state = opened(store)
    state.seal(attempt(1), TASKS, None)
    store.lose_next("after")
    state.record(attempt(1), {0: "a"})
    heir = opened(backend.connect(), BOB, displaces=True)
    assert (state.current, heir.current) == (2, 2)
    with pytest.raises(errors.FencedError):
        state.seal(attempt(2), TASKS, None)


@pytest.mark.rule(26)
def test_a_write_that_was_lost_is_not_repeated_after_another_took_over(
    backend: Backend, store: Unreliable
) -> None:
    state = opened(store)
    state.seal(attempt(1), TASKS, None)
    rival = backend.connect()

    def take_over(_: object) -> memory.Fault:
        store.fault = None
        heir = opened(rival, BOB, displaces=True)
        heir.record(attempt(1), {0: "theirs"})
        return "before"

    store.fault = take_over
    with pytest.raises(errors.FencedError):
        state.record(attempt(1), {0: "ours"})
    assert administration.show(store, "words")["positions"] == {"0": "theirs"}


# Sessions


@pytest.mark.rule(26)
def test_after_an_expired_session_the_lease_is_taken_again_and_work_goes_on(
    backend: Backend,
) -> None:
    session = backend.connect()
    state = opened(session)
    commit(state, 1)
    backend.expire(session)
    commit(state, 2)
    assert (state.current, state.epoch) == (3, 1)
    with pytest.raises(errors.FencedError, match=r"alpha\.example"):
        opened(backend.connect(), BOB)


@pytest.mark.rule(26)
def test_an_idle_coordinator_takes_its_lease_again(backend: Backend) -> None:
    session = backend.connect()
    state = opened(session)
    backend.expire(session)
    rival = backend.connect()
    wait_until(lambda: rival.get("/words/lease") is None)
    state.renew()
    assert rival.get("/words/lease") is not None
    with pytest.raises(errors.FencedError, match=r"alpha\.example"):
        opened(rival, BOB)


@pytest.mark.rule(26)
@pytest.mark.parametrize("expires", [False, True])
def test_the_state_keeps_how_the_newest_run_ended(backend: Backend, expires: bool) -> None:
    opened(backend.connect()).close(End("2024-05-01T09:00:00+00:00", 0))
    session = backend.connect()
    state = opened(session)
    if expires:
        backend.expire(session)
    rival = backend.connect()
    wait_until(lambda: not expires or rival.get("/words/lease") is None)
    state.close(ENDED)
    shown = administration.show(rival, "words")
    assert shown["lease"] is None
    assert shown["ended"] == {
        **dataclasses.asdict(ENDED),
        "epoch": 2,
        "host": "alpha.example",
        "pid": 11,
        "name": "words-run",
    }


@pytest.mark.rule(25)
def test_a_coordinator_that_writes_pays_nothing_for_its_lease(backend: Backend) -> None:
    session = backend.connect()
    state, trips = opened(session), RoundTrips(session)
    for txid in (1, 2, 3):
        commit(state, txid)
        before = trips.count
        state.renew()
        assert trips.count == before


@pytest.mark.rule(26)
def test_a_displacing_coordinator_takes_a_live_topology_and_the_idle_holder_notices_and_stops_writing(
    backend: Backend,
) -> None:
    state = opened(backend.connect())
    state.renew()
    rival = backend.connect()
    heir = opened(rival, BOB, displaces=True)
    assert state.taken_from is None
    assert heir.taken_from is not None
    assert (heir.taken_from.host, heir.taken_from.epoch) == (ALICE.host, 1)
    before = contents(rival)
    for ask in (state.renew, state.require_held, lambda: state.seal(attempt(1), TASKS, None)):
        with pytest.raises(
            errors.FencedError, match=r"epoch 2, now held by pid 22 on host beta\.example"
        ):
            ask()
    state.close(ENDED)
    assert contents(rival) == before
    heir.require_held()
    commit(heir, 1)


@pytest.mark.rule(26)
def test_a_lease_that_cannot_be_read_hinders_no_displacing_coordinator(backend: Backend) -> None:
    opened(backend.connect())
    store = backend.connect()
    put(store, "/words/lease", b"{")
    heir = opened(store, BOB, displaces=True)
    assert heir.taken_from is None
    heir.require_held()


@pytest.mark.rule(26)
def test_the_lease_of_a_dead_process_of_this_machine_delays_no_coordinator(
    backend: Backend,
) -> None:
    dead = subprocess.run(
        [
            sys.executable,
            "-c",
            "from txtopo.state import liveness; print(liveness.process_identity())",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    state = opened(backend.connect(), dataclasses.replace(ALICE, process=dead))
    rival = backend.connect()
    heir = opened(rival, BOB)
    assert heir.epoch == 2
    with pytest.raises(errors.FencedError, match=r"beta\.example"):
        state.seal(attempt(1), TASKS, None)
    heir.close()
    living = opened(
        backend.connect(), dataclasses.replace(ALICE, process=liveness.process_identity())
    )
    with pytest.raises(errors.HeldError, match=r"alpha\.example"):
        opened(rival, BOB)
    living.close()


@pytest.mark.rule(26)
def test_after_an_expired_session_a_coordinator_whose_topology_was_taken_writes_nothing(
    backend: Backend,
) -> None:
    session = backend.connect()
    state = opened(session)
    state.seal(attempt(1), TASKS, None)
    backend.expire(session)
    rival = backend.connect()
    wait_until(lambda: rival.get("/words/lease") is None)
    heir = opened(rival, BOB)
    before = contents(rival)
    for write in (
        state.renew,
        lambda: state.record(attempt(1), {0: 1}),
        lambda: state.seal(attempt(1, 1), TASKS, None),
    ):
        with pytest.raises(errors.FencedError, match="epoch 2"):
            write()
    assert contents(rival) == before
    heir.record(attempt(1), {0: 2})
    assert heir.positions() == {0: 2}


@pytest.mark.rule(26, 27)
def test_a_coordinator_of_an_older_incarnation_writes_nothing_though_every_version_is_the_same(
    backend: Backend,
) -> None:
    session, other = backend.connect(), backend.connect()
    zombie = opened(session)
    backend.expire(session)
    wait_until(lambda: other.get("/words/lease") is None)
    administration.reset(other, "words")
    heir = opened(other, BOB)
    assert (heir.epoch, heir.current) == (zombie.epoch, zombie.current)
    assert heir.generation != zombie.generation
    before = contents(other)
    with pytest.raises(errors.FencedError, match="reset"):
        zombie.seal(attempt(1), TASKS, None)
    assert contents(other) == before


# Waiting


@pytest.mark.rule(25)
def test_a_wait_is_bounded_and_the_error_says_that_nothing_is_lost(store: Unreliable) -> None:
    state = opened(store, wait_s=0.05)
    store.fault = lambda _: "before"
    with pytest.raises(errors.ZooKeeperUnavailableError, match="Nothing is lost") as away:
        state.seal(attempt(1), TASKS, None)
    assert away.value.exit_code == 5
    store.fault = None
    with pytest.raises(errors.ZooKeeperUnavailableError):
        state.seal(attempt(1), TASKS, None)
    assert store.get("/words/txids/0000000001") is None


@pytest.mark.rule(25)
def test_abandoning_ends_a_wait_in_another_thread_and_closing_still_gives_the_lease_back(
    store: Unreliable,
) -> None:
    state = opened(store, wait_s=3600)
    waiting = threading.Event()

    def lose(_: object) -> memory.Fault:
        waiting.set()
        return "before"

    store.fault = lose
    raised: list[BaseException] = []

    def seal() -> None:
        try:
            state.seal(attempt(1), TASKS, None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=seal)
    thread.start()
    assert waiting.wait(PATIENCE_S)
    state.abandon()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [type(error).__name__ for error in raised] == ["AbandonedError"]
    store.fault = None
    state.close()
    assert store.get("/words/lease") is None


# Bounds


@pytest.mark.rule(25)
def test_a_record_beyond_the_bound_is_refused_before_the_write_and_says_what_to_do(
    store: Unreliable,
) -> None:
    state = opened(store, metadata_bytes_max=4096)
    before = contents(store)
    large = {str(partition): "x" * 20 for partition in range(300)}
    too_large = r"metadata of 300 partitions, has \d+ bytes; the bound is metadata_bytes_max = 4096\n.*fewer than 300 partitions"
    with pytest.raises(errors.BatchTooLargeError, match=too_large):
        state.seal(attempt(1), TASKS, large)
    with pytest.raises(errors.BatchTooLargeError, match=too_large):
        state.txids.get_state(1, lambda txid, last: TxidRecord(txid=txid, metadata=large))
    assert (state.sealed(), state.txids.txids()) == (None, [])
    state.seal(attempt(1), TASKS, None)
    with pytest.raises(errors.BatchTooLargeError, match=too_large):
        state.record(
            attempt(1), {int(partition): metadata for partition, metadata in large.items()}
        )
    assert (state.current, state.positions()) == (1, {})
    assert contents(store)["/words/epoch"] == before["/words/epoch"]
    state.record(attempt(1), {0: "small"})
    assert state.current == 2


@pytest.mark.rule(25)
def test_metadata_that_rides_along_waits_when_it_does_not_fit(store: Unreliable) -> None:
    state = opened(store, metadata_bytes_max=4096)
    for txid in (1, 2, 3):
        state.txids.get_state(txid, lambda txid, last: TxidRecord(txid=txid, metadata="x" * 1000))
    state.seal(attempt(1), TASKS, "x" * 1000)
    assert state.txids.pending == {3}
    state.record(attempt(1), {})
    state.seal(attempt(2), TASKS, "x" * 1000)
    assert state.txids.pending == frozenset()
    assert all(
        sum(len(getattr(operation, "data", b"")) for operation in multi) <= 4096
        for multi in store.log
    )


@pytest.mark.rule(23, 25)
def test_a_seal_that_does_not_fit_beside_the_record_follows_in_a_second_multi(
    store: Unreliable,
) -> None:
    state = opened(store, metadata_bytes_max=4096)
    state.seal(attempt(1), TASKS, "x" * 2000)
    store.log.clear()
    state.record(attempt(1), {0: "x" * 2000}, {}, Seal(attempt(2), TASKS, "x" * 2000))
    assert len(store.log) == 2
    sealed = state.sealed()
    assert sealed is not None
    assert (state.current, sealed.txid, state.positions()) == (2, 2, {0: "x" * 2000})


# What is broken


@pytest.mark.in_gate("memory-*", "zookeeper-current-*")
@pytest.mark.rule(25, 27)
@pytest.mark.parametrize("garbage", [b"", b"{", b'{"version":9}', b"null", b"7"])
@pytest.mark.parametrize(
    "node", ["generation", "epoch", "current", "stores", "txids/0000000001", "positions/0"]
)
def test_garbage_anywhere_stops_the_run_names_the_node_and_overwrites_nothing(
    store: Unreliable, node: str, garbage: bytes
) -> None:
    state = opened(store)
    commit(state, 1, {0: "a"})
    state.close()
    put(store, f"/words/{node}", garbage)
    before = contents(store)
    with pytest.raises(errors.UnreadableStateError, match=f"/words/{node}") as unreadable:
        opened(store)
    assert unreadable.value.exit_code == 6
    after = contents(store)
    assert {path: data for path, data in after.items() if path != "/words/epoch"} == {
        p: d for p, d in before.items() if p != "/words/epoch"
    }
    shown = administration.show(store, "words")
    assert "unreadable" in json.dumps(shown)


@pytest.mark.rule(25)
@pytest.mark.parametrize("node", ["epoch", "current", "stores", "txids/0000000001"])
def test_a_node_that_is_missing_is_never_taken_as_a_new_beginning(
    store: Unreliable, node: str
) -> None:
    state = opened(store)
    commit(state, 1)
    state.close()
    store.multi([Delete(f"/words/{node}")])
    with pytest.raises(errors.UnreadableStateError, match=node.partition("/")[0]):
        opened(store)


@pytest.mark.rule(25, 27)
def test_a_missing_generation_among_other_nodes_is_unreadable(store: Unreliable) -> None:
    state = opened(store)
    state.close()
    store.multi([Delete(f"/words/generation/{state.generation}"), Delete("/words/generation")])
    with pytest.raises(errors.UnreadableStateError, match="/words/generation"):
        opened(store)


@pytest.mark.rule(25)
def test_a_record_under_the_txid_of_another_is_unreadable(store: Unreliable) -> None:
    opened(store).close()
    put(store, "/words/txids/0000000003", TxidRecord(txid=4).encode())
    with pytest.raises(errors.UnreadableStateError, match="record of txid 4"):
        opened(store)


@pytest.mark.rule(25)
def test_a_record_removed_by_hand_while_running_stops_the_run(store: Unreliable) -> None:
    state = opened(store)
    state.seal(attempt(1), TASKS, None)
    store.multi([Delete("/words/txids/0000000001")])
    with pytest.raises(errors.UnreadableStateError, match="by hand"):
        state.seal(attempt(1, 1), TASKS, None)


@pytest.mark.rule(24)
def test_metadata_is_made_in_strict_order(store: Unreliable) -> None:
    state = opened(store)
    with pytest.raises(StrictOrderError):
        state.txids.get_state(2, planned)
    with pytest.raises(ValueError, match="cannot be kept under"):
        state.txids.get_state(1, lambda txid, last: TxidRecord(txid=2))


# From outside


@pytest.mark.rule(25)
def test_shown_state_is_json_and_complete(store: Unreliable) -> None:
    state = opened(store)
    commit(state, 1, {3: {"to": 1}, 20: None}, touched_stores={"b": 1, "a": 2})
    shown = administration.show(store, "words")
    assert json.loads(json.dumps(shown)) == shown
    record = {
        "txid": 1,
        "status": "sealed",
        "attempt_id": 0,
        "tasks": TASKS,
        "metadata": {"from": 0},
        "opened_at": None,
    }
    assert {key: shown[key] for key in shown if key != "lease"} == {
        "topology_id": "words",
        "generation": state.generation,
        "epoch": 1,
        "current": 2,
        "paused": None,
        "standbys": [],
        "records": {"1": record},
        "positions": {"3": {"to": 1}, "20": None},
        "stores": ["a", "b"],
        "recorded": {"a": "1:0", "b": "1:0"},
        "counts": {"a": 2, "b": 1},
        "ended": None,
        "components": None,
    }
    assert (shown["lease"]["host"], shown["lease"]["pid"]) == ("alpha.example", 11)
    state.close()
    assert administration.show(store, "words")["lease"] is None


@pytest.mark.rule(26, 27)
def test_a_reset_is_refused_while_held_and_then_begins_a_new_generation(store: Unreliable) -> None:
    state = opened(store)
    commit(state, 1, {0: "a"})
    with pytest.raises(errors.FencedError, match=r"alpha\.example"):
        administration.reset(store, "words")
    assert administration.show(store, "words")["current"] == 2
    state.close()
    administration.reset(store, "words")
    assert administration.topologies(store) == []
    again = opened(store)
    assert (again.current, again.positions(), again.generation != state.generation) == (1, {}, True)


def test_a_topology_that_does_not_exist_is_named_beside_those_that_do(store: Unreliable) -> None:
    opened(store)
    for call in (administration.show, administration.reset):
        with pytest.raises(errors.UsageError, match=r"'wrods'[\s\S]*'words'"):
            call(store, "wrods")
    assert administration.topologies(store) == ["words"]
