"""A topology over a source that never gives the same batch twice, in which every result carries a
token of its computation.

Each time a partition is emitted, and each time a bolt is computed, it draws a random token, and
random keys by which the tuples are grouped further on. Tuples carry the tokens of all they went
through, and the committer stores those it saw. So an attempt that mixed two computations of one
task shows two tokens for it, and, because the keys differ, loses tuples or counts them twice (R33).
"""

from __future__ import annotations

import os
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import Journal
from txtopo import (
    BaseBatchBolt,
    BaseOpaquePartitionedTransactionalSpout,
    BaseTransactionalBolt,
    BatchOutputCollector,
    CoordinatorContext,
    Fields,
    ICommitter,
    OpaquePartitionedSpoutCoordinator,
    OpaquePartitionedSpoutEmitter,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore

TASKS = 2
"""Tasks of every component, and partitions of the source: as many as the cluster has executors, of
one core each."""
DRIVER_WAITS = "the driver waits for a task of a broken commit"
"""A line of the journal, written each time the driver finds that the task still runs."""


def executor_pid() -> int:
    """In a Python worker: the process of its executor, which is the parent of the daemon it was
    forked from."""
    return _parent(os.getppid())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@dataclass(frozen=True)
class Strike:
    """The deed at ``point`` of transaction ``txid``, once, by the first attempt there; see
    ``_ACTIONS``."""

    point: str
    txid: int
    action: str


@dataclass
class Strikes:
    """Those of a topology; ``reach`` is called by user code."""

    journal: Journal
    strikes: Sequence[Strike] = ()

    def reach(self, point: str, attempt: TransactionAttempt) -> None:
        """User code is at ``point``: ``component task hook``."""
        self.journal.write(f"{point} {attempt} pid {executor_pid()}")
        for strike in self.strikes:
            if (strike.point, strike.txid) == (point, attempt.txid) and self.journal.claim(
                f"struck {strike.point} {strike.action}"
            ):
                _ACTIONS[strike.action](self.journal, point, attempt)


def _kill_executor(journal: Journal, point: str, attempt: TransactionAttempt) -> None:
    os.kill(executor_pid(), signal.SIGKILL)
    # The daemon ends its workers when its executor is gone; until then nothing more may happen
    # here.
    wait_until(lambda: False, "the end of this process")


def _kill_executor_after_sibling(journal: Journal, point: str, attempt: TransactionAttempt) -> None:
    """Kill when the sibling task has taken all input: the sibling's results stem from the
    computations that are lost now."""
    component, task, hook = point.split()
    sibling = f"{component} {1 - int(task)} {hook} {attempt} "
    wait_until(lambda: any(line.startswith(sibling) for line in journal.lines()), sibling)
    _kill_executor(journal, point, attempt)


def _delete_shuffle_files(journal: Journal, point: str, attempt: TransactionAttempt) -> None:
    files = [
        file
        for directory in os.environ["SPARK_LOCAL_DIRS"].split(",")
        for file in Path(directory).rglob("shuffle_*")
    ]
    assert files, "there is no shuffle file to delete"
    for file in files:
        file.unlink()
    journal.write(f"deleted {len(files)} shuffle files")


def _wait(journal: Journal, point: str, attempt: TransactionAttempt) -> None:
    wait_until(lambda: "released" in journal.lines(), "the release")


def _wait_for_a_copy(journal: Journal, point: str, attempt: TransactionAttempt) -> None:
    """Until a second computation of this task in the same attempt has come as far: Spark has
    speculated."""
    beginning = f"{point} {attempt} "
    wait_until(
        lambda: sum(line.startswith(beginning) for line in journal.lines()) > 1,
        "a second copy of this task",
    )


def _stop_executor(journal: Journal, point: str, attempt: TransactionAttempt) -> None:
    """The executor answers no call any more, and cannot stop this process, which goes on at its
    release."""
    os.kill(executor_pid(), signal.SIGSTOP)
    journal.write(f"stopped executor {executor_pid()}")
    _wait(journal, point, attempt)


def _stop_executor_until_the_replay_waits(
    journal: Journal, point: str, attempt: TransactionAttempt
) -> None:
    """No process can stop this process, nor hear of its end, until the driver has looked at it a
    few times, or the replay's commit has begun."""
    executor = executor_pid()
    os.kill(executor, signal.SIGSTOP)
    journal.write("stopped executor until the replay waits")
    try:
        commits = tuple(
            f"keep {task} before {attempt.txid}:{attempt.attempt_id + 1} " for task in range(TASKS)
        )
        wait_until(
            lambda: (
                journal.count(DRIVER_WAITS) > 2
                or any(line.startswith(commits) for line in journal.lines())
            ),
            "the replay",
        )
    finally:
        os.kill(executor, signal.SIGCONT)


def _die_beside_it(journal: Journal, point: str, attempt: TransactionAttempt) -> None:
    """End this task, and so the job, while the job's second task cannot be stopped."""
    wait_until(
        lambda: "stopped executor until the replay waits" in journal.lines(), "the other task"
    )
    os._exit(7)


_ACTIONS: dict[str, Callable[[Journal, str, TransactionAttempt], None]] = {
    "kill executor": _kill_executor,
    "kill executor after sibling": _kill_executor_after_sibling,
    "delete shuffle files": _delete_shuffle_files,
    "wait": _wait,
    "wait for a copy": _wait_for_a_copy,
    "stop executor": _stop_executor,
    "stop executor until the replay waits": _stop_executor_until_the_replay_waits,
    "die beside it": _die_beside_it,
}


class FreshSpout(BaseOpaquePartitionedTransactionalSpout):
    """Partition p holds the numbers p * 1000 … p * 1000 + ``size`` - 1. Planned, a batch has
    ``take`` of each; else a random few."""

    def __init__(self, strikes: Strikes, size: int, take: int) -> None:
        self.strikes, self.size, self.take = strikes, size, take

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return _FreshCoordinator(self, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> OpaquePartitionedSpoutEmitter:
        return _FreshEmitter(self)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "n", "tokens"))


