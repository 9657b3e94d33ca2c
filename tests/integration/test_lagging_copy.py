"""A copy of a store that was taken between two commits of a transaction takes the place of the
store, on real Spark: refused, or right."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import fast, run_to_idle
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Fields,
    ICommitter,
    LocalCluster,
    OutputFieldsDeclarer,
    StateMismatchError,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

TASKS, BLOCKS = 2, 2


class AddsTwice(BaseTransactionalBolt, ICommitter):
    """Opens the store twice in one ``finish_batch``, and takes a copy of it after each commit."""

    has_own_keys = True

    def __init__(self, path: Path) -> None:
        self.store, self.copies = SqliteStore(path / "sums.db", "sums"), path / "copies"

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt, self.sum = context, attempt, 0

    def execute(self, tup: Tuple) -> None:
        self.sum += tup["n"]

    def finish_batch(self) -> None:
        for block in range(BLOCKS):
            with self.store.transaction(self.context, self.attempt) as opened:
                opened.update((self.context.task_index, block), self.added)
            self.copy()

    def added(self, old: int | None) -> int:
        return (old or 0) + self.sum

    def copy(self) -> None:
        with contextlib.closing(
            sqlite3.connect(self.store.path, timeout=PATIENCE_S, isolation_level=None)
        ) as source:
            # Held against the other task: copies are numbered in the order of the commits.
            source.execute("BEGIN IMMEDIATE")
            number = len(list(self.copies.glob(f"{self.attempt.txid}-*.db")))
            with contextlib.closing(
                sqlite3.connect(self.copies / f"{self.attempt.txid}-{number}.db")
            ) as copied:
                with contextlib.closing(sqlite3.connect(self.store.path)) as reader:
                    reader.backup(copied)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx"))


def fail_over(store: SqliteStore, copy: Path) -> None:
    """The copy takes the place of the store."""
    path = Path(store.path)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.write_bytes(copy.read_bytes())


@pytest.mark.thorough
@pytest.mark.rule(27, 34)
def test_a_copy_taken_between_two_commits_of_a_transaction_is_refused_and_a_complete_one_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "copies").mkdir()
    bolt = AddsTwice(tmp_path)
    spout = MemoryTransactionalSpout({0: [(1,), (10,), (2,), (20,)]}, Fields("n"), 2)
    builder = TransactionalTopologyBuilder("lagging", "numbers", spout)
    builder.set_bolt("add", bolt, TASKS).shuffle_grouping("numbers")
    topology: Any = builder.build_topology()
    run_to_idle(cluster, topology)
    copies = sorted((tmp_path / "copies").glob("2-*.db"))
    assert len(copies) == TASKS * BLOCKS, "the first batch has two rows, and so has the second"
    spout.append(0, [(3,), (30,)])
    for copy in copies[:-1]:
        fail_over(bolt.store, copy)
        before = dict(bolt.store.items())
        run = cluster.submit_topology("lagging", fast(), topology)
        with pytest.raises(
            StateMismatchError,
            match=r"is behind: it holds [123] store transactions .* has recorded 4",
        ) as caught:
            run.join(PATIENCE_S)
        assert (caught.value.exit_code, dict(bolt.store.items())) == (6, before)
    fail_over(bolt.store, copies[-1])
    run_to_idle(cluster, topology)
    values = dict(bolt.store.items())
    assert {
        block: sum(values[task, block] for task in range(TASKS)) for block in range(BLOCKS)
    } == {0: 66, 1: 66}
