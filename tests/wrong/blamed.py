"""Topologies with one mistake each, in a spout or bolt upstream of right committers: the simulator
must blame the component and name the mistake.

All have the components words ×2 → each ×2 → sums ×1 (a committer) → shown ×1, downstream of it,
where nothing else is said.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.topologies import outside
from tests.topologies.simulated import Declares, Store
from txtopo import (
    BaseBatchBolt,
    BaseTransactionalBolt,
    BaseTransactionalSpout,
    BatchOutputCollector,
    CoordinatorContext,
    Fields,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalSpoutCoordinator,
    TransactionalSpoutEmitter,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.mistakes import Mistake
from txtopo.topology.graph import TopologyGraph

STORE = SqliteStore("/nowhere/blamed.db", "sums")
TAKE = 2


# -- spouts --------------------------------------------------------------------------------------


class Words(Declares, BaseTransactionalSpout):
    """Two words of the log in each transaction."""

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        return WordsCoordinator(context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        return WordsEmitter(context)


class WordsCoordinator(TransactionalSpoutCoordinator):
    def __init__(self, context: CoordinatorContext) -> None:
        self.context = context

    def is_ready(self) -> bool:
        last = self.context.last_metadata
        return last is None or last["end"] < len(outside.WORDS)

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        begin = 0 if prev_metadata is None else prev_metadata["end"]
        return {"begin": begin, "end": begin + TAKE}


class WordsEmitter(TransactionalSpoutEmitter):
    def __init__(self, context: TopologyContext) -> None:
        self.context = context

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        self.emit(attempt, range(metadata["begin"], metadata["end"]), outside.WORDS, collector)

    def emit(
        self,
        attempt: TransactionAttempt,
        numbers: Sequence[int],
        words: Sequence[str],
        collector: BatchOutputCollector,
    ) -> None:
        for n in numbers:
            if n % self.context.num_tasks == self.context.task_index:
                collector.emit([attempt, words[n], n + 1])


class ReadsToTheEnd(Words):
    """The log grows each time it is read."""

    class Emitter(WordsEmitter):
        def emit_batch(
            self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
        ) -> None:
            outside.world.log.append(f"word {len(outside.world.log)}")
            self.emit(
                attempt,
                range(metadata["begin"], len(outside.world.log)),
                outside.world.log,
                collector,
            )

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        return self.Emitter(context)


class TakesWhenOpening(Words):
    """The metadata lists the items taken from the queue."""

    class Coordinator(WordsCoordinator):
        def is_ready(self) -> bool:
            return bool(outside.world.queue)

        def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
            return [outside.world.queue.pop(0), outside.world.queue.pop(0)]

    class Emitter(WordsEmitter):
        def emit_batch(
            self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
        ) -> None:
            self.emit(attempt, range(len(metadata)), metadata, collector)

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        return self.Coordinator(context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        return self.Emitter(context)


class AcknowledgesAtEmit(Words):
    """Emitted items are no longer in the queue."""

    class Emitter(WordsEmitter):
        def emit_batch(
            self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
        ) -> None:
            for n in range(metadata["begin"], metadata["end"]):
                if (
                    n % self.context.num_tasks == self.context.task_index
                    and outside.WORDS[n] in outside.world.queue
                ):
                    collector.emit([attempt, outside.WORDS[n], n + 1])
                    outside.world.queue.remove(outside.WORDS[n])

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        return self.Emitter(context)


class IgnoresMetadata(Words):
    """Goes on where this process has stopped."""

    class Emitter(WordsEmitter):
        position: ClassVar[int] = 0

        def emit_batch(
            self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
        ) -> None:
            begin, type(self).position = type(self).position, type(self).position + TAKE
            self.emit(
                attempt, [n % 8 for n in range(begin, begin + TAKE)], outside.WORDS, collector
            )

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Any:
        return self.Emitter(context)


class RemembersInTheCoordinator(Words):
    """Begins anew after a restart."""

    class Coordinator(WordsCoordinator):
        position = 0

        def is_ready(self) -> bool:
            return self.position < len(outside.WORDS)

        def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
            begin, self.position = self.position, self.position + TAKE
            return {"begin": begin, "end": begin + TAKE}

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> Any:
        return self.Coordinator(context)


# -- bolts ---------------------------------------------------------------------------------------


class Each(Declares, BaseBatchBolt):
    """Emits its tuples, in the end."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.rows: list[tuple[str, int]] = []

    def execute(self, tup: Tuple) -> None:
        self.rows.append((tup["key"], tup["value"]))

    def finish_batch(self) -> None:
        for key, value in self.rows:
            self.collector.emit([self.attempt, key, value])


