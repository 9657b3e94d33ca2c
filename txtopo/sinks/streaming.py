"""Sinks for Structured Streaming: a micro-batch replaces the transaction, and the query's
checkpoint replaces ZooKeeper.

Spark runs a micro-batch again if Spark died between the sink's commit and the checkpoint's. The id
and the input are the same then, but not always the partitions: another number of cores or files, or
adaptive execution, may divide the rows otherwise. So :class:`ForeachBatch` writes a whole
micro-batch in one transaction, keyed by (query, batch id), from the driver. :class:`ForeachWriter`
writes each partition in its own transaction, keyed by (query, partition, epoch). The user promises
that the partitions stay as they are, and the sink checks their number.

Does not import pyspark: Spark's objects come as arguments.

Invariants:
    - One query with one checkpoint writes a batch id. A query that begins anew or goes back is
      refused.
    - A part of a partition never passes for the whole. Spark ends a failed task's partition as if
      the partition were complete, without an error. The sink refuses the replayed partition then.
    - No sink transaction is open while Spark computes rows.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from txtopo import errors
from txtopo.sinks import replays, spool
from txtopo.topology import context as contexts
from txtopo.topology import transaction as attempts

QUERY_PROPERTY = "sql.streaming.queryId"
"""Property of a Spark job: the checkpoint's random id, which is a query's generation
(StreamExecution.QUERY_ID_KEY)."""

SORTS_PROPERTY = "spark.sql.execution.sortBeforeRepartition"
"""Property of a Spark job: "false" under a real-time trigger, which sets no property of its own."""

BATCH = "\0batch"
"""Field for the batch id, in front of a row's columns like a tuple's attempt. No column has this
name."""

UNKNOWN_GENERATION = "unknown"
"""The generation if Spark does not tell the checkpoint's id, as over Spark Connect."""

_resources: dict[str, Any] = {}
"""This process's connections, kept from one micro-batch to the next."""


def resource(name: str, factory: Callable[[], Any]) -> Any:
    """This process's object ``name``, made by ``factory()`` at the first call."""
    if name not in _resources:
        _resources[name] = factory()
    return _resources[name]


class Writes(Protocol):
    """The calls that a query makes to a ``sink.Sink``. Pickles."""

    ledger: Any
    query_id: str
    kept_in: str
    begin_again: str
    few_partitions: str
    keeps_rows: bool

    def taker(
        self, context: contexts.TopologyContext, fields: Sequence[str]
    ) -> Callable[[Sequence[Any]], Any]: ...

    def write_batch(
        self,
        context: contexts.TopologyContext,
        txid: int,
        fields: Sequence[str],
        rows: Collection[Any],
    ) -> bool: ...


class _Query:
    component = ""
    hint = ""
    """Another possible cause if database and checkpoint do not fit."""
    other_rows = "A replayed batch must have the same rows: mend the query."
    """Cause and cure if a replayed batch has another number of rows."""

    def __init__(self, sink: Writes, query_id: str, begin_at: int) -> None:
        if not isinstance(query_id, str) or not query_id:
            raise errors.UsageError(
                f"a query's id is a text, not {query_id!r}\n  Give the same id for as long as the query keeps its checkpoint."
            )
        if query_id != query_id.strip():
            raise errors.UsageError(
                f"a query's id neither begins nor ends with white space: {query_id!r}\n  Remove the white space: some databases ignore white space."
            )
        # A copy: the user may give the same sink to a topology or to another query.
        self.sink, self.query_id, self.begin_at = copy.copy(sink), query_id, begin_at
        self.sink.query_id = query_id

    def _context(
        self, batch_id: int, task: int, tasks: int, generation: str
    ) -> contexts.TopologyContext:
        # A checkpoint at this batch is the record: the query has finished all earlier batches.
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
        rows: Collection[Any],
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
        forgets = "forget" if self.sink.keeps_rows else "remove all rows of"
        clear = f"    `{command}`: {forgets} the query, so that its batches are new"
        hint = self.hint.format(cure=self.sink.few_partitions.format(batch_id=batch_id))
        begin_again = self.sink.begin_again.format(batch_id=batch_id, kept_in=kept_in)
        begin = f"\n    begin_at=N: take the {kept_in} as it is, and batch N as the next. With another checkpoint, type the command first"
        replace = f" {begin_again} type\n    `{command}`\n  and give begin_at={batch_id}."
        if not self.sink.keeps_rows:
            begin = replace = ""
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
                f"{mismatch}: the batch was begun with {error.before} partitions, and now has {error.now}\n"
                f"  Nothing was written. Finish the batch with partitions={error.before}. Then change the number, or use foreach_batch."
            ) from error
        except errors.StateMismatchError as error:
            fact = str(error).splitlines()[0]
            raise errors.StateMismatchError(
                f"{mismatch}: {fact}\n  (a transaction is a batch, counted from 1, and ZooKeeper stands for the checkpoint)\n"
                f"  Nothing was written. {hint}Restore {kept_in} and checkpoint from the same moment, or choose:\n{clear}{begin}"
            ) from error
        except replays.OtherRowsError as error:
            fact = str(error).splitlines()[0]
            raise errors.StateMismatchError(
                f"{mismatch}: {fact}\n  {self.other_rows}\n  Nothing was written now.{replace}"
            ) from error