class PlannedFreshSpout(FreshSpout):
    """Fixes positions beforehand; keys and tokens are fresh all the same."""

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> OpaquePartitionedSpoutCoordinator:
        return _PlanningFreshCoordinator(self, context)


class _FreshCoordinator(OpaquePartitionedSpoutCoordinator):
    def __init__(self, spout: FreshSpout, context: CoordinatorContext) -> None:
        self.spout, self.context = spout, context

    def is_ready(self) -> bool:
        last = self.context.last_metadata or {}
        return any(last.get(partition, [0, 0])[1] < self.spout.size for partition in range(TASKS))


class _PlanningFreshCoordinator(_FreshCoordinator):
    def num_partitions(self) -> int:
        return TASKS

    def plan_partition_batch(self, txid: int, partition: int, last_metadata: Any) -> Any:
        begin = 0 if last_metadata is None else last_metadata[1]
        return (
            None
            if begin >= self.spout.size
            else [begin, min(begin + self.spout.take, self.spout.size)]
        )


class _FreshEmitter(OpaquePartitionedSpoutEmitter):
    def __init__(self, spout: FreshSpout) -> None:
        self.spout = spout

    def num_partitions(self) -> int:
        return TASKS

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        begin = 0 if last_metadata is None else last_metadata[1]
        if begin >= self.spout.size:
            return None
        metadata = [begin, min(begin + 1 + secrets.randbelow(self.spout.take), self.spout.size)]
        self.emit_planned_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        token = _token("numbers", partition)
        for n in range(*metadata):
            collector.emit([attempt, secrets.randbelow(1000), partition * 1000 + n, (token,)])
        self.spout.strikes.reach(f"numbers {partition} emitted", attempt)


def _token(component: str, task: int) -> str:
    return f"{component}/{task}={secrets.token_hex(8)}"


class Pass(BaseBatchBolt):
    """Passes tuples on under new keys, with its own token added."""

    def __init__(self, strikes: Strikes) -> None:
        self.strikes = strikes

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.token = _token("pass", context.task_index)

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(
            [self.attempt, secrets.randbelow(1000), tup["n"], (*tup["tokens"], self.token)]
        )

    def finish_batch(self) -> None:
        self.strikes.reach(f"pass {self.context.task_index} finish", self.attempt)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "n", "tokens"))