class SetOrder(Each):
    def finish_batch(self) -> None:
        for key in list({*"abcdefgh", *(key for key, _ in self.rows)})[:3]:
            self.collector.emit([self.attempt, key, 1])


class SetOfItsTuples(Each):
    """Emits the same tuples as it takes, and a few more, in the order of a set."""

    def finish_batch(self) -> None:
        for key in {*"abcdefgh", *(key for key, _ in self.rows)}:
            self.collector.emit([self.attempt, key, 1])


class ReadsTheStore(Each):
    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def execute(self, tup: Tuple) -> None:
        self.rows.append((tup["key"], tup["value"] + self.store.get("all", 0)))


class Chance(Each):
    def finish_batch(self) -> None:
        for key, value in self.rows:
            self.collector.emit([self.attempt, key, value + random.randrange(1000)])


class Clock(Each):
    def finish_batch(self) -> None:
        for key, value in self.rows:
            self.collector.emit([self.attempt, key, value + time.perf_counter_ns()])


class Warm(Each):
    """Emits other values in the first run than in each later one."""

    def finish_batch(self) -> None:
        factor, outside.world.was_emitted = (2 if outside.world.was_emitted else 1), True
        for key, value in self.rows:
            self.collector.emit([self.attempt, key, value * factor])


class Address(Each):
    def finish_batch(self) -> None:
        for key, value in self.rows:
            self.collector.emit([self.attempt, key, value + id(self.rows)])


