"""Contexts for tasks and spout coordinators: their place in the topology, and the state they work
on."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from txtopo import errors
from txtopo.topology import counters, log
from txtopo.topology.stream import TupleSource
from txtopo.topology.transaction import TransactionAttempt

T = TypeVar("T")
Phase = Literal["processing", "commit"]

SOME_TIME = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""The opening time in a context made by a test, where no transaction was opened."""


def _ignore(failure: BaseException) -> None:
    """Do nothing: there is no attempt to fail."""


class TopologyContext:
    """Given to ``prepare`` and ``get_emitter``: the task's component and index, and the objects
    kept in this process.

    A held bolt keeps its context across the phases. ``phase`` then tells the current phase.
    """

    def __init__(
        self,
        topology_id: str,
        generation: str,
        component_id: str,
        task_index: int,
        task_counts: Mapping[str, int],
        phase: Phase,
        resources: Callable[[str, Callable[[], Any]], Any],
        local_master: bool = True,
        known_stores: Mapping[str, TransactionAttempt] | None = None,
        first_attempt: int = 0,
        opened_at: datetime.datetime = SOME_TIME,
        expected_stores: Sequence[str] | None = None,
        stores_max: int | None = None,
    ) -> None:
        self.topology_id = topology_id
        """The id under which the topology's state is kept."""
        self.generation = generation
        """Random id of this incarnation of the state (R27)."""
        self.component_id = component_id
        """Id of the task's component."""
        self.task_index = task_index
        """0 … ``num_tasks - 1``."""
        self.phase: Phase = phase
        """``"processing"`` or ``"commit"``."""
        self.local_master = local_master
        """True if every executor runs on the driver's machine."""
        self.known_stores = known_stores
        """The stores that hold this generation's results, by ``component/store`` name: the last
        recorded attempt that opened each store (R27, R31), with its number of store transactions
        (R34). ``None`` without a record of commits, as where a test runs a single bolt. Stores then
        go by their own rows alone."""
        self.first_attempt = first_attempt
        """The transaction's first attempt that may have effects. Earlier attempts were never sealed
        (R23), as far as the state knows."""
        self.opened_at = opened_at
        """When the transaction was opened, aware, in UTC: the same in every attempt, and after
        every restart (R36). Take the time from here and not from a clock, or a replay computes
        another result. The time comes from the driver's clock, which may be set back."""
        self.expected_stores = expected_stores
        """Names of the stores that this component may begin besides its ``known_stores``, or
        patterns with ``*`` (R35). ``None`` if any: the component has no results yet, or commits are
        not recorded."""
        self.stores_max = stores_max
        """How many stores ``known_stores`` may have at most. ``None``: any number."""
        self.touched_stores: dict[str, int] = {}
        """By ``component/store`` name, how many of the store's transactions this task has
        committed. The stores count, and the coordinator remembers the sum over all tasks (R34)."""
        self.store_steps: dict[str, dict[str, int]] = {}
        """By store, how many updates of each key this task has made in this attempt. The stores
        count, so that several updates compose (R32)."""
        self.store_turns: dict[str, Any] = {}
        """By ``component/store`` name, the turns that this task's threads take at the store. Kept
        by stores."""
        self.on_failure: Callable[[BaseException], None] = _ignore
        """Stores call it with a failure that fails the attempt, even if user code swallows the
        exception (R39)."""
        self.source: TupleSource | None = None
        """While a bolt that takes columns executes: the RecordBatch's ``component``, ``task``,
        ``stream`` and ``fields``."""
        self.attempt: TransactionAttempt | None = None
        """The task's attempt. ``None`` where a test runs a single bolt."""
        self.log = log.TaskLog(self._log_fields)
        """A logger for every hook. Its lines name component, task, txid, attempt and phase. A replay
        logs again, under its own attempt. Workers write lines from ``log_level`` on to standard
        error, unless your code configures logging there."""
        self.counters = counters.Counters()
        """The sums of :meth:`count` in this phase."""
        self._task_counts = task_counts
        self._resources = resources

    def count(self, name: str, n: int = 1) -> None:
        """Add ``n``, an int of at least 0, to the component's counter ``name``, in any hook.

        The sum over all tasks counts when the attempt is committed, so neither replays nor crashes
        count anything twice. A name has a to z, 0 to 9 and ``_``, and no digit first. A component
        may have 100 names. Further names count as ``other``.

        :raises UsageError: a wrong name or number. The attempt fails, even if user code catches the
            error.
        """
        try:
            self.counters.count(name, n)
        except errors.UsageError as error:
            self.on_failure(error)
            raise

    def _log_fields(self) -> dict[str, str]:
        fields = {"component": self.component_id, "task": str(self.task_index)}
        if self.attempt is not None:
            txid, attempt_id = str(self.attempt.txid), str(self.attempt.attempt_id)
            fields |= {"txid": txid, "attempt": attempt_id}
        return {"topology": self.topology_id, **fields, "phase": self.phase}

    @property
    def num_tasks(self) -> int:
        """How many tasks this component has."""
        return self._task_counts[self.component_id]

    def component_tasks(self, component: str) -> range:
        """The task indices of ``component``, ascending. Empty if there is no such component."""
        return range(self._task_counts.get(component, 0))

    def resource(self, name: str, factory: Callable[[], T]) -> T:
        """The object ``name`` of this worker process, made by ``factory()`` when first asked for
        (R12).

        The place for connections and clients: one per process and topology, kept across
        transactions. When a task that asked for the object fails, the object is closed
        (``close()``, if it has one) and made again for the next task.
        """
        resource: T = self._resources(name, factory)
        return resource


class CoordinatorContext:
    """Given to ``get_coordinator``, on the driver."""

    def __init__(
        self, topology_id: str, generation: str, component_id: str, last_metadata: Callable[[], Any]
    ) -> None:
        self.topology_id = topology_id
        """The id under which the topology's state is kept."""
        self.generation = generation
        """Random id of this incarnation of the state (R27)."""
        self.component_id = component_id
        """Id of the spout."""
        self.log = log.TaskLog(lambda: {"topology": topology_id, "component": component_id})
        """A logger for the spout coordinator's hooks. Its lines are the driver's."""
        self._last_metadata = last_metadata

    @property
    def last_metadata(self) -> Any:
        """Where the next new transaction begins: the newest transaction's metadata. For a
        partitioned spout, a dict by partition.

        ``is_ready`` may compare the metadata with the source, also just after a restart.
        """
        return self._last_metadata()
