"""The committer behind every sink: makes rows from tuples, and has a ledger write them once.

Runs on: executor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from txtopo.sinks import streaming, tuple_rows
from txtopo.topology import bolt
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, Tuple
from txtopo.topology.transaction import TransactionAttempt


class Sink(bolt.BaseTransactionalBolt, bolt.ICommitter):
    """A committer that writes every tuple as one row, exactly once.

    Your own sink has a ``ledger``, and a :meth:`taker` unless a row is a tuple's values without
    the attempt.

    Each task emits ``(tx, rows)`` on every attempt: the number of its rows, even if an earlier
    attempt wrote them.
    """

    ledger: Any
    """The destination that writes rows and records each transaction. The topology's state knows the
    destination as ``ledger.name``. Messages name the rows' place as ``ledger.sink``."""
    query_id = ""
    """The query that the sink writes for, empty in a topology."""
    kept_in = "destination"
    """The thing that must fit the query's checkpoint, for messages: a table, a topic."""
    begin_again = "Remove the rows of batch {batch_id} from the {kept_in},"
    """Says how to prepare for writing a changed micro-batch again: a sentence's first half. A
    command follows."""

    few_partitions = "give their number, and with it begin_at={batch_id}"
    """Says how a query goes on that has given too large a number of partitions."""

    keeps_rows = True
    """Whether rows stay where they are if the sink's records are cleared."""

    def taker(
        self, context: TopologyContext, fields: Sequence[str]
    ) -> Callable[[Sequence[Any]], Any]:
        """Return a function that makes a row from a tuple's values.

        :param fields: the tuple's fields. The first is the attempt.
        :raises errors.UsageError: a field is missing.
        """
        return tuple_rows.taker(fields, fields[1:], self.owner(context))

    def owner(self, context: TopologyContext) -> str:
        """The component's id, or the query's, for messages."""
        return self.query_id or context.component_id

    def write(
        self,
        context: TopologyContext,
        attempt: TransactionAttempt,
        fields: Sequence[str],
        rows: Collection[Any],
    ) -> bool:
        """Write one task's rows, all or none, once. False if the rows were there already.

        :param fields: as for :meth:`taker`, empty if there are no rows.
        """
        applied: bool = self.ledger.apply(context, attempt, rows)
        return applied

    def write_batch(
        self, context: TopologyContext, txid: int, fields: Sequence[str], rows: Collection[Any]
    ) -> bool:
        """Call :meth:`write` for a micro-batch or for one partition. A micro-batch has one attempt.

        :raises replays.DividedOtherwiseError: another number of tasks began the micro-batch.
        :raises replays.OtherRowsError: the micro-batch was written before, with another number of
            rows.
        """
        # An empty record means the sink's first batch: no content of the destination is wrong then.
        context.known_stores = context.known_stores or None
        return self.write(context, TransactionAttempt(txid, 0), fields, rows)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "rows"))

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.rows: list[Any] = []
        self._fields: tuple[str, ...] = ()
        self._taken_from: Fields | None = None
        self._take: Callable[[Sequence[Any]], Any] = tuple

    def execute(self, tup: Tuple) -> None:
        if tup.fields is not self._taken_from:
            self._begin_to_take(tup.fields)
        self.rows.append(self._take(tup.values))

    def _begin_to_take(self, fields: Fields) -> None:
        self._fields, self._taken_from = tuple(fields), fields
        self._take = self.taker(self.context, self._fields)

    def finish_batch(self) -> None:
        self.write(self.context, self.attempt, self._fields, self.rows)
        self.collector.emit([self.attempt, len(self.rows)])

    def foreach_batch(self, query_id: str, *, begin_at: int = 0) -> streaming.ForeachBatch:
        """Make the argument for ``writeStream.foreachBatch(…)``. Each micro-batch is one
        transaction, in any partitioning.

        :param query_id: names the query in the sink's records, like a topology's id. Give the same
            id as long as the query keeps its checkpoint.
        :param begin_at: the sink's first batch id, if the query ran without the sink before.
        """
        return streaming.ForeachBatch(self, query_id, begin_at)

    def foreach_writer(
        self, query_id: str, *, partitions: int, begin_at: int = 0
    ) -> streaming.ForeachWriter:
        """Make the argument for ``writeStream.foreach(…)``. Each partition of a micro-batch is one
        transaction, written by the partition's executor.

        :param partitions: a micro-batch's partition count, and your promise that the partitions
            hold the same rows at every replay: ``stream.repartition(8,
            "key").writeStream.foreach(sink.foreach_writer("q", partitions=8))``. Use
            :meth:`foreach_batch` if you cannot promise this, or if a task may fail in the middle:
            Spark then hands over a part as if the part were the whole partition, and the sink
            refuses the replayed partition.
        """
        return streaming.ForeachWriter(self, query_id, partitions, begin_at)

    def __getstate__(self) -> dict[str, Any]:
        # A sink is held between the phases. Objects of this process stay behind.
        held = {"_take": None, "_taken_from": None}
        return {name: held.get(name, value) for name, value in vars(self).items()}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ledger.sink}>"
