"""Says where a late task is: component, task, hook and stack (R8).

A thread in the worker looks at the task's thread from outside, ten times within a time-out. So a
hook costs nothing more, and a hook that sleeps, spins or waits in C code is shown alike. On a local
master the worker writes a file, which the driver reads when a phase times out. On a cluster no
directory is shared, and the worker prints the place. C code that keeps Python's lock stops the
thread. Then ``faulthandler``, which needs no lock, prints the stack.

Runs on: executor (:class:`Watch`) and driver (:func:`places`).

Invariants: watching changes no task's result. The thread lives as long as its process: an error is
printed, and after a fork the next task begins a new thread. The file of a task that has ended is
removed. The run's directory and the files go when the run ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

from txtopo.dataplane import outcome
from txtopo.dataplane.columns.task import ArrowBoltTask
from txtopo.dataplane.guard import Guard
from txtopo.dataplane.job import Job, Run
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask

_LATE = 0.8
"""A task is late after this part of the time-out, because its place must be known before the end.
``faulthandler`` prints the stack after as long without a look."""
_LOOKS = 10
_PRINTED_MAX = 3
_FRAMES_MAX = 100
_STACKS_MAX = 4
_STDERR = 2
_M_ARENA_MAX = -8
"""``mallopt``'s number for the bound on such reserves."""
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
    """Watches a task inside ``with``. ``level`` and ``slot`` tell the job's tasks apart.

    ``submitted_at``: when the job went to Spark, in seconds since 1970, by the driver's clock. If
    the clocks of two hosts differ, a later level's place is told early, or too late.
    """

    def __init__(
        self, run: Run, job: Job, level: int = 0, slot: int = 0, submitted_at: float = math.inf
    ) -> None:
        self.timeout_s = run.conf["message_timeout_s"]
        self._run, self._job = run, job
        self._name = f"{job.name}.{level}.{slot}"
        spent_s = max(0.0, time.time() - submitted_at)
        self._late_at = time.monotonic() + _LATE * self.timeout_s - spent_s
        self._thread = threading.get_ident()
        self._reports = 0

    def __enter__(self) -> None:
        global _watcher
        if _watcher is None or not _watcher.is_alive() or self.timeout_s < _watcher.timeout_s:
            _watcher = Watcher(self.timeout_s)
            _watcher.try_look()  # before any C code can keep the lock
            _spare_addresses()
            with contextlib.suppress(RuntimeError):  # no thread is left: the next task tries again
                _watcher.start()
        _watcher.task = self

    def __exit__(self, *raised: object) -> None:
        if _watcher is not None and _watcher.task is self:
            _watcher.task = None
        if self._reports:
            self._remove()

    def look(self, now: float) -> None:
        """Tell the task's place if the task is late ``now``, by the monotonic clock."""
        frame = sys._current_frames().get(self._thread)
        if now < self._late_at or frame is None:
            return
        self._reports += 1
        if not self._run.late_tasks:
            if self._reports > _PRINTED_MAX:
                return
            text = f"{_heading(self._run, self._job.name)}\n  in {place(frame)}"
            print(text, end="", file=sys.stderr, flush=True)
            return
        directory = Path(self._run.late_tasks)
        with contextlib.suppress(FileNotFoundError):  # the run has ended
            unfinished = directory / f"new-{self._name}"
            unfinished.write_text(place(frame), "utf-8", "backslashreplace")
            unfinished.replace(directory / self._name)
        if _watcher is not None and _watcher.task is not self:
            self._remove()  # the task ended meanwhile

    def _remove(self) -> None:
        if self._run.late_tasks:
            (Path(self._run.late_tasks) / self._name).unlink(missing_ok=True)


def place(frame: FrameType) -> str:
    """The innermost hook around ``frame`` on the first line, and below it the stack inside the
    hook."""
    where = "unknown component, between two hooks"
    inside: list[tuple[FrameType, int]] = []
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code is Guard.call.__code__:
            where = "component {component!r}, task {task}, {hook}".format_map(outer.f_locals)
            break
        if outer.f_code in _HOOKS:
            bolt = outer.f_locals["self"]
            where = f"component {bolt.component.id!r}, task {bolt.index}, {_HOOKS[outer.f_code]}"
            break
        inside.append((outer, outer.f_lineno))
        outer = outer.f_back
    stack = traceback.StackSummary.extract(reversed(inside[:_FRAMES_MAX]))
    return f"{where}\n{''.join(stack.format())}"


class Watcher(threading.Thread):
    """This process's thread. ``task`` is the watched task, if a task is at work."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(name="txtopo-late-tasks", daemon=True)
        self.task: Watch | None = None
        self.timeout_s = timeout_s

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
        task = self.task
        if task is not None:
            self.timeout_s = task.timeout_s
        if "PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS" not in os.environ:  # Spark's, on the same timer
            faulthandler.dump_traceback_later(_LATE * self.timeout_s, file=_STDERR)
        if task is not None:
            task.look(now)


_watcher: Watcher | None = None


def _spare_addresses() -> None:
    """Let a new thread take memory where the others do. GNU's C library would reserve 64 MiB of
    addresses for the thread, and ``spark.executor.pyspark.memory`` bounds them."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _heading(run: Run, job: str) -> str:
    return f"{run.graph.id} {job} is late"


def places(run: Run, job: str, is_running: Callable[[], bool]) -> str:
    """Where the late tasks of ``job`` are, for the end of a message: on the first line the hooks,
    below the stacks. ``is_running``: Spark says that a task runs."""
    late: list[str] = []
    if run.late_tasks:
        for path in sorted(Path(run.late_tasks).glob(f"{job}.*")):
            with contextlib.suppress(FileNotFoundError):  # the task has ended meanwhile
                late.append(path.read_text("utf-8"))
                path.unlink()
    if late:
        names = "; ".join(text.partition("\n")[0] for text in late)
        stacks = [f"  in {outcome.with_source(text)}".rstrip() for text in late[:_STACKS_MAX]]
        return "\n".join([f": {names}", *stacks])
    if not is_running():
        return (
            ": none of its tasks runs\n"
            "  Spark has no free slot, is slow to begin, or has lost an executor."
        )
    if run.late_tasks:
        return (
            ": no task says where it is\n"
            "  Its worker is dead or suspended, or C code keeps Python's lock: then its stack is on standard error."
        )
    return (
        f": only the executor knows where, search its standard error for '{_heading(run, job)}'\n"
        "  Component, task, hook and stack follow this line. Spark's page links to the executors' standard error.\n"
        "  Without this line the worker is dead, suspended or cut off, or C code keeps Python's lock: then its stack is there."
    )
