"""WRONG on purpose: a committer that keeps its total in a store, and beside it writes a line to a
file.

::

    numbers ×2 ──global──► total ×1 (committer)

The store knows that a replay has been applied and changes nothing. The file does not: if the
attempt fails after the line was written, its replay writes the line again. The corrected twin
writes the line into the store, in the same transaction as the total, under a key that names the
txid.

The lines are in the file that TXTOPO_STARTER_STORE names.
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


class WrongTotal(BaseTransactionalBolt, ICommitter):
    """Adds the batch to the total in the store, and says so in a file."""

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
        with self.store.transaction(self.context, self.attempt) as transaction:
            total = transaction.update("total", lambda total: (total or 0) + self.sum).curr
        # The mistake: this is not part of the transaction above, and is done again on replay.
        with path().open("a") as file:
            file.write(f"{self.sum} added, {total} in all\n")


class CorrectedTotal(WrongTotal):
    """Says so in the store."""

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            total = transaction.update("total", lambda total: (total or 0) + self.sum).curr
            transaction.update(
                ("line", self.attempt.txid), lambda _: f"{self.sum} added, {total} in all"
            )


def path() -> Path:
    """The file of lines."""
    file = Path(os.environ.get("TXTOPO_STARTER_STORE") or ".txtopo/wrong.txt").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def effects() -> dict[str, list[str]]:
    """All results that the topology has written, as plain data, for the simulator to compare. The
    simulator finds stores of txtopo without help."""
    return {"lines": path().read_text().splitlines() if path().exists() else []}


def reset() -> None:
    """Remove all results: each schedule of the simulator begins so."""
    path().unlink(missing_ok=True)


def make_topology(total: type[WrongTotal]) -> Any:
    """The topology with a ``total`` as its committer."""
    builder = TransactionalTopologyBuilder(
        "write-outside", "numbers", MemoryTransactionalSpout(DATA, Fields("number"), 1), 2
    )
    builder.set_bolt(
        "total", total(SqliteStore(path().with_suffix(".db"), "total"))
    ).global_grouping("numbers")
    return builder.build_topology()


conf = Config(max_spout_pending=2, until="exhausted")
topology = make_topology(WrongTotal)
corrected = make_topology(CorrectedTotal)
