"""Writes a Kafka sink's rows: a task's rows and an auxiliary record about them, in one Kafka
transaction (R27 to R31).

``sinks.task_ledger`` judges the record like a store's fence. This module says when the record is
read, and why no other process writes meanwhile.

**Why no row is written twice.** A task that begins becomes the only producer with its transactional
id, waits until the end of its partition is settled, reads its record, then writes. A task that has
committed before keeps its producer and knows its record: had another producer begun since, the kept
producer's next commit would fail. So nothing else commits between the time when a record is read
and the commit after it. Late tasks (*zombies*) come in three orders:

- The zombie begins before the live attempt, and sleeps before or after it reads its record, or
  before its commit. The live attempt's ``init`` fences the zombie, so no later commit succeeds. If
  the zombie's commit was under way, ``init`` waits for the outcome, and the live attempt reads the
  outcome in the record.
- The zombie begins after the live attempt has committed. The zombie reads a newer record, and ends
  with ``StaleAttemptError``. Because the zombie has fenced the live task's producer, the next
  transaction is replayed once, with a new producer.
- The zombie begins after the live attempt has begun, and before the live attempt commits. Kafka
  fences the older *producer*, which is the live attempt's. A zombie from an earlier *transaction*
  finds the record of that transaction, since every task writes one, even without rows: the zombie
  ends as above. For a zombie from an older attempt at the *same* transaction, the brokers cannot
  tell the two attempts apart, and the zombie may commit. Both attempts have the same rows, because
  only spouts that replay the same batch are allowed. The live attempt fails. Its replay finds the
  record, writes no row, and raises the record to its own attempt.

So each task's rows are written once, by one attempt. Several tasks' rows may come from several
attempts: no sink that commits task by task can promise more.

**Why the last record may be trusted.** The order is: ``init``, compare the last stable offset with
the end, read. Reading before ``init`` would miss a commit under way. Reading right after a commit
would miss the commit's marker.

**Leftover tasks.** A transaction that has begun is replayed with its own task count (R23). So all
tasks have committed before the count falls, and none has a transaction open, as far as these rules
are kept. The sink nevertheless begins once more with the ids of removed tasks, because an open
transaction would hold up all readers. The begin also fences them: a query of Structured Streaming
does not replay with its old task count, so a removed task may still be alive. ``txtopo kafka
abort`` begins with the ids of a topology that was abandoned in the middle.

Runs on: executor. For a query of Structured Streaming also on the driver.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import auxiliary, client, producing, simulated, target, upkeep
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
"""The sink's name in its topology's state, unless the user gives one."""


@dataclasses.dataclass(slots=True)
class Writer:
    """A task's producer, which is the only one with its id, and the task's record."""

    producer: producing.TaskProducer
    record: Record | None
    others: Mapping[int, Record] | None
    """The other tasks' records when this writer began. None once the task has written."""
    end: int | None
    """Where the task's partition ended when this writer began. None once the task has written."""
    sizes: producing.Sizes

    def serves(self, own: task_ledger.Record, sizes: producing.Sizes) -> bool:
        """Whether this writer may write the record ``own`` and messages within ``sizes``. The
        auxiliary topic is read again when the task count changes, and when ``own`` is no later
        transaction in the same generation: the topic may be a new one."""
        last = self.record or own
        return (
            last.txid < own.txid
            and last.generation == own.generation
            and last.tasks == own.tasks
            and self.sizes.serve(sizes)
        )


class Writers(dict[str, Writer]):
    """This process's idle writers, by transactional id."""

    def close(self) -> None:
        while self:
            self.popitem()[1].producer.close()


