"""Topologies whose tasks note their Spark task, so that a transaction in one task can be told from
a transaction in several.

::

    numbers ×2 ──fields──► keep ×2 (committer) ──global──► seen ×1

The spouts and the stored values are those of ``step_topologies``. ``Trouble`` may happen in a hook
of ``keep``. Workers import this.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyspark

from tests.patience import wait_until
from tests.servers.clusters import Journal
from tests.topologies.step_results import History
from tests.topologies.step_spouts import SPOUTS, Source, write_down
from tests.topologies.steps import Keep, Seen, Variant
from txtopo import (
    BaseBatchBolt,
    BatchOutputCollector,
    FailedException,
    Fields,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.spark.task import JOB_PROPERTY
from txtopo.stores import Store
from txtopo.topology.transaction import ATTEMPTS_PER_EPOCH

WORK_S = 1.0
"""A transaction that counts as not small, in a test that says so."""


def _note(journal: Path, hook: str, attempt: TransactionAttempt, task: int) -> None:
    """``hook`` runs here: in which of the attempt's jobs, and in which Spark task."""
    context = pyspark.TaskContext.get()
    assert context is not None
    part = str(context.getLocalProperty(JOB_PROPERTY)).rpartition(":")[2]
    write_down(journal, hook, attempt, task, [part, context.taskAttemptId()])


@dataclass(frozen=True)
class Trouble:
    """What happens in ``hook`` of transaction ``txid``: once, but for ``work``, however many tasks
    get there."""

    journal: Path
    hook: Literal["execute", "finish_batch"]
    txid: int
    kind: Literal["failed", "error", "work", "wait for the next two"]

    def reach(self, hook: str, attempt: TransactionAttempt) -> None:
        """Called in each hook."""
        if (hook, attempt.txid) != (self.hook, self.txid) or not Journal(
            self.journal.with_suffix(".claims")
        ).claim(f"{self.kind} in {hook}"):
            return
        if self.kind == "failed":
            raise FailedException(f"told to fail in {hook}")
        if self.kind == "error":
            raise ValueError(f"told to err in {hook}")
        if self.kind == "work":
            time.sleep(WORK_S)
        else:
            wait_until(self._next_two_have_executed, "the next two transactions to be processed")

    def _next_two_have_executed(self) -> bool:
        return {self.txid + 1, self.txid + 2} <= {
            line.txid for line in History(self.journal).lines if line.what == "executed"
        }


class TracedKeep(Keep):
    """Notes where it is prepared, executes and finishes. ``eager``: emits while executing, too."""

    def __init__(
        self, stores: Iterable[Store], journal: Path, trouble: Trouble | None, eager: bool
    ) -> None:
        super().__init__(stores, journal)
        self.trouble, self.eager = trouble, eager

    def reach(self, hook: str) -> None:
        """In ``hook``."""
        if self.trouble is not None:
            self.trouble.reach(hook, self.attempt)

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        super().prepare(conf, context, collector, attempt)
        _note(self.journal, "prepared", attempt, context.task_index)
        self.has_executed = False

    def execute(self, tup: Tuple) -> None:
        if not self.has_executed:
            self.has_executed = True
            _note(self.journal, "executed", self.attempt, self.context.task_index)
            self.reach("execute")
        super().execute(tup)
        if self.eager:
            self.collector.emit([self.attempt, 2, tup["key"], 0, tup["n"]])

    def finish_batch(self) -> None:
        _note(self.journal, "finished", self.attempt, self.context.task_index)
        self.reach("finish_batch")
        super().finish_batch()


class TracedSeen(Seen):
    """Notes each tuple with its phase."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        super().prepare(conf, context, collector, attempt)
        self.given: list[list[Any]] = []

    def execute(self, tup: Tuple) -> None:
        self.given.append([self.context.phase, *tup.values[1:]])
        super().execute(tup)

    def finish_batch(self) -> None:
        super().finish_batch()
        write_down(self.journal, "given", self.attempt, self.context.task_index, self.given)


class Counted(BaseBatchBolt):
    """Writes down what it got; no committer, and after none."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.numbers: list[int] = []

    def execute(self, tup: Tuple) -> None:
        self.numbers.append(tup["n"])

    def finish_batch(self) -> None:
        _note(self.journal, "finished", self.attempt, self.context.task_index)
        write_down(self.journal, "counted", self.attempt, self.context.task_index, self.numbers)


