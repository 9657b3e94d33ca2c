"""The bolts users write.

A batch bolt sees one attempt of one batch: a fresh instance per attempt and task, ``prepare`` once,
``execute`` per tuple, ``finish_batch`` once (R10). A bolt keeps its state in attributes, never in
module globals: the process outlives the bolt.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import DEFAULT_STREAM, Fields, OutputFieldsDeclarer, Tuple
from txtopo.topology.transaction import TransactionAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow


class BatchOutputCollector(abc.ABC):
    """Takes the tuples that spouts and batch bolts emit."""

    @abc.abstractmethod
    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple. ``values[0]`` is the current attempt. Values are frozen here: changing a
        list later changes nothing (R14)."""

    def emit_all(self, rows: Iterable[Sequence[Any]], stream: str = DEFAULT_STREAM) -> None:
        """Emit several tuples in order: the same as :meth:`emit` for each of ``rows``, in less
        time.

        ``rows`` may make its tuples lazily. An error in ``rows`` is the caller's own, as in a loop
        around :meth:`emit`: the rows before the error are emitted.
        """
        for values in rows:
            self.emit(values, stream)

    @abc.abstractmethod
    def emit_direct(
        self, task_index: int, values: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one tuple to task ``task_index`` of every component that subscribed to ``stream`` by
        direct grouping."""

    def emit_batch(self, batch: pyarrow.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple per row. The columns are the stream's fields, by name and in order,
        without the first: the attempt is no column.

        The batch is not copied. Arrow's arrays cannot be changed, but an array over foreign memory
        (NumPy's, say) changes with the memory.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no columns")

    def emit_batch_direct(
        self, task_index: int, batch: pyarrow.RecordBatch, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one tuple per row to task ``task_index`` of every component that subscribed to
        ``stream`` by direct grouping."""
        raise NotImplementedError(f"{type(self).__name__} takes no columns")


class BasicOutputCollector(BatchOutputCollector):
    """Takes the tuples that basic bolts emit, by the same calls."""


class _Component:
    """Shared by spouts and bolts."""

    emits_columns: bool = False
    """Set it to True in a class that emits mostly by ``emit_batch``. Then ``txtopo explain`` says
    so, and pyarrow is asked for at the start."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams this component emits on. A bolt without output needs no declaration.

        Runs on: driver. Called: once, by ``build_topology``, on a copy.
        """

    def get_component_configuration(self) -> dict[str, Any] | None:
        """Settings for this component alone. In the ``conf`` of its tasks they win over the
        topology's settings.

        Runs on: driver. Called: once, by ``build_topology``, on a copy.
        """
        return None


class IBatchBolt(_Component, abc.ABC):
    """A bolt that sees a whole batch (Storm: ``IBatchBolt``). Subclass :class:`BaseBatchBolt`."""

    has_own_keys: ClassVar[bool] = False
    """Set it to True in a class whose tasks never write the same key of a store in one transaction,
    however their input is grouped: every key has the task's index in it, or the class only reads
    there. Otherwise several tasks need a fields grouping on the key (R32)."""
    input_fields: Fields | None = None
    """Fields that the bolt needs in every stream it listens to. ``build_topology`` checks that they
    are there."""
    key_fields: Fields | None = None
    """The input fields that make up its keys in a store. A fields grouping on other fields is then
    refused (R32)."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        """Begin a batch.

        Runs on: executor. Called: once per attempt and task, also when no tuple will come. Order:
        before every other call. On replay: again, on a new instance, with a larger attempt id. The
        classic mistake: opening a connection here and keeping it in an attribute of a committer. A
        committer is pickled between the phases: use ``context.resource``.
        """

    @abc.abstractmethod
    def execute(self, tup: Tuple) -> None:
        """Take one tuple of the batch.

        Runs on: executor. Called: once per tuple meant for this task. Order: by source component,
        source task, emission (R17). On replay: again. The classic mistake: writing to the outside
        here, in the processing phase, which may run many times.
        """

    def finish_batch(self) -> None:
        """End the batch: every tuple has been executed (R11).

        Runs on: executor. Called: once per attempt and task, also with zero tuples. Order: in
        committers, and in bolts downstream of a committer, in the commit phase, one transaction
        after the other by txid. On replay: again, even after a success. So writes must name their
        transaction, as the stores in ``txtopo.stores`` do.
        """


class BaseBatchBolt(IBatchBolt):
    """Subclass this and define ``execute``, usually also ``prepare``, ``finish_batch`` and
    ``declare_output_fields``."""


class BaseTransactionalBolt(BaseBatchBolt):
    """A batch bolt whose batches are transactions. A committer usually begins with ``class
    C(BaseTransactionalBolt, ICommitter)``."""


class ICommitter:
    """Marks a batch bolt whose ``finish_batch`` runs in the commit phase, in txid order (R12)."""


class IBasicBolt(_Component, abc.ABC):
    """Takes one tuple, emits any number, and knows no batch (Storm: ``IBasicBolt``). Subclass
    :class:`BaseBasicBolt`."""

    def prepare(self, conf: TopologyConf, context: TopologyContext) -> None:
        """Begin. Runs on: executor. Called: once per attempt and task (R15). Order: first. On
        replay: again, on a new instance."""

    @abc.abstractmethod
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Take one tuple, and emit with ``tup[0]`` first. Runs on: executor. Called: per tuple.
        Order: as for a batch bolt. On replay: again."""

    def cleanup(self) -> None:
        """End. Runs on: executor. Called: once, after the last tuple. Order: last. On replay:
        again, on a new instance."""


class BaseBasicBolt(IBasicBolt):
    """Subclass this and define ``execute``."""