class Ledger(task_ledger.TaskLedger):
    """Writes to the user's topics and to an auxiliary topic. The constructor connects to nothing.

    :param topic: the user's topic, or ``field:name``.
    :param name: the sink's name in the topology's state.
    :param transactions_topic: the auxiliary topic. With ``None`` its name is made from the ids of
        topology and component.
    :param timeout_s: how long a Kafka transaction may be open.
    :param stamp_headers: add txid and task index to every row as headers.
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
            super().guarantee(),
            name=f"KafkaSink {self.sink}",
            holds="records, appended",
            promise="exactly once for readers of committed records",
        )

    def kept(self, topology_id: str, component: str) -> upkeep.AuxiliaryTopics:
        """The topology's auxiliary topics, or the auxiliary topic that the user has named."""
        topic = self.transactions_topic
        if "." in component:  # without records, its topic looks like another topology's
            topic = self.auxiliary_topic(topology_id, component)
        return upkeep.AuxiliaryTopics(self.cluster, topology_id, topic, self.name)

    def rows_left(self, topology_id: str) -> str:
        """The sink's address if the topology has written and the topic has records, else an empty
        text. If a field names the topic, the rows may be in any topic, so none is looked at."""
        kept = self.kept(topology_id, "")
        is_left = bool(kept.fences()) and (
            self.topic.startswith(FIELD) or kept.has_records(self.topic)
        )
        return self.sink if is_left else ""

    def simulated(self, world: destination.World) -> destination.Destination:
        """The ledger's own code, on brokers in memory."""
        return _SimulatedLedger(self, world)

    def auxiliary_topic(self, topology_id: str, component: str) -> str:
        return self.transactions_topic or auxiliary.topic_name(topology_id, component)

    def record_of(
        self,
        context: contexts.TopologyContext,
        attempt: transaction.TransactionAttempt,
        rows: Collection[Any],
    ) -> Record:
        own = super().record_of(context, attempt, rows)
        return Record(**dataclasses.asdict(own), target=self.topic, sink=self.name)

    @contextlib.contextmanager
    def turn(
        self, context: contexts.TopologyContext, own: task_ledger.Record, rows: Collection[Any]
    ) -> Iterator[task_ledger.Turn]:
        """Give a task its turn to write, as the only producer with its id.

        :param own: the record that the task will write.
        :param rows: the rows that the producer must have room for.
        """
        topic = self.auxiliary_topic(own.topology_id, own.component)
        sizes = target.targets_of(context.resource, self.cluster).sizes_of(rows)
        id = f"{topic}.{own.task}"
        # By process id: a forked child lacks the threads that its parent's producers need.
        writers: Writers = context.resource(
            f"kafka-writers:{self.cluster.key}:{self.timeout_s}:{os.getpid()}", Writers
        )
        # A writer at work is not kept: if the attempt fails, the next attempt makes a new writer.
        writer = writers.pop(id, None)
        if writer is not None and (
            not writer.serves(own, sizes) or self._is_older(writer.record, context)
        ):
            # If the record is older, the task has run in another process since.
            writer.producer.close()
            writer = None
        begun = writer or self._new_writer(context, own, topic, sizes)

        def write(record: Any, rows: Collection[Message]) -> None:
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
        """Whether ``record`` comes from an earlier attempt than the component's last recorded
        attempt."""
        last = (visible.recorded_in(context, self.name) or {}).get(context.component_id)
        return (
            last is not None
            and record is not None
            and record.position < (last.txid, last.attempt_id)
        )

    def _new_writer(
        self,
        context: contexts.TopologyContext,
        own: task_ledger.Record,
        topic: str,
        sizes: producing.Sizes,
    ) -> Writer:
        """A writer for the task: a producer that has become the only one with its id, and the
        records in ``topic``, read after that."""
        log = target.targets_of(context.resource, self.cluster).log
        kept = auxiliary.AuxiliaryTopic(log, topic)
        before = kept.partitions(
            surely=self.place.known_name(own.component) in (context.known_stores or {})
        )
        if before == 0:
            # The judge refuses a topic that was deleted after the component had written.
            task_ledger.Judge(self, context, own, None, None).is_written()
        return self.begin_writer(kept, before, own.task, own.tasks, sizes)

    def begin_writer(
        self,
        kept: auxiliary.AuxiliaryTopic,
        before: int,
        task: int,
        tasks: int,
        sizes: producing.Sizes,
    ) -> Writer:
        """Make the writer for ``task``, one of ``tasks``, in the auxiliary topic ``kept``, which has
        ``before`` partitions."""
        topic = kept.name
        kept.make(tasks, before)
        kept.check_is_kept()
        producer = producing.TaskProducer(self.cluster, f"{topic}.{task}", self.timeout_s, sizes)
        try:
            producer.init(topic)
            # Removed tasks' partitions have no writer. The other partitions change meanwhile.
            partitions = max(tasks, kept.partitions())
            for removed in kept.undecided(range(tasks, partitions)):
                self.abort(topic, removed)
            kept.wait_until_decided([task, *range(tasks, partitions)])
            ends = kept.ends(range(partitions))
            records = kept.last_records(ends)
        except BaseException as error:
            producer.close()
            if isinstance(error, UnknownTopicError):
                # A broker still knew a topic that was just deleted. The next try asks again.
                raise errors.FailedException(str(error)) from error
            raise
        return Writer(producer, records.pop(task, None), records, ends[task], sizes)

    def abort(self, topic: str, task: int) -> None:
        """End the transaction that a task may have left open, by becoming the only producer with
        its id for a moment."""
        with producing.only_producer(self.cluster, topic, task, self.timeout_s):
            pass

    @property
    def place(self) -> places.Place:
        return places.Place(
            self.name,
            self.sink,
            auxiliary.address_of(self.cluster, self.transactions_topic),
            "",
            opaque=False,
        )

    def shared(self, record: task_ledger.Record, own: task_ledger.Record) -> errors.SetupError:
        return errors.SetupError(
            f"the auxiliary topic {self.auxiliary_topic(own.topology_id, own.component)} belongs to component {record.component!r} in"
            f" topology {record.topology_id!r}, and component {own.component!r} in topology {own.topology_id!r} cannot share the topic\n"
            "  Give each sink its own transactions_topic, or none."
        )


class _SimulatedLedger(Ledger, simulated.SimulatedTopics):
    sink = ""

    def __init__(self, original: Ledger, world: destination.World) -> None:
        vars(self).update(vars(original))
        self.cluster = simulated.cluster_of(original.cluster, world)
        brokers = simulated.brokers_of(original.cluster, world)
        if original.transactions_topic is not None:
            brokers.auxiliary_topics.add(original.transactions_topic)
        if not original.topic.startswith(FIELD):
            brokers.fill(original.topic, brokers.make_target)
