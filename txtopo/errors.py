"""Every txtopo error, in one tree. An error's first line states the fact, the following lines the
cure.

::

    Exception
    ├── FailedException                  raised by users: fail this attempt, replay the batch         (never ends a run)
    │   └── StaleAttemptError            a late task of an older attempt met a store's fence          (R29)
    └── TxtopoError                      exit code 1 unless said otherwise
        ├── UserCodeError                an exception in a spout or bolt, with its traceback
        │   ├── EmitError                wrong first value, arity or stream
        │   ├── HeldStateError           a held bolt has a member that cannot be pickled
        │   ├── OutOfMemoryError         a Python worker may have no more memory
        │   ├── MetadataError            metadata that does not survive JSON
        │   └── StoreConflictError       two writers of one key in one transaction                   (R32)
        ├── RowRefusedError              the database of a sink does not take a row
        ├── WorkerCrashError             workers kept dying on one transaction
        ├── BatchTooLargeError           a row, a held bolt or a record beyond a named bound
        ├── LocalDiskError               no room for the spilled part of a batch
        ├── OutrunError                  a reader asked for a transaction that the store has gone beyond
        ├── SparkLostError               Spark's JVM has ended
        ├── UsageError                   2: the caller asked for something that cannot be
        │   ├── InvalidTopologyError     2: the topology is wrong; lists every mistake
        │   ├── ConfigError              2: an unknown or impossible setting
        │   ├── SetupError               2: Java, Spark, a directory or a library is not as needed
        │   └── InputError               2: a source's input is missing, unreadable or not as planned
        ├── PoisonBatchError             3: one batch failed ``max_attempts`` times
        ├── FencedError                  4: another coordinator took this topology
        │   └── HeldError                4: another coordinator, which is alive, holds it; or a data directory is in use
        ├── ZooKeeperUnavailableError    5: it cannot be reached, or was away for too long
        │   └── ZooKeeperAccessError     5: it does not let us in, or its state belongs to another user
        └── StateMismatchError           6: ZooKeeper and a store, or the code, do not belong together
            └── UnreadableStateError     6: a record exists but cannot be understood

Errors are built from fields and rendered by ``__str__``, so they survive pickling. The address for
an error's page is a note: tracebacks and the command line show notes. A text that quotes the error
does not repeat the address. A ``UsageError`` or ``ConfigError`` names the page of the package that
raises the error: ``ERROR_PAGE`` in the module or the package.
"""

from __future__ import annotations

import sys
from typing import Any

PAGES = "https://txtopo.readthedocs.io/en/latest/"
"""Where the documentation is."""


class FailedException(Exception):
    """Fails this attempt when raised anywhere in a spout or bolt: the batch is replayed, the
    topology lives on (R7)."""


class StaleAttemptError(FailedException):
    """A store's fence stands above this attempt (R29): a newer attempt has begun to write.

    Harmless for a late task, since the driver awaits no answer from a late task. For the live
    attempt the error means that ZooKeeper is older than the store. The coordinator then raises
    :class:`StateMismatchError` instead.
    """

    def __init__(self, store: str, component: str, fence: str, attempt: str) -> None:
        super().__init__(store, component, fence, attempt)
        self.store, self.component, self.fence, self.attempt = store, component, fence, attempt

    def __str__(self) -> str:
        return f"store {self.store}: component {self.component!r} is fenced at attempt {self.fence}; attempt {self.attempt} may not write"


class TxtopoError(Exception):
    """Base of every error that ends a run or refuses to start one."""

    exit_code = 1
    page = ""
    """The page about the error, below :data:`PAGES`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        page = self.page
        if type(self) in (UsageError, ConfigError):
            page = _page_of_raising_package() or page
        if page:
            self.add_note(f"  See {PAGES}{page}")


def _page_of_raising_package() -> str | None:
    """``ERROR_PAGE`` in the module whose code makes an error, or in the nearest package around."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    place = str(frame.f_globals.get("__name__"))
    while place.startswith("txtopo."):
        if (page := vars(sys.modules[place]).get("ERROR_PAGE")) is not None:
            return str(page)
        place = place.rpartition(".")[0]
    return None


