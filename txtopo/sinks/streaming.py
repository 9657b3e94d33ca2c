"""Sinks for Structured Streaming: micro-batches take the place of transactions, and the checkpoint
of the query takes the place of ZooKeeper.

Spark runs a micro-batch again when it died between the sink's commit and the checkpoint's, and
gives it the same id and the same input. Spark does not promise the same partitions: another number
of cores or files, or adaptive execution, may divide the rows otherwise. So :class:`ForeachBatch`
writes a whole micro-batch in one transaction of the sink, keyed by (query, batch id), from the
driver. :class:`ForeachWriter` writes each partition in its own, keyed by (query, partition, epoch),
where the user promises that partitions stay as they are; the sink checks that their number did.

Apart from ``sink``, which writes for topologies, and from ``runtime``, because it needs nothing of
Spark but its arguments.

Invariants:
    - A batch id is written by one query of one checkpoint; a query that begins anew, or goes back,
      is refused.
    - A partition of which Spark handed over a part is never taken for the whole: Spark ends a
      partition whose task failed as if the partition were complete, without an error, and the
      partition that comes again is refused.
    - No transaction of a sink is open while Spark computes rows.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from txtopo import errors
from txtopo.sinks import replays, spool
from txtopo.topology import context as contexts
from txtopo.topology import transaction as attempts

QUERY_PROPERTY = "sql.streaming.queryId"
"""Of a Spark job: the random id of the checkpoint, which plays the part of the generation for a
query (StreamExecution.QUERY_ID_KEY)."""

SORTS_PROPERTY = "spark.sql.execution.sortBeforeRepartition"
"""Of a Spark job: "false" under a real-time trigger, to which StreamExecution gives no property of
its own."""

BATCH = "\0batch"
"""The field of a row's batch id, in front of the row's columns, as the attempt of a tuple is. No
column has this name."""

UNKNOWN_GENERATION = "unknown"
"""Where Spark does not tell it, as over Spark Connect."""

_resources: dict[str, Any] = {}
"""Connections of this process, kept from one micro-batch to the next."""


def resource(name: str, factory: Callable[[], Any]) -> Any:
    """The object ``name`` of this process, made by ``factory()`` when it is first asked for."""
    if name not in _resources:
        _resources[name] = factory()
    return _resources[name]


class Writes(Protocol):
    """The part of a ``sink.Sink`` that a query needs. Pickles."""

    ledger: Any
    query_id: str
    kept_in: str
    begin_again: str

    def taker(
        self, context: contexts.TopologyContext, fields: Sequence[str]
    ) -> Callable[[Sequence[Any]], Any]: ...

    def write_batch(
        self,
        context: contexts.TopologyContext,
        txid: int,
        fields: Sequence[str],
        rows: Sequence[Any],
    ) -> bool: ...


class _Query:
    """What writes for one query."""

    component = ""
    hint = ""
    """Another possible cause where database and checkpoint do not go together."""
    other_rows = "A batch that comes again must have the same rows: mend the query."
    """The cause and the cure where a batch that was written comes again with another number of
    rows."""

    def __init__(self, sink: Writes, query_id: str, begin_at: int) -> None:
        if not isinstance(query_id, str) or not query_id:
            raise errors.UsageError(
                f"the id of a query is a text, not {query_id!r}\n  Give the same one for as long as the query keeps its checkpoint."
            )
        if query_id != query_id.strip():
            raise errors.UsageError(
                f"a query's id neither begins nor ends with white space: {query_id!r}\n  Remove it: not all databases see."
            )
        # Apart from the sink in a topology, and from that of another query.
        self.sink, self.query_id, self.begin_at = copy.copy(sink), query_id, begin_at
        self.sink.query_id = query_id

    def _context(
        self, batch_id: int, task: int, tasks: int, generation: str
    ) -> contexts.TopologyContext:
        # A query with a checkpoint at this batch has finished all earlier batches: that is the
        # record.
        name = f"{self.component}/{self.sink.ledger.name}"
        known = {name: attempts.TransactionAttempt(batch_id, 0)} if batch_id > self.begin_at else {}
        return contexts.TopologyContext(
            self.query_id,
            generation,
            self.component,
            task,
            {self.component: tasks},
            "commit",
            resource,
            known_stores=known,
        )

    def _write(
        self,
        context: contexts.TopologyContext,
        batch_id: int,
        fields: Sequence[str],
        rows: Sequence[Any],
    ) -> bool:
        with self._explaining(batch_id):
            return self.sink.write_batch(context, batch_id + 1, fields, rows)

    @contextlib.contextmanager
    def _explaining(self, batch_id: int) -> Iterator[None]:
        kept_in = self.sink.kept_in
        mismatch = f"the sink {self.sink.ledger.sink} does not go with batch {batch_id} of query {self.query_id!r}"
        command = self.sink.ledger.kept(self.query_id, self.component).command(
            "clear", self.query_id
        )
        clear = f"    `{command}`: forget the query; its batches are new then"
        hint = self.hint.format(batch_id=batch_id)
        begin_again = self.sink.begin_again.format(batch_id=batch_id, kept_in=kept_in)
        begin = f"    begin_at=N, after that if the checkpoint is another one: take the {kept_in} as it is, and batch N as the next"
        try:
            yield
        except errors.StaleAttemptError as error:
            raise errors.StateMismatchError(
                f"{mismatch}: batch {_batch_of(error.fence)} has been written\n"
                "  The checkpoint is new or an older copy, or two queries have this id. Nothing was written. Restore the newest checkpoint, give\n"
                f"  each query its own id, or choose:\n{clear}"
            ) from error
        except replays.DividedOtherwiseError as error:
            raise errors.StateMismatchError(
                f"{mismatch}: it was begun with {error.before} partitions, and now has {error.now}\n"
                f"  Nothing was written. Run it once more with partitions={error.before}; change that between two batches, or use foreach_batch."
            ) from error
        except errors.StateMismatchError as error:
            fact = str(error).splitlines()[0]
            raise errors.StateMismatchError(
                f"{mismatch}: {fact}\n  (a transaction is a batch, counted from 1; ZooKeeper stands for the checkpoint)\n"
                f"  Nothing was written. {hint}Restore {kept_in} and checkpoint of the same moment, or choose:\n{clear}\n{begin}"
            ) from error
        except replays.OtherRowsError as error:
            fact = str(error).splitlines()[0]
            raise errors.StateMismatchError(
                f"{mismatch}: {fact}\n  {self.other_rows}\n  Nothing was written now. {begin_again} type\n"
                f"    `{command}`\n  and give begin_at={batch_id}."
            ) from error


class ForeachBatch(_Query):
    """``writeStream.foreachBatch(sink.foreach_batch("query"))``: one transaction per micro-batch,
    on the driver. See the sink."""

    component = "foreach_batch"

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Write a micro-batch, unless it was written before.

        :param frame: its DataFrame.
        :raises errors.StateMismatchError: database and checkpoint do not belong together.
        """
        generation = UNKNOWN_GENERATION
        with contextlib.suppress(Exception):
            generation = (
                frame.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY) or generation
            )
        context, fields = self._context(batch_id, 0, 1, generation), (BATCH, *frame.columns)
        take = self.sink.taker(context, fields)
        with contextlib.closing(spool.Spool()) as rows:
            for row in frame.toLocalIterator():
                rows.append(take((batch_id, *row)))
            self._write(context, batch_id, fields, rows)