@dataclass(frozen=True)
class Ran:
    """Where one attempt ran: task attempts of Spark by hook, and which of its jobs these were."""

    tasks: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    parts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def is_one_task(self) -> bool:
        """All its notes are of one task of a whole job."""
        return len(set().union(*self.tasks.values())) == 1 and set().union(
            *self.parts.values()
        ) == {"whole"}

    @property
    def is_apart(self) -> bool:
        """Its processing and its commit ran in different tasks."""
        return (
            bool(self.tasks["finished"])
            and not self.tasks["executed"] & self.tasks["finished"]
            and self.parts["finished"] == {"commit"}
        )


@dataclass(frozen=True)
class Small:
    """One of the topologies, over a spout of ``kind``; all its files are in ``directory``."""

    id: str
    directory: Path
    kind: str = "plain"
    size: int = 48
    has_committer: bool = True
    eager: bool = False
    trouble: Callable[[Path], Trouble] | None = None

    @property
    def journal(self) -> Path:
        """What its workers write down."""
        return self.directory / f"journal-{self.id}"

    @property
    def stores(self) -> dict[str, Store]:
        """By name."""
        return Variant(self.kind, 1).stores([str(self.directory / f"store-{self.id}")])

    @property
    def history(self) -> History:
        """What its workers wrote down."""
        return History(self.journal)

    def make(self, life: int = 1) -> Any:
        """The topology, for driver number ``life``."""
        builder = TransactionalTopologyBuilder(
            self.id, "numbers", SPOUTS[self.kind](Source(self.journal, self.size, life)), 2
        )
        if not self.has_committer:
            builder.set_bolt("counted", Counted(self.journal), 2).fields_grouping(
                "numbers", Fields("key")
            )
            return builder.build_topology()
        stores, trouble = self.stores, None if self.trouble is None else self.trouble(self.journal)
        keep = TracedKeep([stores["first"], stores["second"]], self.journal, trouble, self.eager)
        builder.set_bolt("keep", keep, 2).fields_grouping("numbers", Fields("key"))
        builder.set_bolt("seen", TracedSeen(stores["seen"], self.journal)).global_grouping("keep")
        return builder.build_topology()

    def ran(self, txid: int, life: int = 1) -> dict[int, Ran]:
        """By number, each attempt of ``txid`` by driver number ``life``."""
        attempts: defaultdict[int, Ran] = defaultdict(Ran)
        for line in self.history.lines:
            if line.what in ("prepared", "executed", "finished") and (
                line.txid,
                line.attempt_id // ATTEMPTS_PER_EPOCH + 1,
            ) == (txid, life):
                part, task = line.values
                attempts[line.attempt_id % ATTEMPTS_PER_EPOCH].tasks[line.what].add(task)
                attempts[line.attempt_id % ATTEMPTS_PER_EPOCH].parts[line.what].add(part)
        return dict(sorted(attempts.items()))

    def parts(self, hook: str) -> dict[int, set[str]]:
        """By txid, in which jobs of its attempts ``hook`` ran."""
        parts: defaultdict[int, set[str]] = defaultdict(set)
        for line in self.history.lines:
            if line.what == hook:
                parts[line.txid].add(line.values[0])
        return parts

    def results(self, transactions: int) -> Any:
        """All results of so many transactions, but for their places: the content of the stores, and
        the tuples of every task, in order."""
        history, txids = self.history, range(1, transactions + 1)
        notes = {
            note: {txid: history.contents(note, txid) for txid in txids}
            for note in ("kept", "given", "committed", "counted")
        }
        return {
            name: dict(store.items()) for name, store in self.stores.items()
        } if self.has_committer else {}, notes
