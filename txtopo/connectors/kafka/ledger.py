"""The decision of a Kafka sink: are the rows of a task written already, may they be written, and in
which order that is found out (R27 to R31).

A task writes its rows and one auxiliary record in one transaction of Kafka. The record is judged
like the fence of a store, by the same rules (``stores.stamps``).

**Why nothing is written twice.** A task that begins first becomes the only producer of its id, then
waits until the end of its partition is settled, then reads the record, then writes. A task that has
committed before keeps its producer, and knows the record: had another producer begun since, the next
commit of this one would fail. So between the reading of a record and the commit after it nothing
else commits. Late tasks (*zombies*), in every order:

- The zombie began before the live attempt, and sleeps before or after its reading, or before its
  commit: the live attempt's ``init`` has fenced it, and no commit of it succeeds. Was its commit
  under way, then ``init`` waits for the outcome, and the live attempt reads what came of it.
- The zombie begins after the live attempt has committed: it reads a newer record, and ends with
  ``StaleAttemptError``. It has fenced the live task's producer, whose next transaction is replayed
  once, with a new producer.
- The zombie begins after the live attempt has begun, and before that has committed. Kafka fences the
  older *producer*, which is the live one. If the zombie is of an earlier *transaction*, the record
  of that transaction is there, as every task wrote one, also without rows: the zombie ends as
  above. If it is of an older attempt of the *same* transaction, nothing at the brokers tells the two
  apart, and the zombie may commit. Its rows are the rows of the live attempt, because only spouts
  that replay the same batch are allowed. The live attempt fails, and its replay finds the record,
  writes no row, and raises the record to its own attempt.

So each task's rows are there once, of one attempt. That all rows of a transaction are of one attempt
is not promised: it holds in no sink that commits task by task.

**Why the last record may be trusted.** The order is: ``init``, then the comparison of the last
stable offset with the end, then the reading. A reading before ``init`` would miss a commit under
way; one right after a commit would miss its marker.

**Leftover tasks.** A transaction that was begun is replayed with its own number of tasks (R23). So
all tasks have committed before there are fewer, and none has a transaction open. One that is found
open all the same, in a partition without a task, is aborted. ``txtopo kafka abort`` is for topologies
that were given up in the middle.

Apart from ``sink``, which users see, from ``producing``, which knows transactions and no rule, and
from ``auxiliary``, which keeps records.

Runs on: executor; for a query of Structured Streaming also on the driver.

Invariants:
    - The record of a task is written in every transaction, also without rows.
    - ``context.touched_stores`` changes only after the commit.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence

from txtopo import errors, faults
from txtopo.connectors import replays
from txtopo.connectors.kafka import auxiliary, client, producing, target
from txtopo.connectors.kafka.auxiliary import Record
from txtopo.connectors.kafka.producing import Message
from txtopo.stores import begun, completeness, stamps, visible
from txtopo.stores import place as places
from txtopo.topology import context as contexts
from txtopo.topology import destination, transaction


@dataclasses.dataclass(slots=True)
class Writer:
    """The producer of a task that has begun, and the task's record."""

    producer: producing.TaskProducer
    record: Record | None
    others: dict[int, Record]
    """The records of the other tasks when this one began; empty once it has written."""


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

    @property
    def address(self) -> str:
        """The target in messages."""
        return f"kafka://{self.cluster.servers}#{self.topic}"

    def auxiliary_topic(self, topology_id: str, component: str) -> str:
        """The name of the auxiliary topic."""
        return self.transactions_topic or auxiliary.topic_name(topology_id, component)

    def apply(
        self, context: contexts.TopologyContext, attempt: transaction.TransactionAttempt, messages: Sequence[Message], bytes_max: int | None = None
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
        known_name = f"{context.component_id}/{self.name}"
        begun.check_room(known_name, self.address, context)
        try:
            applied = self._applied(context, attempt, messages, bytes_max)
        except (errors.FailedException, errors.StateMismatchError) as error:
            # The attempt has failed, whatever user code around the sink makes of the exception (R39).
            context.on_failure(error)
            raise
        faults.reach("apply.inside", attempt.txid, context.topology_id)
        context.touched_stores[known_name] = 1
        return applied

    def _applied(
        self, context: contexts.TopologyContext, attempt: transaction.TransactionAttempt, messages: Sequence[Message], bytes_max: int | None
    ) -> bool:
        own = Record(
            context.topology_id, context.component_id, context.task_index, context.generation, attempt.txid, attempt.attempt_id,
            context.num_tasks, 0, len(messages),
        )  # fmt: skip
        topic = self.auxiliary_topic(own.topology_id, own.component)
        id = f"{topic}.{own.task}"
        # A child of fork has none of the threads that the producers of its parent need.
        writers: Writers = context.resource(f"kafka-writers:{self.cluster.key}:{self.timeout_s}:{os.getpid()}", Writers)
        # Taken out while it is at work: whatever goes wrong, it is not there for the next attempt.
        writer = writers.pop(id, None)
        if writer is not None and (writer.record is None or writer.record.tasks != own.tasks or self._is_older(writer.record, context)):
            # The records of all tasks are looked at when their number changes. An older record is of
            # a task that has run in another process since.
            writer.producer.close()
            writer = None
        writer = writer or self._begun(context, own, topic, id, bytes_max)
        try:
            judge = _Judge(self, context, own, writer)
            is_written = judge.is_written()
            if writer.record is None or writer.record.position != own.position:
                own = dataclasses.replace(own, tasks_before=judge.tasks_before or 0)
                stamp: producing.Headers = [("txtopo-txid", b"%d" % own.txid), ("txtopo-task", b"%d" % own.task)] if self.stamp_headers else []
                writer.producer.write([] if is_written else messages, stamp, Message(topic, own.value, own.key, partition=own.task))
        except BaseException:
            writer.producer.close()
            raise
        writer.record, writer.others = own, {}
        writers[id] = writer
        return not is_written

    def _is_older(self, record: Record, context: contexts.TopologyContext) -> bool:
        """Whether ``record`` is of an earlier attempt than the last one that is recorded."""
        last = None if context.known_stores is None else visible.recorded(context.known_stores, self.name).get(context.component_id)
        return last is not None and record.position < (last.txid, last.attempt_id)

    def _begun(self, context: contexts.TopologyContext, own: Record, topic: str, id: str, bytes_max: int | None) -> Writer:
        """A writer whose task is the only one, with the records as they are then."""
        kept = auxiliary.AuxiliaryTopic(target.log_of(context.resource, self.cluster), topic)
        if kept.partitions() == 0:
            # What was emptied is not made anew: that must be told.
            _Judge(self, context, own, None).is_written()
        kept.make(own.tasks)
        kept.check_is_kept()
        leftover = range(own.tasks, kept.partitions())
        producer = producing.TaskProducer(self.cluster, id, self.timeout_s, bytes_max)
        try:
            for task in kept.undecided(leftover):
                self.abort(topic, task)
            producer.init(topic)
            kept.wait_until_decided([own.task, *leftover])
            records = kept.last_records(range(kept.partitions()))
        except BaseException as error:
            producer.close()
            if isinstance(error, producing.TimeoutTooLongError):
                raise target.timeout_too_long(self.cluster, self.timeout_s) from error
            raise
        return Writer(producer, records.pop(own.task, None), records)

    def abort(self, topic: str, task: int) -> None:
        """End the transaction that a task has left open: become the only producer of its id for a
        moment."""
        producer = producing.TaskProducer(self.cluster, f"{topic}.{task}", self.timeout_s)
        try:
            producer.init(topic)
        finally:
            producer.close()

    def command(self, action: str, topology_id: str) -> str:
        """The command line that does ``action``, such as ``clear``, to the auxiliary topics."""
        return self.place.command(action, topology_id)

    @property
    def place(self) -> places.Place:
        """The sink as a value, for errors."""
        return _Place(self.name, self.address, self.cluster.servers, "", opaque=False)


class _Judge:
    """What the records say to a task that wants to write ``own``; ``writer`` is None where there is
    no auxiliary topic."""

    def __init__(self, ledger: Ledger, context: contexts.TopologyContext, own: Record, writer: Writer | None) -> None:
        self._ledger, self._context, self._own = ledger, context, own
        self._record = None if writer is None else writer.record
        self._others = {} if writer is None else writer.others
        self._recorded = None if context.known_stores is None else visible.recorded(context.known_stores, ledger.name)
        self._place = ledger.place
        self.tasks_before = self._tasks_before()
        """How many tasks the transaction before had; ``None`` if there was none."""

    def is_written(self) -> bool:
        """Whether the task has written its rows.

        :raises errors.StaleAttemptError, errors.StateMismatchError: the task may not write.
        """
        self._check_owner()
        own = self._own
        above = stamps.overtaking((record.fence for record in self._others.values()), self._stamp(own.task))
        if above is not None:
            raise errors.StaleAttemptError(self._ledger.address, own.component, above.position, self._stamp(own.task).position)
        for task in range(own.tasks, self.tasks_before or 0):
            # It has no task any more that would notice that its record is gone.
            self._is_written(task, self._others.get(task))
        is_written = self._is_written(own.task, self._record)
        if is_written and self._record is not None:
            self._check_same(self._record)
        return is_written

    def _tasks_before(self) -> int | None:
        records = [record for record in (self._record, *self._others.values()) if record is not None and record.generation == self._own.generation]
        newest = max(records, key=lambda record: record.position, default=None)
        if newest is None:
            return None
        return newest.tasks if newest.txid < self._own.txid else newest.tasks_before

    def _is_written(self, task: int, record: Record | None) -> bool:
        stamp, fence = self._stamp(task), None if record is None else record.fence
        where = stamps.fence_standing(fence, stamp, self._recorded)
        address, adopt = self._ledger.address, self._place.command("adopt", stamp.topology_id)
        last = None if self._recorded is None else self._recorded.get(stamp.component)
        is_new = self.tasks_before is not None and task >= self.tasks_before
        if fence is None:
            if last is not None and not is_new:
                raise completeness.emptied(self._place, stamp)
            if not is_new and not begun.may_begin(self._ledger.name, self._context):
                raise begun.unexpected(self._place, stamp, self._context, adopt)
            return False
        if where == "other generation":
            raise completeness.other_generation(self._place, fence, stamp)
        if where == "above":
            raise errors.StaleAttemptError(address, stamp.component, fence.position, stamp.position)
        if last is not None and where == "behind" and not (is_new and fence.txid < last.txid):
            raise completeness.behind(address, fence, last, adopt)
        if last is not None and where == "unexplained":
            raise completeness.unexplained(address, fence, last, adopt)
        if where == "replayed" and fence.attempt < self._context.first_attempt:
            raise completeness.never_sealed(self._place, fence)
        if where == "void":
            raise _void(address, fence, adopt)
        return where in ("equal", "replayed")

    def _check_owner(self) -> None:
        own = self._own
        for record in (self._record, *self._others.values()):
            if record is not None and (record.topology_id, record.component) != (own.topology_id, own.component):
                raise errors.SetupError(
                    f"the auxiliary topic {self._ledger.auxiliary_topic(own.topology_id, own.component)} is that of component {record.component!r} of"
                    f" topology {record.topology_id!r}, and component {own.component!r} of topology {own.topology_id!r} cannot share it\n"
                    "  Give each sink a transactions_topic of its own, or none."
                )

    def _check_same(self, written: Record) -> None:
        own = self._own
        if written.tasks != own.tasks:
            raise replays.DividedOtherwiseError(written.tasks, own.tasks)
        if written.rows != own.rows:
            raise replays.other_rows(self._ledger.address, own.component, own.task, own.txid, written.rows, own.rows)

    def _stamp(self, task: int) -> stamps.Stamp:
        own = self._own
        return stamps.Stamp(own.topology_id, own.generation, own.component, task, own.txid, own.attempt)


@dataclasses.dataclass(frozen=True, slots=True)
class _Place(places.Place):
    """The sink's place, with commands of its own."""

    def command(self, action: str, topology_id: str) -> str:
        return f"txtopo kafka {action} {shlex.quote(self.location)} {shlex.quote(topology_id)}"


def _void(address: str, fence: stamps.Fence, adopt: str) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"the sink {address} has records of component {fence.component!r} from attempt {fence.position}, which was replayed without the sink\n"
        "  These records do not count, and cannot be taken back. Nothing was written. Choose:\n"
        f"    `{adopt}`: go on after them; readers have seen them"
    )