class ForeachWriter(_Query):
    """``writeStream.foreach(sink.foreach_writer("query", partitions=8))``: one transaction per
    partition and epoch. See the sink."""

    component = "foreach"
    hint = "If the stream has fewer partitions than partitions=N says, give their number, and with it begin_at={batch_id}.\n  "
    other_rows = (
        "Where a task fails, Spark ends its partition as if the rows handed over so far were all of them. foreach_batch is given a whole batch"
        " or nothing; use it instead."
    )

    def __init__(self, sink: Writes, query_id: str, partitions: int, begin_at: int) -> None:
        super().__init__(sink, query_id, begin_at)
        if not isinstance(partitions, int) or partitions < 1:
            raise errors.UsageError(
                f"the partitions of a query are 1 or more, not {partitions!r}\n  Give the number you repartition by."
            )
        self.partitions = partitions

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begin a partition."""
        if partition_id >= self.partitions:
            raise errors.UsageError(
                f"query {self.query_id!r} has a partition {partition_id}, but was said to have {self.partitions}\n"
                f"  Write stream.repartition({self.partitions}, 'key').writeStream.foreach(…), or use foreach_batch, which needs no such promise."
            )
        if _property_of_task(SORTS_PROPERTY) == "false":
            raise errors.UsageError(
                f"query {self.query_id!r} may give partition {partition_id} other rows when the partition comes again\n"
                f"  Its trigger is realTime=…, or {SORTS_PROPERTY} is false. Nothing was written.\n"
                "  Take another trigger, such as processingTime='1 second'."
            )
        generation = _property_of_task(QUERY_PROPERTY) or UNKNOWN_GENERATION
        self._opened = self._context(epoch_id, partition_id, self.partitions, generation)
        self._epoch, self._rows = epoch_id, spool.Spool()
        self._fields: tuple[str, ...] = ()
        return True

    def process(self, row: Any) -> None:
        """Take one row."""
        if not self._fields:
            self._fields = (BATCH, *row.__fields__)
            self._take = self.sink.taker(self._opened, self._fields)
        self._rows.append(self._take((self._epoch, *row)))

    def close(self, error: Exception | None) -> None:
        """End the partition: write it, unless it failed or was written before."""
        with contextlib.closing(self._rows) as rows:
            if error is None:
                self._write(self._opened, self._epoch, self._fields, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def _property_of_task(name: str) -> str | None:
    # Not imported here: where a writer is called, Spark is there.
    tasks = getattr(sys.modules.get("pyspark"), "TaskContext", None)
    task = None if tasks is None else tasks.get()
    return None if task is None else task.getLocalProperty(name)


def _batch_of(position: str) -> int:
    """The batch of a fence's position."""
    return int(position.split(":")[0].split(" ")[0]) - 1
