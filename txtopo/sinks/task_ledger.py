"""Ledgers for sinks whose tasks commit one by one: a task's last record is the task's fence.
``SimpleLedger`` is the base for a sink of your own.

A destination writes rows and a record in one step, and lists its records. This module decides
whether a task may write, and whether the task has written already. The rules are those of stores
(``stores.fencing``), with a fence per task instead of a fence per component, and with tasks that
come and go.

Runs on: executor, and on the driver for a Structured Streaming query.

Invariants:
    - A task has a record for every transaction, even without rows.
    - ``context.touched_stores`` changes only after the rows are written.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from txtopo import errors, faults
from txtopo.sinks import replays
from txtopo.stores import begun, fencing, stamps, visible
from txtopo.stores import place as places
from txtopo.topology import context as contexts
from txtopo.topology import destination, kept, transaction


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A task's last transaction."""

    topology_id: str
    component: str
    task: int
    generation: str
    txid: int
    attempt: int
    tasks: int
    """The component's task count in this transaction."""
    tasks_before: int
    """The component's task count in the transaction before, 0 if there was none."""
    rows: int

    @property
    def fence(self) -> stamps.Fence:
        """The record as a store's fence."""
        return stamps.Fence(
            self.topology_id, self.component, self.generation, self.txid, self.attempt, count=None
        )

    @property
    def position(self) -> tuple[int, int]:
        """Transaction and attempt."""
        return self.txid, self.attempt


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """A task's turn to write. If another process writes for the task between reading ``record`` and
    the turn's end, one of the two writes fails."""

    record: Record | None
    """The task's last record."""
    others: Mapping[int, Record] | None
    """The other tasks' last records. None if an earlier turn has judged them."""
    write: Callable[[Record, Collection[Any]], None]
    """Writes the task's next record and its rows, both or none. If the rows were written before,
    the record comes alone."""
    end: Callable[[int], None] = lambda task: None
    """Ends a transaction that a removed task may have left open, and keeps the task from writing
    later."""


def begin(place: places.Place, sink: str, context: contexts.TopologyContext) -> str:
    """Check that a task may write now. Returns the name in the topology's state.

    :raises errors.UsageError: it may not.
    """
    if context.phase != "commit":
        raise errors.UsageError(
            f"component {context.component_id!r} writes to the sink {sink} in the {context.phase} phase\n"
            "  A sink writes in a committer's finish_batch. Use set_bolt with the sink itself."
        )
    known_name = place.known_name(context.component_id)
    begun.check_room(known_name, sink, context)
    return known_name


class TaskLedger(destination.Destination):
    """Writes each task's rows once, with a record beside them.

    :param name: the name in the topology's state, as ``component/name``.
    :param sink: the rows' place, for messages. Every handle to the place has the same text.
    """

    def __init__(self, name: str, sink: str) -> None:
        self.name, self.sink = name, sink

    @abc.abstractmethod
    def turn(
        self, context: contexts.TopologyContext, own: Record, rows: Collection[Any]
    ) -> contextlib.AbstractContextManager[Turn]:
        """Begin a task's turn to write ``rows`` and the record ``own``."""

    @property
    @abc.abstractmethod
    def place(self) -> places.Place:
        """The sink as a value, for errors."""

    def guarantee(self) -> destination.Guarantee:
        """Cannot take rows back, because tasks commit one after another."""
        cure = (
            "use a transactional spout, or a sink that takes back, such as SqlSink with opaque=True"
        )
        return destination.Guarantee(
            f"{type(self).__name__} {self.sink}",
            "rows, appended",
            takes_back=False,
            is_keyed=False,
            cure=cure,
            place=self.sink,
            known_as=self.name,
        )

    def record_of(
        self,
        context: contexts.TopologyContext,
        attempt: transaction.TransactionAttempt,
        rows: Collection[Any],
    ) -> Record:
        return Record(
            context.topology_id,
            context.component_id,
            context.task_index,
            context.generation,
            attempt.txid,
            attempt.attempt_id,
            context.num_tasks,
            0,
            len(rows),
        )

    def apply(
        self,
        context: contexts.TopologyContext,
        attempt: transaction.TransactionAttempt,
        rows: Collection[Any],
    ) -> bool:
        """Write one task's rows, all or none, once. False if the rows were there already.

        :raises errors.StaleAttemptError: a newer attempt has written (R29).
        :raises errors.StateMismatchError: the records were emptied, restored from an older copy, or
            belong to another generation (R27).
        :raises errors.FailedException: the destination does not answer, or another process writes.
        """
        known_name = begin(self.place, self.sink, context)
        own = self.record_of(context, attempt, rows)
        try:
            with self.turn(context, own, rows) as turn:
                is_written = self._apply(context, own, rows, turn)
        except (errors.FailedException, errors.StateMismatchError) as error:
            # The attempt has failed, even if user code around the sink catches the exception (R39).
            context.on_failure(error)
            raise
        faults.reach("apply.inside", attempt.txid, context.topology_id)
        context.touched_stores[known_name] = 1
        return not is_written

    def _apply(
        self, context: contexts.TopologyContext, own: Record, rows: Collection[Any], turn: Turn
    ) -> bool:
        """Write in ``turn``. True if the rows were there already."""
        judge = Judge(self, context, own, turn.record, turn.others)
        is_written = judge.is_written()
        for task in judge.leftover[own.task :: own.tasks]:
            turn.end(task)
        if turn.record is None or turn.record.position != own.position:
            turn.write(
                dataclasses.replace(own, tasks_before=judge.tasks_before or 0),
                [] if is_written else rows,
            )
        return is_written

    def shared(self, record: Record, own: Record) -> errors.SetupError:
        """Return the error for records of another component."""
        return errors.SetupError(
            f"the records at {self.sink} belong to component {record.component!r} in topology {record.topology_id!r}, and component"
            f" {own.component!r} in topology {own.topology_id!r} cannot share them\n  Give each sink its own place."
        )


