"""WRONG on purpose: a committer that adds whenever it is called.

::

    numbers ×2 ──global──► total ×1 (committer)

``finish_batch`` is called once per *attempt*. If an attempt writes and then fails, its replay
writes again, and the batch counts twice. The corrected twin keeps the total in a store of txtopo,
which knows the transactions that are in the total.

The wrong total is in the file that TXTOPO_STARTER_STORE names.
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
    """Adds the batch to the number in a file."""

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
        # The mistake: nothing tells whether this transaction is in the total already.
        path().write_text(str(read() + self.sum))


class CorrectedTotal(WrongTotal):
    """Adds it to a value in a store."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("total", lambda total: (total or 0) + self.sum)


def path() -> Path:
    """The file."""
    file = Path(os.environ.get("TXTOPO_STARTER_STORE") or ".txtopo/wrong.txt").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def read() -> int:
    """The total in it."""
    return int(path().read_text()) if path().exists() else 0


def effects() -> dict[str, int]:
    """All results that the topology has written, as plain data, for the simulator to compare. The
    simulator finds stores of txtopo without help."""
    return {"total": read()}


def reset() -> None:
    """Remove all results: each schedule of the simulator begins so."""
    path().unlink(missing_ok=True)


def make_topology(total: WrongTotal) -> Any:
    """The topology with ``total`` as its committer."""
    builder = TransactionalTopologyBuilder(
        "unconditional-increment", "numbers", MemoryTransactionalSpout(DATA, Fields("number"), 1), 2
    )
    builder.set_bolt("total", total).global_grouping("numbers")
    return builder.build_topology()


conf = Config(max_spout_pending=2, until="exhausted")
topology = make_topology(WrongTotal())
corrected = make_topology(CorrectedTotal(SqliteStore(path().with_suffix(".db"), "total")))