class ForeachBatch(_Query):
    """Writes each micro-batch in one transaction, on the driver:
    ``writeStream.foreachBatch(sink.foreach_batch("query"))``. See the sink."""

    component = "foreach_batch"

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Write a micro-batch, unless it was written before.

        :param frame: the micro-batch's DataFrame.
        :raises errors.StateMismatchError: database and checkpoint do not fit.
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
    """Writes each partition and epoch in one transaction:
    ``writeStream.foreach(sink.foreach_writer("query", partitions=8))``. See the sink."""

    component = "foreach"
    hint = "If the stream has fewer partitions than partitions=N says, {cure}.\n  "
    other_rows = (
        "If a task fails, Spark ends the partition as if the rows handed over so far were all rows. Use foreach_batch instead: Spark gives it"
        " a whole batch or nothing."
    )

    def __init__(self, sink: Writes, query_id: str, partitions: int, begin_at: int) -> None:
        super().__init__(sink, query_id, begin_at)
        if not isinstance(partitions, int) or partitions < 1:
            raise errors.UsageError(
                f"a query has 1 or more partitions, not {partitions!r}\n  Give the number in your call to repartition."
            )
        reason, master = getattr(sink.ledger, "local_only_reason", None), _master()
        if reason is not None and master.partition("[")[0] not in ("", "local"):
            raise errors.UsageError(
                f"query {query_id!r}: {reason}, but the executors of {master} are on other machines\n"
                "  Give a place that every machine reaches, or use foreach_batch, which writes on the driver."
            )
        self.partitions = partitions

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begin a partition."""
        if partition_id >= self.partitions:
            raise errors.UsageError(
                f"query {self.query_id!r} has a partition {partition_id}, but its writer has partitions={self.partitions}\n"
                f"  Write stream.repartition({self.partitions}, 'key').writeStream.foreach(…), or use foreach_batch, which takes any partitions."
            )
        if _property_of_task(SORTS_PROPERTY) == "false":
            raise errors.UsageError(
                f"query {self.query_id!r} may give partition {partition_id} other rows in a replay\n"
                f"  The trigger is realTime=…, or {SORTS_PROPERTY} is false. Nothing was written.\n"
                "  Take a micro-batch trigger, such as processingTime='1 second'."
            )
        generation = _property_of_task(QUERY_PROPERTY) or UNKNOWN_GENERATION
        self._opened = self._context(epoch_id, partition_id, self.partitions, generation)
        self._epoch, self._rows = epoch_id, spool.Spool()
        self._fields: tuple[str, ...] = ()
        return True

    def process(self, row: Any) -> None:
        if not self._fields:
            self._fields = (BATCH, *row.__fields__)
            self._take = self.sink.taker(self._opened, self._fields)
        self._rows.append(self._take((self._epoch, *row)))

    def close(self, error: Exception | None) -> None:
        """Write the partition, unless it failed or was written before."""
        with contextlib.closing(self._rows) as rows:
            if error is None:
                self._write(self._opened, self._epoch, self._fields, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def _master() -> str:
    """The address of this process's Spark. Empty if it is not known, as over Spark Connect."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return str(getattr(getattr(context, "_active_spark_context", None), "master", ""))


def _property_of_task(name: str) -> str | None:
    # No import: a process that calls a writer has loaded pyspark.
    tasks = getattr(sys.modules.get("pyspark"), "TaskContext", None)
    task = None if tasks is None else tasks.get()
    return None if task is None else task.getLocalProperty(name)


def _batch_of(position: str) -> int:
    """The batch id in a fence's position."""
    return int(position.split(":")[0].split(" ")[0]) - 1
