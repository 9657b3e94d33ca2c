"""A topology with two stores in one transaction, and a driver of it that a test may kill.

::

    payments ×1 ──fields(account)──► transfer ×2 (committer; writes `debits`, then `credits`)

Every transaction moves money: a debit in one store is a credit in the other. Each store also gets a
key of this transaction, and loses the key of the transaction before.
``python -m tests.topologies.transfers DIRECTORY`` runs the topology until its input is exhausted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    Fields,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore, Store
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.graph import TopologyGraph

ID = "transfers"
TRANSACTIONS = 30
PER_TRANSACTION = 2
ACCOUNTS = ("ann", "bob", "cid")
PAYMENTS = [(ACCOUNTS[n % len(ACCOUNTS)], n + 1) for n in range(TRANSACTIONS * PER_TRANSACTION)]


def stores(directory: Path) -> tuple[Store, Store]:
    """``debits`` and ``credits``, each in a file of its own."""
    return SqliteStore(directory / "debits.db", "debits"), SqliteStore(
        directory / "credits.db", "credits"
    )


class Transfer(BaseTransactionalBolt, ICommitter):
    """Debits, then credits, the payments."""

    def __init__(self, debits: Store, credits: Store) -> None:
        self.debits, self.credits = debits, credits

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.paid: dict[str, int] = {}

    def execute(self, tup: Tuple) -> None:
        self.paid[tup["account"]] = self.paid.get(tup["account"], 0) + tup["amount"]

    def finish_batch(self) -> None:
        for sign, store in ((-1, self.debits), (1, self.credits)):
            with store.transaction(self.context, self.attempt) as transaction:
                transaction.update_many(
                    {account: sign * paid for account, paid in self.paid.items()},
                    lambda total, paid: (total or 0) + paid,
                )
                if self.context.task_index == 0:
                    transaction.put(("last", self.attempt.txid), sign)
                    transaction.delete(("last", self.attempt.txid - 1))


def make_topology(directory: Path) -> TopologyGraph:
    """The topology with its stores in ``directory``."""
    spout = MemoryTransactionalSpout({0: PAYMENTS}, Fields("account", "amount"), PER_TRANSACTION)
    builder = TransactionalTopologyBuilder(ID, "payments", spout)
    builder.set_bolt("transfer", Transfer(*stores(directory)), 2).fields_grouping(
        "payments", Fields("account")
    )
    return builder.build_topology()


def expected(txid: int) -> tuple[dict[Any, int], dict[Any, int]]:
    """The content of the two stores after the commits of transactions 1 to ``txid``, and before any
    other write."""
    totals: dict[Any, int] = {}
    for account, amount in PAYMENTS[: txid * PER_TRANSACTION]:
        totals[account] = totals.get(account, 0) + amount
    last = {("last", txid): 1} if txid else {}
    return {key: -value for key, value in (totals | last).items()}, totals | last


def main(directory: Path) -> None:
    """Run in the driver process."""
    from txtopo import Config, LocalCluster

    with LocalCluster(master="local[2]", data_dir=directory / "state") as cluster:
        conf = Config(
            max_spout_pending=2,
            until="exhausted",
            poll_interval_s=0.02,
            backoff_min_s=0.01,
            message_timeout_s=120,
        )
        print(cluster.submit_topology(ID, conf, make_topology(directory)).join(PATIENCE_S).current)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
