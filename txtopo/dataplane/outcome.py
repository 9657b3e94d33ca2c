"""Task outcomes, as data: counts and times (``Tally``), and user code's failure.

A worker's exception would reach the driver only as text.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import linecache
import os
import pickle
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from txtopo import errors
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt

FailureKind = Literal["failed", "stale", "error"]
_Number = TypeVar("_Number", int, float)

_TEXT_MAX = 20_000
_FRAMES_MAX = 2_000
_INTERNAL = (f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__)
"""Frames with a path that begins so are not the user's."""
_EMBEDDED = re.compile(r"<txtopo-failure:([0-9a-f]{64}):([A-Za-z0-9+/=]+):>")


@dataclass(frozen=True, slots=True)
class Failure:
    """A user hook that raised an error. ``cause`` is the pickled exception if txtopo raised it, or
    the pickled class for the driver's error."""

    kind: FailureKind
    component: str
    task: int
    attempt: TransactionAttempt
    phase: str
    hook: str
    error: str
    traceback: str
    cause: bytes | None = None

    def to_error(self) -> errors.TxtopoError:
        """The error with which this failure ends a run."""
        where = (
            self.component,
            self.task,
            str(self.attempt),
            self.phase,
            self.hook,
            self.error,
            with_source(self.traceback),
        )
        if self.cause is not None:
            cause = pickle.loads(self.cause)
            if type(cause) is errors.UsageError:
                placed = errors.UsageError(f"{cause}\n{self._place}".rstrip())
                placed.__notes__ = cause.__notes__
                return placed
            if isinstance(cause, errors.TxtopoError):
                return cause
            if isinstance(cause, type) and issubclass(cause, errors.UserCodeError):
                return cause(*where)
        return errors.UserCodeError(*where)

    @property
    def _place(self) -> str:
        where = f"component {self.component!r}, task {self.task}, attempt {self.attempt}, {self.phase} phase, {self.hook}"
        return f"  in {where}\n{with_source(self.traceback)}"

    def __str__(self) -> str:
        return f"{self.error}\n{self._place}"

    def to_text(self, secret: bytes) -> str:
        """A line from which :func:`from_text` reads this failure, wherever the line is embedded.
        Signed with the run's ``secret``."""
        data = base64.b64encode(pickle.dumps(self)).decode()
        return f"<txtopo-failure:{_signature(data, secret)}:{data}:>"


def from_text(text: str, secret: bytes) -> Failure | None:
    """The failure embedded in ``text``, if a failure there is signed with ``secret``.

    Spark's text may quote anything, even a line of input. So text without this run's signature is
    never unpickled.
    """
    for match in _EMBEDDED.finditer(text):
        if hmac.compare_digest(match[1], _signature(match[2], secret)):
            failure: Failure = pickle.loads(base64.b64decode(match[2]))
            return failure
    return None


def _signature(data: str, secret: bytes) -> str:
    return hmac.new(secret, data.encode(), "sha256").hexdigest()


class AbortedError(BaseException):
    """Unwinds user code once a failure is recorded. No ``Exception``, so that ``except Exception``
    does not catch the error (R7)."""


class FailureInTaskError(Exception):
    """Ends a Spark task early, with the failure in its text. Waiting for the task's siblings would
    delay the failure (R7)."""


def describe(error: BaseException) -> str:
    """``Type: message``, even if the exception's ``__str__`` raises."""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    name = type(error).__qualname__
    module = type(error).__module__
    qualified = (
        name
        if module in ("builtins", "__main__", "__mp_main__", pickling.FILE_MODULE)
        else f"{module}.{name}"
    )
    return (f"{qualified}: {text}" if text else qualified)[:_TEXT_MAX]


def user_traceback(error: BaseException) -> str:
    """The error's traceback, without the data plane's frames above and below the user's.

    An error that txtopo itself raises is the user's mistake. The error's message is shown
    elsewhere, and the traceback ends with the user's line. Without a frame in user code, the
    traceback is empty.
    """
    shown = traceback.TracebackException.from_exception(error, limit=-_FRAMES_MAX)
    if type(error).__module__.startswith("txtopo.") and len(_chain(shown)) == 1:
        users = [
            i for i, frame in enumerate(shown.stack) if not frame.filename.startswith(_INTERNAL)
        ]
        stack = traceback.StackSummary.from_list(
            shown.stack[users[0] : users[-1] + 1] if users else []
        )
        return (
            _bounded("Traceback (most recent call last):\n" + "".join(stack.format()))
            if stack
            else ""
        )
    for part in _chain(shown):
        own = [
            i for i, frame in enumerate(part.stack) if "/txtopo/dataplane/" not in frame.filename
        ]
        if own:
            part.stack = traceback.StackSummary.from_list(part.stack[own[0] : own[-1] + 1])
    try:
        text = "".join(shown.format())
    except Exception:
        text = "(its traceback cannot be shown)\n"
    return _bounded(text)


