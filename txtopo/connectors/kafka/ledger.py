"""The ledger of a Kafka sink: rows of the user's topics and one auxiliary record of their task, in
one transaction of Kafka (R27 to R31).

The record is judged like the fence of a store (``sinks.task_ledger``). Here is the order in which
it is read, and why no other process writes meanwhile.

**Why nothing is written twice.** A task that begins first becomes the only producer of its id, then
waits until the end of its partition is settled, then reads the record, then writes. A task that has
committed before keeps its producer for later transactions, and knows the record: had another
producer begun since, the next commit of this one would fail. So between the reading of a record and
the commit after it nothing else commits. Late tasks (*zombies*), in every order:

- The zombie began before the live attempt, and sleeps before or after its reading, or before its
  commit: the live attempt's ``init`` has fenced it, and no commit of it succeeds. Was its commit
  under way, then ``init`` waits for the outcome, and the live attempt reads what came of it.
- The zombie begins after the live attempt has committed: it reads a newer record, and ends with
  ``StaleAttemptError``. It has fenced the live task's producer, whose next transaction is replayed
  once, with a new producer.
- The zombie begins after the live attempt has begun, and before that has committed. Kafka fences
  the older *producer*, which is the live one. If the zombie is of an earlier *transaction*, the
  record of that transaction is there, as every task wrote one, also without rows: the zombie ends
  as above. If it is of an older attempt of the *same* transaction, nothing at the brokers tells the
  two apart, and the zombie may commit. Its rows are the rows of the live attempt, because only
  spouts that replay the same batch are allowed. The live attempt fails, and its replay finds the
  record, writes no row, and raises the record to its own attempt.

So each task's rows are there once, of one attempt. That all rows of a transaction are of one
attempt is not promised: it holds in no sink that commits task by task.

**Why the last record may be trusted.** The order is: ``init``, then the comparison of the last
stable offset with the end, then the reading. A reading before ``init`` would miss a commit under
way; one right after a commit would miss its marker.

**Leftover tasks.** A transaction that was begun is replayed with its own number of tasks (R23). So
all tasks have committed before there are fewer, and none has a transaction open, as far as these
rules are kept; the ids of those that are no more are begun once more all the same, as an open
transaction would hold up all readers. ``txtopo kafka abort`` does that for topologies that were
given up in the middle.

Apart from ``sink``, which users see, from ``producing``, which knows transactions and no rule, and
from ``auxiliary``, which keeps records.

Runs on: executor; for a query of Structured Streaming also on the driver.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import auxiliary, client, producing, target, upkeep
from txtopo.connectors.kafka.auxiliary import Record
from txtopo.connectors.kafka.log import UnknownTopicError
from txtopo.connectors.kafka.messages import FIELD
from txtopo.connectors.kafka.producing import Message
from txtopo.sinks import task_ledger
from txtopo.stores import place as places
from txtopo.stores import visible
from txtopo.topology import context as contexts
from txtopo.topology import destination, transaction

NAME = "kafka"
"""Of a sink in the state of its topology, unless it was given one."""


@dataclasses.dataclass(slots=True)
class Writer:
    """The producer of a task that has begun, and the task's record."""

    producer: producing.TaskProducer
    record: task_ledger.Record | None
    others: Mapping[int, task_ledger.Record] | None
    """The records of the other tasks when this one began; None once it has written."""
    end: int | None
    """Where the task's partition ended when this one began; None once it has written."""
    sizes: producing.Sizes

    def serves(self, own: task_ledger.Record, sizes: producing.Sizes) -> bool:
        """Whether it may write ``own``, in messages of ``sizes``. The topic is read again when the
        number of tasks changes; and unless ``own`` goes on from here: the topic may be another."""
        last = self.record or own
        return (
            last.txid < own.txid
            and last.generation == own.generation
            and last.tasks == own.tasks
            and self.sizes.serve(sizes)
        )


class Writers(dict[str, Writer]):
    """The writers of this process that are not at work, by their transactional id."""

    def close(self) -> None:
        """Close all producers."""
        while self:
            self.popitem()[1].producer.close()


