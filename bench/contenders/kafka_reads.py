"""Records of a topic of Kafka in one process without Spark: by a spout, as its task reads them, and
by hand with a consumer of confluent-kafka.

By hand there is no position that survives, no check of the topic, and no order among transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import confluent_kafka
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bench import topics
from bench.contenders import bare_loop
from bench.contenders.keyed_updates import Server
from bench.line import WrongResultError
from bench.process import Sample
from txtopo import BatchOutputCollector, TopologyConf, TransactionAttempt
from txtopo.connectors.kafka import KafkaColumnSpout, KafkaTransactionalSpout
from txtopo.connectors.kafka.log import FETCHING, POSITIONED

__all__ = ["Reads", "Server"]

TOPIC = "sales"
SCHEMA = pa.schema([("id", pa.int64()), ("cents", pa.int64()), ("name", pa.string())])
_AT_ONCE = 1000


class Summed(BatchOutputCollector):
    """Adds up the emissions."""

    def __init__(self) -> None:
        self.rows = self.total = 0

    def emit(self, values: Any, stream: str = "default") -> None:
        self.emit_all([values])

    def emit_all(self, rows: Iterable[Sequence[Any]], stream: str = "default") -> None:
        lengths = [len(row[1]) for row in rows]
        self.rows += len(lengths)
        self.total += sum(lengths)

    def emit_batch(self, batch: pa.RecordBatch, stream: str = "default") -> None:
        self.rows += batch.num_rows
        self.total += total_of(batch.column(0))

    def emit_direct(self, task_index: int, values: Any, stream: str = "default") -> None:
        raise NotImplementedError("no spout here emits directly")


def total_of(column: pa.Array) -> int:
    """The bytes of values; of numbers the numbers themselves."""
    total: int = pc.sum(
        column if pa.types.is_integer(column.type) else pc.binary_length(column)
    ).as_py()
    return total


class Reads:
    """A topic with ``rows`` records in one partition, and the ways to read it."""

    def __init__(self, directory: str, servers: str, rows: int) -> None:
        self._resources: dict[str, Any] = {}
        topics.make(servers, TOPIC)
        records = [topics.value(number) for number in range(rows)]
        topics.fill(servers, TOPIC, records)
        self._sums = {"bytes": [len(record) for record in records], "json": list(range(rows))}
        spouts: dict[str, Any] = {
            "tuples": KafkaTransactionalSpout(servers, TOPIC),
            "columns": KafkaColumnSpout(servers, TOPIC),
            "json columns": KafkaColumnSpout(servers, TOPIC, format="json", schema=SCHEMA),
        }
        log = spouts["tuples"].source.log()
        (described,), (end,) = log.describe([TOPIC]).values(), log.ends([(TOPIC, 0)]).values()
        self._metadata = {
            "topic": TOPIC,
            "partition": 0,
            "id": described.id,
            "epoch": end.epoch,
            "start_epoch": end.epoch,
        }
        self._spouts = spouts
        # The library's own settings read at a quarter of the rate: they wait a second for small
        # queues.
        settings = {
            **FETCHING,
            **POSITIONED,
            "bootstrap.servers": servers,
            "group.id": "by-hand",
            "isolation.level": "read_committed",
        }
        self._consumer = confluent_kafka.Consumer(settings)

    def block(self, way: str, rows: int, batches: int = 1, jumps: bool = False) -> Sample:
        """Read ``batches`` of ``rows`` records each, batch after batch. With ``jumps`` no batch
        begins where a batch ended. ``way`` is one of the spouts, or ``by hand, …``."""
        starts = [number * rows for number in range(batches)]
        if jumps:
            starts.reverse()
        by_hand = way.startswith("by hand")
        read = self._by_hand(way) if by_hand else self._by_spout(way)
        began = time.perf_counter()
        sums = [read(start, start + rows) for start in starts]
        seconds = time.perf_counter() - began
        truth = self._sums["json" if "json" in way else "bytes"]
        expected = [(rows, sum(truth[start : start + rows])) for start in starts]
        if sums != expected:
            raise WrongResultError(f"{way}: {sums[:3]} instead of {expected[:3]}")
        return {
            "seconds": seconds,
            "rows_per_second": rows * batches / seconds,
            "ms_per_batch": 1000 * seconds / batches,
        }

    def _by_spout(self, way: str) -> Callable[[int, int], tuple[int, int]]:
        context, spout = (
            bare_loop.context("spout", "processing", self._resources),
            self._spouts[way],
        )

        def read(start: int, end: int) -> tuple[int, int]:
            collector = Summed()
            emitter = spout.get_emitter(TopologyConf({}), context)
            emitter.emit_planned_partition_batch(
                TransactionAttempt(1, 0),
                collector,
                0,
                {**self._metadata, "start": start, "end": end},
            )
            return collector.rows, collector.total

        return read

    def _by_hand(self, way: str) -> Callable[[int, int], tuple[int, int]]:
        sums = {
            "by hand": _sums_of_values,
            "by hand, columns": _sums_of_arrays,
            "by hand, json columns": _sums_of_objects,
        }[way]

        def read(start: int, end: int) -> tuple[int, int]:
            self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, start)])
            rows = total = 0
            for messages in self._consumed(start, end):
                rows += len(messages)
                total += sums(messages)
            return rows, total

        return read

    def _consumed(self, start: int, end: int) -> Iterator[list[Any]]:
        while start < end:
            messages = [
                message
                for message in self._consumer.consume(min(_AT_ONCE, end - start), topics.ANSWER_S)
                if message.error() is None
            ]
            start += len(messages)
            if messages:
                yield messages

    def close(self) -> None:
        """Let go of all clients."""
        self._consumer.close()
        for resource in self._resources.values():
            resource.close()


def _sums_of_values(messages: list[Any]) -> int:
    return sum([len(message.value()) for message in messages])


def _sums_of_arrays(messages: list[Any]) -> int:
    return total_of(pa.array([message.value() for message in messages], pa.binary()))


def _sums_of_objects(messages: list[Any]) -> int:
    lines = b"\n".join([message.value() for message in messages])
    options = pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    table = pa.json.read_json(
        pa.BufferReader(lines), options, pa.json.ParseOptions(explicit_schema=SCHEMA)
    )
    return sum(map(total_of, table.column("id").chunks))
