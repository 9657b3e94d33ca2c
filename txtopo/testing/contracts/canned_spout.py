"""A spout that emits known batches, task by task: from a list, or what another spout has emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txtopo.topology import metadata as metadata_of
from txtopo.topology import pickling, spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer
from txtopo.topology.transaction import TransactionAttempt

Rows = Mapping[int, Sequence[tuple[str, int | None, tuple[Any, ...]]]]
"""By task: (stream, task for a direct stream, values after the attempt)."""


class RepeatedSpout(spout.BaseTransactionalSpout):
    """Emits ``batches``. ``batches[txid - 1]`` is (rows, metadata). For a committer spout,
    ``template``, the user's emitter is made too, to commit. Without ``fields`` nothing is declared:
    the graph knows the streams."""

    def __init__(
        self,
        batches: Sequence[tuple[Rows, Any]],
        template: bytes | None = None,
        fields: Sequence[str] = (),
    ) -> None:
        self.batches, self.template = batches, template
        self.fields = Fields("tx", fields)

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.TransactionalSpoutCoordinator:
        return _Counter(len(self.batches), context)

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
        if len(self.fields) > 1:
            declarer.declare(self.fields)


class _Counter(spout.TransactionalSpoutCoordinator):
    """Metadata is the txid."""

    def __init__(self, transactions: int, context: CoordinatorContext) -> None:
        self._transactions, self._context = transactions, context

    def is_ready(self) -> bool:
        return (self._context.last_metadata or 0) < self._transactions

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> int:
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
