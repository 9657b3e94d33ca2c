"""The ledger of a sink whose tasks commit one by one: the last record of a task is its fence, and
the rules are those of stores (``stores.fencing``).

A destination says how rows and a record are written in one step, and which records there are. Here
is decided whether a task may write, and whether it has written already. What stores do not have is
here: a fence for each task instead of one for the component, and tasks that come and go.

Runs on: executor; for a query of Structured Streaming also on the driver.

Apart from ``stores.fencing``, which knows one fence for a component.

Invariants:
    - A task has a record of every transaction, also of one without rows.
    - ``context.touched_stores`` changes only after the rows are there.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors, faults
from txtopo.sinks import replays
from txtopo.stores import begun, fencing, stamps, visible
from txtopo.stores import place as places
from txtopo.topology import context as contexts
from txtopo.topology import destination, kept, transaction


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The last transaction of a task."""

    topology_id: str
    component: str
    task: int
    generation: str
    txid: int
    attempt: int
    tasks: int
    """How many tasks the component had in this transaction."""
    tasks_before: int
    """How many it had in the transaction before; 0 if there was none."""
    rows: int

    @property
    def fence(self) -> stamps.Fence:
        """As the rules of stores take it."""
        return stamps.Fence(
            self.topology_id, self.component, self.generation, self.txid, self.attempt, count=None
        )

    @property
    def position(self) -> tuple[int, int]:
        """Transaction and attempt."""
        return self.txid, self.attempt


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """A task's turn to write. No other process writes for the task between the reading of
    ``record`` and the end of the turn, or its write fails."""

    record: Record | None
    """The task's last record."""
    others: Mapping[int, Record] | None
    """The last records of the other tasks; None if they were judged in an earlier turn."""
    write: Callable[[Record, Sequence[Any]], None]
    """Writes the task's next record and its rows, both or none. Without rows the record alone: the
    rows are there."""
    end: Callable[[int], None] = lambda task: None
    """Ends what a removed task may have left open."""


class TaskLedger(destination.Destination):
    """Writes the rows of each task once, with a record beside them.

    :param name: the name in the state of the topology, as ``component/name``.
    :param sink: where the rows go, for messages; the same text for every handle of the place.
    """

    def __init__(self, name: str, sink: str) -> None:
        self.name, self.sink = name, sink

    @abc.abstractmethod
    def turn(
        self, context: contexts.TopologyContext, own: Record, rows: Sequence[Any]
    ) -> contextlib.AbstractContextManager[Turn]:
        """The turn of the task that wants to write ``rows`` and the record ``own``."""

    @property
    @abc.abstractmethod
    def place(self) -> places.Place:
        """The sink as a value, for errors."""

    def guarantee(self) -> destination.Guarantee:
        """What was written cannot be taken back, as one task commits before another."""
        cure = (
            "use a transactional spout; or a sink that takes back, such as SqlSink with opaque=True"
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
        rows: Sequence[Any],
    ) -> Record:
        """The record that a task would write with ``rows``."""
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
        rows: Sequence[Any],
    ) -> bool:
        """Write the rows of one task, all of them or none, once; False if they were there already.

        :raises errors.StaleAttemptError: a newer attempt has written (R29).
        :raises errors.StateMismatchError: the records were emptied, restored from an older copy, or
            belong to another generation (R27).
        :raises errors.FailedException: the destination does not answer, or another process writes.
        """
        if context.phase != "commit":
            raise errors.UsageError(
                f"the sink {self.sink} of component {context.component_id!r} is to write in the {context.phase} phase\n"
                "  A sink writes in finish_batch of a committer. Use set_bolt with the sink itself."
            )
        known_name = self.place.known_name(context.component_id)
        begun.check_room(known_name, self.sink, context)
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
        self, context: contexts.TopologyContext, own: Record, rows: Sequence[Any], turn: Turn
    ) -> bool:
        """Whether the rows were there already."""
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
        """The error for records that are another component's."""
        return errors.SetupError(
            f"the records at {self.sink} are those of component {record.component!r} of topology {record.topology_id!r}, and component"
            f" {own.component!r} of topology {own.topology_id!r} cannot share them\n  Give each sink a place of its own."
        )


class Judge:
    """Decides whether a task may write.

    :param own: the record that it would write.
    :param record: its last one.
    :param others: the last ones of all other tasks; None skips their check.
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
        self._recorded = (
            None
            if context.known_stores is None
            else visible.recorded(context.known_stores, ledger.name)
        )
        self.tasks_before = self._tasks_before()
        """How many tasks the transaction before had; ``None`` if there was none."""
        self.leftover = range(own.tasks, self.tasks_before or 0) if others is not None else range(0)
        """The tasks of the transaction before that are no more; none if they were judged before."""

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
        # Tasks that are no more cannot notice that their records are gone.
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
            # A new task, or one that is back: it had no part in the transaction before.
            if fence is None:
                return False
            recorded = None
        decision = fencing.decide(
            self._place, "transactional", self._context, self._stamp(task), fence, recorded
        )
        if fence is not None and decision == "take back":
            raise _void(self._place, fence)
        return fence is not None and fence.txid == self._own.txid

    def _stamp(self, task: int) -> stamps.Stamp:
        own = self._own
        return stamps.Stamp(
            own.topology_id, own.generation, own.component, task, own.txid, own.attempt
        )


def _void(store: places.Place, fence: stamps.Fence) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"the sink {store.address} has records of component {fence.component!r} from attempt {fence.position}, which was replayed without the"
        " sink\n  These records do not count, and cannot be taken back. Nothing was written. Choose:\n"
        f"    `{store.command('adopt', fence.topology_id)}`: go on after them; readers have seen them"
    )


def fences_of(records: Iterable[Record]) -> list[kept.Fence]:
    """The newest record of each component, as a fence."""
    newest: dict[str, Record] = {}
    for record in records:
        if record.component not in newest or newest[record.component].position < record.position:
            newest[record.component] = record
    return [newest[component].fence for component in sorted(newest)]


class SimpleLedger(TaskLedger):
    """A ledger of three calls, for a sink of your own."""

    @abc.abstractmethod
    def records(self, topology_id: str) -> Iterable[Record]:
        """The last record of each task of each component of the topology."""

    @abc.abstractmethod
    def write(self, record: Record, rows: Sequence[Any]) -> None:
        """Write ``rows`` and ``record``, both or none. Rows of the transaction that are there
        already are not written again, and a record does not take the place of a newer one: a late
        task of an older attempt may come here."""

    @abc.abstractmethod
    def remove(self, topology_id: str, component: str) -> None:
        """Forget the records of a component; rows stay."""

    @contextlib.contextmanager
    def turn(
        self, context: contexts.TopologyContext, own: Record, rows: Sequence[Any]
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
    """The records of a topology in a :class:`SimpleLedger`, as ``txtopo reset`` takes them."""

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
        chosen, tasks = (
            sorted(set(components)),
            {record.component: record.tasks for record in self._ledger.records(topology_id)},
        )
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


__all__ = ["Judge", "Record", "SimpleLedger", "TaskLedger", "Turn", "fences_of"]
