"""The judgement over a task that wants to write: its auxiliary record is the fence of its task, and
the rules are those of stores (``stores.fencing``).

Apart from ``ledger``, which makes sure that the records are the newest. What stores do not have is
here: a fence for each task instead of one for the component, and tasks that come and go.

Runs on: executor; for a query of Structured Streaming also on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

from txtopo import errors
from txtopo.connectors.kafka.auxiliary import Record
from txtopo.sinks import replays
from txtopo.stores import fencing, stamps, visible
from txtopo.stores import place as places
from txtopo.topology import context as contexts


class Judge:
    """What the records say to the task of ``own``, which wants to write; ``others`` are those of
    the other tasks, None if they were judged before."""

    def __init__(
        self, store: places.Place, topic: str, context: contexts.TopologyContext, own: Record, record: Record | None,
        others: Mapping[int, Record] | None,
    ) -> None:  # fmt: skip
        self._place, self._topic, self._context, self._own = store, topic, context, own
        self._record, self._others = record, others or {}
        self._all = [*self._others.values(), *([] if record is None else [record])]
        self._recorded = None if context.known_stores is None else visible.recorded(context.known_stores, store.name)
        self.tasks_before = self._tasks_before()
        """How many tasks the transaction before had; ``None`` if there was none."""
        self.leftover = range(own.tasks, self.tasks_before or 0) if others is not None else range(0)
        """The tasks of the transaction before that are no more; none if they were judged before."""

    def is_written(self) -> bool:
        """Whether the task has written its rows.

        :raises errors.StaleAttemptError, errors.StateMismatchError: the task may not write.
        """
        self._check_owner()
        own = self._own
        above = stamps.overtaking((record.fence for record in self._others.values()), self._stamp(own.task))
        if above is not None:
            raise errors.StaleAttemptError(self._place.address, own.component, above.position, self._stamp(own.task).position)
        strangers = [task for task, record in self._others.items() if record.generation != own.generation]
        # Tasks that are no more cannot notice that their records are gone.
        for task in (*strangers, *self.leftover):
            self._is_written(task, self._others.get(task))
        for record in self._all:
            if (record.generation, record.txid) == (own.generation, own.txid) and record.tasks != own.tasks:
                raise replays.DividedOtherwiseError(record.tasks, own.tasks)
        is_written = self._is_written(own.task, self._record)
        if is_written and self._record is not None and self._record.rows != own.rows:
            raise replays.other_rows(self._place.address, own.component, own.task, own.txid, self._record.rows, own.rows)
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
        if self.tasks_before is not None and task >= self.tasks_before and (fence is None or last is None or fence.txid < last.txid):
            # A new task, or one that is back: it had no part in the transaction before.
            if fence is None:
                return False
            recorded = None
        decision = fencing.decide(self._place, "transactional", self._context, self._stamp(task), fence, recorded)
        if fence is not None and decision == "take back":
            raise _void(self._place, fence)
        return fence is not None and fence.txid == self._own.txid

    def _check_owner(self) -> None:
        own = self._own
        for record in self._all:
            if (record.topology_id, record.component) != (own.topology_id, own.component):
                raise errors.SetupError(
                    f"the auxiliary topic {self._topic} is that of component {record.component!r} of"
                    f" topology {record.topology_id!r}, and component {own.component!r} of topology {own.topology_id!r} cannot share it\n"
                    "  Give each sink a transactions_topic of its own, or none."
                )

    def _stamp(self, task: int) -> stamps.Stamp:
        own = self._own
        return stamps.Stamp(own.topology_id, own.generation, own.component, task, own.txid, own.attempt)


def _void(store: places.Place, fence: stamps.Fence) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"the sink {store.address} has records of component {fence.component!r} from attempt {fence.position}, which was replayed without the"
        " sink\n  These records do not count, and cannot be taken back. Nothing was written. Choose:\n"
        f"    `{store.command('adopt', fence.topology_id)}`: go on after them; readers have seen them"
    )
