"""Emission: what a spout's task does with the batch it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txtopo.dataplane.job import Batch
from txtopo.topology import metadata as metadata_of

if TYPE_CHECKING:
    from txtopo.dataplane.task import SpoutTask


class EmissionMistakeError(Exception):
    """An emitter broke its contract; becomes :class:`txtopo.errors.MetadataError` with component
    and task."""


def emit_batch(task: SpoutTask, spout: Any, emitter: Any, batch: Batch) -> dict[int, Any]:
    """Have ``emitter`` emit; returns metadata by partition where the batch is new."""
    attempt, collector = task.job.attempt, task.collector
    if batch.mode == "whole":
        task.call("emit_batch", emitter.emit_batch, attempt, _given(task, spout, batch.metadata), collector)
        if task.job.committed > 0:
            task.call("cleanup_before", emitter.cleanup_before, task.job.committed)
        return {}
    if batch.mode in ("new", "opaque"):
        partitions = batch.num_partitions if batch.mode == "new" else task.call("num_partitions", _asked, emitter)
        task.num_partitions = partitions
        hook = "emit_partition_batch_new" if batch.mode == "new" else "emit_partition_batch"
        mine = range(task.index, partitions, task.context.num_tasks)
        return {partition: _emit_new(task, spout, getattr(emitter, hook), hook, partition, batch.partitions.get(partition)) for partition in mine}
    hook = "emit_planned_partition_batch" if batch.mode == "planned" else "emit_partition_batch"
    for partition in sorted(batch.partitions):
        if partition % task.context.num_tasks == task.index and batch.partitions[partition] is not None:
            data = _given(task, spout, batch.partitions[partition])
            task.call(f"{hook}, partition {partition}", getattr(emitter, hook), attempt, collector, partition, data)
    return {}


def _given(task: SpoutTask, spout: Any, stored: Any) -> Any:
    """Stored metadata as the emitter wants it; a model may refuse what an older version of it has
    stored."""
    return task.call("reading the metadata", metadata_of.from_json, stored, spout.metadata_type)


def _asked(emitter: Any) -> int:
    partitions = emitter.num_partitions()
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 0:
        raise EmissionMistakeError(f"num_partitions returned {partitions!r}; it returns a number of partitions")
    return partitions


def _emit_new(task: SpoutTask, spout: Any, emit: Callable[..., Any], hook: str, partition: int, last: Any) -> Any:
    hook = f"{hook}, partition {partition}"
    before = task.collector.emitted
    last_metadata = _given(task, spout, last)
    made = task.call(hook, emit, task.job.attempt, task.collector, partition, last_metadata)
    if made is None and task.collector.emitted > before:
        task.call(hook, _raise_tuples_without_metadata, partition, task.collector.emitted - before)
    return task.call(hook, metadata_of.to_json, made, spout.metadata_type)


def refuse_late_emits(tuples: int) -> None:
    """Raise if a committer spout's emitter emitted in ``commit``: what a spout emits is executed in
    the processing phase, which is over."""
    if tuples:
        raise EmissionMistakeError(f"emitted {tuples} tuple{'s'[: tuples > 1]} in commit, when nobody listens any more\n  Emit in emit_batch.")


def _raise_tuples_without_metadata(partition: int, tuples: int) -> None:
    raise EmissionMistakeError(
        f"partition {partition} emitted {tuples} tuples but returned None as metadata, from which they could not be emitted again\n"
        "  Return metadata for every batch that has tuples; None means that there was nothing."
    )
