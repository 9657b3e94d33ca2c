"""Runs a planned spout in plain Python, the way an engine does: plan, emit, and take the metadata
as the new position."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from txtopo.dataplane.columns import batches as column_batches
from txtopo.topology import pickling, spout
from txtopo.topology.bolt import BatchOutputCollector
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext, TopologyContext
from txtopo.topology.transaction import TransactionAttempt

Row = tuple[Any, ...]


class Collected(BatchOutputCollector):
    """A collector that keeps the emitted tuples."""

    def __init__(self, attempt: Any = None) -> None:
        self.rows: list[Row] = []
        self.batches: list[Any] = []
        self.attempt = attempt

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        self.rows.append(tuple(values))

    def emit_batch(self, batch: Any, stream: str = "default") -> None:
        self.batches.append(batch)
        self.rows.extend(column_batches.rows(batch, self.attempt))

    def emit_direct(self, task_index: int, values: Sequence[Any], stream: str = "default") -> None:
        raise AssertionError("no spout here emits directly")


def task_context(component_id: str = "spout") -> TopologyContext:
    return TopologyContext(
        "topology",
        "generation",
        component_id,
        0,
        {component_id: 1},
        "processing",
        lambda name, factory: factory(),
    )


class Drive:
    """One run of a topology's spout: the spout is pickled as by ``build_topology``, positions
    survive from run to run."""

    def __init__(
        self,
        subject: spout.IPartitionedTransactionalSpout | spout.IOpaquePartitionedTransactionalSpout,
        positions: dict[int, Any] | None = None,
    ) -> None:
        self.template = pickling.dumps(subject)
        self.positions: dict[int, Any] = dict(positions or {})
        self.plans: list[dict[int, Any]] = []
        self.conf = TopologyConf({})
        context = CoordinatorContext("topology", "generation", "spout", lambda: self.positions)
        self.coordinator: Any = pickling.loads(self.template).get_coordinator(self.conf, context)

    def plan(self) -> dict[int, Any]:
        """The next batch, through JSON as in ZooKeeper; the position moves on only where there is
        progress (R21)."""
        partitions = self.coordinator.num_partitions()
        txid, plan_one = len(self.plans) + 1, self.coordinator.plan_partition_batch
        plan = {
            partition: json.loads(json.dumps(plan_one(txid, partition, last)))
            for partition, last in ((p, self.positions.get(p)) for p in range(partitions))
        }
        self.positions.update(
            {partition: metadata for partition, metadata in plan.items() if metadata is not None}
        )
        self.plans.append(plan)
        return plan

    def emitted(self, plan: dict[int, Any], attempt_id: int = 0) -> dict[int, list[Row]]:
        """Emissions of fresh emitters for ``plan``, by partition, without the attempt at the head
        of every row."""
        attempt = TransactionAttempt(1, attempt_id)
        rows: dict[int, list[Row]] = {}
        for partition, metadata in plan.items():
            collector = Collected(attempt)
            if metadata is not None:
                emitter = pickling.loads(self.template).get_emitter(self.conf, task_context())
                emitter.emit_planned_partition_batch(attempt, collector, partition, metadata)
                emitter.close()
            assert all(row[0] == attempt for row in collector.rows)
            rows[partition] = [row[1:] for row in collector.rows]
        return rows

    def run(self) -> list[dict[int, list[Row]]]:
        """Transactions until the spout is not ready, with their emissions."""
        batches = []
        while self.coordinator.is_ready():
            batches.append(self.emitted(self.plan()))
        return batches
