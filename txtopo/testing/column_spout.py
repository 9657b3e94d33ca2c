"""A memory spout for columns: a transactional spout over RecordBatches given in the program.

The spout needs pyarrow. Its RecordBatches are kept in a row spool, each as one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from txtopo import errors
from txtopo.dataplane.columns import batches as column_batches
from txtopo.testing import spouts
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import TopologyContext
from txtopo.topology.stream import OutputFieldsDeclarer
from txtopo.topology.transaction import TransactionAttempt

Columns: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]


class ArrowMemoryTransactionalSpout(spouts.MemoryTransactionalSpout):
    """Emits columns held in memory: each transaction takes ``take_per_partition`` RecordBatches
    from every partition, in the order given.

    ``partitions`` maps a partition (0, 1, …) to a Table, a RecordBatch, or several RecordBatches.
    All have the same schema. Their columns become the stream's fields, behind field ``tx``, the
    attempt. A Table is cut into RecordBatches with at most ``rows_per_record_batch`` rows.

    Positions, ``always_ready`` and :meth:`append` work as in :class:`MemoryTransactionalSpout`.

    Raises :class:`~txtopo.errors.ConfigError` for an impossible argument or a RecordBatch with
    another schema.
    """

    emits_columns = True

    def __init__(
        self,
        partitions: Mapping[int, Columns],
        take_per_partition: int = 1,
        always_ready: bool = False,
        rows_per_record_batch: int = 65_536,
    ) -> None:
        self._rows_per_record_batch = rows_per_record_batch
        by_partition = {
            partition: self._batches(columns) for partition, columns in partitions.items()
        }
        first = next((batch for batches in by_partition.values() for batch in batches), None)
        if first is None:
            raise errors.ConfigError(
                "memory spout: no RecordBatch at all\n  Give a RecordBatch with the columns. The RecordBatch may have no rows."
            )
        self.schema = first.schema.remove_metadata()
        for partition, batches in by_partition.items():
            self._check(partition, batches)
        spooled = {partition: _spool_rows(batches) for partition, batches in by_partition.items()}
        super().__init__(spooled, self.schema.names, take_per_partition, always_ready)

    def append(self, partition: int, rows: Columns) -> None:
        """Add RecordBatches at the end of ``partition``."""
        batches = self._batches(rows)
        self._check(partition, batches)
        super().append(partition, _spool_rows(batches))

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> _ColumnEmitter:
        return _ColumnEmitter(self._spool)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields, schema=self.schema)

    def _batches(self, columns: Columns) -> list[pa.RecordBatch]:
        if isinstance(columns, pa.RecordBatch):
            return [columns]
        return (
            columns.to_batches(self._rows_per_record_batch)
            if isinstance(columns, pa.Table)
            else list(columns)
        )

    def _check(self, partition: int, batches: list[pa.RecordBatch]) -> None:
        for i, batch in enumerate(batches):
            where = f"memory spout: part {i} given for partition {partition}"
            if not isinstance(batch, pa.RecordBatch):
                raise errors.ConfigError(
                    f"{where} is a {type(batch).__name__}\n  Give a pyarrow.Table, a RecordBatch, or several RecordBatches."
                )
            if not batch.schema.equals(self.schema):
                raise errors.ConfigError(
                    f"{where} has another schema than the first RecordBatch\n  Cast it: batch.cast(first.schema)."
                )

    def _valid_rows(self, partition: int, rows: Iterable[Any]) -> list[Any]:
        spouts.check_partition(partition)
        return list(rows)


def _spool_rows(batches: list[pa.RecordBatch]) -> list[tuple[bytes]]:
    return [(column_batches.to_stream(batch.replace_schema_metadata(None)),) for batch in batches]


class _ColumnEmitter(spouts.Emitter):
    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for (stream,) in self._rows.read(partition, metadata["index"], metadata["amount"]):
            for batch in column_batches.loaded(stream):
                collector.emit_batch(batch)
