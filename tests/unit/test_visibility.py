"""Visible transactions are the recorded ones, of one moment, also during changes and without any
run.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from txtopo import (
    OutrunError,
    TransactionAttempt,
    UnreadableStateError,
    UsageError,
    Visibility,
    VisibleTxid,
    ZooKeeperUnavailableError,
    visible_txid,
    wait_until_visible,
)
from txtopo.runtime import visibility
from txtopo.state import base, opening
from txtopo.state.layout import Layout
from txtopo.state.memory import MemoryServer, MemoryStateStore
from txtopo.state.records import TxidRecord
from txtopo.state.topology import Holder, TopologyState
from txtopo.topology.transaction import RecordedAttempt

ALICE = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00", "words-run")
TASKS = {"spout": 1, "count": 1}


class Recorder:
    """A coordinator of topology ``words``, which records transactions."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.state = TopologyState.open(MemoryStateStore(self.server), "words", ALICE, wait_s=1.0)
        self.looks = 0
        self.is_live = True

    def commit(self, *stores: str) -> None:
        txid = self.state.current
        attempt = TransactionAttempt(txid, txid % 2)
        self.state.txids.get_state(txid, lambda txid, last: TxidRecord(txid=txid))
        self.state.seal(attempt, TASKS, None)
        self.state.record(attempt, {}, dict.fromkeys(stores, 1), None)

    def commit_thrice(self) -> None:
        for _ in range(3):
            self.commit()

    @contextlib.contextmanager
    def opened(self, *where: Any) -> Iterator[opening.Opened]:
        self.looks += 1
        yield opening.Opened(MemoryStateStore(self.server), "memory", self.is_live)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(opening, "opened", recorder.opened)
    return recorder


@pytest.mark.rule(25, 31)
def test_visible_is_the_recorded_txid_with_the_recorded_attempts(recorder: Recorder) -> None:
    assert visible_txid("words") == 0
    recorder.commit("count/counts")
    recorder.commit()
    visible = visible_txid("words")
    assert isinstance(visible, VisibleTxid)
    assert (visible, visible.topology_id, visible.generation) == (
        2,
        "words",
        recorder.state.generation,
    )
    assert visible.stores == {"count/counts": RecordedAttempt(1, 1, 1)}
    copied = pickle.loads(pickle.dumps(visible))
    assert (copied, copied.topology_id, copied.generation, copied.stores) == (
        2,
        "words",
        visible.generation,
        visible.stores,
    )
    assert repr(copied) == "<txid 2 of topology 'words'>"


def test_a_sealed_transaction_is_not_visible(recorder: Recorder) -> None:
    recorder.commit()
    recorder.state.txids.get_state(2, lambda txid, last: TxidRecord(txid=txid))
    recorder.state.seal(TransactionAttempt(2, 0), TASKS, None)
    assert visible_txid("words") == 1


