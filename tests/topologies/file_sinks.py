"""A sink for files, driven task by task in this process, and what readers see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from txtopo.connectors.files import FileSink, read_committed
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.stream import DEFAULT_STREAM, Fields, Tuple, TupleSource
from txtopo.topology.transaction import TransactionAttempt

ROWS = [("ann", 500), ("bob", 250), ("ann", 100), ("cid", 70)]
FIELDS = Fields("tx", "account", "cents")


class Collected(BatchOutputCollector):
    """What a task emits, without the attempt."""

    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = []

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self.values.append(tuple(values)[1:])

    def emit_direct(
        self, task_index: int, values: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> None:
        raise NotImplementedError


class Writing:
    """Writes the tasks' rows, in one process."""

    def __init__(
        self, sink: FileSink, tasks: int = 1, component: str = "write", generation: str = "one"
    ) -> None:
        self.sink, self._tasks = sink, tasks
        self._component, self._generation = component, generation
        self._process = WorkerProcess()

    def begin(self, txid: int, attempt: int, task: int = 0, **context: Any) -> Collected:
        """Prepare the sink for a task."""
        collected = Collected()
        self.sink.prepare(
            TopologyConf({}),
            self._process.task(
                self._component,
                task,
                num_tasks=self._tasks,
                topology_id="sales",
                generation=self._generation,
                **context,
            ),
            collected,
            TransactionAttempt(txid, attempt),
        )
        return collected

    def execute(self, rows: Iterable[Sequence[Any]]) -> None:
        """Give the task rows."""
        source = TupleSource("prices", 0, DEFAULT_STREAM, FIELDS)
        for row in rows:
            self.sink.execute(Tuple((self.sink.attempt, *row), source))

    def write(
        self, txid: int, attempt: int, rows: Iterable[Sequence[Any]], task: int = 0, **context: Any
    ) -> list[tuple[Any, ...]]:
        """Write one task's rows. Returns what the task emits."""
        collected = self.begin(txid, attempt, task, **context)
        self.execute(rows)
        self.sink.finish_batch()
        return collected.values

    def write_all(self, txid: int, attempt: int, rows: Sequence[Sequence[Any]]) -> None:
        """Write a transaction with all tasks."""
        for task in range(self._tasks):
            self.write(txid, attempt, rows[task :: self._tasks], task)


def seen(root: Any, **more: Any) -> list[tuple[int, list[tuple[Any, ...]]]]:
    """The rows that readers of committed transactions see, by transaction."""
    read = read_committed(root, **more)
    return [
        (txid, sorted((tuple(row.values()) for row in read.table(files).to_pylist()), key=repr))
        for txid, files in read
    ]
