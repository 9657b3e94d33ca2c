"""WRONG on purpose: a committer that keeps its total in a global of the module, to save a read.

::

    numbers ×2 ──global──► total ×1 (committer)

A global outlives the attempt: the words of a failed attempt are still in the total when the replay
adds them again. And a global does not outlive the process: in a fresh process, or in another worker
that gets the task, the total begins at 0. The corrected twin asks the store.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Config,
    Fields,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

DATA: dict[int, list[tuple[Any, ...]]] = {0: [(1,), (2,), (3,)], 1: [(10,), (20,), (30,)]}

total_so_far = 0


class WrongTotal(BaseTransactionalBolt, ICommitter):
    """Writes the total of a global to the store."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.sum = 0

    def execute(self, tup: Tuple) -> None:
        self.sum += tup["number"]

    def finish_batch(self) -> None:
        global total_so_far
        # The mistake: this belongs to the process, not to the transaction.
        total_so_far += self.sum
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("total", lambda _: total_so_far)


class CorrectedTotal(WrongTotal):
    """Adds the batch to the value in the store."""

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("total", lambda total: (total or 0) + self.sum)


def make_topology(total: type[WrongTotal]) -> Any:
    """The topology with a ``total`` as its committer."""
    file = Path(os.environ.get("TXTOPO_STARTER_STORE") or ".txtopo/wrong.db").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    builder = TransactionalTopologyBuilder(
        "module-global", "numbers", MemoryTransactionalSpout(DATA, Fields("number"), 1), 2
    )
    builder.set_bolt("total", total(SqliteStore(file, "total"))).global_grouping("numbers")
    return builder.build_topology()


conf = Config(max_spout_pending=2, until="exhausted")
topology = make_topology(WrongTotal)
corrected = make_topology(CorrectedTotal)
