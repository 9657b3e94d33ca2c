"""Held bolts and their tuples on the way from the processing phase to the commit: through the
driver, pinned on executors, or by a late job."""

from __future__ import annotations

import collections
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import Journal, fast, run_to_idle
from tests.topologies.spouts import Keep, Partitioned, Ranges, batches, keeping_topology
from txtopo import (
    BaseBatchBolt,
    BaseTransactionalBolt,
    BatchOutputCollector,
    BatchTooLargeError,
    FailedException,
    Fields,
    HeldStateError,
    ICommitter,
    LocalCluster,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore

EXPECTED = {txid: list(range(200 * txid - 200, 200 * txid)) for txid in (1, 2, 3)}


@pytest.mark.in_gate("plain")
@pytest.mark.rule(12, 33)
@pytest.mark.parametrize("kind", ["plain", "storm-style"])
def test_a_batch_that_outgrows_the_driver_is_pinned_and_counted(
    cluster: LocalCluster, tmp_path: Path, kind: str
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    spout = (
        Ranges(journal, 600, 200)
        if kind == "plain"
        else Partitioned(journal, 1, 600, 200, planned=False)
    )
    topology = keeping_topology(
        f"pinned-{kind}", spout, Keep(store, journal, ((2, "before"), (3, "after")))
    )
    run = run_to_idle(cluster, topology, inline_bytes_max=400, max_spout_pending=2)
    assert batches(store) == EXPECTED
    assert 1 <= run.status().pinned_replays <= 4, (
        "one for what was in flight when the first outgrew, not one for every transaction"
    )
    assert cluster.context._jsc.sc().getPersistentRDDs().size() == 0, (
        "pinned results were not released"
    )


@pytest.mark.rule(12)
def test_pinned_results_reach_a_commit_that_has_other_slots(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The last processing level has two slots (five tasks of another bolt), the commit one."""
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    builder = TransactionalTopologyBuilder("forwarded", "numbers", Ranges(journal, 600, 200), 2)
    builder.set_bolt("keep", Keep(store, journal)).global_grouping("numbers")
    builder.set_bolt("beside", Beside(), 5).shuffle_grouping("numbers")
    run_to_idle(cluster, builder.build_topology(), inline_bytes_max=0)
    assert batches(store) == EXPECTED


class Beside(BaseBatchBolt):
    """A bolt with no outputs, beside the committer."""

    def execute(self, tup: Tuple) -> None:
        pass


class Early(BaseTransactionalBolt, ICommitter):
    """A committer that also emits while it executes tuples."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt

    def execute(self, tup: Tuple) -> None:
        self.collector.emit([self.attempt, f"early {tup['n']}"])

    def finish_batch(self) -> None:
        self.collector.emit([self.attempt, "late"])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "what"))


class Phases(BaseBatchBolt):
    """Writes down each tuple with its phase, and the number of its ``prepare`` calls."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.got: list[Any] = []
        self.journal.write(f"prepared {attempt.txid}")

    def execute(self, tup: Tuple) -> None:
        self.got.append(f"{tup['what']} in {self.context.phase}")

    def finish_batch(self) -> None:
        self.journal.write(
            f"{self.attempt.txid}: {', '.join(sorted(self.got))}; finished in {self.context.phase}"
        )


@pytest.mark.rule(10, 12)
@pytest.mark.parametrize("inline_bytes_max", [1_000_000, 0], ids=["inline", "pinned"])
def test_emissions_of_an_executing_held_bolt_are_executed_in_processing(
    cluster: LocalCluster, tmp_path: Path, inline_bytes_max: int
) -> None:
    journal = Journal(tmp_path / "journal")
    builder = TransactionalTopologyBuilder(
        f"late-{inline_bytes_max}", "numbers", Ranges(journal, 4, 2), 1
    )
    builder.set_bolt("early", Early()).shuffle_grouping("numbers")
    builder.set_bolt("phases", Phases(journal)).shuffle_grouping("early")
    run_to_idle(cluster, builder.build_topology(), inline_bytes_max=inline_bytes_max)
    finished = [line for line in journal.lines() if "finished" in line]
    assert finished == [
        "1: early 0 in processing, early 1 in processing, late in commit; finished in commit",
        "2: early 2 in processing, early 3 in processing, late in commit; finished in commit",
    ]
    if inline_bytes_max:
        assert journal.count("prepared 1") == 1


class HoldsConnection(BaseTransactionalBolt, ICommitter):
    """The classic mistake: a connection in an attribute."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.connection = sqlite3.connect(":memory:")

    def execute(self, tup: Tuple) -> None:
        pass


@pytest.mark.rule(12)
def test_a_held_member_that_cannot_be_pickled_is_an_error_that_names_it_and_the_cure(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    builder = TransactionalTopologyBuilder(
        "holds", "numbers", Ranges(Journal(tmp_path / "journal"), 4, 2), 1
    )
    builder.set_bolt("holder", HoldsConnection(), 2).shuffle_grouping("numbers")
    run = cluster.submit_topology("holds", fast(on_error="replay"), builder.build_topology())
    with pytest.raises(HeldStateError, match=r"'connection' cannot be pickled") as caught:
        run.join(PATIENCE_S)
    assert caught.value.component == "holder"
    assert "context.resource" in str(caught.value)


class Wide(Ranges):
    """A spout of wide tuples."""

    def get_emitter(self, conf: Any, context: Any) -> Any:
        emitter: Any = super().get_emitter(conf, context)

        def emit_batch(
            attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
        ) -> None:
            for n in range(metadata["begin"], metadata["end"]):
                if n % context.num_tasks == context.task_index:
                    collector.emit([attempt, n, b"x" * 1000])

        emitter.emit_batch = emit_batch
        return emitter

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n", "payload"))


class Cut(BaseBatchBolt):
    """Lets only the number pass."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        self.collector.emit([tup[0], tup["n"]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "n"))


def wide_topology(id: str, tmp_path: Path, store: SqliteStore) -> Any:
    journal = Journal(tmp_path / "journal")
    builder = TransactionalTopologyBuilder(id, "numbers", Wide(journal, 40_000, 20_000), 2)
    builder.set_bolt("cut", Cut(), 3).shuffle_grouping("numbers")
    builder.set_bolt("keep", Keep(store, journal)).global_grouping("cut")
    return builder.build_topology()


def test_a_batch_larger_than_its_memory_bounds_spills_and_is_complete(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    run_to_idle(
        cluster,
        wide_topology("spills", tmp_path, store),
        spill_bytes=100_000,
        blob_bytes_max=50_000,
    )
    assert {txid: len(batch) for txid, batch in batches(store).items()} == {1: 20_000, 2: 20_000}
    assert store.get("total") == sum(range(40_000))


def test_a_tuple_beyond_the_bound_is_an_error_that_names_the_setting(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db", "kept")
    run = cluster.submit_topology(
        "too-wide", fast(blob_bytes_max=1024), wide_topology("too-wide", tmp_path, store)
    )
    with pytest.raises(
        BatchTooLargeError,
        match=r"one tuple from component 'numbers' has \d+ bytes; the bound is blob_bytes_max = 1024",
    ):
        run.join(PATIENCE_S)
    assert batches(store) == {}


class BreaksResource(Keep):
    """Uses a resource, and fails once with it."""

    def finish_batch(self) -> None:
        self.context.resource("client", lambda: Client(self.journal)).use()
        if self.attempt.txid == 2 and "broke in" not in "".join(self.journal.lines()):
            self.journal.write(f"broke in {os.getpid()}")
            raise FailedException("the client broke")
        super().finish_batch()


class Client:
    """A connection that says when it is made, used and closed."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        journal.write(f"made in {os.getpid()}")

    def use(self) -> None:
        self.journal.write(f"used in {os.getpid()}")

    def close(self) -> None:
        self.journal.write("closed")


@pytest.mark.rule(12)
def test_a_resource_is_kept_across_transactions_and_made_again_when_its_task_failed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    store = SqliteStore(tmp_path / "kept.db", "kept")
    keep = BreaksResource(store, journal)
    replays = (
        run_to_idle(cluster, keeping_topology("resources", Ranges(journal, 12, 2), keep))
        .status()
        .replays
    )
    lines = journal.lines()
    (broken,) = [place for place, line in enumerate(lines) if line.startswith("broke in")]
    pid = lines[broken].split()[-1]
    # Spark chooses the worker process of each task, and may leave the one that failed idle.
    is_used_again = f"used in {pid}" in lines[broken:]
    makers = collections.Counter(line.split()[-1] for line in lines if line.startswith("made in"))
    assert makers.pop(pid) == 1 + is_used_again
    assert set(makers.values()) <= {1}, "one per worker process that committed"
    assert lines.count("closed") == 1
    assert sum(line.startswith("used in") for line in lines) in range(7, 7 + replays), (
        "six transactions and a replay; Spark may cost another"
    )