class Threads(Each):
    """Numbers rows in the order in which threads get to them."""

    def finish_batch(self) -> None:
        done: list[int] = []
        threads = [
            threading.Thread(target=self.work, args=(value + n, done))
            for _, value in self.rows
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n, value in enumerate(done):
            self.collector.emit([self.attempt, "all", n * value])

    def work(self, value: int, done: list[int]) -> None:
        threading.Event().wait(random_wait_s())
        done.append(value)


def random_wait_s() -> float:
    return random.random() / 1000


seen: dict[str, int] = {}
"""Shared by all attempts of a process."""


class SharedDict(Each):
    def finish_batch(self) -> None:
        for key, value in self.rows:
            seen[key] = seen.get(key, 0) + 1
            self.collector.emit([self.attempt, key, value * seen[key]])


class ClassAttribute(Each):
    calls: ClassVar[int] = 0

    def finish_batch(self) -> None:
        type(self).calls += 1
        for key, value in self.rows:
            self.collector.emit([self.attempt, key, value * type(self).calls])


class Deal:
    """A custom grouping that does not choose the same again."""

    def choose_tasks(self, task_index: int, values: Sequence[Any]) -> list[int]:
        return [random.randrange(2)]


class Sums(Store, BaseTransactionalBolt, ICommitter):
    """Right: one sum for all."""

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            update = transaction.update("all", lambda old: (old or 0) + sum(self.sums.values()))
        self.emit_update(update)

    def emit_update(self, update: Any) -> None:
        self.collector.emit([self.attempt, "all", update.curr])


class Joined(Sums):
    """Right, if its tuples come in the same order: joins their keys; ``shows`` what it joined."""

    def __init__(self, store: SqliteStore, shows: bool) -> None:
        super().__init__(store)
        self.shows, self.joined = shows, ""

    def execute(self, tup: Tuple) -> None:
        self.joined += tup["key"]

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            update = transaction.update("all", lambda old: (old or "") + self.joined)
        if self.shows and self.attempt.txid > 1:
            self.collector.emit([self.attempt, update.prev, 1])


class OnlyIfApplied(Sums):
    def emit_update(self, update: Any) -> None:
        if update.applied:
            super().emit_update(update)


cached: list[int] = []


class Cached(Sums):
    """Keeps the sum beside the store, so as not to read it again."""

    def emit_update(self, update: Any) -> None:
        cached.append(sum(self.sums.values()))
        self.collector.emit([self.attempt, "all", sum(cached)])


class ToTheJournal(Sums):
    """Adds to a place that knows no transactions."""

    def finish_batch(self) -> None:
        outside.world.journal["all"] = outside.world.journal.get("all", 0) + sum(self.sums.values())


class ToTheJournalEarly(Each):
    def execute(self, tup: Tuple) -> None:
        outside.world.journal["seen"] = outside.world.journal.get("seen", 0) + 1
        super().execute(tup)


class Swallows(Sums):
    """Goes on after a failure of the store; the attempt fails all the same (R39)."""

    def finish_batch(self) -> None:
        try:
            super().finish_batch()
        except Exception:
            self.collector.emit([self.attempt, "all", 0])


# -- topologies ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """``component`` makes ``mistake``."""

    component: str
    mistake: Mistake
    spout: Any = field(default_factory=Words)
    each: Any = field(default_factory=Each)
    sums: Any = field(default_factory=lambda: Sums(STORE))
    grouping: Any = None

    def topology(self) -> TopologyGraph:
        """words → each → sums → shown."""
        builder = TransactionalTopologyBuilder("blamed", "words", self.spout, 2)
        declarer = builder.set_bolt("each", self.each, 2)
        if self.grouping is None:
            declarer.fields_grouping("words", Fields("key"))
        else:
            declarer.custom_grouping("words", self.grouping)
        builder.set_bolt("sums", self.sums).global_grouping("each")
        builder.set_bolt(
            "shown", Store(SqliteStore("/nowhere/blamed.db", "shown"))
        ).global_grouping("sums")
        return builder.build_topology()


class Numbered(Each):
    """Right: numbers the tuples in each task, so that a tuple's task matters."""

    def finish_batch(self) -> None:
        for n, (key, value) in enumerate(sorted(self.rows)):
            self.collector.emit([self.attempt, key, value * 10**n])


WRONG: dict[str, Wrong] = {
    "an emitter that reads to the end": Wrong(
        "words", mistakes.NOT_FROM_METADATA, spout=ReadsToTheEnd()
    ),
    "a destructive initialize_transaction": Wrong(
        "words", mistakes.TAKEN_AWAY, spout=TakesWhenOpening()
    ),
    "an acknowledgement at emit": Wrong("words", mistakes.TAKEN_AWAY, spout=AcknowledgesAtEmit()),
    "a position in a class attribute": Wrong(
        "words", mistakes.SPOUT_GLOBAL, spout=IgnoresMetadata()
    ),
    "a position in the coordinator": Wrong(
        "words", mistakes.POSITION_ELSEWHERE, spout=RemembersInTheCoordinator()
    ),
    "a read-ahead in the processing phase": Wrong(
        "each", mistakes.READS_AHEAD, each=ReadsTheStore(STORE)
    ),
    "chance": Wrong("each", mistakes.CHANCE, each=Chance()),
    "a clock": Wrong("each", mistakes.CLOCK, each=Clock()),
    "an address": Wrong("each", mistakes.AN_ADDRESS, each=Address()),
    "threads": Wrong("each", mistakes.A_THREAD, each=Threads()),
    "a dict shared between attempts": Wrong("each", mistakes.MODULE_GLOBAL, each=SharedDict()),
    "a class attribute": Wrong("each", mistakes.MODULE_GLOBAL, each=ClassAttribute()),
    "a grouping by chance": Wrong("words", mistakes.OTHER_TASKS, each=Numbered(), grouping=Deal()),
    "emitting only if update.applied": Wrong(
        "sums", mistakes.EMITS_SOMETHING_ELSE, sums=OnlyIfApplied(STORE)
    ),
    "a value cached in a global": Wrong("sums", mistakes.MODULE_GLOBAL, sums=Cached(STORE)),
    "an increment that is not in a store": Wrong(
        "sums", mistakes.APPLIED_AGAIN, sums=ToTheJournal(STORE)
    ),
    "a write in execute": Wrong("each", mistakes.WRITE_WHILE_PROCESSING, each=ToTheJournalEarly()),
}
"""By what is wrong."""

SEEN_ELSEWHERE = {
    "other tuples": Wrong("each", mistakes.HASH, each=SetOrder()),
    "another order, as a store shows": Wrong(
        "each", mistakes.HASH, each=SetOfItsTuples(), sums=Joined(STORE, shows=False)
    ),
    "another order, as the tuples of the next transaction show": Wrong(
        "each", mistakes.HASH, each=SetOfItsTuples(), sums=Joined(STORE, shows=True)
    ),
}
"""The order of a set: the same in one process, different in the next."""

RIGHT = {
    "nothing wrong": Wrong("", mistakes.HASH),
    "a failure that is swallowed": Wrong("", mistakes.HASH, sums=Swallows(STORE)),
}
