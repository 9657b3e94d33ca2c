"""The decision of a Kafka sink: are the rows of a task written already, may they be written, and in
which order that is found out (R27 to R31).

A task writes its rows and one auxiliary record in one transaction of Kafka. The record is judged
like the fence of a store (``judging``).

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

Apart from ``sink``, which users see, from ``judging``, which judges records, from ``producing``,
which knows transactions and no rule, and from ``auxiliary``, which keeps records.

Runs on: executor; for a query of Structured Streaming also on the driver.

Invariants:
    - The record of a task is written in every transaction, also without rows.
    - ``context.touched_stores`` changes only after the commit.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from txtopo import errors, faults
from txtopo.connectors.kafka import auxiliary, client, judging, producing, target, upkeep
from txtopo.connectors.kafka.auxiliary import Record
from txtopo.connectors.kafka.messages import FIELD
from txtopo.connectors.kafka.producing import Message
from txtopo.stores import begun, visible
from txtopo.stores import place as places
from txtopo.topology import context as contexts
from txtopo.topology import destination, transaction

NAME = "kafka"
"""Of a sink in the state of its topology, unless it was given one."""


@dataclasses.dataclass(slots=True)
class Writer:
    """The producer of a task that has begun, and the task's record."""

    producer: producing.TaskProducer
    record: Record | None
    others: dict[int, Record] | None
    """The records of the other tasks when this one began; None once it has written."""
    end: int | None
    """Where the task's partition ended when this one began; None once it has written."""
    sizes: producing.Sizes

    def serves(self, own: Record, sizes: producing.Sizes) -> bool:
        """Whether it may write ``own``, in messages of ``sizes``. The topic is read again when the
        number of tasks changes; and unless ``own`` goes on from here: the topic may be another."""
        last = self.record or own
        return last.txid < own.txid and last.generation == own.generation and last.tasks == own.tasks and self.sizes.serve(sizes)


