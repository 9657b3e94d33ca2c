"""Spouts over rows given in the program, a transactional and an opaque one: the source of most
tests and first steps.

Storm's ``org.apache.storm.testing.MemoryTransactionalSpout`` and ``OpaqueMemoryTransactionalSpout``
keep their rows in a global of the one process there is. Spark's workers are processes of their own,
so the rows live in a :class:`~txtopo.testing.spool.RowSpool` that all read. Emitters run on
executors: nothing here may import more than the standard library and ``txtopo.topology``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.testing import spool
from txtopo.topology import spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.stream import Fields, OutputFieldsDeclarer, with_attempt
from txtopo.topology.transaction import TransactionAttempt


class _MemorySpout:
    """Base of the memory spouts: rows, and their partitions."""

    local_only_reason = "its rows are kept in temporary files on the driver's machine"

    def __init__(
        self,
        partitions: Mapping[int, Iterable[Sequence[Any]]],
        fields: Fields | Sequence[str],
        take_per_partition: int,
        always_ready: bool = False,
    ) -> None:
        if (
            not isinstance(take_per_partition, int)
            or isinstance(take_per_partition, bool)
            or take_per_partition < 1
        ):
            raise errors.ConfigError(
                f"memory spout: take_per_partition is {take_per_partition!r}; it is a whole number of at least 1"
            )
        self.fields = with_attempt(fields)
        self.take_per_partition = take_per_partition
        self.always_ready = always_ready
        checked = {
            partition: self._checked(partition, rows) for partition, rows in partitions.items()
        }
        self._spool = spool.RowSpool.create()
        for partition, rows in checked.items():
            self._spool.append(partition, rows)

    def append(self, partition: int, rows: Iterable[Sequence[Any]]) -> None:
        """Add ``rows`` behind those of ``partition``; a running topology takes them up, a new
        partition with its next new transaction (R19)."""
        self._spool.append(partition, self._checked(partition, rows))

    def close(self) -> None:
        """Delete the rows now instead of when the process ends; no topology may be using them."""
        self._spool.remove()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields)

    def _checked(self, partition: int, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        _check_partition(partition)
        checked = list(rows)
        for i, row in enumerate(checked):
            where = f"memory spout: row {i} given for partition {partition}"
            if isinstance(row, str | bytes) or not isinstance(row, Sequence):
                raise errors.ConfigError(
                    f"{where} is {row!r}\n  A row is a tuple of values, for example ({row!r},)."
                )
            if len(row) != len(self.fields) - 1:
                names = ", ".join(list(self.fields)[1:])
                raise errors.ConfigError(
                    f"{where} has {len(row)} values: {row!r}\n  Give one for each of the fields {names}."
                )
        return checked


class MemoryTransactionalSpout(_MemorySpout, spout.BasePartitionedTransactionalSpout):
    """Emits rows held in memory: ``take_per_partition`` of each partition per transaction, each row
    as ``[attempt, *row]``.

    ``partitions`` maps a partition (0, 1, …; a number left out is an empty partition) to its rows,
    tuples as long as ``fields``. ``fields`` names the values of a row; field ``tx``, the attempt,
    is put before them. Metadata of a partition is ``{"index": first row, "amount": rows}``.

    With nothing left to read the spout is not ready, unless ``always_ready``: then, as in Storm,
    empty transactions follow (R9). :meth:`append` adds rows while a topology runs. Copies of the
    spout, also pickled ones, share its rows, which last until the process that made the spout ends.
    After a restart rows are counted from the first one ever: make the spout with the same rows.

    Raises :class:`~txtopo.errors.ConfigError` for an impossible argument or a row that does not fit
    ``fields``.
    """

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.PartitionedSpoutCoordinator:
        return _MemoryCoordinator(self._spool, self.take_per_partition, self.always_ready, context)

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.PartitionedSpoutEmitter:
        return _MemoryEmitter(self._spool)


class OpaqueMemoryTransactionalSpout(_MemorySpout, spout.BaseOpaquePartitionedTransactionalSpout):
    """Emits rows held in memory as :class:`MemoryTransactionalSpout` does, from partitions that may
    be away: an opaque spout (R18).

    Every attempt of a transaction is planned anew, from where the last committed or pending
    transaction ended. A partition that :meth:`set_disabled` has disabled is left out of the plan
    and keeps its position (R21). While only disabled partitions have rows left the spout is not
    ready, unless ``always_ready``. Where a partition is disabled between the plan and its emission,
    the attempt fails.
    """

    def set_disabled(self, partition: int, disabled: bool) -> None:
        """Take ``partition`` away (True) or bring it back (False), at once, also while a topology
        runs.

        (Storm's ``setDisabled`` does the opposite of its name: ``false`` takes the partition away,
        and loses its position.)
        """
        _check_partition(partition)
        self._spool.set_disabled(partition, disabled)

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> spout.OpaquePartitionedSpoutCoordinator:
        return _OpaqueMemoryCoordinator(
            self._spool, self.take_per_partition, self.always_ready, context
        )

    def get_emitter(
        self, conf: TopologyConf, context: TopologyContext
    ) -> spout.OpaquePartitionedSpoutEmitter:
        return _OpaqueMemoryEmitter(self._spool)


def _check_partition(partition: int) -> None:
    if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise errors.ConfigError(
            f"memory spout: {partition!r} is not a partition; partitions are numbered 0, 1, 2 …"
        )


def _next_index(last_metadata: Any) -> int:
    return (
        int(last_metadata["index"]) + int(last_metadata["amount"])
        if last_metadata is not None
        else 0
    )


class _Planner:
    """Plans batches from how many rows there are and where the last ones ended; keeps no position
    of its own."""

    def __init__(
        self,
        rows: spool.RowSpool,
        take_per_partition: int,
        always_ready: bool,
        context: CoordinatorContext,
    ) -> None:
        self._rows, self._take, self._always_ready, self._context = (
            rows,
            take_per_partition,
            always_ready,
            context,
        )
        self._partitions_of_next: int | None = None

    def is_ready(self) -> bool:
        self._partitions_of_next = None
        if self._always_ready:
            return True
        last = self._context.last_metadata or {}
        return any(
            self._available(partition, last.get(partition)) > 0
            for partition in range(self._rows.num_partitions())
        )

    def num_partitions(self) -> int:
        self._partitions_of_next = self._rows.num_partitions()
        return self._partitions_of_next

    def plan_batch(self, txid: int, last: Mapping[int, Any]) -> dict[int, Any]:
        """Up to ``take_per_partition`` rows of each partition; ``None`` where there is none to be
        had, so that the position is kept (R21).

        The partitions are those of the last answer of :meth:`num_partitions`: one that is appended
        meanwhile joins the next transaction.
        """
        partitions = (
            self.num_partitions() if self._partitions_of_next is None else self._partitions_of_next
        )
        return {
            partition: self._plan(partition, last.get(partition)) for partition in range(partitions)
        }

    def _plan(self, partition: int, last_metadata: Any) -> dict[str, int] | None:
        amount = min(self._available(partition, last_metadata), self._take)
        return {"index": _next_index(last_metadata), "amount": amount} if amount > 0 else None

    def _available(self, partition: int, last_metadata: Any) -> int:
        """How many rows of ``partition`` come after ``last_metadata`` and can be read now."""
        return self._rows.count(partition) - _next_index(last_metadata)


class _MemoryCoordinator(_Planner, spout.PartitionedSpoutCoordinator):
    """The planner, for a transactional spout."""


class _OpaqueMemoryCoordinator(_Planner, spout.OpaquePartitionedSpoutCoordinator):
    """The planner, for an opaque spout: a disabled partition gives no rows."""

    def _available(self, partition: int, last_metadata: Any) -> int:
        return (
            0 if self._rows.is_disabled(partition) else super()._available(partition, last_metadata)
        )


class _MemoryEmitter(spout.PartitionedSpoutEmitter):
    def __init__(self, rows: spool.RowSpool) -> None:
        self._rows = rows

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        rows = self._rows.read(partition, metadata["index"], metadata["amount"])
        collector.emit_all((attempt, *row) for row in rows)


class _OpaqueMemoryEmitter(spout.OpaquePartitionedSpoutEmitter):
    def __init__(self, rows: spool.RowSpool) -> None:
        self._rows = rows

    def emit_planned_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        if self._rows.is_disabled(partition):
            raise errors.FailedException(
                f"memory spout: partition {partition} was disabled after transaction {attempt.txid} was planned"
            )
        rows = self._rows.read(partition, metadata["index"], metadata["amount"])
        collector.emit_all((attempt, *row) for row in rows)
