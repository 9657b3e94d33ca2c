"""A process with one task of a Kafka sink, or one exporter, which dies or stops at a named point, or
is killed while it runs.

``python -m tests.processes.kafka_tasks '<JSON>'``, with the arguments of :class:`Order`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.patience import PATIENCE_S

POINTS = (
    "init.before",
    "init.after",
    "last_records.after",
    "begin.after",
    "_commit.before",
    "_commit.after",
    "write.after",
)
"""Where the process may die: before and after it became the only producer · after it has read its
record · after its first row · before and after the commit · when the task is about to end."""


@dataclasses.dataclass(frozen=True)
class Order:
    """A transaction for the task, and the point where it dies; empty: nowhere."""

    servers: str
    topic: str
    topology_id: str
    txid: int
    attempt: int
    values: list[str]
    die_at: str = ""
    transaction_timeout_s: float = 60
    is_export: bool = False
    """Whether to export entries 1 to ``txid`` of the queue ``topology_id``, and write no values."""
    by: int = signal.SIGKILL
    """The signal that it sends itself there. With SIGSTOP it goes on later."""


def entries_to(last: int, queue: str, bucket: int = 0) -> Iterator[Any]:
    """Entries 1 to ``last``. Each value says the bucket and the sequence."""
    from txtopo.exports import SequencedExport

    for number in range(1, last + 1):
        yield SequencedExport(queue, bucket, f"k{number % 2}", [bucket, number], number, "first")


def command(order: Order) -> list[str]:
    """The command line of the task's process."""
    text = json.dumps(dataclasses.asdict(order))
    return [sys.executable, "-m", "tests.processes.kafka_tasks", text]


def run(order: Order) -> int:
    """Run the task in a process of its own; its exit code."""
    return subprocess.run(command(order), timeout=PATIENCE_S, check=False).returncode


def _die_at(point: str, by: int) -> None:
    """Have this process send itself the signal ``by`` at ``point``."""
    from txtopo.connectors.kafka import auxiliary, producing

    name, _, when = point.partition(".")
    kind: Any = auxiliary.AuxiliaryTopic if name == "last_records" else producing.TaskProducer
    method = "_produce" if name == "begin" else name
    original: Callable[..., Any] = getattr(kind, method)

    def dying(self: Any, *arguments: Any, **more: Any) -> Any:
        if when == "before":
            self._producer.flush(PATIENCE_S)
            os.kill(os.getpid(), by)
        answer = original(self, *arguments, **more)
        if name == "begin":
            self._producer.flush(PATIENCE_S)
        if when == "after":
            os.kill(os.getpid(), by)
        return answer

    setattr(kind, method, dying)


def main() -> None:
    """Write the transaction or the entries of the order."""
    from tests.topologies.kafka_sinks import COMPONENT, FIELDS, Collected
    from txtopo.connectors.kafka import KafkaSink
    from txtopo.exports import KafkaExporter
    from txtopo.testing.contracts.worker_process import WorkerProcess
    from txtopo.topology.conf import TopologyConf
    from txtopo.topology.stream import DEFAULT_STREAM, Tuple, TupleSource
    from txtopo.topology.transaction import TransactionAttempt

    order = Order(**json.loads(sys.argv[1]))
    if order.die_at:
        _die_at(order.die_at, order.by)
    if order.is_export:
        exporter = KafkaExporter(order.servers, order.topic)
        exporter.export(entries_to(order.txid, order.topology_id))
        return
    sink = KafkaSink(
        order.servers,
        order.topic,
        key="key",
        format="text",
        transaction_timeout_s=order.transaction_timeout_s,
    )
    context = WorkerProcess().task(COMPONENT, 0, num_tasks=1, topology_id=order.topology_id)
    attempt = TransactionAttempt(order.txid, order.attempt)
    sink.prepare(TopologyConf({}), context, Collected(), attempt)
    for value in order.values:
        sink.execute(Tuple((attempt, "k", value), TupleSource("spout", 0, DEFAULT_STREAM, FIELDS)))
    sink.finish_batch()


if __name__ == "__main__":
    main()
