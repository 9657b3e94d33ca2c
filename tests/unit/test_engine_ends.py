"""Ends of the engine: with the right reason, and within its time also if threads hang."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from txtopo import errors
from txtopo.engine.attempts import AttemptFailedError
from txtopo.engine.engine import Engine
from txtopo.spark.threads import WorkThreads
from txtopo.state import retry

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
    engine: Any = object.__new__(Engine)
    engine._state = state
    result: AttemptFailedError = engine._explained(failure)
    return result


@pytest.mark.rule(26, 29)
def test_a_store_that_is_ahead_because_the_topology_was_taken_is_said_to_be_that() -> None:
    fenced = errors.FencedError("another coordinator took it")
    told = explained(AttemptFailedError("fatal", "ahead", AHEAD), State(fenced))
    assert (told.kind, told.error) == ("fatal", fenced)


@pytest.mark.rule(29)
@pytest.mark.parametrize(
    "answer",
    [None, errors.ZooKeeperUnavailableError("away"), retry.AbandonedError("stopping"), errors.UnreadableStateError("/x", "it is not JSON")],
)
def test_a_store_that_is_ahead_is_reported_if_the_topology_is_ours_or_unknown(answer: Exception | None) -> None:
    told = explained(AttemptFailedError("fatal", "ahead", AHEAD), State(answer))
    assert told.error is AHEAD


def test_for_other_failures_zookeeper_is_not_asked() -> None:
    state = State(errors.FencedError("another coordinator took it"))
    failure = AttemptFailedError("crash", "a worker died")
    assert explained(failure, state) is failure
    assert state.asked == 0


def test_threads_that_hang_are_waited_for_once_and_not_each() -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait()

    threads = WorkThreads("hanging", 8)
    for _ in range(8):
        threads.submit(hang)
    began = time.monotonic()
    assert not threads.close(0.5)
    assert time.monotonic() - began < 8 * 0.5
    release.set()
    assert threads.close(30)