class Writers(dict[str, Writer]):
    """The writers of this process that are not at work, by their transactional id."""

    def close(self) -> None:
        """Close all producers."""
        while self:
            self.popitem()[1].producer.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger(destination.Destination):
    """Writes to topics of the user's, beside an auxiliary topic. Connects to nothing when made."""

    cluster: client.Cluster
    topic: str
    """The user's topic, or ``field:name``."""
    name: str
    transactions_topic: str | None
    """``None``: made of the names of topology and component."""
    timeout_s: float
    stamp_headers: bool

    def guarantee(self) -> destination.Guarantee:
        """What was committed cannot be taken back, as one task commits before another."""
        cure = "use a transactional spout; or a sink that takes back, such as SqlSink with opaque=True"
        return destination.Guarantee(
            f"KafkaSink {self.address}", "records, appended", takes_back=False, is_keyed=False, cure=cure, place=self.address, known_as=self.name
        )

    def kept(self, topology_id: str, component: str) -> upkeep.AuxiliaryTopics:
        """The auxiliary topics of the topology, or the one that was given by name."""
        return upkeep.AuxiliaryTopics(self.cluster, topology_id, self.transactions_topic, self.name)

    def rows_left(self, topology_id: str) -> str:
        """The topic, if it has records and the topology has written; a field that names topics may
        have named any."""
        kept = upkeep.AuxiliaryTopics(self.cluster, topology_id, self.transactions_topic, self.name)
        is_left = kept.exists() and (self.topic.startswith(FIELD) or kept.has_records(self.topic))
        return self.address if is_left else ""

    @property
    def address(self) -> str:
        """The target in messages."""
        return f"kafka://{self.cluster.servers}#{self.topic}"

    @property
    def sink(self) -> str:
        """Where the rows go, for messages."""
        return self.address

    def auxiliary_topic(self, topology_id: str, component: str) -> str:
        """The name of the auxiliary topic."""
        return self.transactions_topic or auxiliary.topic_name(topology_id, component)

    def apply(
        self, context: contexts.TopologyContext, attempt: transaction.TransactionAttempt, messages: Sequence[Message],
        sizes: producing.Sizes = producing.OF_THE_LIBRARY,
    ) -> bool:
        """Write the rows of one task, all of them or none, once; False if they were there already.

        :raises producing.MessageRefusedError: the brokers do not take one of the rows.
        :raises errors.StaleAttemptError: a newer attempt has written (R29).
        :raises errors.StateMismatchError: the auxiliary topic was emptied, restored from an older
            copy, or belongs to another generation (R27).
        :raises errors.SetupError: the user may not write, or the auxiliary topic is none.
        :raises errors.FailedException: the brokers do not answer, or another producer has begun.
        """
        if context.phase != "commit":
            raise errors.UsageError(
                f"the sink {self.address} of component {context.component_id!r} is to write in the {context.phase} phase\n"
                "  A sink writes in finish_batch of a committer. Use set_bolt with the KafkaSink itself."
            )
        known_name = self.place.known_name(context.component_id)
        begun.check_room(known_name, self.address, context)
        try:
            applied = self._applied(context, attempt, messages, sizes)
        except (errors.FailedException, errors.StateMismatchError) as error:
            # The attempt has failed, whatever user code around the sink makes of the exception
            # (R39).
            context.on_failure(error)
            raise
        faults.reach("apply.inside", attempt.txid, context.topology_id)
        context.touched_stores[known_name] = 1
        return applied

    def _applied(
        self, context: contexts.TopologyContext, attempt: transaction.TransactionAttempt, messages: Sequence[Message], sizes: producing.Sizes
    ) -> bool:
        own = Record(
            context.topology_id, context.component_id, context.task_index, context.generation, attempt.txid, attempt.attempt_id,
            context.num_tasks, 0, len(messages), self.topic,
        )  # fmt: skip
        topic = self.auxiliary_topic(own.topology_id, own.component)
        id = f"{topic}.{own.task}"
        # A child of fork has none of the threads that the producers of its parent need.
        writers: Writers = context.resource(f"kafka-writers:{self.cluster.key}:{self.timeout_s}:{os.getpid()}", Writers)
        # Taken out while it is at work: whatever goes wrong, it is not there for the next attempt.
        writer = writers.pop(id, None)
        if writer is not None and (not writer.serves(own, sizes) or self._is_older(writer.record, context)):
            # An older record is of a task that has run in another process since.
            writer.producer.close()
            writer = None
        writer = writer or self._begun(context, own, topic, id, sizes)
        try:
            judge = judging.Judge(self.place, topic, context, own, writer.record, writer.others)
            is_written = judge.is_written()
            for task in judge.leftover[own.task :: own.tasks]:
                self.abort(topic, task)
            if writer.record is None or writer.record.position != own.position:
                own = dataclasses.replace(own, tasks_before=judge.tasks_before or 0)
                stamp: producing.Headers = [("txtopo-txid", b"%d" % own.txid), ("txtopo-task", b"%d" % own.task)] if self.stamp_headers else []
                last = Message(topic, own.value, own.key, partition=own.task)
                writer.producer.write([] if is_written else messages, stamp, last, writer.end)
        except BaseException:
            writer.producer.close()
            raise
        writer.record, writer.others, writer.end = own, None, None
        writers[id] = writer
        return not is_written

    def _is_older(self, record: Record | None, context: contexts.TopologyContext) -> bool:
        """Whether ``record`` is of an earlier attempt than the last one that is recorded."""
        last = None if context.known_stores is None else visible.recorded(context.known_stores, self.name).get(context.component_id)
        return last is not None and record is not None and record.position < (last.txid, last.attempt_id)

    def _begun(self, context: contexts.TopologyContext, own: Record, topic: str, id: str, sizes: producing.Sizes) -> Writer:
        """A writer whose task is the only one, with the records as they are then."""
        kept = auxiliary.AuxiliaryTopic(target.log_of(context.resource, self.cluster), topic)
        before = kept.partitions(surely=self.place.known_name(own.component) in (context.known_stores or {}))
        if before == 0:
            # What was emptied is not made anew: that must be told.
            judging.Judge(self.place, topic, context, own, None, None).is_written()
        kept.make(own.tasks, before)
        kept.check_is_kept()
        producer = producing.TaskProducer(self.cluster, id, self.timeout_s, sizes)
        try:
            producer.init(topic)
            # The partitions of tasks that are no more have no writer; those of the others change.
            partitions = kept.partitions()
            for task in kept.undecided(range(own.tasks, partitions)):
                self.abort(topic, task)
            kept.wait_until_decided([own.task, *range(own.tasks, partitions)])
            ends = kept.ends(range(partitions))
            records = kept.last_records(ends)
        except BaseException as error:
            producer.close()
            if isinstance(error, producing.TimeoutTooLongError):
                raise target.timeout_too_long(self.cluster, self.timeout_s) from error
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
        return places.Place(self.name, self.address, upkeep.address_of(self.cluster, self.transactions_topic), "", opaque=False)