class Keep(BaseTransactionalBolt, ICommitter):
    """Stores, for each transaction and task, by which attempt, the numbers and the tokens it got;
    and adds to a count that must not count twice."""

    def __init__(self, store: SqliteStore, strikes: Strikes) -> None:
        self.store, self.strikes = store, strikes

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.numbers: list[int] = []
        self.tokens = {_token("keep", context.task_index)}
        self.strikes.reach(f"keep {context.task_index} prepared", attempt)

    def execute(self, tup: Tuple) -> None:
        self.numbers.append(tup["n"])
        self.tokens.update(tup["tokens"])

    def finish_batch(self) -> None:
        task, txid = self.context.task_index, self.attempt.txid
        self.strikes.reach(f"keep {task} before", self.attempt)
        try:
            # Only this attempt writes the key: the fence alone refuses writers, not the
            # key's stamp. And only taking back removes the key.
            with self.store.transaction(self.context, self.attempt) as transaction:
                transaction.update(("by", txid, task, self.attempt.attempt_id), lambda old: True)
            with self.store.transaction(self.context, self.attempt) as transaction:
                transaction.update(
                    ("numbers", txid, task), lambda old: [*(old or []), *sorted(self.numbers)]
                )
                transaction.update(
                    ("tokens", txid, task), lambda old: [*(old or []), *sorted(self.tokens)]
                )
                transaction.update(("total", 0, task), lambda old: (old or 0) + len(self.numbers))
                self.strikes.reach(f"keep {task} inside", self.attempt)
        except Exception as error:
            self.strikes.journal.write(
                f"keep {task} {self.attempt} was refused: {type(error).__name__}"
            )
            raise
        self.strikes.reach(f"keep {task} after", self.attempt)


@dataclass
class FreshTopology:
    """numbers → pass → keep (committer), each step by fields of random keys."""

    id: str
    directory: Path
    strikes: Sequence[Strike] = ()
    planned: bool = True
    size: int = 12
    take: int = 4
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.directory / "journal")
        self.store = SqliteStore(
            self.directory / "kept.db", "kept", opaque=True, busy_timeout_s=PATIENCE_S
        )
        # Under any name of the master in Spark, every executor is on this machine.
        vars(self.store)["local_only_reason"] = None
        strikes = Strikes(self.journal, self.strikes)
        spout = (PlannedFreshSpout if self.planned else FreshSpout)(strikes, self.size, self.take)
        builder = TransactionalTopologyBuilder(self.id, "numbers", spout, TASKS)
        builder.set_bolt("pass", Pass(strikes), TASKS).fields_grouping("numbers", Fields("key"))
        builder.set_bolt("keep", Keep(self.store, strikes), TASKS).fields_grouping(
            "pass", Fields("key")
        )
        self.topology = builder.build_topology()

    def lines(self, beginning: str) -> list[str]:
        """Lines of the journal with this beginning."""
        return [line for line in self.journal.lines() if line.startswith(beginning)]

    def pids(self, beginning: str) -> list[int]:
        """The executors named in those lines."""
        return [
            int(line.rpartition(" pid ")[2]) for line in self.lines(beginning) if " pid " in line
        ]

    def violations(self) -> list[str]:
        """Content of the store that no run may produce, in words; empty is good."""
        violations: list[str] = []
        numbers: Counter[int] = Counter()
        writers: Counter[Any] = Counter()
        tokens: dict[int, set[str]] = {}
        total = 0
        for key, value in self.store.items():
            assert isinstance(key, tuple)
            kind, txid, task, *_ = key
            if kind == "by":
                writers[txid, task] += 1
            elif kind == "numbers":
                numbers.update(value)
            elif kind == "tokens":
                tokens.setdefault(int(str(txid)), set()).update(value)
            else:
                total += value
        for txid, seen in sorted(tokens.items()):
            places = Counter(token.partition("=")[0] for token in seen)
            violations += [
                f"txid {txid} mixes {count} computations of {place}"
                for place, count in sorted(places.items())
                if count > 1
            ]
        expected = {partition * 1000 + n for partition in range(TASKS) for n in range(self.size)}
        lost, doubled = (
            sorted(expected - numbers.keys()),
            sorted(n for n, count in numbers.items() if count > 1),
        )
        violations += [
            f"txid {txid}, task {task} was written by {count} attempts"
            for (txid, task), count in sorted(writers.items())
            if count > 1
        ]
        violations += [f"lost {lost}"] if lost else []
        violations += [f"counted twice {doubled}"] if doubled else []
        violations += (
            [f"the total is {total}, not {len(expected)}"] if total != len(expected) else []
        )
        return violations
