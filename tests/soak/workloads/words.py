"""Words of lines, counted by a committer that feeds further bolts, as in Storm's
``TransactionalWords``: compared with a count of the lines.

The source learns a batch's metadata by emitting the batch (Storm's way), and the buckets depend on
the result of the first application of each count (R28): a replay with other results would move a
word into the wrong bucket.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.soak.committers import Committer, Flaw, added
from tests.soak.sources import PARTITIONS, Learning
from tests.soak.stores import open_store
from tests.soak.workloads.base import Checker, Snapshot, Workload, differences
from tests.soak.world import World
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import Update

BUCKET_SIZE = 10
VOCABULARY = tuple(f"word{n}" for n in range(40))


class Lines:
    """A few words in each row, some far more often than others."""

    fields = ("line",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def row(self, partition: int, index: int) -> tuple[Any, ...]:
        dice = random.Random(f"{self.seed}/words/{partition}/{index}")
        return (
            " ".join(
                VOCABULARY[int(len(VOCABULARY) * dice.random() ** 2)]
                for _ in range(dice.randint(1, 5))
            ),
        )


class Unsteady(Learning):
    """Broken on purpose: a replay begins one row later."""

    def emit(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        span: Any,
    ) -> None:
        late = 1 if attempt.attempt_id % 2 else 0
        super().emit(attempt, collector, partition, [span[0] + late, span[1] + late])


class Split(BaseBasicBolt):
    """Words of a line."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup["line"].split():
            collector.emit([tup[0], word])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


class Count(Committer):
    """Counts words; emits each with its count now and before."""

    shares = 2

    def begin(self) -> None:
        self.counts: Counter[str] = Counter()
        self.updates: dict[str, Update] = {}

    def collect(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += 1

    def write(self, opened: Any, share: int) -> None:
        words = sorted(self.counts)[share :: self.shares]
        self.updates |= opened.update_many({word: self.counts[word] for word in words}, added)

    def tell(self) -> None:
        for word, update in sorted(self.updates.items()):
            self.collector.emit([self.attempt, word, update.prev, update.curr])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "prev", "curr"))


class Bucketize(BaseBasicBolt):
    """Changes of the buckets after a changed count."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        attempt, _, prev, curr = tup.values
        if prev is None or prev // BUCKET_SIZE != curr // BUCKET_SIZE:
            collector.emit([attempt, curr // BUCKET_SIZE, 1])
            if prev is not None:
                collector.emit([attempt, prev // BUCKET_SIZE, -1])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "bucket", "delta"))


class Buckets(Committer):
    """How many words have been seen 0-9, 10-19, ... times."""

    def begin(self) -> None:
        self.deltas: Counter[int] = Counter()

    def collect(self, tup: Tuple) -> None:
        self.deltas[tup["bucket"]] += tup["delta"]

    def write(self, opened: Any, share: int) -> None:
        opened.update_many(dict(self.deltas), added)


class Words(Workload):
    """The workload."""

    name = "words"
    take = pace = 6
    is_parted = True

    def stores(self, world: World) -> dict[str, Any]:
        return {name: open_store(world, name) for name in ("words", "buckets")}

    def topology(self, world: World, incarnation: int) -> Any:
        kind = Unsteady if world.sabotage == "unsteady-source" else Learning
        source = kind(Lines(world.seed), world.feed(self.name), self.take)
        stores, flaw = self.stores(world), Flaw(f"{world.seed}/{self.name}")
        builder = TransactionalTopologyBuilder(f"soak-{self.name}", "lines", source, PARTITIONS)
        builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
        builder.set_bolt("count", Count(stores["words"], flaw), 3).fields_grouping(
            "split", Fields("word")
        )
        builder.set_bolt("bucketize", Bucketize()).none_grouping("count")
        builder.set_bolt("buckets", Buckets(stores["buckets"], flaw), 2).fields_grouping(
            "bucketize", Fields("bucket")
        )
        return builder.build_topology()

    def checker(self, world: World) -> WordsChecker:
        return WordsChecker(Lines(world.seed))


class WordsChecker(Checker):
    """Counts the lines for itself."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.counted: Counter[str] = Counter()
        self.rows = 0
        self.last: Snapshot = {}

    def read(self, store: str, seen: Snapshot, available: int) -> list[str]:
        self._advance(available)
        if store == "buckets":
            return [
                f"words: there are {count} words in bucket {bucket}"
                for bucket, count in seen.items()
                if count < 0
            ]
        wrong = []
        if many := [word for word, count in seen.items() if count > self.counted[word]]:
            wrong.append(
                f"words: {many[0]!r} counts {seen[many[0]]}, of {self.counted[many[0]]} that there are"
            )
        if back := [word for word, count in self.last.items() if seen.get(word, 0) < count]:
            wrong.append(
                f"words: a read went back: {back[0]!r} was {self.last[back[0]]}, and now {seen.get(back[0])}"
            )
        self.last = dict(seen)
        return wrong

    def end(self, seen: Mapping[str, Snapshot], available: int) -> list[str]:
        self._advance(available)
        wrong = []
        if difference := differences(self.counted, seen["words"]):
            wrong.append(f"words: {difference}")
        buckets = Counter(count // BUCKET_SIZE for count in self.counted.values() if count)
        if difference := differences(
            buckets, {bucket: count for bucket, count in seen["buckets"].items() if count}
        ):
            wrong.append(f"words: buckets: {difference}")
        return wrong

    def _advance(self, available: int) -> None:
        for partition in range(PARTITIONS):
            for index in range(self.rows, available):
                self.counted.update(self.lines.row(partition, index)[0].split())
        self.rows = max(self.rows, available)