@pytest.mark.rule(25)
def test_a_reading_is_of_one_moment_also_during_writes(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.commit("count/counts")
    right, commits = MemoryStateStore.get, iter(range(3))

    def get(store: MemoryStateStore, path: str) -> base.Node | None:
        # Between the first read and the next ones of each look, a transaction is recorded.
        if path == Layout("words").stores and next(commits, None) is not None:
            monkeypatch.undo()
            recorder.commit("count/counts")
            monkeypatch.setattr(MemoryStateStore, "get", get)
        return right(store, path)

    with Visibility("words") as seen:
        seen.txid()
        monkeypatch.setattr(MemoryStateStore, "get", get)
        visible = seen.txid()
    assert (visible, visible.stores) == (4, {"count/counts": RecordedAttempt(4, 0, 1)}), (
        "after three tries that were overtaken"
    )
    assert next(commits, None) is None


def test_a_state_that_is_never_still_is_reported(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "READ_TRIES_MAX", 0)
    with pytest.raises(ZooKeeperUnavailableError, match="changed 0 times while it was read"):
        visible_txid("words")


def test_an_unknown_topology_is_refused(recorder: Recorder) -> None:
    with pytest.raises(
        UsageError, match=r"there is no state of a topology 'letters' in .*\n.*txtopo status"
    ):
        visible_txid("letters")


def test_a_data_directory_in_which_nothing_ran_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing is stored in"):
        visible_txid("words", data_dir=tmp_path)
    with pytest.raises(UsageError, match="either in a data_dir or in a zookeeper"):
        Visibility("words", data_dir=tmp_path, zookeeper="localhost:2181")


def test_an_incomplete_state_is_unreadable(recorder: Recorder) -> None:
    MemoryStateStore(recorder.server).multi([base.Delete(Layout("words").stores)])
    with pytest.raises(
        UnreadableStateError, match="it is missing, although the topology has a current txid"
    ):
        visible_txid("words")


def test_a_transaction_is_waited_for_over_one_connection(recorder: Recorder) -> None:
    committing = threading.Thread(target=recorder.commit_thrice)
    with Visibility("words", zookeeper="localhost:1") as seen:
        seen.txid()
        committing.start()
        assert seen.wait(3, timeout_s=PATIENCE_S) == 3
    committing.join()
    assert recorder.looks == 1


def test_waiting_ends_and_says_how_far_it_came(recorder: Recorder) -> None:
    recorder.commit()
    with pytest.raises(
        TimeoutError,
        match=r"transaction 2 of topology 'words' is not visible after 0.05 s: transaction 1 is",
    ):
        wait_until_visible("words", 2, timeout_s=0.05, zookeeper="localhost:1")
    with pytest.raises(
        TimeoutError, match=r"is not visible after 0 s: there is no state of a topology 'letters'"
    ):
        wait_until_visible("letters", 1, timeout_s=0, zookeeper="localhost:1")


@pytest.mark.rule(37)
def test_a_run_that_ends_while_it_is_asked_does_not_break_its_reader(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.commit()
    right, losses = MemoryStateStore.get, iter([True])

    def get(store: MemoryStateStore, path: str) -> base.Node | None:
        if next(losses, False):
            raise base.StateUnavailableError("the server has ended")
        return right(store, path)

    monkeypatch.setattr(MemoryStateStore, "get", get)
    assert visible_txid("words") == 1
    assert recorder.looks == 2


def test_a_connection_that_has_ended_for_good_is_not_kept(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that a server has refused does not connect again; another one may."""
    recorder.commit()
    right, losses = MemoryStateStore.get, iter([True])

    def get(store: MemoryStateStore, path: str) -> base.Node | None:
        if next(losses, False):
            raise ZooKeeperUnavailableError("the client has ended")
        return right(store, path)

    monkeypatch.setattr(MemoryStateStore, "get", get)
    with Visibility("words") as seen:
        with pytest.raises(ZooKeeperUnavailableError, match="has ended"):
            seen.txid()
        assert seen.txid() == 1
    assert recorder.looks == 2


def test_an_ensemble_that_does_not_answer_is_told_at_once(recorder: Recorder) -> None:
    recorder.server.stop()
    with pytest.raises(ZooKeeperUnavailableError, match="does not answer"):
        visible_txid("words", zookeeper="localhost:1")
    assert recorder.looks == 1


def test_a_reading_is_repeated_until_it_fits(recorder: Recorder) -> None:
    def reading(visible: VisibleTxid) -> int:
        if visible < 2:
            recorder.commit()
            raise OutrunError("counts", "words", int(visible), int(visible) + 2)
        return int(visible)

    with Visibility("words") as seen:
        assert seen.read(reading) == 2
        with pytest.raises(OutrunError, match="transaction 9 has begun there"):
            seen.read(_never_fits, timeout_s=0)


def _never_fits(visible: VisibleTxid) -> None:
    raise OutrunError("counts", "words", 7, 9)
