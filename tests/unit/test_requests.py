"""Requests from elsewhere, without Spark: what a pause lets begin, and what a run makes of requests
that are old, unreadable or come while ZooKeeper is away."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.local_engine import run_to_idle
from tests.patience import PATIENCE_S
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    FailedException,
    Fields,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.engine.engine import Engine
from txtopo.engine.observer import Observer
from txtopo.engine.opening import Opening
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.runtime.requests import Requests
from txtopo.runtime.run import TopologyRun
from txtopo.spark.machine import Machine
from txtopo.state import base, layout, records, requests
from txtopo.state.memory import MemoryStateStore
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.transaction import is_first_try

PATHS = layout.Layout("words")


HELD = threading.Event()
"""Transaction 2 is in flight, so the question about transaction 3 waits for the pause's end."""


class FailsOnce(BaseTransactionalBolt):
    """Fails the first attempt at transaction 1, when a later question waits."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        if attempt.txid == 1 and is_first_try(attempt):
            assert HELD.wait(PATIENCE_S)
            raise FailedException("not yet")

    def execute(self, tup: Tuple) -> None: ...

    def finish_batch(self) -> None: ...

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None: ...


def words() -> TopologyGraph:
    spout = MemoryTransactionalSpout(
        {0: [(word,) for word in "abcdef"]}, Fields("word"), take_per_partition=1
    )
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_bolt("fails", FailsOnce()).shuffle_grouping("spout")
    return builder.build_topology()


class Pausing(Observer):
    """Pauses the run as soon as the spout was asked about transaction 2, and resumes it."""

    def __init__(self) -> None:
        self.engine: Engine
        self.board = StatusBoard(RunStatus("words", "words"))
        self.seen: list[tuple[str, int, int]] = []

    def question(self, number: int) -> None:
        if number == 2:
            self.engine.opening.pause()

    def in_flight(
        self, current: int, active: Sequence[tuple[int, int, str]], is_idle: bool
    ) -> None:
        if any(txid == 2 for txid, _, _ in active):
            HELD.set()

    def paused(self) -> None:
        status = self.board.snapshot()
        self.seen.append((status.state, status.current, len(status.active)))
        self.engine.opening.resume()


def test_a_pause_begins_nothing_is_reached_when_all_is_committed_and_ends() -> None:
    HELD.clear()
    pausing = Pausing()

    def keep(engine: Engine) -> None:
        pausing.engine = engine

    observers = [pausing.board, pausing]
    next_txid = run_to_idle(
        words(), MemoryStateStore(), observers=observers, begins=keep, max_spout_pending=3
    )
    assert next_txid == 7
    # Failed attempts are tried again in the pause, and 3 is not begun.
    assert pausing.seen == [("paused", 3, 0)]
    assert pausing.board.snapshot().state == "draining"
    assert pausing.board.snapshot().replays == 2


class NotedEngine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.opening = self

    def __getattr__(self, name: str) -> Any:
        return lambda: self.told.append(name)


@pytest.fixture
def store() -> MemoryStateStore:
    store = MemoryStateStore()
    store.ensure(PATHS.top)
    return store


def ask(store: base.StateStore, **asked: Any) -> None:
    requests.change(store, PATHS, lambda now: now.model_copy(update=asked))


def test_a_run_obeys_once_answers_and_forgets_what_an_earlier_run_was_asked(
    store: MemoryStateStore,
) -> None:
    engine: Any = NotedEngine()
    asked: list[tuple[str, ...]] = []
    run = Requests(store, "words", lambda *facts: asked.append(facts))
    pause = records.PauseRecord(by="me", at="now")
    ask(store, pause=pause, drain=records.DrainRecord(by="me", at="before", epoch=1))
    for _ in range(2):
        run.look(engine, 2)
    assert requests.read(store, PATHS) == records.RequestRecord(pause=pause)
    run.paused()
    run.look(engine, 2)
    assert requests.read(store, PATHS).pause == pause.model_copy(update={"is_reached": True})
    ask(store, pause=None)
    run.look(engine, 2)
    run.paused()  # the loop has not heard of it yet
    run.question(9)
    ask(store, pause=pause)
    run.look(engine, 2)
    assert requests.read(store, PATHS).pause == pause, "the second pause is not reached yet"
    ask(store, drain=records.DrainRecord(by="me", at="now", epoch=2))
    for _ in range(2):
        run.look(engine, 2)
    assert engine.told == ["pause", "resume", "pause", "drain"]
    by = ("me", "now")
    assert asked == [("pause", *by), ("resume", "", ""), ("pause", *by), ("drain", *by)]


def test_a_request_that_cannot_be_read_changes_nothing_and_is_told_once(
    store: MemoryStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    engine: Any = NotedEngine()
    asked: list[tuple[str, ...]] = []
    run = Requests(store, "words", lambda *facts: asked.append(facts))
    ask(store, pause=records.PauseRecord(by="me", at="now"))
    run.look(engine, 1)
    store.multi([base.Set(PATHS.request, b'{"version":1,"pause":"please"}')])
    for _ in range(2):
        run.look(engine, 1)
    assert (engine.told, asked) == (["pause"], [("pause", "me", "now")])
    assert caplog.text.count("requests to topology 'words'") == 1


class AwayStore(MemoryStateStore):
    """A ZooKeeper that may be away."""

    is_gone = False

    def get(self, path: str) -> base.Node | None:
        if self.is_gone:
            raise base.StateUnavailableError("ZooKeeper is away")
        return super().get(path)


def test_a_request_from_the_time_when_zookeeper_was_away_is_obeyed_afterwards() -> None:
    engine: Any = NotedEngine()
    store = AwayStore()
    store.ensure(PATHS.top)
    asked = Requests(store, "words", lambda *_: None)
    state, revives = SimpleNamespace(epoch=1), list[int]()
    run: Any = SimpleNamespace(
        _engine=engine, _state=state, _requests=asked, _revive=lambda: revives.append(1)
    )
    ask(store, pause=records.PauseRecord(by="me", at="now"))
    for store.is_gone, told in ((True, []), (True, []), (False, ["pause"])):
        TopologyRun._each_second(run)
        assert engine.told == told
    assert len(revives) == 3


def test_of_a_resume_and_a_pause_the_later_counts_however_late_the_loop_hears_of_them() -> None:
    actions = list[Any]()

    class Late(Machine):
        """Does what is posted only later, on demand."""

        def post(self, action: Any) -> None:
            actions.append(action)

    questions = list[int]()
    loop: Any = SimpleNamespace(
        surroundings=Late("words"), tell=lambda each: questions.append(1), handle=lambda event: None
    )
    thread: Any = SimpleNamespace(submit=lambda step: None)
    opening = Opening(loop, thread, *[cast(Any, None)] * 3)
    opening.pause()
    opening.ask(1)
    opening.resume()
    opening.pause()
    for action in actions:
        action()
    assert (opening.is_held, questions) == (True, [])
    opening.resume()
    actions[-1]()
    assert (opening.is_held, questions) == (False, [1])
