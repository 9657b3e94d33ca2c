"""Plans batches from files that stay as they are: a planner for each partition."""

from __future__ import annotations

import abc
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.files import groups as file_groups
from txtopo.topology import spout
from txtopo.topology.context import CoordinatorContext


class Planner(abc.ABC):
    """Plans a partition's batches. The position is in the metadata only: ``last`` is that of the
    batch before, ``None`` for the first batch."""

    def __init__(self, partition: int, files: file_groups.SizedGroup) -> None:
        self.partition, self.files = partition, files

    @abc.abstractmethod
    def bytes_read(self, last: Any) -> float:
        """How many bytes come before the next batch. All if there is none."""

    def has_more(self, last: Any) -> bool:
        """Whether there is a next batch."""
        return self.bytes_read(last) < self.files.total

    @abc.abstractmethod
    def plan(self, last: Any) -> dict[str, Any] | None:
        """Plan the next batch. ``None`` if there is none."""

    @abc.abstractmethod
    def is_whole(self, metadata: Any) -> bool:
        """Whether a batch ends with its last file."""


class FrozenCoordinator(spout.PartitionedSpoutCoordinator):
    """Plans the batches of all partitions."""

    def __init__(self, planners: Sequence[Planner], context: CoordinatorContext) -> None:
        self._planners, self._context = planners, context
        for partition, metadata in (context.last_metadata or {}).items():
            if metadata is not None and partition >= len(planners):
                raise errors.InputError(
                    f"partition {partition} was read by an earlier run, but now there are {len(planners)} partitions\n"
                    f"  Set partitions as it was, or start over with `txtopo state reset {shlex.quote(context.topology_id)}`."
                )

    def num_partitions(self) -> int:
        return len(self._planners)

    def is_ready(self) -> bool:
        last = self._context.last_metadata or {}
        return any(planner.has_more(last.get(planner.partition)) for planner in self._planners)

    def fraction_done(self, last_metadata: Mapping[int, Any]) -> float | None:
        """Which share of the bytes has been read and committed."""
        total = sum(planner.files.total for planner in self._planners)
        read = sum(self._planners[i].bytes_read(last) for i, last in last_metadata.items())
        return read / total if total else None

    def plan_partition_batch(
        self, txid: int, partition: int, last_metadata: Any
    ) -> dict[str, Any] | None:
        return self._planners[partition].plan(last_metadata)
