"""Watches this worker's task, and reports the component, task, hook and stack of a late task (R8).

A thread in the worker looks at the task's thread from outside, ten times within a time-out. So a
hook costs nothing more, and a hook that sleeps, spins or waits in C code is reported alike. C code
that keeps Python's lock stops this thread, too. Then ``faulthandler``, which needs no lock, writes
the stack.

Runs on: executor.

Invariants: watching changes no task's result. The thread lives as long as its process: an error is
printed, and after a fork the next task begins a new thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from types import CodeType, FrameType

from txtopo.dataplane import outcome
from txtopo.dataplane.columns.task import ArrowBoltTask
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.job import Job, Run
from txtopo.dataplane.outcome import Failure
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask
from txtopo.spark.late_reports import Line

_LATE = 0.8
"""A task is late after this part of the time-out, because its report must precede the time-out."""
_SILENT = 0.7
"""``faulthandler`` writes the stack after this part of the time-out without a look."""
_LOOKS = 10
_REPORTS_MAX = 3
_FRAMES_MAX = 100
_HOOKS: dict[CodeType, str] = {
    BoltTask.execute_all.__code__: "execute",
    **{
        constant: "execute"
        for constant in BoltTask.sender.__code__.co_consts
        if isinstance(constant, CodeType)
    },
    ArrowBoltTask._give.__code__: "execute_batch",
    SpoutTask.guard_close.__code__: "close",
}
"""Functions that call a hook without the guard, and the hook."""


class Watch:
    """Watches a task inside ``with``. ``level`` and ``slot`` tell the job's tasks apart."""

    def __init__(
        self,
        line: Line,
        timeout_s: float,
        job: Job,
        level: int = 0,
        slot: int = 0,
        submitted_at: float | None = None,
    ) -> None:
        """``submitted_at``: when the job went to Spark, in seconds since 1970, by the driver's
        clock. If the clocks of two hosts differ, a later level's report comes early, or too late.
        """
        self.line, self.timeout_s = line, timeout_s
        self._job, self._slot = job, (level, slot)
        spent_s = 0.0 if submitted_at is None else max(0.0, time.time() - submitted_at)
        self._late_at = time.monotonic() + _LATE * timeout_s - spent_s
        self._thread = threading.get_ident()
        self._reports = 0

    def __enter__(self) -> None:
        global _watcher
        if _watcher is None or not _watcher.is_alive() or self.timeout_s < _watcher.timeout_s:
            _watcher = Watcher(self)
            _watcher.try_look()  # before any C code can keep the lock
            with contextlib.suppress(RuntimeError):  # no thread is left: the next task tries again
                _watcher.start()
        _watcher.task = self

    def __exit__(self, *raised: object) -> None:
        if _watcher is not None and _watcher.task is self:
            _watcher.task = None

    def look(self, now: float) -> None:
        """Report the task if it is late ``now``, by the monotonic clock."""
        frame = sys._current_frames().get(self._thread)
        if now >= self._late_at and frame is not None and self._reports < _REPORTS_MAX:
            self._reports += 1
            self.line.report(self._job.name, self._slot, place(self._job, frame))


def watch(
    run: Run, job: Job, level: int = 0, slot: int = 0, submitted_at: float | None = None
) -> Watch:
    """A watch over one task, with the time-out and the driver's address of ``run``."""
    global _line
    if _line is None or _line[0] != run.token:
        _line = (run.token, Line(run.late_reports, run.secret))
    return Watch(_line[1], run.conf["message_timeout_s"], job, level, slot, submitted_at)


def place(job: Job, frame: FrameType) -> Failure:
    """The innermost hook around ``frame``, and the stack inside the hook. Between two hooks, the
    component is ``""``."""
    component, task, phase, hook = "", 0, str(job.part), "outside hooks"
    inside: list[tuple[FrameType, int]] = []
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code is Guard.call.__code__:
            arguments = outer.f_locals
            component, task, hook = (arguments[name] for name in ("component", "task", "hook"))
            phase = arguments["self"].phase
            break
        if outer.f_code in _HOOKS:
            bolt = outer.f_locals["self"]
            component, task, hook = bolt.component.id, bolt.index, _HOOKS[outer.f_code]
            phase = bolt.guard.phase
            break
        inside.append((outer, outer.f_lineno))
        outer = outer.f_back
    stack = traceback.StackSummary.extract(reversed(inside[:_FRAMES_MAX]))
    text = outcome.bounded("".join(stack.format()))
    return Failure("late", component, task, job.attempt, phase, hook, "has not returned", text)


class Watcher(threading.Thread):
    """This process's thread. ``task`` is the watched task, if a task is at work."""

    def __init__(self, task: Watch) -> None:
        super().__init__(name="txtopo-late-tasks", daemon=True)
        self.task: Watch | None = None
        self.timeout_s = task.timeout_s
        self._line, self._silent_max_s = task.line, _SILENT * task.timeout_s
        self._looked_at = time.monotonic()

    def run(self) -> None:
        """Look again and again, until a task with a shorter time-out begins another thread."""
        while _watcher is self:
            self.try_look()
            time.sleep(self.timeout_s / _LOOKS)

    def try_look(self) -> None:
        """Look now. An error is printed."""
        try:
            self.look(time.monotonic())
        except Exception:
            traceback.print_exc()

    def look(self, now: float) -> None:
        """Look at the present task, and put off ``faulthandler``."""
        task, silent_s, self._looked_at = self.task, now - self._looked_at, now
        if task is not None:
            self._line, self._silent_max_s = task.line, _SILENT * task.timeout_s
        if "PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS" not in os.environ:  # Spark's, on the same timer
            faulthandler.dump_traceback_later(self._silent_max_s, file=self._line)
        if silent_s > self._silent_max_s:
            self._line.awake()
        if task is not None:
            task.look(now)


_watcher: Watcher | None = None
_line: tuple[str, Line] | None = None
"""The newest run's way to its driver, with the run's token."""
