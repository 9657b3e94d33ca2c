"""The measured topologies. Their bolts are the starter's: a newcomer reads first the code that is
timed here.

Everything here runs on executors too, so that no pyspark may be imported.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from starter.transactional_global_count import GLOBAL_COUNT_KEY, BatchCount, UpdateGlobalCount
from starter.transactional_words import KeyedCountUpdater
from txtopo import Fields, TransactionalTopologyBuilder
from txtopo.exports import ExportQueue
from txtopo.stores import SqliteStore

TABLE = "counts"


class WaitingCount(BatchCount):
    """A partial count that waits in the middle of its work, as if for an answer from outside. The
    waits overlap."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def finish_batch(self) -> None:
        time.sleep(self.wait_s)
        super().finish_batch()


class QueueingCount(KeyedCountUpdater):
    """Counts, and queues each new count."""

    def __init__(self, store: SqliteStore, queue: ExportQueue) -> None:
        super().__init__(store)
        self.queue = queue

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            for key, update in transaction.update_many(self.counts, _sum).items():
                self.queue.add(transaction, key, update.curr)


def _sum(old: int | None, more: int) -> int:
    return (old or 0) + more


def store_of(path: str | Path) -> SqliteStore:
    """The store of a topology."""
    return SqliteStore(path, TABLE)


def global_count(
    id: str,
    spout: Any,
    store: SqliteStore,
    parallelism: int = 1,
    grouping: str = "none",
    wait_s: float = 0.0,
) -> Any:
    """Count all tuples: partial counts beside the spout (grouping none), or behind a shuffle; one
    committer adds them up.

    With ``wait_s``, every partial count takes at least so long.
    """
    builder = TransactionalTopologyBuilder(id, "spout", spout, parallelism)
    partial = builder.set_bolt(
        "partial-count", WaitingCount(wait_s) if wait_s else BatchCount(), parallelism
    )
    if grouping == "shuffle":
        partial.shuffle_grouping("spout")
    else:
        partial.none_grouping("spout")
    builder.set_bolt("sum", UpdateGlobalCount(store)).global_grouping("partial-count")
    return builder.build_topology()


def words(id: str, spout: Any, field: str, store: SqliteStore, parallelism: int = 2) -> Any:
    """Count every word: a fields grouping from the spout to committers that keep a count of each."""
    builder = TransactionalTopologyBuilder(id, "spout", spout, parallelism)
    builder.set_bolt("count", KeyedCountUpdater(store), parallelism).fields_grouping(
        "spout", Fields(field)
    )
    return builder.build_topology()


def queued(id: str, spout: Any, store: SqliteStore, queue: ExportQueue) -> Any:
    """Count every value, and queue the counts."""
    builder = TransactionalTopologyBuilder(id, "spout", spout)
    builder.set_bolt("count", QueueingCount(store, queue)).global_grouping("spout")
    return builder.build_topology()


def total(store: SqliteStore) -> int:
    """What :func:`global_count` has counted."""
    return int(store.get(GLOBAL_COUNT_KEY) or 0)
