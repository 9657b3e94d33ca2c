"""Spark runs a closure for the job it was made for, or user code is not reached (R33)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext

from txtopo import TransactionAttempt
from txtopo.dataplane.job import Job, Part
from txtopo.spark import late_tasks, task
from txtopo.spark.task import (
    ForwardFunction,
    LevelFunction,
    RepeatedTaskError,
    ResidentFunction,
    WrongJobError,
)

pytestmark = pytest.mark.rule(33)

JOB = Job("run", "processing", TransactionAttempt(2, 1), {"keep": 1})


class Context:
    """As much of a ``TaskContext`` as a level asks."""

    def __init__(self, asked_for: str | None, earlier_attempts: int = 0) -> None:
        self.asked_for, self.earlier_attempts = asked_for, earlier_attempts

    def attemptNumber(self) -> int:
        return self.earlier_attempts

    def getLocalProperty(self, key: str) -> str | None:
        return self.asked_for if key == task.JOB_PROPERTY else None

    def taskAttemptId(self) -> int:
        return 7


class Reached(LevelFunction):
    """A level that returns its arguments instead of computing."""

    def send(
        self, known: Any, slot: int, task_attempt: int, incoming: Iterator[bytes]
    ) -> Iterator[tuple[int, bytes]]:
        yield slot, b"computed by task attempt %d from %s" % (task_attempt, b"".join(incoming))


class ReachedForward(ForwardFunction):
    """The same for pinned results that are sent on."""

    send = Reached.send


LEVELS = [lambda: Reached(None, JOB, 0, is_last=True), lambda: ReachedForward(None, JOB, 2)]


def run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks know no run, and watch no task."""
    monkeypatch.setattr(task, "_run_of", lambda token, broadcast: SimpleNamespace(run=None))
    monkeypatch.setattr(late_tasks, "Watch", lambda *ignored: contextlib.nullcontext())


def results(
    level: LevelFunction, asked_for: str | None, monkeypatch: pytest.MonkeyPatch
) -> list[bytes]:
    monkeypatch.setattr(TaskContext, "get", lambda: Context(asked_for))
    run_nothing(monkeypatch)
    return list(level(0, iter([b"input"])))


class NeverRead:
    """Input that nobody may touch."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        raise AssertionError("the input was read")


@pytest.mark.parametrize("make", LEVELS, ids=["level", "forward"])
def test_a_closure_runs_for_its_own_job(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        results(make(), "run/2:1:processing", monkeypatch)[-1]
        == b"computed by task attempt 7 from input"
    )


@pytest.mark.parametrize("make", LEVELS, ids=["level", "forward"])
@pytest.mark.parametrize(
    "asked_for",
    [
        "run/2:1:commit",
        "run/2:1:late",
        "run/2:2:processing",
        "run/3:1:processing",
        "other/2:1:processing",
        "",
        None,
    ],
)
def test_a_closure_that_spark_runs_for_another_job_computes_nothing(
    make: Any, asked_for: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Context(asked_for))
    with pytest.raises(WrongJobError, match="of run/2:1:processing was run for"):
        list(make()(0, NeverRead()))


@pytest.mark.parametrize("part", ["commit", "whole"])
def test_a_task_with_effects_that_spark_begins_again_computes_nothing(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Effects of the first run may be stored, or still be under way, in the same attempt: no store
    could tell the two apart."""
    level = Reached(None, dataclasses.replace(JOB, part=part), 0, is_last=True)
    assert results(level, f"run/2:1:{part}", monkeypatch) == [
        b"computed by task attempt 7 from input"
    ]
    monkeypatch.setattr(TaskContext, "get", lambda: Context(f"run/2:1:{part}", earlier_attempts=1))
    with pytest.raises(RepeatedTaskError, match=f"run/2:1:{part} was begun 2 times"):
        list(level(0, NeverRead()))


def test_a_task_without_effects_may_be_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of its output, the receivers take one computation or none."""
    run_nothing(monkeypatch)
    monkeypatch.setattr(
        TaskContext, "get", lambda: Context("run/2:1:processing", earlier_attempts=1)
    )
    assert list(Reached(None, JOB, 0, is_last=True)(0, iter([b"input"]))) == [
        b"computed by task attempt 7 from input"
    ]


NOWHERE = "/nowhere/socket"


@pytest.mark.parametrize(
    ("context", "error"),
    [
        (Context("run/2:1:whole"), WrongJobError),
        (Context(None), WrongJobError),
        (Context("run/resident-1", earlier_attempts=1), RepeatedTaskError),
    ],
)
def test_a_resident_task_of_another_job_or_begun_again_does_not_ask_for_work(
    context: Context, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    with pytest.raises(error, match="run/resident-1"):
        list(ResidentFunction(None, "run", "run/resident-1", NOWHERE)(0, NeverRead()))


def test_a_resident_task_of_its_own_job_asks_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Context("run/resident-1"))
    run_nothing(monkeypatch)
    with pytest.raises(FileNotFoundError):
        list(ResidentFunction(None, "run", "run/resident-1", NOWHERE)(0, iter([b""])))
