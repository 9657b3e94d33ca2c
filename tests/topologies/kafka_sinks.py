"""Tasks of a Kafka sink, driven by hand on a real broker."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.servers.kafka import OPEN_S, KafkaServer
from txtopo.connectors.kafka import KafkaSink
from txtopo.connectors.kafka.auxiliary import Record, decoded
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology import bolt
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import DEFAULT_STREAM, Fields, Tuple, TupleSource
from txtopo.topology.transaction import RecordedAttempt, TransactionAttempt

COMPONENT = "write"
FIELDS = Fields("tx", "key", "value")
_numbers = itertools.count(1)


class Collected(bolt.BatchOutputCollector):
    """What a task emits."""

    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = []

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self.values.append(tuple(values))

    def emit_direct(
        self, task_index: int, values: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> None:
        raise AssertionError("a sink emits to no task")


class Sales:
    """A topic of a broker, and a topology that writes to it: texts, each with a key."""

    def __init__(
        self, kafka: KafkaServer, partitions: int = 1, topology_id: str = "", **settings: Any
    ) -> None:
        self.kafka = kafka
        self.topic = kafka.new_topic(f"sales-{uuid.uuid4().hex[:8]}", partitions, **settings)
        self.topology_id = topology_id or f"shop{next(_numbers)}-{uuid.uuid4().hex[:6]}"

    def sink(self, **arguments: Any) -> KafkaSink:
        """A sink of texts with a key."""
        arguments = {"key": "key", "format": "text", "transaction_timeout_s": OPEN_S, **arguments}
        return KafkaSink(arguments.pop("servers", self.kafka.servers), self.topic, **arguments)

    @property
    def auxiliary_topic(self) -> str:
        """The auxiliary topic, unless the sink has another."""
        return f"txtopo.{self.topology_id}.{COMPONENT}"

    @property
    def values(self) -> list[str]:
        """The committed values, partition by partition, when no transaction is open."""
        return self.kafka.values(self.topic)

    @property
    def records(self) -> list[Record]:
        """The committed auxiliary records, task by task, oldest first, when no transaction is open."""
        self.wait_until_settled()
        return [
            decoded(self.auxiliary_topic, record.value)
            for record in self.kafka.read(self.auxiliary_topic)
        ]

    def wait_until_settled(self) -> None:
        """Wait until readers see the last commit's record."""
        self.kafka.wait_until_settled(self.auxiliary_topic)

    def task(
        self, process: WorkerProcess, task: int = 0, tasks: int = 2, **context: Any
    ) -> TopologyContext:
        """The context of a task of the sink's component."""
        on_failure = context.pop("on_failure", None)
        opened = process.task(
            COMPONENT, task, num_tasks=tasks, **{"topology_id": self.topology_id, **context}
        )
        opened.on_failure = on_failure or opened.on_failure
        return opened

    def prepared(
        self,
        process: WorkerProcess,
        txid: int,
        attempt: int,
        values: Iterable[Any] = (),
        task: int = 0,
        tasks: int = 2,
        sink: KafkaSink | None = None,
        **context: Any,
    ) -> KafkaSink:
        """A task of an attempt that has executed its tuples."""
        sink = sink or self.sink()
        tried = TransactionAttempt(txid, attempt)
        sink.prepare(
            TopologyConf({}), self.task(process, task, tasks, **context), Collected(), tried
        )
        source = TupleSource("spout", 0, DEFAULT_STREAM, FIELDS)
        for value in values:
            sink.execute(Tuple((tried, "k", value), source))
        return sink

    def write(
        self,
        process: WorkerProcess,
        txid: int,
        attempt: int,
        values: Iterable[Any] = (),
        task: int = 0,
        tasks: int = 2,
        **more: Any,
    ) -> int:
        """Run a whole task. Returns the emitted number of rows."""
        return finish(self.prepared(process, txid, attempt, values, task, tasks, **more))

    def write_rows(
        self, process: WorkerProcess, txid: int, rows: Iterable[tuple[Any, Any]], sink: KafkaSink
    ) -> int:
        """A whole task that is the only one, of rows of both fields."""
        sink = self.prepared(process, txid, 0, (), 0, 1, sink)
        for row in rows:
            sink.execute(
                Tuple(
                    (TransactionAttempt(txid, 0), *row),
                    TupleSource("spout", 0, DEFAULT_STREAM, FIELDS),
                )
            )
        return finish(sink)

    def known(self, txid: int, attempt: int, tasks: int) -> Mapping[str, TransactionAttempt]:
        """What the state has recorded of the sink."""
        return {f"{COMPONENT}/kafka": RecordedAttempt(txid, attempt, tasks)}


def finish(sink: KafkaSink) -> int:
    """Run the commit phase of a prepared task. Returns the emitted number of rows."""
    sink.finish_batch()
    collected = sink.collector
    assert isinstance(collected, Collected)
    ((_, rows),) = collected.values
    return int(rows)
