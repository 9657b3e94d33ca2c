"""Transfers between accounts. Under any crash, money neither comes nor goes, in any read; and every
read is the state after some whole batch.

Every transaction is one store transaction of one task, so that a reader never sees half of a
transaction. Beside the balances the ledger keeps the number of rows of each partition in them: a
reader can compute the right balances.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.soak.committers import Committer, Flaw, added
from tests.soak.sources import PARTITIONS, Planned
from tests.soak.stores import open_store
from tests.soak.workloads.base import Checker, Snapshot, Workload, differences
from tests.soak.world import World
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)

ACCOUNTS = 8
OPENING_BALANCE = 100
TRANSFER_MAX = 20


class Transfers:
    """Who pays whom how much."""

    fields = ("partition", "source", "target", "amount")

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def row(self, partition: int, index: int) -> tuple[Any, ...]:
        dice = random.Random(f"{self.seed}/bank/{partition}/{index}")
        source, target = dice.sample(range(ACCOUNTS), 2)
        return partition, source, target, dice.randint(1, TRANSFER_MAX)


class Book(BaseBasicBolt):
    """A transfer becomes two changes of accounts, and a count of transfers."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        attempt, partition, source, target, amount = tup.values
        collector.emit([attempt, f"account {source}", -amount])
        collector.emit([attempt, f"account {target}", amount])
        collector.emit([attempt, f"rows {partition}", 1])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "key", "delta"))


class Ledger(Committer):
    """Adds up all changes, in one task."""

    def begin(self) -> None:
        self.deltas: Counter[str] = Counter()

    def collect(self, tup: Tuple) -> None:
        self.deltas[tup["key"]] += tup["delta"]

    def write(self, opened: Any, share: int) -> None:
        opened.update_many(dict(self.deltas), added)


class Bank(Workload):
    """The workload."""

    name = "bank"
    take = pace = 6
    is_parted = False

    def stores(self, world: World) -> dict[str, Any]:
        return {"bank": open_store(world, "bank")}

    def topology(self, world: World, incarnation: int) -> Any:
        source = Planned(Transfers(world.seed), world.feed(self.name), self.take)
        builder = TransactionalTopologyBuilder(f"soak-{self.name}", "transfers", source, PARTITIONS)
        builder.set_bolt("book", Book(), 2).shuffle_grouping("transfers")
        builder.set_bolt(
            "ledger", Ledger(self.stores(world)["bank"], Flaw(f"{world.seed}/{self.name}"))
        ).global_grouping("book")
        return builder.build_topology()

    def checker(self, world: World) -> BankChecker:
        return BankChecker(Transfers(world.seed))


class BankChecker(Checker):
    """Replays the transfers that a read says it contains, and compares."""

    def __init__(self, transfers: Transfers) -> None:
        self.transfers = transfers
        self.balances: Counter[str] = Counter()
        self.applied = dict.fromkeys(range(PARTITIONS), 0)

    def read(self, store: str, seen: Snapshot, available: int) -> list[str]:
        balances = {key: value for key, value in seen.items() if key.startswith("account ")}
        total = ACCOUNTS * OPENING_BALANCE + sum(balances.values())
        wrong = []
        if total != ACCOUNTS * OPENING_BALANCE:
            wrong.append(f"bank: the total is {total}, it was {ACCOUNTS * OPENING_BALANCE}")
        applied = {
            partition: int(seen.get(f"rows {partition}", 0)) for partition in range(PARTITIONS)
        }
        if any(applied[partition] < self.applied[partition] for partition in applied):
            return [
                *wrong,
                f"bank: a read went back: rows {applied} of each partition, after {self.applied}",
            ]
        if any(rows > available for rows in applied.values()):
            return [
                *wrong,
                f"bank: rows {applied} of each partition were applied, of {available} that there are",
            ]
        self._advance(applied)
        difference = differences(self.balances, balances)
        return [*wrong, f"bank: after rows {applied}: {difference}"] if difference else wrong

    def end(self, seen: Mapping[str, Snapshot], available: int) -> list[str]:
        wrong = self.read("bank", seen["bank"], available)
        missing = {partition: rows for partition, rows in self.applied.items() if rows != available}
        return (
            [*wrong, f"bank: only rows {missing} of partitions were applied, of {available}"]
            if missing
            else wrong
        )

    def _advance(self, applied: Mapping[int, int]) -> None:
        for partition, rows in applied.items():
            for index in range(self.applied[partition], rows):
                _, source, target, amount = self.transfers.row(partition, index)
                self.balances[f"account {source}"] -= amount
                self.balances[f"account {target}"] += amount
        self.applied = dict(applied)
