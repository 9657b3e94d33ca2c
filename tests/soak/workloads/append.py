"""Each transaction appends its txid to the list of every key it touches: order, uniqueness and
completeness can be read off the lists.

Transaction n is the n-th slice of the source, so that the content of each list is known. Several
tasks write the lists, each in a store transaction of its own: a reader may see the newest
transaction in part, but never two, since commits are serial (R3).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from tests.soak.committers import Committer, Flaw
from tests.soak.sources import Whole
from tests.soak.stores import open_store
from tests.soak.workloads.base import Checker, Snapshot, Workload
from tests.soak.world import World
from txtopo import Fields, TransactionalTopologyBuilder, Tuple

KEYS = 12
TAKE = 5
Lists = dict[str, list[int]]


class Keys:
    """Which key each row touches."""

    fields = ("key",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def row(self, partition: int, index: int) -> tuple[Any, ...]:
        return (f"key {random.Random(f'{self.seed}/append/{index}').randrange(KEYS)}",)

    def touched(self, txid: int) -> set[str]:
        """The keys of transaction ``txid``."""
        return {self.row(0, index)[0] for index in range((txid - 1) * TAKE, txid * TAKE)}


class Appender(Committer):
    """Appends."""

    shares = 3

    def begin(self) -> None:
        self.keys: set[str] = set()

    def collect(self, tup: Tuple) -> None:
        self.keys.add(tup["key"])

    def write(self, opened: Any, share: int) -> None:
        for key in sorted(self.keys)[share :: self.shares]:
            opened.update(key, lambda old: [*(old or []), self.attempt.txid])


class Append(Workload):
    """The workload."""

    name = "append"
    take = pace = TAKE
    is_parted = True

    def stores(self, world: World) -> dict[str, Any]:
        return {"append": open_store(world, "append")}

    def topology(self, world: World, incarnation: int) -> Any:
        source = Whole(Keys(world.seed), world.feed(self.name), self.take)
        builder = TransactionalTopologyBuilder(f"soak-{self.name}", "keys", source, 2)
        appender = Appender(self.stores(world)["append"], Flaw(f"{world.seed}/{self.name}"))
        builder.set_bolt("append", appender, 3).fields_grouping("keys", Fields("key"))
        return builder.build_topology()

    def checker(self, world: World) -> AppendChecker:
        return AppendChecker(Keys(world.seed))


class AppendChecker(Checker):
    """Knows every list as it must be after each transaction."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.whole: Lists = {}
        """What must be there: every list after ``upto`` transactions."""
        self.upto = 0
        self.last: dict[str, list[int]] = {}

    def read(self, store: str, seen: Snapshot, available: int) -> list[str]:
        lists: Lists = {key: list(value) for key, value in seen.items()}
        newest = max((txid for txids in lists.values() for txid in txids), default=0)
        if newest * TAKE > available:
            return [f"append: there is transaction {newest}, of {available // TAKE}"]
        wrong = self._disorder(lists)
        back = [
            key for key, txids in self.last.items() if lists.get(key, [])[: len(txids)] != txids
        ]
        if back:
            wrong.append(
                f"append: a read went back: {back[0]!r} was {self.last[back[0]][-5:]} at its end, and now {lists.get(back[0], [])[-5:]}"
            )
        if newest:
            self._advance(newest - 1)
            wrong.extend(self._incomplete(lists, newest))
        self.last = lists
        return wrong

    def end(self, seen: Mapping[str, Snapshot], available: int) -> list[str]:
        wrong = self.read("append", seen["append"], available)
        self._advance(available // TAKE)
        missing = [key for key, txids in self.whole.items() if txids != self.last.get(key)]
        if missing and not wrong:
            key = missing[0]
            wrong.append(
                f"append: in the end {key!r} ends with {self.last.get(key, [])[-5:]}, it should with {self.whole[key][-5:]}"
            )
        return wrong

    @staticmethod
    def _disorder(lists: Lists) -> list[str]:
        wrong = []
        for key, txids in lists.items():
            if len(set(txids)) < len(txids):
                wrong.append(
                    f"append: {key!r} has a transaction twice: {[txid for txid in txids if txids.count(txid) > 1][:4]}"
                )
            elif txids != sorted(txids):
                wrong.append(f"append: {key!r} is out of order: {txids}")
        return wrong

    def _incomplete(self, lists: Lists, newest: int) -> list[str]:
        """All of each transaction before the newest, and of the newest nothing that is not in it."""
        touched = self.keys.touched(newest)
        for key in sorted({*lists, *self.whole}):
            txids = lists.get(key, [])
            before = [txid for txid in txids if txid < newest]
            if before != self.whole.get(key, []):
                odd = sorted(set(before) ^ set(self.whole.get(key, [])))
                return [
                    f"append: {key!r} differs in transactions {odd[:5]}, while transaction {newest} is there"
                ]
            if newest in txids and key not in touched:
                return [f"append: {key!r} has transaction {newest}, which does not touch it"]
        return []

    def _advance(self, upto: int) -> None:
        for txid in range(self.upto + 1, upto + 1):
            for key in self.keys.touched(txid):
                self.whole.setdefault(key, []).append(txid)
        self.upto = max(self.upto, upto)
