"""Ends of the engine: with the right reason, and within its time also if threads hang."""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.topologies.step_spouts import OpaquePlanned, OpaqueStorm, Source
from tests.unit.test_engine_defers import Jobs, run
from txtopo import errors
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import Tally
from txtopo.engine import engine, steps
from txtopo.engine.attempts import AttemptFailedError, AttemptRunner
from txtopo.engine.batches import Batches
from txtopo.engine.commit_writes import Commits
from txtopo.engine.jobs import JobResult
from txtopo.engine.steps import Steps
from txtopo.spark import threads
from txtopo.state import retry
from txtopo.state.topology import TopologyState

AHEAD = errors.StateMismatchError("the store is ahead")


class State:
    """A topology's state that knows, or does not, whether it is still ours."""

    def __init__(self, answer: Exception | None) -> None:
        self._answer = answer
        self.asked = 0

    def require_held(self) -> None:
        self.asked += 1
        if self._answer is not None:
            raise self._answer


def explained(failure: AttemptFailedError, state: State) -> AttemptFailedError:
    steps: Any = object.__new__(Steps)
    steps._state = state
    result: AttemptFailedError = steps.explained(failure)
    return result


@pytest.mark.rule(26, 29)
def test_a_store_that_is_ahead_because_the_topology_was_taken_is_said_to_be_that() -> None:
    fenced = errors.FencedError("another coordinator took it")
    told = explained(AttemptFailedError("fatal", "ahead", AHEAD), State(fenced))
    assert (told.kind, told.error) == ("fatal", fenced)


@pytest.mark.rule(29)
@pytest.mark.parametrize(
    "answer",
    [
        None,
        errors.ZooKeeperUnavailableError("away"),
        retry.AbandonedError("stopping"),
        errors.UnreadableStateError("/x", "it is not JSON"),
    ],
)
def test_a_store_that_is_ahead_is_reported_if_the_topology_is_ours_or_unknown(
    answer: Exception | None,
) -> None:
    told = explained(AttemptFailedError("fatal", "ahead", AHEAD), State(answer))
    assert told.error is AHEAD


def test_for_other_failures_zookeeper_is_not_asked() -> None:
    state = State(errors.FencedError("another coordinator took it"))
    failure = AttemptFailedError("crash", "a worker died")
    assert explained(failure, state) is failure
    assert state.asked == 0


class HangingThread:
    """Has a clock: time passes only while the thread is waited for."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def join(self, timeout_s: float) -> None:
        self.now_s += timeout_s

    def is_alive(self) -> bool:
        return True


def test_threads_that_hang_are_waited_for_once_and_not_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hanging: Any = HangingThread()
    monkeypatch.setattr(threads, "time", hanging)
    work_threads = threads.WorkThreads("hanging", 0, print)
    work_threads._threads = [hanging] * 8
    assert not work_threads.close(0.5)
    assert hanging.now_s == 0.5


def test_threads_end_after_the_work_they_have() -> None:
    told, done = list[BaseException](), list[int]()
    work_threads = threads.WorkThreads("working", 2, told.append)
    for number in range(8):
        work_threads.submit(functools.partial(done.append, number))
    assert work_threads.close(PATIENCE_S)
    assert (sorted(done), told) == (list(range(8)), [])


def test_a_thread_tells_the_error_of_a_work_and_goes_on() -> None:
    told, done = list[BaseException](), list[int]()
    work_threads = threads.WorkThreads("failing", 1, told.append)
    work_threads.submit(functools.partial(raises, SystemExit("of a work")))
    work_threads.submit(functools.partial(done.append, 1))
    assert work_threads.close(PATIENCE_S)
    assert ([str(error) for error in told], done) == (["of a work"], [1])


def raises(error: BaseException, *arguments: object) -> NoReturn:
    raise error


def test_an_engine_closes_all_although_a_job_cannot_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the program has stopped its Spark. The reason of the end stays the first error."""
    closed: list[str] = []
    monkeypatch.setattr(AttemptRunner, "process", functools.partial(raises, RuntimeError("first")))
    monkeypatch.setattr(
        AttemptRunner, "cancel", functools.partial(raises, AttributeError("second"))
    )
    monkeypatch.setattr(TopologyState, "abandon", lambda self: closed.append("state"))
    monkeypatch.setattr(Batches, "close", lambda self: closed.append("batches"))
    with pytest.raises(RuntimeError, match="first"):
        run(tmp_path, Jobs({}), max_spout_pending=3)
    assert closed == ["state", "batches"]


OWNERS: dict[str, Any] = {
    "open": Batches,
    **dict.fromkeys(("plan", "emit", "process", "apply"), AttemptRunner),
    **dict.fromkeys(("require_held", "seal", "record", "renew"), TopologyState),
    "_seal_of": Commits,
    "refused": steps,
}
"""The steps of an engine's threads. Two come only after another failure, in the handler."""
SPOUTS = {"plan": OpaquePlanned, "emit": OpaqueStorm}


@pytest.mark.parametrize("where", OWNERS)
def test_an_unexpected_error_on_any_thread_of_the_engine_ends_the_run(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OWNERS[where], where, functools.partial(raises, RuntimeError("unexpected")))
    if where in ("require_held", "refused"):
        failure = AHEAD if where == "refused" else AttemptFailedError("fatal", "ahead", AHEAD)
        monkeypatch.setattr(AttemptRunner, "process", functools.partial(raises, failure))
    jobs = Jobs({})
    if where == "renew":
        monkeypatch.setattr(engine, "_RENEW_INTERVAL_S", 0.0)
        cancelled = threading.Event()
        monkeypatch.setattr(jobs, "cancel", lambda group: cancelled.set())

        def until_cancelled(job: Job) -> JobResult:
            assert cancelled.wait(PATIENCE_S)
            return JobResult(Tally())

        jobs.instead["1:0:processing"] = until_cancelled
    make = SPOUTS.get(where)
    spout = None if make is None else make(Source(tmp_path / "journal", 100, 1))
    with pytest.raises(RuntimeError, match="unexpected"):
        run(tmp_path, jobs, spout, drain_timeout_s=1e6)  # a run that waits would not end


@pytest.mark.parametrize("refused", ["renew-0", "spout-0", "commit-0", "process-1"])
def test_an_engine_without_a_thread_keeps_neither_other_threads_nor_the_spouts_coordinator(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, closed, start = set(threading.enumerate()), list[str](), threads.start

    def refuse(work: Callable[[], None], name: str) -> threading.Thread:
        if name == f"txtopo-{refused}":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return start(work, name)

    monkeypatch.setattr(threads, "start", refuse)
    monkeypatch.setattr(Batches, "close", lambda self: closed.append("batches"))
    with pytest.raises(OSError, match="Too many open files"):
        run(tmp_path, Jobs({}), max_spout_pending=2)
    assert closed == ["batches"]
    wait_until(lambda: set(threading.enumerate()) <= before)
