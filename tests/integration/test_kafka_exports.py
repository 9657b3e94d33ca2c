"""From an opaque spout through an opaque store and an export queue to Kafka: batches change from
attempt to attempt, exporters die, and readers of committed records see every recorded change once, in
order. The whole engine runs in this process, without Spark."""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import local_engine
from tests.servers.kafka import MEMORY_AND_BROKER, OPEN_S
from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    FailedException,
    Fields,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.engine.observer import EndedAttempt, Observer
from txtopo.exports import ExportQueue, KafkaExporter, SequencedExport, exporting, leases
from txtopo.runtime.visibility import Visibility
from txtopo.state.memory import MemoryStateStore
from txtopo.stores import SqliteStore
from txtopo.testing import OpaqueMemoryTransactionalSpout
from txtopo.topology.transaction import is_first_try

ROWS = {
    partition: [(f"{letter}{partition % 2 * 5}",) for letter in "abcabbda"]
    for partition in range(3)
}


class Died(BaseException):
    """The exporter's process dies."""


class Counts(BaseTransactionalBolt, ICommitter):
    """Counts words, and queues the counts. The first attempt at every batch fails when all has been
    written, and a partition is away in the second attempt."""

    def __init__(
        self, store: SqliteStore, queue: ExportQueue, spout: OpaqueMemoryTransactionalSpout
    ) -> None:
        self.store, self.queue, self.spout = store, queue, spout

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.counts = collections.Counter[str]()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += 1

    def finish_batch(self) -> None:
        if self.counts:
            with self.store.transaction(self.context, self.attempt) as opened:
                updates = opened.update_many(self.counts, lambda old, more: (old or 0) + more)
                for word, update in updates.items():
                    self.queue.add(opened, word, update.curr)
        is_first = is_first_try(self.attempt)
        for partition in ROWS:
            self.spout.set_disabled(
                partition, is_first and partition == self.attempt.txid % len(ROWS)
            )
        if is_first and self.context.task_index == 1:
            raise FailedException("both tasks have written")


class Mortal(KafkaExporter):
    """Dies at ``death``."""

    death = ""

    def export(self, entries: Iterator[SequencedExport]) -> None:
        if self.death == "before":
            raise Died
        super().export(itertools.islice(entries, 2) if self.death == "inside" else entries)
        if self.death:
            raise Died


class Exports(Observer):
    """Exports after every attempt, by exporters that die in turn and are not closed."""

    def __init__(self, queue: ExportQueue, state: MemoryStateStore, servers: str, topic: str):
        self.queue, self.state, self.servers, self.topic = queue, state, servers, topic
        self.clock, self.failed = 0.0, 0
        self.deaths = itertools.cycle(["", "after", "inside", "", "before", "after"])
        self.history = collections.defaultdict[Any, list[int]](list)
        self.exporters: list[Mortal] = []
        self.running: exporting.Exporting | None = None

    def attempt_ended(self, ended: EndedAttempt) -> None:
        self.failed += 1
        self.step(next(self.deaths))

    def committed(self, ended: EndedAttempt) -> None:
        for word, count in self.queue.store.items():
            if self.history[word][-1:] != [count]:
                self.history[word].append(count)
        self.step(next(self.deaths))

    def step(self, death: str = "") -> bool:
        if self.running is None:
            self.exporters.append(Mortal(self.servers, self.topic, transaction_timeout_s=OPEN_S))
            self.running = exporting.Exporting(
                self.queue,
                self.exporters[-1],
                lambda: Visibility("changes")._read(self.state),
                clock=lambda: self.clock,
            )
        self.exporters[-1].death = death
        has_told = False
        try:
            for _ in range(3):
                self.clock += leases.LEASE_S + 1
                has_told |= self.running.step()
        except Died:
            self.running = None
        return has_told


@pytest.mark.in_gate("memory")
@MEMORY_AND_BROKER
@pytest.mark.rule(18, 31, 40)
def test_every_recorded_change_is_in_the_topic_once_and_in_order(
    kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = kafka.new_topic(partitions=2)
    store, state = SqliteStore(tmp_path / "counts.db", "counts", opaque=True), MemoryStateStore()
    queue = ExportQueue("words", store, 2)
    spout = OpaqueMemoryTransactionalSpout(ROWS, Fields("word"), 2)
    builder = TransactionalTopologyBuilder("changes", "words", spout)
    builder.set_bolt("count", Counts(store, queue, spout), 2).fields_grouping(
        "words", Fields("word")
    )
    exports = Exports(queue, state, kafka.servers, topic)
    local_engine.run_to_idle(builder.build_topology(), state, observers=[exports])
    while exports.step():
        pass
    counts = collections.Counter(word for rows in ROWS.values() for (word,) in rows)
    assert dict(store.items()) == counts
    kafka.wait_until_settled(topic)
    told = collections.defaultdict[Any, list[int]](list)
    for record in kafka.read(topic):
        told[record.key.decode()].append(json.loads(record.value))
    assert told == exports.history
    assert (exports.failed > 5, len(exports.exporters) > 5) == (True, True)
    for exporter in exports.exporters:
        exporter.close()