class UserCodeError(TxtopoError):
    """An exception in user code. ``traceback`` is text, because the exception may not be
    picklable.

    ``task`` is -1 for a spout coordinator, which runs on the driver.
    """

    def __init__(
        self,
        component: str,
        task: int,
        attempt: str,
        phase: str,
        hook: str,
        error: str,
        traceback: str,
    ) -> None:
        super().__init__(component, task, attempt, phase, hook, error, traceback)
        self.component, self.task, self.attempt, self.phase = component, task, attempt, phase
        self.hook, self.error, self.traceback = hook, error, traceback

    def __str__(self) -> str:
        task = (
            f"task {self.task}, attempt {self.attempt}, {self.phase} phase"
            if self.task >= 0
            else f"on the driver, txid {self.attempt}"
        )
        where = f"component {self.component!r}, {task}, {self.hook}"
        return f"{self.error}\n  in {where}\n{self.traceback}".rstrip()


class EmitError(UserCodeError):
    """An emit that cannot be delivered: its first value is not the attempt, its arity or its stream
    is wrong."""


class HeldStateError(UserCodeError):
    """A held bolt (a committer, or a bolt downstream of a committer) has a member that cannot be
    pickled between the phases (R12)."""


class OutOfMemoryError(UserCodeError):
    """A hook, or txtopo around the hook, got no more memory in its Python worker. ``error`` names
    the settings to change."""


class MetadataError(UserCodeError):
    """A spout made metadata that JSON does not give back as it was."""


class StoreConflictError(UserCodeError):
    """Two writers updated one key of a store in one transaction (R32)."""


class RowRefusedError(TxtopoError):
    """A sink's database does not take a row. The data must be mended, so the batch is not tried
    again.

    ``row`` is the row's text, cut to 300 characters, or empty if the database did not name the row.
    ``number`` counts from 1 in the task, and is 0 if unknown.
    """

    def __init__(
        self, sink: str, component: str, task: int, attempt: str, number: int, row: str, why: str
    ) -> None:
        super().__init__(sink, component, task, attempt, number, row, why)
        self.sink = sink
        self.component = component
        self.task = task
        self.attempt = attempt
        self.number = number
        self.row = row
        self.why = why

    def __str__(self) -> str:
        row = f"row {self.number} of" if self.number else "a row of"
        shown = f"\n  The row: {self.row}" if self.row else ""
        return (
            f"the sink {self.sink} cannot write {row} component {self.component!r}, task {self.task}, attempt {self.attempt}: {self.why}{shown}\n"
            "  The task's rows were not written. Mend the data in its source, drop or convert such rows in a bolt before the sink, or mend the\n"
            "  table. Then run again: the transaction is replayed first."
        )


class WorkerCrashError(TxtopoError):
    """Spark lost its workers ``crashes`` times on one transaction, without progress."""

    def __init__(self, txid: int, crashes: int, message: str) -> None:
        super().__init__(txid, crashes, message)
        self.txid, self.crashes, self.message = txid, crashes, message

    def __str__(self) -> str:
        return (
            f"transaction {self.txid}: workers died {self.crashes} times without progress\n"
            f"  Raise max_crashes to try longer. The last time:\n{self.message.rstrip()}"
        )


class BatchTooLargeError(TxtopoError):
    """A row, a held bolt or a record has grown beyond a named bound."""

    def __init__(self, subject: str, size: int, bound: int, setting: str, cure: str = "") -> None:
        super().__init__(subject, size, bound, setting, cure)
        self.what = subject
        self.size = size
        self.bound = bound
        self.setting = setting
        self.cure = cure

    def __str__(self) -> str:
        cure = self.cure or f"Make the batches smaller, or raise {self.setting}."
        return f"{self.what} has {self.size} bytes; the bound is {self.setting} = {self.bound}\n  {cure}"


class LocalDiskError(TxtopoError):
    """The spilled part of a batch cannot be written to ``directory``, or read there again."""

    def __init__(self, directory: str, why: str) -> None:
        super().__init__(directory, why)
        self.directory, self.why = directory, why

    def __str__(self) -> str:
        return (
            f"a batch larger than memory cannot be spilled to {self.directory}: {self.why}\n"
            "  Make room there, make the batches smaller, or put Spark's local directories on a larger disk (spark.local.dir, unless\n"
            "  SPARK_LOCAL_DIRS or a cluster manager overrules the setting). The transaction is not committed."
        )


