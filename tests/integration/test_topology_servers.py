"""A topology on Spark whose results are in a database server."""

from __future__ import annotations

from typing import Any

import pytest

from starter.transactional_global_count import DATA, PARTITION_TAKE_PER_BATCH, BatchCount
from tests.patience import wait_until
from tests.servers.clusters import run_to_idle
from tests.servers.databases import Database
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    FailedException,
    Fields,
    ICommitter,
    LocalCluster,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqlStore, Store
from txtopo.testing import MemoryTransactionalSpout

WORDS = sum(len(rows) for rows in DATA.values())


class Sum(BaseTransactionalBolt, ICommitter):
    """Adds up the counts of a batch, by task of the sender; its first attempt at every batch fails
    after its write."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt, self.sums = context, attempt, dict[str, int]()

    def execute(self, tup: Tuple) -> None:
        self.sums["all"] = self.sums.get("all", 0) + tup["count"]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(self.sums, lambda old, count: (old or 0) + count)
        if self.attempt.attempt_id % 1_000_000 == 0:
            raise FailedException("the first attempt fails once its effects are there")


def topology(store: Store, topology_id: str) -> Any:
    spout = MemoryTransactionalSpout(DATA, Fields("word"), PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder(topology_id, "spout", spout, 2)
    builder.set_bolt("partial", BatchCount(), 2).none_grouping("spout")
    builder.set_bolt("sum", Sum(store)).global_grouping("partial")
    return builder.build_topology()


@pytest.mark.in_gate("postgresql-opaque")
@pytest.mark.rule(28, 29)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_a_global_count_in_a_server_counts_once_although_every_batch_is_written_twice(
    cluster: LocalCluster, database: Database, opaque: bool
) -> None:
    store = SqlStore(database.url, "counts", opaque=opaque)
    run = run_to_idle(
        cluster, topology(store, f"{database.server.title}-{opaque}"), max_spout_pending=3
    )
    assert dict(store.items()) == {"all": WORDS}
    committed = run.status().committed
    assert committed > 1
    [fence] = store.fences()
    assert (fence.component, fence.txid, fence.attempt) == ("sum", committed, 1)
    # One connection per worker process; those of failed tasks are being closed. After a minute
    # Spark would end the idle workers themselves.
    wait_until(lambda: len(database.backends()) <= 2, "the end of more sessions than that", 30.0)
