"""The sinks' contract: a committer that writes to a destination of its own writes each transaction
once and whole (R28, R29, R31).

``bolt`` checks a committer with its stores in a whole run. This module drives one sink by hand,
kills it at every line of its own code, and asks for as much as its guarantee says.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import inspect
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused, true
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology import bolt, destination, pickling
from txtopo.topology.conf import TopologyConf
from txtopo.topology.stream import DEFAULT_STREAM, Fields, Tuple, TupleSource
from txtopo.topology.transaction import TransactionAttempt

MakeSink = Callable[[Path], Any]
"""Makes the sink over the destination in a directory. Equal directories have equal destinations."""

Contents = Callable[[Path], Iterable[Any]]
"""The destination's committed rows in a directory, in any order."""

Share = Sequence[Sequence[Any]]
"""One task's rows."""

CONTRACT = clauses.Contract["Subject"]("sink")
"""Every promise that sinks make. ``only="takes back"``: only if the sink's guarantee says so."""

ROWS_MIN = 4
POINTS_MAX = 500
"""How many lines of its code a sink is killed at, at most."""

_COMPONENT, _TASKS = "write", 2
_TESTED_ELSEWHERE = ("txtopo.sinks.", "txtopo.stores.", "txtopo.topology.")
_WAIT_S, _TICK_S = 60.0, 0.002
_KILLED = 86
"""The exit code if a process was killed at a line."""

_ONCE = "In the destination's transaction, keep task and txid of the rows. Write rows only if task and txid are not there."
_FENCE = "Keep the component's (txid, attempt) at the destination. Compare and raise the pair in the transaction that writes the rows."
_WHOLE = "Write all rows of a task, and the record that they are written, in one transaction."
_TAKE_BACK = "Mark each row with its txid. In a newer attempt's first task remove all rows with its txid, or say takes_back=False."
_DESTINATION = "Keep a txtopo.Destination in an attribute of the sink. guarantee() gives a name and describes the contents."


