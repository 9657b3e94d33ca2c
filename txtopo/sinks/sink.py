"""The committer that every sink is: it makes rows of tuples, and has its ledger write them once.

Apart from ``streaming``, which hands a sink the micro-batches of queries that are no topologies.

Runs on: executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    A sink of your own has a ``ledger``, and a :meth:`taker` unless a row is the values of a tuple
    without the attempt.

    It emits ``(tx, rows)``: how many rows each of its tasks wrote; on every attempt, also if they
    were there already.
    """

    ledger: Any
    """The destination that writes rows and remembers whose. ``ledger.name`` is known to the state
    of the topology, ``ledger.sink`` names the place of the rows in messages."""
    query_id = ""
    """The query that it writes for; empty in a topology."""
    kept_in = "destination"
    """What belongs together with the checkpoint of a query, for messages: a table, a topic."""
    begin_again = "Remove the rows of batch {batch_id} from the {kept_in},"
    """What to do before a micro-batch that was written otherwise can be written again, up to a
    command that follows."""

    def taker(
        self, context: TopologyContext, fields: Sequence[str]
    ) -> Callable[[Sequence[Any]], Any]:
        """A function that makes a row of the values of a tuple with ``fields``, the first of which
        is the attempt.

        :raises errors.UsageError: a field is not there.
        """
        return tuple_rows.taker(fields, fields[1:], self.owner(context))

    def owner(self, context: TopologyContext) -> str:
        """The component that it is, or the query, for messages."""
        return self.query_id or context.component_id

    def write(
        self,
        context: TopologyContext,
        attempt: TransactionAttempt,
        fields: Sequence[str],
        rows: Sequence[Any],
    ) -> bool:
        """Write the rows of one task, all of them or none, once; False if they were there already.

        :param fields: as for :meth:`taker`; empty if there are no rows.
        """
        applied: bool = self.ledger.apply(context, attempt, rows)
        return applied

    def write_batch(
        self, context: TopologyContext, txid: int, fields: Sequence[str], rows: Sequence[Any]
    ) -> bool:
        """:meth:`write`, for a part of a micro-batch, which has one attempt.

        :raises replays.DividedOtherwiseError: it was begun with another number of tasks.
        :raises replays.OtherRowsError: it was written with another number of rows.
        """
        # Before the first batch for this sink: what its destination holds is taken as it is.
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
        """What ``writeStream.foreachBatch(…)`` takes: each micro-batch is one transaction of the
        destination, however it is partitioned.

        :param query_id: names the query in the records of the sink, always the same for one query
            and its checkpoint; like a topology's id.
        :param begin_at: the first batch id this sink is given, if the query ran without it before.
        """
        return streaming.ForeachBatch(self, query_id, begin_at)

    def foreach_writer(
        self, query_id: str, *, partitions: int, begin_at: int = 0
    ) -> streaming.ForeachWriter:
        """What ``writeStream.foreach(…)`` takes: each partition of a micro-batch is one transaction
        of the destination, written by the executor that has it.

        :param partitions: the number of partitions of a micro-batch, and your promise that they
            hold the same rows at every replay: ``stream.repartition(8,
            "key").writeStream.foreach(sink.foreach_writer("q", partitions=8))``. If you cannot
            promise it, use :meth:`foreach_batch`. So do if a task may fail in the middle: Spark
            then hands over a part of a partition as if it were the whole, and the partition that
            comes again is refused.
        """
        return streaming.ForeachWriter(self, query_id, partitions, begin_at)

    def __getstate__(self) -> dict[str, Any]:
        # A sink is held between the phases: what knows the process stays behind.
        held = {"_take": None, "_taken_from": None}
        return {name: held.get(name, value) for name, value in vars(self).items()}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ledger.sink}>"


__all__ = ["Sink"]