class Judge:
    """Decides whether a task may write.

    :param own: the record that the task wants to write.
    :param record: the task's last record.
    :param others: the last records of all other tasks. None skips their check.
    """

    def __init__(
        self,
        ledger: TaskLedger,
        context: contexts.TopologyContext,
        own: Record,
        record: Record | None,
        others: Mapping[int, Record] | None,
    ) -> None:
        self._ledger, self._place, self._context, self._own = ledger, ledger.place, context, own
        self._record, self._others = record, others or {}
        self._all = [*self._others.values(), *([] if record is None else [record])]
        self._recorded = visible.recorded_in(context, ledger.name)
        self.tasks_before = self._tasks_before()
        """The task count in the transaction before. ``None`` if there was none."""
        self.leftover = range(own.tasks, self.tasks_before or 0) if others is not None else range(0)
        """Tasks in the transaction before that are removed now. Empty if an earlier turn has judged
        them."""

    def is_written(self) -> bool:
        """Whether the task has written its rows.

        :raises errors.StaleAttemptError, errors.StateMismatchError: the task may not write.
        """
        own = self._own
        for record in self._all:
            if (record.topology_id, record.component) != (own.topology_id, own.component):
                raise self._ledger.shared(record, own)
        above = stamps.overtaking(
            (record.fence for record in self._others.values()), self._stamp(own.task)
        )
        if above is not None:
            raise errors.StaleAttemptError(
                self._place.address, own.component, above.position, self._stamp(own.task).position
            )
        strangers = [
            task for task, record in self._others.items() if record.generation != own.generation
        ]
        # A removed task cannot notice that its record is gone.
        for task in (*strangers, *self.leftover):
            self._is_written(task, self._others.get(task))
        for record in self._all:
            if (record.generation, record.txid) == (
                own.generation,
                own.txid,
            ) and record.tasks != own.tasks:
                raise replays.DividedOtherwiseError(record.tasks, own.tasks)
        is_written = self._is_written(own.task, self._record)
        if is_written and self._record is not None and self._record.rows != own.rows:
            raise replays.other_rows(
                self._place.address, own.component, own.task, own.txid, self._record.rows, own.rows
            )
        return is_written

    def _tasks_before(self) -> int | None:
        records = [record for record in self._all if record.generation == self._own.generation]
        newest = max(records, key=lambda record: record.position, default=None)
        if newest is None:
            return None
        return newest.tasks if newest.txid < self._own.txid else newest.tasks_before

    def _is_written(self, task: int, record: Record | None) -> bool:
        fence, recorded = None if record is None else record.fence, self._recorded
        last = None if recorded is None else recorded.get(self._own.component)
        if (
            self.tasks_before is not None
            and task >= self.tasks_before
            and (fence is None or last is None or fence.txid < last.txid)
        ):
            # A new task, or a task that is back, had no part in the transaction before.
            if fence is None:
                return False
            recorded = None
        decision = fencing.decide(
            self._place, "transactional", self._context, self._stamp(task), fence, recorded
        )
        if fence is not None and decision == "take back":
            raise void(self._place, fence)
        return fence is not None and fence.txid == self._own.txid

    def _stamp(self, task: int) -> stamps.Stamp:
        own = self._own
        return stamps.Stamp(
            own.topology_id, own.generation, own.component, task, own.txid, own.attempt
        )


