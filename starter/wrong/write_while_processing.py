"""WRONG on purpose: a bolt that writes in the processing phase.

::

    numbers ×2 ──global──► count ×1

``count`` is no committer, so its ``finish_batch`` runs as soon as the batch is there: before
earlier transactions have committed, and again for every attempt that fails. The corrected twin is a
committer, whose ``finish_batch`` waits for its turn, and writes to a store, which knows replays.

The wrong count is in the file that TXTOPO_STARTER_STORE names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from txtopo import (
    BaseBatchBolt,
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


class WrongCount(BaseBatchBolt):
    """Counts tuples in a file."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.count = 0

    def execute(self, tup: Tuple) -> None:
        self.count += 1

    def finish_batch(self) -> None:
        # The mistake: it is not decided yet whether this attempt will commit.
        path().write_text(str(read() + self.count))


class CorrectedCount(WrongCount, ICommitter):
    """Counts them in a store, when its turn to commit has come."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update("count", lambda count: (count or 0) + self.count)


def path() -> Path:
    """The file."""
    file = Path(os.environ.get("TXTOPO_STARTER_STORE") or ".txtopo/wrong.txt").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def read() -> int:
    """The count in it."""
    return int(path().read_text()) if path().exists() else 0


def effects() -> dict[str, int]:
    """All results that the topology has written, as plain data, for the simulator to compare. The
    simulator finds stores of txtopo without help."""
    return {"count": read()}


def reset() -> None:
    """Remove all results: each schedule of the simulator begins so."""
    path().unlink(missing_ok=True)


def make_topology(count: WrongCount) -> Any:
    """The topology with ``count`` as its bolt."""
    builder = TransactionalTopologyBuilder(
        "write-while-processing", "numbers", MemoryTransactionalSpout(DATA, Fields("number"), 1), 2
    )
    builder.set_bolt("count", count).global_grouping("numbers")
    return builder.build_topology()


conf = Config(max_spout_pending=2, until="exhausted")
topology = make_topology(WrongCount())
corrected = make_topology(CorrectedCount(SqliteStore(path().with_suffix(".db"), "count")))
