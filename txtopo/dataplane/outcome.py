"""How a task ended, as data: a worker's exception would reach the driver only as text."""

from __future__ import annotations

import base64
import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any, Literal

from txtopo import errors
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt

FailureKind = Literal["failed", "stale", "error"]

_TEXT_MAX = 20_000
_FRAMES_MAX = 2_000
_BEGIN, _END = "<txtopo-failure:", ":>"


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
        where = (self.component, self.task, str(self.attempt), self.phase, self.hook, self.error, self.traceback)
        if self.cause is not None:
            cause = pickle.loads(self.cause)
            if isinstance(cause, errors.TxtopoError):
                return cause
            if isinstance(cause, type) and issubclass(cause, errors.UserCodeError):
                return cause(*where)
        return errors.UserCodeError(*where)

    def __str__(self) -> str:
        where = f"component {self.component!r}, task {self.task}, attempt {self.attempt}, {self.phase} phase, {self.hook}"
        return f"{self.error}\n  in {where}\n{self.traceback}"

    def to_text(self) -> str:
        """A line from which :func:`from_text` finds this failure again, wherever it is embedded."""
        return _BEGIN + base64.b64encode(pickle.dumps(self)).decode() + _END


def from_text(text: str) -> Failure | None:
    """The failure embedded in ``text``, if there is one."""
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin < 0 or end < 0:
        return None
    failure: Failure = pickle.loads(base64.b64decode(text[begin + len(_BEGIN) : end]))
    return failure


class AbortedError(BaseException):
    """Unwinds user code once a failure is recorded. Not an ``Exception``, so that ``except Exception`` lets it pass (R7)."""


class FailureInTaskError(Exception):
    """Ends a Spark task early with a failure in its text, when waiting for the task's siblings would make it late (R7)."""


def describe(error: BaseException) -> str:
    """``Type: message``; survives an exception whose own ``__str__`` raises."""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    name = type(error).__qualname__
    module = type(error).__module__
    qualified = name if module in ("builtins", "__main__", pickling.FILE_MODULE) else f"{module}.{name}"
    return (f"{qualified}: {text}" if text else qualified)[:_TEXT_MAX]


def user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` without the frames of the data plane around the user's, above and below."""
    shown = traceback.TracebackException.from_exception(error, limit=-_FRAMES_MAX)
    for part in _chain(shown):
        own = [i for i, frame in enumerate(part.stack) if "/txtopo/dataplane/" not in frame.filename]
        if own:
            part.stack = traceback.StackSummary.from_list(part.stack[own[0] : own[-1] + 1])
    try:
        text = "".join(shown.format())
    except Exception:
        text = "(its traceback cannot be shown)\n"
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX // 2] + "\n  ...\n" + text[-_TEXT_MAX // 2 :]


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
    """What an emission job learnt, by partition."""
    partition_counts: set[int] = field(default_factory=set)
    """How many partitions the tasks of an opaque spout saw; more than one number means that they disagree."""
    stores: set[str] = field(default_factory=set)
    """``component/store`` names that were written."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """How long tasks were at work, all together, by phase."""

    def add(self, other: Tally) -> None:
        """Add what other tasks counted and learnt."""
        for mine, theirs in ((self.executed, other.executed), (self.emitted, other.emitted)):
            for component, count in theirs.items():
                mine[component] = mine.get(component, 0) + count
        for phase, busy_s in other.busy_s.items():
            self.busy_s[phase] = self.busy_s.get(phase, 0.0) + busy_s
        self.metadata.update(other.metadata)
        self.partition_counts |= other.partition_counts
        self.stores |= other.stores


@dataclass(slots=True)
class Report:
    """What a slot tells the next level and, from the last level, the driver. ``before`` is the tally of all levels before this one, the same in
    every slot's report; ``own`` is that of this slot."""

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