def with_source(text: str) -> str:
    """Add source lines that only this process has, from a file that the worker's machine lacks, or
    from a notebook's cell."""

    def shown(frame: re.Match[str]) -> str:
        line = linecache.getline(frame[1], int(frame[2])).strip()
        return f"{frame[0]}    {line}\n" if line else frame[0]

    return re.sub(r'^  File "(.+)", line (\d+), in .*\n(?!    )', shown, text, flags=re.MULTILINE)


def _bounded(text: str) -> str:
    return (
        text
        if len(text) <= _TEXT_MAX
        else text[: _TEXT_MAX // 2] + "\n  ...\n" + text[-_TEXT_MAX // 2 :]
    )


def _chain(shown: traceback.TracebackException | None) -> list[traceback.TracebackException]:
    chain = []
    while shown is not None:
        chain.append(shown)
        shown = shown.__cause__ or shown.__context__
    return chain


@dataclass(slots=True)
class Tally:
    """Counts, times and metadata from tasks."""

    executed: dict[str, int] = field(default_factory=dict)
    emitted: dict[str, int] = field(default_factory=dict)
    metadata: dict[int, Any] = field(default_factory=dict)
    """Metadata by partition, learnt in an emission job."""
    partition_counts: set[int] = field(default_factory=set)
    """How many partitions an opaque spout's tasks saw. If there are two numbers, the tasks
    disagree."""
    stores: dict[str, int] = field(default_factory=dict)
    """By ``component/store`` name, how many transactions the store committed (R34)."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """By phase, how long tasks were at work, all together."""
    widest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By component with several tasks, the largest number of tuples that a task executed or
    emitted, and the task's index."""
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """By component and name, how much user code counted."""
    work_s: dict[str, float] = field(default_factory=dict)
    """By component, how long its tasks were at work. Only of transactions that are measured."""

    def __reduce__(self) -> tuple[Any, ...]:
        counts = (self.executed, self.emitted, self.metadata, self.partition_counts)
        rest = (self.counters, self.work_s) if self.counters or self.work_s else ()
        return Tally, (*counts, self.stores, self.busy_s, self.widest, *rest)

    def add(self, other: Tally) -> None:
        _sum_up(self.executed, other.executed)
        _sum_up(self.emitted, other.emitted)
        _sum_up(self.stores, other.stores)
        _sum_up(self.busy_s, other.busy_s)
        _sum_up(self.work_s, other.work_s)
        for id, task in other.widest.items():
            self.widest[id] = max(self.widest.get(id, task), task)
        for id, sums in other.counters.items():
            _sum_up(self.counters.setdefault(id, {}), sums)
        self.metadata.update(other.metadata)
        self.partition_counts |= other.partition_counts

    def add_task(
        self,
        component: str,
        index: int | None,
        executed: int,
        emitted: int,
        stores: Mapping[str, int],
        counters: Mapping[str, int],
    ) -> None:
        """Add one task's counts. ``index`` is ``None`` if the component has no other task."""
        self.executed[component] = self.executed.get(component, 0) + executed
        self.emitted[component] = self.emitted.get(component, 0) + emitted
        _sum_up(self.stores, stores)
        if index is not None:
            task = (max(executed, emitted), index)
            self.widest[component] = max(self.widest.get(component, task), task)
        if counters:
            _sum_up(self.counters.setdefault(component, {}), counters)


def _sum_up(own: dict[str, _Number], theirs: Mapping[str, _Number]) -> None:
    for name, number in theirs.items():
        own[name] = own[name] + number if name in own else number


@dataclass(slots=True)
class Report:
    """A slot's report to the next level or, from the last level, to the driver. ``own`` is the
    slot's tally. ``before`` is the tally of all earlier levels, which is the same in every slot's
    report."""

    job: str
    slot: int
    task_attempt: int
    own: Tally = field(default_factory=Tally)
    before: Tally = field(default_factory=Tally)
    lineage: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (level, slot), the task attempt id of each computation that this slot's data came from:
    R33's fence."""
    failure: Failure | None = None
    result_bytes: int = 0
    """The results' size: held bolts, or a recorded emission."""
    late_rows: bool = False
    """Held bolts emitted while executing, so there are rows for the late job."""
    outgrown: bool = False
    """The results were larger than may come back to the driver, and were dropped."""
