"""The outcome of tasks, as data: their counts and times (``Tally``), and the failure of user code.

An exception of a worker would reach the driver only as text.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from txtopo import errors
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt

FailureKind = Literal["failed", "stale", "error"]

_TEXT_MAX = 20_000
_FRAMES_MAX = 2_000
_INTERNAL = (f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__)
"""The beginnings of the paths of frames that are not the user's."""
_EMBEDDED = re.compile(r"<txtopo-failure:([0-9a-f]{64}):([A-Za-z0-9+/=]+):>")


@dataclass(frozen=True, slots=True)
class Failure:
    """A user hook that raised. ``cause`` is the pickled exception if it is one of ours."""

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
        """The error that ends a run because of this failure."""
        where = (
            self.component,
            self.task,
            str(self.attempt),
            self.phase,
            self.hook,
            self.error,
            _with_source(self.traceback),
        )
        if self.cause is not None:
            cause = pickle.loads(self.cause)
            if type(cause) is errors.UsageError:
                return errors.UsageError(f"{cause}\n{self._place}".rstrip())
            if isinstance(cause, errors.TxtopoError):
                return cause
            if isinstance(cause, type) and issubclass(cause, errors.UserCodeError):
                return cause(*where)
        return errors.UserCodeError(*where)

    @property
    def _place(self) -> str:
        where = f"component {self.component!r}, task {self.task}, attempt {self.attempt}, {self.phase} phase, {self.hook}"
        return f"  in {where}\n{_with_source(self.traceback)}"

    def __str__(self) -> str:
        return f"{self.error}\n{self._place}"

    def to_text(self, secret: bytes) -> str:
        """A line from which :func:`from_text` reads this failure, wherever the line is embedded;
        signed with the run's ``secret``."""
        data = base64.b64encode(pickle.dumps(self)).decode()
        return f"<txtopo-failure:{_signature(data, secret)}:{data}:>"


def from_text(text: str, secret: bytes) -> Failure | None:
    """The failure embedded in ``text``, if there is one that was signed with ``secret``.

    A text of Spark's may quote anything, also a line of the input: a text without a signature of
    this run is never unpickled.
    """
    for match in _EMBEDDED.finditer(text):
        if hmac.compare_digest(match[1], _signature(match[2], secret)):
            failure: Failure = pickle.loads(base64.b64decode(match[2]))
            return failure
    return None


def _signature(data: str, secret: bytes) -> str:
    return hmac.new(secret, data.encode(), "sha256").hexdigest()


class AbortedError(BaseException):
    """Unwinds user code once a failure is recorded. Not an ``Exception``, so that ``except
    Exception`` does not catch it (R7)."""


class FailureInTaskError(Exception):
    """Ends a Spark task early with a failure in its text, when waiting for the task's siblings
    would make it late (R7)."""


def describe(error: BaseException) -> str:
    """``Type: message``; survives an exception whose own ``__str__`` raises."""
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
    """The traceback of ``error`` without the frames of the data plane around the user's, above and
    below.

    An error that txtopo itself raises is the user's mistake, and its message is told apart from
    this: the last frame is then the user's line. Without a frame of the user's there is no
    traceback.
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


def _with_source(text: str) -> str:
    """``text`` with the source lines that only this process has: of a file that the worker's
    machine lacks, or of a cell in a notebook."""

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
    """What tasks counted and learnt."""

    executed: dict[str, int] = field(default_factory=dict)
    emitted: dict[str, int] = field(default_factory=dict)
    metadata: dict[int, Any] = field(default_factory=dict)
    """Metadata by partition, learnt in an emission job."""
    partition_counts: set[int] = field(default_factory=set)
    """How many partitions the tasks of an opaque spout saw; more than one number means that the
    tasks disagree."""
    stores: dict[str, int] = field(default_factory=dict)
    """By ``component/store`` name, how many transactions of that store were committed (R34)."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """How long tasks were at work, all together, by phase."""

    def add(self, other: Tally) -> None:
        """Add the counts and the metadata of other tasks."""
        for own, theirs in (
            (self.executed, other.executed),
            (self.emitted, other.emitted),
            (self.stores, other.stores),
        ):
            for name, count in theirs.items():
                own[name] = own.get(name, 0) + count
        for phase, busy_s in other.busy_s.items():
            self.busy_s[phase] = self.busy_s.get(phase, 0.0) + busy_s
        self.metadata.update(other.metadata)
        self.partition_counts |= other.partition_counts


@dataclass(slots=True)
class Report:
    """The report of a slot to the next level and, from the last level, to the driver. ``before`` is
    the tally of all levels before this one, the same in every slot's report; ``own`` is that of
    this slot."""

    job: str
    slot: int
    task_attempt: int
    own: Tally = field(default_factory=Tally)
    before: Tally = field(default_factory=Tally)
    lineage: dict[tuple[int, int], int] = field(default_factory=dict)
    """The task attempt id of every task whose data is in this slot's: the fence of R33."""
    failure: Failure | None = None
    result_bytes: int = 0
    """Size of the results: held bolts, or a recorded emission."""
    late_rows: bool = False
    """Held bolts emitted while executing: there are rows for the late job."""
    outgrown: bool = False
    """The results were larger than may come back to the driver, and were dropped."""
