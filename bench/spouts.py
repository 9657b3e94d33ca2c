"""A spout that makes its rows up, as Spark's own ``rate-micro-batch`` does: row n is the number n,
so many per batch.

Planned, so that txtopo may run transactions side by side. Emitters run on executors: nothing here
may import pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txtopo import (
    BasePartitionedTransactionalSpout,
    BatchOutputCollector,
    CoordinatorContext,
    Fields,
    OutputFieldsDeclarer,
    PartitionedSpoutCoordinator,
    PartitionedSpoutEmitter,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
)


class RateSpout(BasePartitionedTransactionalSpout):
    """``rows_per_batch`` numbers in each batch, dealt to ``partitions`` in equal runs; ready for
    ``batches`` batches. With ``different``, the numbers begin again at 0 after so many. With
    ``gate``, a file, only for as many batches as are written there now: so a run can be halted."""

    def __init__(
        self,
        rows_per_batch: int,
        batches: int,
        partitions: int = 1,
        different: int = 1 << 62,
        gate: str | None = None,
    ) -> None:
        self.rows_per_batch, self.batches, self.partitions, self.different, self.gate = (
            rows_per_batch,
            batches,
            partitions,
            different,
            gate,
        )

    def get_coordinator(
        self, conf: TopologyConf, context: CoordinatorContext
    ) -> PartitionedSpoutCoordinator:
        return _RateCoordinator(self, context)

    def get_emitter(self, conf: TopologyConf, context: TopologyContext) -> PartitionedSpoutEmitter:
        return _RateEmitter(self.different)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "value"))


def allow(gate: Path, batches: int) -> None:
    """Let a spout with ``gate`` have ``batches`` batches."""
    # Replaced in one step: the spout may be looking.
    fresh = gate.with_suffix(".new")
    fresh.write_text(str(batches), encoding="ascii")
    fresh.rename(gate)


class _RateCoordinator(PartitionedSpoutCoordinator):
    """Metadata of a partition: the numbers ``start`` to before ``end``."""

    def __init__(self, spout: RateSpout, context: CoordinatorContext) -> None:
        self._spout, self._context = spout, context

    def is_ready(self) -> bool:
        spout = self._spout
        last = (self._context.last_metadata or {}).get(spout.partitions - 1)
        batches = (
            spout.batches
            if spout.gate is None
            else int(Path(spout.gate).read_text(encoding="ascii"))
        )
        return last is None or last["end"] < spout.rows_per_batch * batches

    def num_partitions(self) -> int:
        return self._spout.partitions

    def plan_batch(self, txid: int, last: Mapping[int, Any]) -> dict[int, Any]:
        """Batch ``txid`` is the next run of numbers, after any batch."""
        rows, parts = self._spout.rows_per_batch, self._spout.partitions
        first = (txid - 1) * rows
        return {
            part: {"start": first + rows * part // parts, "end": first + rows * (part + 1) // parts}
            for part in range(parts)
        }


class _RateEmitter(PartitionedSpoutEmitter):
    def __init__(self, different: int) -> None:
        self._different = different

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        for value in range(metadata["start"], metadata["end"]):
            collector.emit([attempt, value % self._different])
