"""Storm's rotating state, rule by rule."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.state_backends import RoundTrips
from txtopo import errors
from txtopo.state import base
from txtopo.state.memory import MemoryServer, MemoryStateStore
from txtopo.state.rotating import RotatingTransactionalState, StrictOrderError

pytestmark = pytest.mark.rule(24)


def never(txid: int, last: Any) -> Any:
    raise AssertionError(f"init was called for {txid}")


def after(txid: int, last: Any) -> Any:
    return [txid, last]


def loose(store: base.StateStore, **options: Any) -> RotatingTransactionalState[Any]:
    return RotatingTransactionalState(store, "/words/txids", **options)


@pytest.fixture
def store() -> MemoryStateStore:
    return MemoryStateStore()


def test_a_new_value_is_made_from_the_one_below_and_kept(store: MemoryStateStore) -> None:
    state = loose(store)
    assert state.get_state(1, after) == [1, None]
    assert state.get_state(5, after) == [5, [1, None]]
    assert state.get_state(5, never) == [5, [1, None]]
    assert loose(store).get_state(5, never) == [5, [1, None]]
    assert store.children("/words/txids") == ["0000000001", "0000000005"]


def test_get_state_or_create_is_none_for_a_new_value(store: MemoryStateStore) -> None:
    state = loose(store)
    assert state.get_state_or_create(1, after) is None
    assert state.get_state_or_create(1, never) == [1, None]


def test_a_txid_below_an_existing_one_gets_none_for_ever_and_init_is_not_called(
    store: MemoryStateStore,
) -> None:
    state = loose(store)
    state.override_state(7, "seven")
    assert state.get_state(3, never) is None
    assert (state.has_cache(3), state.has_cache(4)) == (True, False)
    assert loose(store).get_state(3, never) is None
    assert state.get_last_state() == "seven"


def test_a_value_may_itself_be_none(store: MemoryStateStore) -> None:
    state = loose(store, strict_order=True)
    assert state.get_state(1, lambda txid, last: None) is None
    assert state.has_cache(1)
    assert loose(store, strict_order=True).get_state(1, never) is None


def test_strict_order_refuses_a_gap_a_late_start_and_a_txid_below(store: MemoryStateStore) -> None:
    state = loose(store, strict_order=True)
    with pytest.raises(StrictOrderError, match="there is none"):
        state.get_state(2, never)
    state.get_state(1, after)
    with pytest.raises(StrictOrderError, match="the newest is 1"):
        state.get_state(3, never)
    state.get_state(2, after)
    state.remove_state(1)
    with pytest.raises(StrictOrderError, match="txid 2 has"):
        state.get_state(1, never)
    assert state.txids() == [2]


def test_override_ignores_order_and_remove_forgets_existing_values_only(
    store: MemoryStateStore,
) -> None:
    state = loose(store, strict_order=True)
    state.override_state(4, "a")
    state.override_state(4, "b")
    state.remove_state(9)
    assert (state.find(4), state.find(9)) == ("b", None)
    state.remove_state(4)
    assert (state.txids(), state.get_last_state(), store.children("/words/txids")) == ([], None, [])


def test_cleanup_removes_everything_below_even_if_that_leaves_nothing(
    store: MemoryStateStore,
) -> None:
    state = loose(store)
    for txid in (1, 2, 3):
        state.get_state(txid, after)
    state.cleanup_before(3)
    assert state.txids() == [3]
    state.cleanup_before(10)
    assert (state.txids(), store.children("/words/txids")) == ([], [])


def test_an_init_that_fails_stores_nothing(store: MemoryStateStore) -> None:
    state = loose(store)
    with pytest.raises(AssertionError):
        state.get_state(1, never)
    assert (state.txids(), store.children("/words/txids")) == ([], [])
    assert state.get_state(1, after) == [1, None]


def test_values_cannot_be_changed_from_outside(store: MemoryStateStore) -> None:
    state = loose(store)
    value = {"offset": 1}
    returned: Any = state.get_state(1, lambda txid, last: value)
    value["offset"] = returned["offset"] = 2
    assert state.find(1) == {"offset": 1}


@pytest.mark.parametrize("txid", [0, -1, True, "1", 1.0])
def test_a_number_that_is_no_txid_is_refused(store: MemoryStateStore, txid: Any) -> None:
    with pytest.raises(ValueError, match="not a txid"):
        loose(store).get_state(txid, never)
    with pytest.raises(ValueError, match="not a txid"):
        loose(store).override_state(txid, 1)


@pytest.mark.rule(25)
@pytest.mark.parametrize(
    ("name", "data"),
    [("0000000001", b""), ("0000000001", b"{"), ("1", b"1"), ("0000000000", b"1"), ("x", b"1")],
)
def test_an_unreadable_record_stops_and_is_not_taken_as_absent(
    store: MemoryStateStore, name: str, data: bytes
) -> None:
    store.ensure("/words/txids")
    store.multi([base.Create(f"/words/txids/{name}", data)])
    with pytest.raises(errors.UnreadableStateError, match=name):
        loose(store)


def test_deferred_writes_wait_until_they_are_taken_and_only_their_outcome_is_written(
    store: MemoryStateStore,
) -> None:
    store.ensure("/words/txids")
    state = loose(store, deferred=True)
    trips = RoundTrips(store)
    for txid in (1, 2, 3):
        state.get_state(txid, after)
    state.override_state(2, "two")
    state.remove_state(3)
    assert trips.count == 0
    assert state.pending == {1, 2}
    assert state.take_operations() == [
        base.Create("/words/txids/0000000001", b"[1,null]"),
        base.Create("/words/txids/0000000002", b'"two"'),
    ]
    assert state.take_operations() == []
    state.override_state(2, "zwei")
    state.cleanup_before(2)
    assert state.take_operations() == [
        base.Delete("/words/txids/0000000001"),
        base.Set("/words/txids/0000000002", b'"zwei"'),
    ]


def test_operations_that_do_not_fit_stay_pending_without_a_gap(store: MemoryStateStore) -> None:
    state = loose(store, deferred=True)
    for txid, size in ((1, 10), (2, 1000), (3, 10), (4, 2000)):
        state.override_state(txid, "x" * size)
    taken = state.take_operations(bytes_max=900, required=[4])
    assert [operation.path[-1] for operation in taken] == ["4"]
    taken = state.take_operations(bytes_max=900)
    assert [operation.path[-1] for operation in taken] == ["1"]
    assert state.pending == {2, 3}


def test_an_initializer_that_hangs_does_not_keep_operations_from_being_taken(
    store: MemoryStateStore,
) -> None:
    state = loose(store, deferred=True)
    state.get_state(1, after)
    reached, release = threading.Event(), threading.Event()

    def slow(txid: int, last: Any) -> Any:
        reached.set()
        assert release.wait(PATIENCE_S)
        return "slow"

    opener = threading.Thread(target=lambda: state.get_state(2, slow))
    opener.start()
    assert reached.wait(PATIENCE_S)
    assert len(state.take_operations()) == 1
    release.set()
    opener.join(PATIENCE_S)
    assert state.find(2) == "slow"
    assert state.pending == {2}


def interfering(state: RotatingTransactionalState[Any], interfere: Any) -> Any:
    def init(txid: int, last: Any) -> Any:
        thread = threading.Thread(target=interfere, args=(state,))
        thread.start()
        thread.join(PATIENCE_S)
        return after(txid, last)

    return init


def test_a_value_made_from_one_that_was_removed_meanwhile_is_not_kept_in_strict_order(
    store: MemoryStateStore,
) -> None:
    state = loose(store, strict_order=True, deferred=True)
    state.get_state(1, after)
    with pytest.raises(StrictOrderError, match="removed while"):
        state.get_state(2, interfering(state, lambda state: state.remove_state(1)))
    assert state.txids() == []


def test_a_value_made_from_one_that_was_cleaned_away_meanwhile_is_kept(
    store: MemoryStateStore,
) -> None:
    state = loose(store, strict_order=True, deferred=True)
    state.get_state(1, after)
    assert state.get_state(2, interfering(state, lambda state: state.cleanup_before(2))) == [
        2,
        [1, None],
    ]


def test_a_value_that_was_set_while_another_was_made_wins(store: MemoryStateStore) -> None:
    state = loose(store, deferred=True)
    assert (
        state.get_state(1, interfering(state, lambda state: state.override_state(1, "first")))
        == "first"
    )


@pytest.mark.parametrize("fault", ["before", "after"])
def test_after_a_write_of_unknown_outcome_the_store_is_read_again(fault: Any) -> None:
    store = MemoryStateStore(MemoryServer())
    state = loose(store)
    state.get_state(1, after)
    store.fault = lambda operations: fault
    with pytest.raises(base.StateUnavailableError):
        state.get_state(2, after)
    store.fault = None
    assert state.txids() == ([1] if fault == "before" else [1, 2])
    assert state.get_state(2, after) == [2, [1, None]]


def test_a_value_that_the_check_refuses_is_not_kept(store: MemoryStateStore) -> None:
    def check(txid: int, value: Any, data: bytes) -> None:
        if len(data) > 10:
            raise OverflowError(txid)

    state = loose(store, deferred=True, check=check)
    with pytest.raises(OverflowError):
        state.get_state(1, lambda txid, last: "x" * 20)
    with pytest.raises(OverflowError):
        state.override_state(1, "x" * 20)
    assert (state.txids(), state.pending) == ([], frozenset())
