"""Memory spouts, one transactional and one opaque: they emit rows given in the program.

Storm's ``org.apache.storm.testing.MemoryTransactionalSpout`` and ``OpaqueMemoryTransactionalSpout``
keep their rows in a global, because Storm's tests have only one process. Spark has several worker
processes, so the rows live in a :class:`~txtopo.testing.spool.RowSpool` that all processes read.
Emitters run on executors: this module may import only the standard library and ``txtopo.topology``.
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
    """Base class for memory spouts: partitions with rows."""

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
                f"memory spout: take_per_partition is {take_per_partition!r}\n  Give a whole number of at least 1."
            )
        self.fields = with_attempt(fields)
        self.take_per_partition = take_per_partition
        self.always_ready = always_ready
        checked = {
            partition: self._valid_rows(partition, rows) for partition, rows in partitions.items()
        }
        self._spool = spool.RowSpool.create()
        for partition, rows in checked.items():
            self._spool.append(partition, rows)

    def append(self, partition: int, rows: Iterable[Sequence[Any]]) -> None:
        """Add ``rows`` at the end of ``partition``. A running topology reads them too, and a new
        partition from the next new transaction on (R19)."""
        self._spool.append(partition, self._valid_rows(partition, rows))

    def close(self) -> None:
        """Delete the rows now instead of when the process ends. No topology may be using them."""
        self._spool.remove()

    def get_coordinator(self, conf: TopologyConf, context: CoordinatorContext) -> _Coordinator:
        return _Coordinator(self._spool, self.take_per_partition, self.always_ready, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> Emitter:
        return Emitter(self._spool)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields)

    def _valid_rows(self, partition: int, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        check_partition(partition)
        checked = list(rows)
        for i, row in enumerate(checked):
            where = f"memory spout: row {i} given for partition {partition}"
            if isinstance(row, str | bytes) or not isinstance(row, Sequence):
                raise errors.ConfigError(
                    f"{where} is {row!r}\n  Give a tuple with the row's values, for example ({row!r},)."
                )
            if len(row) != len(self.fields) - 1:
                names = ", ".join(list(self.fields)[1:])
                raise errors.ConfigError(
                    f"{where} has {len(row)} values: {row!r}\n  Give one for each field: {names}."
                )
        return checked


class MemoryTransactionalSpout(_MemorySpout, spout.BasePartitionedTransactionalSpout):
    """Emits rows held in memory: each transaction takes ``take_per_partition`` rows from every
    partition, and emits ``[attempt, *row]``.

    ``partitions`` maps a partition (0, 1, …) to its rows, which are tuples as long as ``fields``. A
    number left out is an empty partition. ``fields`` names a row's values. Field ``tx``, the
    attempt, is put before them. A partition's metadata is ``{"index": first row, "amount": rows}``.

    With no row left to read the spout is not ready, unless ``always_ready``: then, as in Storm,
    empty transactions follow (R9). :meth:`append` adds rows while a topology runs. All copies of
    the spout, also pickled copies, share its rows until the process that made the spout ends. After
    a restart rows are counted from the very first: make the spout with the same rows.

    Raises :class:`~txtopo.errors.ConfigError` for an impossible argument or a row that does not fit
    ``fields``.
    """


class OpaqueMemoryTransactionalSpout(_MemorySpout, spout.BaseOpaquePartitionedTransactionalSpout):
    """Emits rows held in memory as :class:`MemoryTransactionalSpout` does, but is opaque (R18):
    :meth:`set_disabled` takes partitions away and brings them back.

    Every attempt gets a new plan, which begins where the last committed or pending transaction
    ended. The plan leaves out disabled partitions, which keep their positions (R21). While only
    disabled partitions have rows left the spout is not ready, unless ``always_ready``. If a
    partition is disabled between plan and emission, the attempt fails.
    """

    def set_disabled(self, partition: int, disabled: bool) -> None:
        """Take ``partition`` away (True) or bring it back (False), at once, also while a topology
        runs.

        (Storm's ``setDisabled`` means the opposite: ``false`` takes the partition away, and loses
        its position.)
        """
        check_partition(partition)
        self._spool.set_disabled(partition, disabled)


def check_partition(partition: int) -> None:
    """Refuse what is no number of a partition.

    :raises ConfigError: it is none.
    """
    if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise errors.ConfigError(
            f"memory spout: {partition!r} is not a partition\n  Partitions are numbered 0, 1, 2 …"
        )


def _next_index(last_metadata: Any) -> int:
    return (
        int(last_metadata["index"]) + int(last_metadata["amount"])
        if last_metadata is not None
        else 0
    )


class _Coordinator(spout.PartitionedSpoutCoordinator, spout.OpaquePartitionedSpoutCoordinator):
    """Plans batches. A position is taken from the last metadata, and never kept here. Only an
    opaque spout has disabled partitions, which give no rows."""

    def __init__(
        self,
        rows: spool.RowSpool,
        take_per_partition: int,
        always_ready: bool,
        context: CoordinatorContext,
    ) -> None:
        self._rows = rows
        self._take = take_per_partition
        self._always_ready = always_ready
        self._context = context

    def is_ready(self) -> bool:
        if self._always_ready:
            return True
        last = self._context.last_metadata or {}
        return any(
            self._available(partition, last.get(partition)) > 0
            for partition in range(self._rows.num_partitions())
        )

    def num_partitions(self) -> int:
        return self._rows.num_partitions()

    def plan_partition_batch(
        self, txid: int, partition: int, last_metadata: Any
    ) -> dict[str, int] | None:
        """Plan up to ``take_per_partition`` rows. A partition without rows to read gets ``None``,
        which keeps its position (R21)."""
        amount = min(self._available(partition, last_metadata), self._take)
        return {"index": _next_index(last_metadata), "amount": amount} if amount > 0 else None

    def _available(self, partition: int, last_metadata: Any) -> int:
        """How many rows behind ``last_metadata`` can be read now."""
        if self._rows.is_disabled(partition):
            return 0
        return self._rows.count(partition) - _next_index(last_metadata)


class Emitter(spout.PartitionedSpoutEmitter, spout.OpaquePartitionedSpoutEmitter):
    """Emits planned rows, unless their partition was disabled meanwhile."""

    def __init__(self, rows: spool.RowSpool) -> None:
        self._rows = rows

    def emit_partition_batch(
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