def void(store: places.Place, fence: stamps.Fence) -> errors.StateMismatchError:
    """The error for records of an attempt that does not count, in a sink that takes nothing back."""
    return errors.StateMismatchError(
        f"the sink {store.address} has records of component {fence.component!r} from attempt {fence.position}, which was replayed without the"
        " sink\n  These records do not count, and cannot be taken back. Nothing was written. Choose:\n"
        f"    `{store.command('adopt', fence.topology_id)}`: go on after these records, which readers have seen"
    )


def fences_of(records: Iterable[Record]) -> list[kept.Fence]:
    """Each component's newest record, as a fence."""
    newest: dict[str, Record] = {}
    for record in records:
        if record.component not in newest or newest[record.component].position < record.position:
            newest[record.component] = record
    return [newest[component].fence for component in sorted(newest)]


class SimpleLedger(TaskLedger):
    """Ledger with three calls, for your own sink."""

    @abc.abstractmethod
    def records(self, topology_id: str) -> Iterable[Record]:
        """List the last record of each task, for all components in the topology."""

    @abc.abstractmethod
    def write(self, record: Record, rows: Collection[Any]) -> None:
        """Write ``rows`` and ``record``, both or none. Do not write the transaction's rows a second
        time, and do not replace a newer record: a late task of an older attempt may come here."""

    @abc.abstractmethod
    def remove(self, topology_id: str, component: str) -> None:
        """Remove a component's records. The rows stay."""

    @contextlib.contextmanager
    def turn(
        self, context: contexts.TopologyContext, own: Record, rows: Collection[Any]
    ) -> Iterator[Turn]:
        of_task = {
            record.task: record
            for record in self.records(own.topology_id)
            if record.component == own.component
        }
        yield Turn(of_task.pop(own.task, None), of_task, self.write)

    @property
    def place(self) -> places.Place:
        return _OwnPlace(self.name, self.sink, self.sink, "", opaque=False)

    def kept(self, topology_id: str, component: str) -> kept.Kept:
        return _KeptRecords(self, topology_id)


class _KeptRecords:
    """A topology's records in a :class:`SimpleLedger`, for ``txtopo reset``."""

    def __init__(self, ledger: SimpleLedger, topology_id: str) -> None:
        self._ledger, self._topology_id = ledger, topology_id
        self.name, self.address = ledger.name, ledger.sink

    def exists(self) -> bool:
        return bool(self.shown())

    def fences(self) -> list[kept.Fence]:
        return fences_of(self._ledger.records(self._topology_id))

    def shown(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(record) for record in self._ledger.records(self._topology_id)]

    def command(self, action: str, topology_id: str) -> str:
        return self._ledger.place.command(action, topology_id)

    def adopt(
        self,
        topology_id: str,
        generation: str,
        txid: int,
        components: Iterable[str],
        *,
        from_topology: str | None = None,
        dry_run: bool = False,
    ) -> kept.StoreChange:
        kept.refuse_from_topology(from_topology)
        chosen = sorted(set(components))
        tasks = {record.component: record.tasks for record in self._ledger.records(topology_id)}
        rows = sum(tasks.get(component, 1) for component in chosen)
        for component in [] if dry_run else chosen:
            self._ledger.remove(topology_id, component)
            for task in range(count := tasks.get(component, 1)):
                self._ledger.write(
                    Record(
                        topology_id,
                        component,
                        task,
                        generation,
                        txid,
                        kept.CLOSED_ATTEMPT,
                        count,
                        0,
                        0,
                    ),
                    [],
                )
        return kept.StoreChange(rows, len(chosen))

    def clear(
        self, topology_id: str, components: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> kept.StoreChange:
        wanted = None if components is None else set(components)
        records = [
            record
            for record in self._ledger.records(topology_id)
            if wanted is None or record.component in wanted
        ]
        chosen = sorted({record.component for record in records})
        for component in [] if dry_run else chosen:
            self._ledger.remove(topology_id, component)
        return kept.StoreChange(len(records), len(chosen))


@dataclasses.dataclass(frozen=True, slots=True)
class _OwnPlace(places.Place):
    """A place that the command line cannot open."""

    def command(self, action: str, topology_id: str) -> str:
        if action == "clear":
            return "txtopo reset TARGET"
        return f"sink.ledger.kept({topology_id!r}, '').{action}({topology_id!r}, GENERATION, TXID, [COMPONENT])"
