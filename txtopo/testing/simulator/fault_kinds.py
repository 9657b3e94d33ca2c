"""Faults in schedules: the kinds, and the ways in which each kind strikes.

A new way for a known kind is an entry here, and an effect where the kind strikes. The kinds
``hook``, ``worker`` and ``coordinator`` strike in ``hooks``. ``store`` strikes in
``simulated_store``, and ``world`` asks for it. ``job``, ``recomputed``, ``chunk``, ``cancel`` and
``clock`` strike in ``executors``. ``driver``, ``state``, ``read`` and ``opening`` strike in
``driver``, and ``settings`` strikes in ``schedule``. A new kind changes the random choices for
every seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

FaultKind = Literal[
    "hook",
    "worker",
    "coordinator",
    "store",
    "job",
    "recomputed",
    "chunk",
    "cancel",
    "driver",
    "state",
    "settings",
    "clock",
    "read",
    "opening",
]
"""hook: a user's hook raises FailedException · worker: the process dies in one · coordinator: a
hook of the spout coordinator raises · store: a store transaction fails · job: Spark loses a job, or
is slow · recomputed: a slot is computed twice · chunk: a chunk of a shuffle is lost or doubled ·
cancel: cancelled tasks run on · driver: it dies or is suspended · state: a write to ZooKeeper, or
its acknowledgement, is lost · settings: a driver starts with other settings · clock: the clock of
the user's code jumps · read: a read from ZooKeeper, or its answer, is lost · opening: the spout's
thread waits before a read of state shared with other threads."""

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

TRACE_PREFIXES: dict[str, str] = {
    "hook": "it fails ",
    "worker": "its worker process dies ",
    "coordinator": "it fails ",
    "store": "it fails ",
    "recomputed": "it is computed twice, and ",
    "chunk": "a chunk that it sends ",
    "cancel": "it is cancelled, ",
}
"""The words that a trace puts between a fault's place and its way."""

DIES = "the driver dies"
SUSPENSIONS = {
    f"the driver is suspended until {commits} more are committed": commits for commits in (0, 1, 2)
}
DRIVER_FAULTS = (DIES, DIES, *SUSPENSIONS)
STATE_FAULTS = (
    "the request is lost",
    "the acknowledgement is lost",
    "the session expires",
    "the driver dies when it is applied",
)
WAITS = "it waits until one more transaction is recorded"
READ_FAULTS = ("the answer is lost", "the session expires", "the driver dies")
STORE_FAULTS = ("before it began", "after it committed")

THE_END = 1 << 30
"""More commit jobs than any run has."""


@dataclass(frozen=True, slots=True)
class RunsOn:
    """When a job is given up, its launched tasks run on after so many commit jobs have ended well.
    ``None``: the tasks end with the job."""

    after: int | None = None

    def __str__(self) -> str:
        if self.after is None:
            return "and its tasks with it"
        when = (
            "after the run"
            if self.after == THE_END
            else f"after {self.after} more commit jobs"
            if self.after
            else "at once"
        )
        return f"but its tasks run on, {when}"


@dataclass(frozen=True, slots=True)
class JobFault:
    """A job's fault: Spark loses the job, or the job is so slow that its phase times out and the
    job is cancelled. A slow job may still answer: ``answers``."""

    is_slow: bool
    tasks: RunsOn = RunsOn()
    answers: bool = False

    def __str__(self) -> str:
        if self.answers:
            return "the job is too slow and is given up, but answers later"
        return (
            f"the job is too slow and is given up, {self.tasks}"
            if self.is_slow
            else f"Spark loses the job, {self.tasks}"
        )


RUNS_ON = tuple(RunsOn(after) for after in (0, 1, 2, THE_END))
JOB_FAULTS = (
    *(JobFault(is_slow, tasks) for is_slow in (False, True) for tasks in (RunsOn(), *RUNS_ON)),
    JobFault(is_slow=True, answers=True),
    JobFault(is_slow=True, answers=True),
)
RECOMPUTED = (
    "the first result counts",
    "the second result counts",
    "some receive the first result and some the second",
)
CHUNK_FAULTS = ("is lost", "arrives twice")
