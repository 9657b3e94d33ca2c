"""Makes a schedule's reference: a run with equal batches and without failures.

A live source gives other batches in every run: a batch ends where the rows end, or after a time.
This is right as long as the metadata describes the batch (R4). So the schedule's results are
compared with a run over the very same batches. A spout that stands for the user's emits their
tuples again, task by task.

``judge`` decides when a reference is needed.

Invariants: a reference does not read from the user's spout, except that a committer spout's
``commit`` is called as always.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo.testing.simulator.hooks import DIRECT, Emission, in_rows
from txtopo.topology import metadata as metadata_of
from txtopo.topology import pickling, spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.stream import OutputFieldsDeclarer
from txtopo.topology.transaction import TransactionAttempt

Rows = Mapping[int, Sequence[tuple[str, int | None, tuple[Any, ...]]]]
"""By task: (stream, task for a direct stream, values after the attempt)."""


class RepeatedSpout(spout.BaseTransactionalSpout):
    """Emits ``batches`` again. ``batches[txid - 1]`` is (rows, metadata). For a committer spout,
    ``template``, the user's emitter is made too, to commit."""

    def __init__(self, batches: Sequence[tuple[Rows, Any]], template: bytes | None = None) -> None:
        self.batches, self.template = batches, template

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.TransactionalSpoutCoordinator:
        return _Counter(len(self.batches))

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.TransactionalSpoutEmitter:
        if self.template is None:
            return _Repeated(self.batches, context.task_index)
        original = pickling.loads(self.template)
        return _RepeatedCommitter(
            self.batches,
            context.task_index,
            original.get_emitter(conf, context),
            original.metadata_type,
        )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare nothing: the graph knows the streams."""


class _Counter(spout.TransactionalSpoutCoordinator):
    """Metadata is the txid."""

    def __init__(self, transactions: int) -> None:
        self._left = transactions

    def is_ready(self) -> bool:
        return self._left > 0

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> int:
        self._left -= 1
        return txid


class _Repeated(spout.TransactionalSpoutEmitter):
    def __init__(self, batches: Sequence[tuple[Rows, Any]], task: int) -> None:
        self._batches, self._task = batches, task

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        for stream, direct, values in self._batches[metadata - 1][0].get(self._task, ()):
            if direct is None:
                collector.emit([attempt, *values], stream)
            else:
                collector.emit_direct(direct, [attempt, *values], stream)


class _RepeatedCommitter(_Repeated, spout.CommitterSpoutEmitter):
    """The user's emitter emits too, into a collector that drops the tuples, to be ready to commit."""

    def __init__(
        self, batches: Sequence[tuple[Rows, Any]], task: int, inner: Any, metadata_type: Any
    ) -> None:
        super().__init__(batches, task)
        self._inner, self._metadata_type = inner, metadata_type

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchOutputCollector
    ) -> None:
        stored = metadata_of.from_json(self._batches[metadata - 1][1], self._metadata_type)
        self._inner.emit_batch(attempt, stored, _DroppingCollector())
        super().emit_batch(attempt, metadata, collector)

    def commit(self, attempt: TransactionAttempt) -> None:
        self._inner.commit(attempt)

    def close(self) -> None:
        self._inner.close()


class _DroppingCollector:
    """A collector that drops every tuple."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **more: None


def repeating(
    graph: TopologyGraph, emissions: Mapping[int, Sequence[Emission]], metadata: Mapping[int, Any]
) -> TopologyGraph:
    """Copy ``graph`` with a spout that emits ``emissions``, by txid, again."""
    batches: list[tuple[Rows, Any]] = []
    for txid in sorted(emissions):
        rows: dict[int, list[tuple[str, int | None, tuple[Any, ...]]]] = {}
        for component, task, stream, values in in_rows(emissions[txid]):
            if component == graph.spout.id:
                name, direct, number = stream.rpartition(DIRECT)
                rows.setdefault(task % graph.spout.parallelism, []).append(
                    (name, int(number), values) if direct else (stream, None, values)
                )
        batches.append((rows, metadata.get(txid)))
    stand_in = RepeatedSpout(batches, graph.spout.template if graph.spout.committer else None)
    replaced = dataclasses.replace(
        graph.spout, template=pickling.dumps(stand_in), spout_kind="transactional"
    )
    return TopologyGraph(graph.id, {**graph.components, graph.spout.id: replaced}, graph.by_value)
