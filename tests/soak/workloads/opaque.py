"""Words of a source that gives another batch each time it is asked (R18, R31): every tuple must
count in exactly one transaction.

Beside the count of each word the store has a key for each tuple, so that a lost tuple, or a tuple
counted twice, can be named. A tuple's key is written together with its word's count: in every read
the counts equal the sums of the tuples.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.soak.committers import Committer, Flaw, added
from tests.soak.sources import PARTITIONS, Moody
from tests.soak.stores import open_store
from tests.soak.workloads.base import Checker, Snapshot, Workload, differences
from tests.soak.world import World
from txtopo import Fields, TransactionalTopologyBuilder, Tuple

WORDS = ("apple", "banana", "cat", "chicken", "dog", "zebra")


class Animals:
    """A word in each row, and which row it is."""

    fields = ("word", "place")

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def row(self, partition: int, index: int) -> tuple[Any, ...]:
        return random.Random(f"{self.seed}/opaque/{partition}/{index}").choice(
            WORDS
        ), f"{partition}/{index}"

    def word(self, place: str) -> str:
        """The word of the row with this name."""
        partition, index = place.split("/")
        return str(self.row(int(partition), int(index))[0])


class KeyedCount(Committer):
    """Counts words and tuples."""

    def begin(self) -> None:
        self.counts: Counter[str] = Counter()

    def collect(self, tup: Tuple) -> None:
        self.counts[f"word {tup['word']}"] += 1
        self.counts[f"tuple {tup['place']}"] += 1

    def write(self, opened: Any, share: int) -> None:
        opened.update_many(dict(self.counts), added)


class Opaque(Workload):
    """The workload: planned by the driver, or learnt by emitting."""

    take, pace = 4, 2
    is_parted = True

    def __init__(self, name: str, planned: bool) -> None:
        self.name, self.planned = name, planned

    def stores(self, world: World) -> dict[str, Any]:
        name = self.name.replace("-", "_")
        return {name: open_store(world, name, opaque=True)}

    def topology(self, world: World, incarnation: int) -> Any:
        # The driver's number is in the seed, or a plan made again after a restart would be the plan
        # that was made before it.
        source = Moody(
            Animals(world.seed),
            world.feed(self.name),
            self.take,
            f"{world.seed}/{self.name}/{incarnation}",
            self.planned,
        )
        builder = TransactionalTopologyBuilder(f"soak-{self.name}", "animals", source, PARTITIONS)
        (store,) = self.stores(world).values()
        count = KeyedCount(store, Flaw(f"{world.seed}/{self.name}", one_in=15))
        builder.set_bolt("count", count, 2).fields_grouping("animals", Fields("word"))
        return builder.build_topology()

    def checker(self, world: World) -> OpaqueChecker:
        return OpaqueChecker(self.name, Animals(world.seed))


class OpaqueChecker(Checker):
    """Counts for itself. Writes of a failed attempt may be seen and vanish again, so that reads may
    go back; but no tuple is ever stored twice."""

    def __init__(self, name: str, animals: Animals) -> None:
        self.name, self.animals = name, animals

    def read(self, store: str, seen: Snapshot, available: int) -> list[str]:
        tuples = {
            key.removeprefix("tuple "): count
            for key, count in seen.items()
            if key.startswith("tuple ")
        }
        wrong = []
        if doubled := sorted(place for place, count in tuples.items() if count != 1):
            wrong.append(
                f"{self.name}: tuple {doubled[0]} counts {tuples[doubled[0]]} times (and {len(doubled) - 1} others are not once)"
            )
        if strange := sorted(place for place in tuples if int(place.split("/")[1]) >= available):
            wrong.append(
                f"{self.name}: tuple {strange[0]} does not exist yet, there are {available} in each partition"
            )
        words: Counter[str] = Counter()
        for place, count in tuples.items():
            words[self.animals.word(place)] += count
        counts = {
            key.removeprefix("word "): count
            for key, count in seen.items()
            if key.startswith("word ")
        }
        if difference := differences(words, counts):
            wrong.append(
                f"{self.name}: counts are not what the tuples beside them add up to: {difference}"
            )
        return wrong

    def end(self, seen: Mapping[str, Snapshot], available: int) -> list[str]:
        (snapshot,) = seen.values()
        wrong = self.read("", snapshot, available)
        lost = [
            f"{p}/{index}"
            for p in range(PARTITIONS)
            for index in range(available)
            if f"tuple {p}/{index}" not in snapshot
        ]
        if lost:
            wrong.append(f"{self.name}: tuple {lost[0]} is lost (and {len(lost) - 1} others)")
        return wrong