class Ledger(task_ledger.TaskLedger):
    """Writes to topics of the user's, beside an auxiliary topic. Connects to nothing when made.

    :param topic: the user's topic, or ``field:name``.
    :param transactions_topic: the auxiliary topic; ``None``: made of the names of topology and
        component.
    """

    def __init__(
        self,
        cluster: client.Cluster,
        topic: str,
        name: str,
        transactions_topic: str | None,
        timeout_s: float,
        stamp_headers: bool,
    ) -> None:
        super().__init__(name, f"kafka://{cluster.servers}#{topic}")
        self.cluster, self.topic, self.transactions_topic = cluster, topic, transactions_topic
        self.timeout_s, self.stamp_headers = timeout_s, stamp_headers

    def guarantee(self) -> destination.Guarantee:
        return dataclasses.replace(
            super().guarantee(), name=f"KafkaSink {self.sink}", holds="records, appended"
        )

    def kept(self, topology_id: str, component: str) -> upkeep.AuxiliaryTopics:
        """The auxiliary topics of the topology, or the one that was given by name."""
        return upkeep.AuxiliaryTopics(self.cluster, topology_id, self.transactions_topic, self.name)

    def rows_left(self, topology_id: str) -> str:
        """The topic, if it has records and the topology has written; a field that names topics may
        have named any."""
        kept = self.kept(topology_id, "")
        is_left = bool(kept.fences()) and (
            self.topic.startswith(FIELD) or kept.has_records(self.topic)
        )
        return self.sink if is_left else ""

    def simulated(self, world: destination.World) -> destination.Destination | None:
        raise errors.UsageError(
            f"KafkaSink {self.sink} cannot be simulated: a schedule would write to the real topic\n"
            "  Give the topology another sink where it is tested: a store, or SqlSink."
        )

    def auxiliary_topic(self, topology_id: str, component: str) -> str:
        """The name of the auxiliary topic."""
        return self.transactions_topic or auxiliary.topic_name(topology_id, component)

    def record_of(
        self,
        context: contexts.TopologyContext,
        attempt: transaction.TransactionAttempt,
        rows: Sequence[Any],
    ) -> Record:
        own = super().record_of(context, attempt, rows)
        return Record(**dataclasses.asdict(own), target=self.topic, sink=self.name)

    @contextlib.contextmanager
    def turn(
        self, context: contexts.TopologyContext, own: task_ledger.Record, rows: Sequence[Any]
    ) -> Iterator[task_ledger.Turn]:
        """The turn of a task, as the only producer of its id."""
        topic, sizes = (
            self.auxiliary_topic(own.topology_id, own.component),
            target.sizes_of(context.resource, self.cluster, rows),
        )
        id = f"{topic}.{own.task}"
        # A child of fork has none of the threads that the producers of its parent need.
        writers: Writers = context.resource(
            f"kafka-writers:{self.cluster.key}:{self.timeout_s}:{os.getpid()}", Writers
        )
        # Taken out while it is at work: whatever goes wrong, it is not there for the next attempt.
        writer = writers.pop(id, None)
        if writer is not None and (
            not writer.serves(own, sizes) or self._is_older(writer.record, context)
        ):
            # An older record is of a task that has run in another process since.
            writer.producer.close()
            writer = None
        begun = writer or self._begun(context, own, topic, id, sizes)

        def write(record: Any, rows: Sequence[Message]) -> None:
            stamp: producing.Headers = (
                [("txtopo-txid", b"%d" % own.txid), ("txtopo-task", b"%d" % own.task)]
                if self.stamp_headers
                else []
            )
            begun.producer.write(
                rows, stamp, Message(topic, record.value, record.key, partition=own.task), begun.end
            )
            begun.record = record

        try:
            yield task_ledger.Turn(
                begun.record, begun.others, write, lambda task: self.abort(topic, task)
            )
        except BaseException:
            begun.producer.close()
            raise
        begun.others = begun.end = None
        writers[id] = begun

    def _is_older(
        self, record: task_ledger.Record | None, context: contexts.TopologyContext
    ) -> bool:
        """Whether ``record`` is of an earlier attempt than the last one that is recorded."""
        last = (
            None
            if context.known_stores is None
            else visible.recorded(context.known_stores, self.name).get(context.component_id)
        )
        return (
            last is not None
            and record is not None
            and record.position < (last.txid, last.attempt_id)
        )

    def _begun(
        self,
        context: contexts.TopologyContext,
        own: task_ledger.Record,
        topic: str,
        id: str,
        sizes: producing.Sizes,
    ) -> Writer:
        """A writer whose task is the only one, with the records as they are then."""
        kept = auxiliary.AuxiliaryTopic(target.log_of(context.resource, self.cluster), topic)
        before = kept.partitions(
            surely=self.place.known_name(own.component) in (context.known_stores or {})
        )
        if before == 0:
            # What was emptied is not made anew: that must be told.
            task_ledger.Judge(self, context, own, None, None).is_written()
        kept.make(own.tasks, before)
        kept.check_is_kept()
        producer = producing.TaskProducer(self.cluster, id, self.timeout_s, sizes)
        try:
            producer.init(topic)
            # The partitions of tasks that are no more have no writer; those of the others change.
            partitions = max(own.tasks, kept.partitions())
            for task in kept.undecided(range(own.tasks, partitions)):
                self.abort(topic, task)
            kept.wait_until_decided([own.task, *range(own.tasks, partitions)])
            ends = kept.ends(range(partitions))
            records = kept.last_records(ends)
        except BaseException as error:
            producer.close()
            if isinstance(error, producing.TimeoutTooLongError):
                raise target.timeout_too_long(self.cluster, self.timeout_s) from error
            if isinstance(error, UnknownTopicError):
                # A broker still knew a topic that has just been deleted; the replay asks again.
                raise errors.FailedException(str(error)) from error
            raise
        return Writer(producer, records.pop(own.task, None), records, ends[own.task], sizes)

    def abort(self, topic: str, task: int) -> None:
        """End the transaction that a task may have left open: become the only producer of its id
        for a moment."""
        producer = producing.TaskProducer(self.cluster, f"{topic}.{task}", self.timeout_s)
        try:
            producer.init(topic)
        finally:
            producer.close()

    @property
    def place(self) -> places.Place:
        """The sink as a value, for errors."""
        return places.Place(
            self.name,
            self.sink,
            upkeep.address_of(self.cluster, self.transactions_topic),
            "",
            opaque=False,
        )

    def shared(self, record: task_ledger.Record, own: task_ledger.Record) -> errors.SetupError:
        return errors.SetupError(
            f"the auxiliary topic {self.auxiliary_topic(own.topology_id, own.component)} is that of component {record.component!r} of"
            f" topology {record.topology_id!r}, and component {own.component!r} of topology {own.topology_id!r} cannot share it\n"
            "  Give each sink a transactions_topic of its own, or none."
        )