class _Collected(bolt.BatchOutputCollector):
    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = []

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self.values.append((stream, *values[1:]))

    def emit_direct(
        self, task_index: int, values: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> None:
        self.values.append((stream, task_index, *values[1:]))


@dataclass(frozen=True)
class SinkReport:
    """The extent of a check by :func:`check_sink`."""

    clauses: int
    """How many clauses were checked."""
    points: int
    """How many lines the sink was killed at."""
    takes_back: bool
    """Whether the sink's guarantee promises to undo a failed attempt's writes, so that the check
    asked for the undoing."""


class Subject:
    """A sink and its rows, for every clause. ``root`` is an empty directory."""

    def __init__(
        self, make_sink: MakeSink, rows: Share, fields: Fields, contents: Contents, root: Path
    ) -> None:
        self._make_sink = make_sink
        self.rows = rows
        self._fields = fields
        self._contents = contents
        self._root = root
        self._directories = 0
        self.points = 0

    def new(self) -> Path:
        """A new directory, and so a new destination."""
        self._directories += 1
        directory = self._root / f"sink-{self._directories}"
        directory.mkdir()
        return directory

    def sink(self, directory: Path) -> Any:
        """The sink as tasks get it: a pickled copy."""
        return pickling.loads(pickling.dumps(self._make_sink(directory)))

    def guarantees(self) -> tuple[destination.Guarantee, ...]:
        sink, search = self._make_sink(self.new()), destination.Search()
        pickling.dumps_with_classes(sink, search.visit)
        return search.writes(sink).destinations

    def write(
        self,
        directory: Path,
        txid: int,
        attempt: int,
        *shares: Share,
        task: int = 0,
        tasks: int = _TASKS,
        is_whole: bool = True,
    ) -> list[list[tuple[Any, ...]]]:
        """Write one attempt of ``tasks`` tasks in one process: each task, from ``task`` on, writes one
        of ``shares``, and the other tasks nothing, unless they are dead: ``is_whole`` is False.
        Returns the emitted tuples of tasks with a share."""
        by_task = dict(enumerate(shares, start=task))
        others = [other for other in range(tasks) if is_whole and other not in by_task]
        with contextlib.closing(WorkerProcess()) as process:
            emitted = [
                self._write(process, directory, txid, attempt, number, tasks, share)
                for number, share in by_task.items()
            ]
            for other in others:
                self._write(process, directory, txid, attempt, other, tasks, ())
            return emitted

    def _write(
        self,
        process: WorkerProcess,
        directory: Path,
        txid: int,
        attempt: int,
        task: int,
        tasks: int,
        share: Share,
    ) -> list[tuple[Any, ...]]:
        sink = self.sink(directory)
        collected = _Collected()
        tried = TransactionAttempt(txid, attempt)
        source = TupleSource("spout", 0, DEFAULT_STREAM, self._fields)
        sink.prepare(
            TopologyConf({}), process.task(_COMPONENT, task, num_tasks=tasks), collected, tried
        )
        for row in share:
            sink.execute(Tuple((tried, *row), source))
        sink.finish_batch()
        return collected.values

    def contents(self, directory: Path) -> collections.Counter[str]:
        """How often each row is committed."""
        return collections.Counter(map(repr, self._contents(directory)))

    def expected(self, *transactions: Share) -> collections.Counter[str]:
        """The rows in a destination if one task writes each transaction, without failures."""
        directory = self.new()
        for txid, rows in enumerate(transactions, start=1):
            self.write(directory, txid, 0, rows)
        return self.contents(directory)

    @functools.cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(_files_of(self._make_sink(self.new())))

    def killed_at(self, line: int, action: Callable[[], object]) -> bool:
        """Do ``action`` in a child process, killed at its ``line``-th line in the sink's code. False
        if ``action`` ended before."""
        files = self._files
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # other threads are of no use to the child
            child = os.fork()
        if child == 0:
            _act_until(line, files, action)
        return _exit_code(child) == _KILLED


def _files_of(sink: Any) -> set[str]:
    """The source files with the sink's classes and its destinations' classes."""
    search = destination.Search()
    pickling.dumps_with_classes(sink, search.visit)
    parts = [part for _, part in search.destinations]
    classes = {
        cls
        for part in (sink, *parts)
        for cls in type(part).__mro__
        if not cls.__module__.startswith(_TESTED_ELSEWHERE)
    }
    # Otherwise a method with @contextmanager would name the file of its decorator.
    methods = (
        getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
        for cls in classes
        for method in vars(cls).values()
    )
    return {code.co_filename for code in methods if code is not None}


def _act_until(line: int, files: frozenset[str], action: Callable[[], object]) -> None:
    """In a child process: do ``action``, and die without a word at the ``line``-th line run in
    ``files``."""
    code, left = 1, line

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os._exit(_KILLED)
        return trace

    # The parent's garbage may be objects of libraries that do not survive a fork.
    gc.disable()
    try:
        sys.settrace(trace)
        action()
        code = 0
    finally:
        sys.settrace(None)
        os._exit(code)


def _exit_code(child: int) -> int:
    deadline = time.monotonic() + _WAIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            true(code in (0, _KILLED), f"a task that was not killed ended with exit code {code}")
            return code
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise clauses.BrokenClauseError(f"a task did not end within {_WAIT_S:g} s")
        time.sleep(_TICK_S)


@CONTRACT.clause(
    "a sink is a committer, and a destination in it gives a guarantee", 32, cure=_DESTINATION
)
def _destination(subject: Subject) -> None:
    sink = subject.sink(subject.new())
    true(
        isinstance(sink, bolt.ICommitter),
        f"{type(sink).__name__} is no ICommitter: it would write in the processing phase",
    )
    guarantees = subject.guarantees()
    true(bool(guarantees), f"there is no Destination in {type(sink).__name__}")
    true(
        all(guarantee.name and guarantee.holds for guarantee in guarantees),
        "the guarantee has no name, or does not describe the contents",
    )


@CONTRACT.clause(
    "a replayed transaction is written once, and emits the same tuples", 28, cure=_ONCE
)
def _replayed(subject: Subject) -> None:
    first, second = subject.rows[::2], subject.rows[1::2]
    expected, directory = subject.expected([*first, *second]), subject.new()
    emitted = subject.write(directory, 1, 0, first, second)
    for attempt in (0, 1, 2):
        equal(
            subject.write(directory, 1, attempt, first, second),
            emitted,
            f"the emitted tuples of attempt 1:{attempt}",
        )
        equal(subject.contents(directory), expected, f"the rows after attempt 1:{attempt}")


@CONTRACT.clause("the next transaction is written beside the last one", 28, cure=_ONCE)
def _next(subject: Subject) -> None:
    first, second = subject.rows[::2], subject.rows[1::2]
    expected, directory = subject.expected(first, second), subject.new()
    subject.write(directory, 1, 3, first)
    subject.write(directory, 2, 0, second)
    subject.write(directory, 2, 1, second)
    equal(subject.contents(directory), expected, "the rows after transaction 2")


@CONTRACT.clause(
    "a replay completes a transaction that only some tasks have written", 28, cure=_ONCE
)
def _completed(subject: Subject) -> None:
    first, second = subject.rows[::2], subject.rows[1::2]
    expected, directory = subject.expected([*first, *second]), subject.new()
    subject.write(directory, 1, 0, first, is_whole=False)
    subject.write(directory, 1, 1, first, second)
    equal(subject.contents(directory), expected, "the rows after the replay")


@CONTRACT.clause("a late task of an older attempt is refused, and changes nothing", 29, cure=_FENCE)
def _late(subject: Subject) -> None:
    first, second, late = subject.rows[:1], subject.rows[1:2], subject.rows[2:]
    directory = subject.new()
    subject.write(directory, 1, 5, first)
    subject.write(directory, 2, 1, second)
    before = subject.contents(directory)
    for txid, attempt in ((2, 0), (1, 5), (1, 9)):
        late_task = f"a task in attempt {txid}:{attempt} after attempt 2:1 has written"
        for task in range(_TASKS):
            refused(
                errors.FailedException,
                functools.partial(subject.write, directory, txid, attempt, late, task=task),
                late_task,
            )
            equal(subject.contents(directory), before, f"the rows after {late_task}")


@CONTRACT.clause(
    "a task that dies at any line leaves all its rows or none, and a replay completes them",
    28,
    cure=_WHOLE,
)
def _killed(subject: Subject) -> None:
    first, second = subject.rows[:2], subject.rows[2:]
    before, after = subject.expected(first), subject.expected(first, second)
    for line in range(1, POINTS_MAX + 1):
        directory = subject.new()
        subject.write(directory, 1, 0, first)
        if not subject.killed_at(line, functools.partial(subject.write, directory, 2, 0, second)):
            return
        subject.points += 1
        rows = subject.contents(directory)
        died = f"a task that died at line {line} of its code"
        true(
            rows in (before, after),
            f"the rows of {died}: {dict(rows)}, neither {dict(before)} nor {dict(after)}",
        )
        subject.write(directory, 2, 1, second)
        equal(subject.contents(directory), after, f"the rows after the replay of {died}")


@CONTRACT.clause(
    "a failed attempt's rows are taken back if the batch is opaque",
    31,
    cure=_TAKE_BACK,
    only="takes back",
)
def _taken_back(subject: Subject) -> None:
    kept, void, other = subject.rows[:1], subject.rows[1:3], subject.rows[3:]
    expected, directory = subject.expected(kept, other), subject.new()
    subject.write(directory, 1, 0, kept)
    subject.write(directory, 2, 0, void, subject.rows[3:])
    subject.write(directory, 2, 1, other, tasks=1)  # as a run with another parallelism
    equal(subject.contents(directory), expected, "the rows after a replay with other tuples")


@CONTRACT.clause("a task without rows takes back as well", 31, cure=_TAKE_BACK, only="takes back")
def _taken_back_by_nothing(subject: Subject) -> None:
    kept, void = subject.rows[:1], subject.rows[1:3]
    expected, directory = subject.expected(kept), subject.new()
    subject.write(directory, 1, 0, kept)
    subject.write(directory, 2, 0, void)
    subject.write(directory, 2, 1, (), task=1)
    equal(subject.contents(directory), expected, "the rows after a replay without tuples")


def check_sink(
    make_sink: MakeSink, rows: Share, *, fields: Sequence[str], contents: Contents
) -> SinkReport:
    """Run a sink of your own through its whole contract.

    ``make_sink(directory)`` gives the sink, a committer, over the destination in ``directory``,
    which is empty the first time. ``rows`` are at least four different tuples without the attempt.
    ``fields`` are the names of their values. ``contents(directory)`` gives the destination's
    committed rows, in any order, and an empty list if the sink has written nothing.

    For each line of code that the sink runs, a process is forked and killed at the line. So define
    the sink's classes in a file, and hold no lock that a child would need.

    :raises ContractError: the first clause that is broken, with the number of its rule.
    :raises UsageError: there are fewer than four rows.
    """
    if len(rows) < ROWS_MIN:
        raise errors.UsageError(
            f"check_sink was given {len(rows)} rows\n  Give at least {ROWS_MIN} different rows."
        )
    with tempfile.TemporaryDirectory(prefix="txtopo-sink-") as root:
        subject = Subject(make_sink, rows, Fields("tx", *fields), contents, Path(root))
        takes_back = any(guarantee.takes_back for guarantee in subject.guarantees())
        chosen = [clause for clause in CONTRACT.clauses if clause.only is None or takes_back]
        for clause in chosen:
            clause.run(subject)
        return SinkReport(len(chosen), subject.points, takes_back)
