"""The decision of a Kafka sink: whether the rows of a task are written, and what stands in the way
(R27 to R31).

In one transaction of Kafka a task writes its rows and one auxiliary record about them. A task that
holds the producer of its last transaction knows its record: any other writer would have fenced the
producer. Otherwise the order is: begin as the only producer, then read the record, then judge.

Apart from ``sink``, which users see, from ``producing``, which knows transactions and no rule, and
from ``auxiliary``, which keeps records. The rules are those of stores (``stores.stamps``): a
record is the fence of its task.

Runs on: executor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from txtopo import errors, faults
from txtopo.connectors.kafka import auxiliary, client, producing
from txtopo.stores import begun, completeness, place, stamps, visible
from txtopo.topology import context as contexts
from txtopo.topology import destination, transaction


class Ledger(destination.Destination):
    """Writes rows of Kafka, with auxiliary records beside them."""

    def __init__(self, cluster: client.Cluster, target: str, name: str, transactions_topic: str | None, timeout_s: float) -> None:
        self.cluster, self.target, self.name = cluster, target, name
        self.transactions_topic, self.timeout_s = transactions_topic, timeout_s

    def guarantee(self) -> destination.Guarantee:
        """Each transaction's rows once; what was committed cannot be taken back."""
        return destination.Guarantee(
            name=f"KafkaSink {self.address}", holds="records, appended", takes_back=False, is_keyed=False,
            cure="use a transactional spout, or a sink that takes back, such as SqlSink with opaque=True", place=self.address, known_as=self.name,
        )  # fmt: skip

    @property
    def address(self) -> str:
        """Where the rows go, for messages."""
        return f"{self.cluster.servers}#{self.target}"

    def topic_of(self, topology_id: str, component: str) -> str:
        """The auxiliary topic of a component."""
        return self.transactions_topic or f"txtopo.{topology_id}.{component}"

    def apply(self, context: contexts.TopologyContext, attempt: transaction.TransactionAttempt, messages: Sequence[producing.Message]) -> bool:
        """Write the rows of one task, all of them or none, once; False if they were there
        already."""
        try:
            applied = self._apply(context, attempt, messages)
        except (errors.FailedException, errors.StateMismatchError) as error:
            context.on_failure(error)
            raise
        faults.reach("apply.inside", attempt.txid, context.topology_id)
        context.touched_stores[f"{context.component_id}/{self.name}"] = 1
        return applied

    def _apply(self, context: contexts.TopologyContext, attempt: transaction.TransactionAttempt, messages: Sequence[producing.Message]) -> bool:
        own = auxiliary.Record(
            context.topology_id, context.component_id, context.task_index, context.generation, attempt.txid, attempt.attempt_id,
            context.num_tasks, len(messages),
        )  # fmt: skip
        topic = self.topic_of(context.topology_id, context.component_id)
        kept: dict[str, Writer] = context.resource(f"kafka-writers:{self.cluster.key}", Writers)
        id = f"{topic}.{own.task}"
        writer = kept.pop(id, None)
        if writer is None:
            writer = self._new_writer(id, topic, own)
        try:
            before = writer.record
            is_applied = self._judge(context, own, before)
            if is_applied:
                assert before is not None
                self._check_rows(own, before)
            if before is None or (before.txid, before.attempt) != (own.txid, own.attempt):
                record = producing.Message(topic, own.value, own.key, None, own.task)
                writer.producer.write([*(() if is_applied else messages), record])
                writer.record = own
        except BaseException:
            writer.producer.close()
            raise
        kept[id] = writer
        return not is_applied

    def _new_writer(self, id: str, topic: str, own: auxiliary.Record) -> Writer:
        kept = auxiliary.AuxiliaryTopic(self.cluster, topic)
        if kept.partitions() == 0:
            kept.make(own.tasks)
        producer = producing.TaskProducer(self.cluster, id, self.timeout_s)
        try:
            producer.init()
            kept.wait_until_decided(own.task)
            records = kept.last_records(range(kept.partitions()))
        except BaseException:
            producer.close()
            raise
        return Writer(producer, records.get(own.task))

    def _judge(self, context: contexts.TopologyContext, own: auxiliary.Record, before: auxiliary.Record | None) -> bool:
        """Whether the rows were written before."""
        stamp = stamps.Stamp(own.topology_id, own.generation, own.component, own.task, own.txid, own.attempt)
        recorded = None if context.known_stores is None else visible.recorded(context.known_stores, self.name)
        last = None if recorded is None else recorded.get(own.component)
        fence = None if before is None else before.fence
        where = stamps.fence_standing(fence, stamp, recorded)
        at = place.Place(self.name, self.address, self.cluster.servers, "", False)
        if fence is None:
            if last is not None:
                raise completeness.emptied(at, stamp)
            if not begun.may_begin(self.name, context):
                raise begun.unexpected(at, stamp, context, at.command("adopt", stamp.topology_id))
            return False
        if where == "other generation":
            raise completeness.other_generation(at, fence, stamp)
        if where == "above":
            raise errors.StaleAttemptError(self.address, own.component, fence.position, stamp.position)
        return where in ("equal", "replayed")

    def _check_rows(self, own: auxiliary.Record, before: auxiliary.Record) -> None:
        if before.rows != own.rows:
            raise errors.TxtopoError(f"the sink {self.address} wrote {before.rows} rows, now {own.rows}")


@dataclasses.dataclass(slots=True)
class Writer:
    """The producer of a task, and the task's record."""

    producer: producing.TaskProducer
    record: auxiliary.Record | None


class Writers(dict[str, Writer]):
    """The writers of this process, by their transactional id."""

    def close(self) -> None:
        """Close all producers."""
        while self:
            self.popitem()[1].producer.close()