class OutrunError(TxtopoError):
    """A store has lost its content as of transaction ``asked``: transaction ``found`` has begun to
    write, and a row remembers one transaction back."""

    def __init__(self, store: str, topology_id: str, asked: int, begun: int) -> None:
        super().__init__(store, topology_id, asked, begun)
        self.store, self.topology_id, self.asked, self.found = store, topology_id, asked, begun

    def __str__(self) -> str:
        return (
            f"store {self.store} cannot be read as of transaction {self.asked} of topology {self.topology_id!r}: "
            f"transaction {self.found} has begun there\n"
            "  Ask for the visible txid again, and read at once: `txtopo.Visibility.read` repeats both until the read succeeds. With several\n"
            "  stores, open every items() and scan() before reading from the first."
        )


class SparkLostError(TxtopoError):
    """The driver's JVM, which carries every request to Spark, has ended or does not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.what = message

    def __str__(self) -> str:
        return (
            f"Spark's JVM has ended, or does not answer any more: {self.what}\n"
            "  Was the JVM killed, or short of memory? Its last lines are above, or in its log. Nothing is lost: run again, and the topology\n"
            "  resumes."
        )


class UsageError(TxtopoError):
    """The request cannot be fulfilled as it is."""

    exit_code = 2
    page = "command-line.html"


class InvalidTopologyError(UsageError):
    """The topology is wrong. ``problems`` lists every mistake found, each naming its component and
    the cure."""

    page = "errors.html#it-does-not-start"

    def __init__(self, topology: str, problems: tuple[str, ...]) -> None:
        super().__init__(topology, problems)
        self.topology, self.problems = topology, problems

    def __str__(self) -> str:
        return f"topology {self.topology!r} is not valid:" + "".join(
            f"\n  - {problem}" for problem in self.problems
        )


class ConfigError(UsageError):
    """A setting is unknown or its value impossible."""

    page = "configuration.html#every-setting"


class SetupError(UsageError):
    """The machine or the Spark session is not as txtopo needs it."""

    page = "errors.html#it-does-not-start"


class InputError(UsageError):
    """The input of a source is missing, unreadable, or differs from the plan."""

    page = "sources.html"


class PoisonBatchError(TxtopoError):
    """One batch failed ``attempts`` times (``max_attempts``)."""

    exit_code = 3
    page = "errors.html#it-ends-with-an-error"

    def __init__(self, txid: int, attempts: int, last_error: str) -> None:
        super().__init__(txid, attempts, last_error)
        self.txid, self.attempts, self.last_error = txid, attempts, last_error

    def __str__(self) -> str:
        return (
            f"transaction {self.txid} failed {self.attempts} time{'' if self.attempts == 1 else 's'}, which is max_attempts\n"
            "  The transaction is not committed. Mend the cause and run again: the transaction is replayed first. Last error:\n"
            f"{self.last_error.rstrip()}"
        )


class FencedError(TxtopoError):
    """Another coordinator holds, or has taken over, this topology (R26)."""

    exit_code = 4
    page = "availability.html"


class HeldError(FencedError):
    """A living process holds the topology, or the data directory. ``on_held`` says whether to wait
    for the holder's end."""


class ZooKeeperUnavailableError(TxtopoError):
    """ZooKeeper cannot be reached, or has been away longer than we wait."""

    exit_code = 5
    page = "zookeeper.html#what-happens-when"


class ZooKeeperAccessError(ZooKeeperUnavailableError):
    """ZooKeeper does not let us in, or denies a needed right: a wrong or missing name or password."""

    page = "zookeeper.html#keeping-others-out"


class StateMismatchError(TxtopoError):
    """ZooKeeper and a store do not belong together (R27, R29). Nothing was overwritten.

    ``without_state`` names the command to type instead if the store's state is gone for good.
    """

    exit_code = 6
    page = "errors.html#exit-code-6"

    def __init__(self, *args: object, without_state: str = "") -> None:
        super().__init__(*args)
        self.without_state = without_state


class UnreadableStateError(StateMismatchError):
    """A record in ZooKeeper exists but cannot be understood. Such a record never means "start from
    the beginning"."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        cure = "Nothing was changed. Look at the record with `txtopo state show ID`, or start over with `txtopo state reset ID`."
        return f"the state record {self.path} cannot be read: {self.why}\n  {cure}"


def exit_code_of(error: BaseException) -> int:
    """The process exit code for ``error``: 1 unless a txtopo error has its own."""
    code: Any = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1
