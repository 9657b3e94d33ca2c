"""A spout's task in a job: its emitter emits or commits a batch, or its recorded tuples are sent
again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from txtopo.dataplane import column_runs, hold, wire
from txtopo.dataplane.guard import EmissionMistakeError
from txtopo.dataplane.job import Batch
from txtopo.dataplane.route import Row
from txtopo.dataplane.task import Task
from txtopo.topology import metadata as metadata_of


class SpoutTask(Task):
    """Makes a spout's emitter, lets it emit once, and closes it. A committer spout's emitter is
    held between emit and commit (R22)."""

    metadata: Mapping[int, Any] = {}
    """By partition, the metadata that this task learnt by emitting."""
    num_partitions: int | None = None
    """How many partitions this task's emitter gave, if emitters give the number."""

    def emit(self, pieces: wire.PieceWriter) -> None:
        """Emit this task's part of the batch. An emitter that is held goes into ``pieces``."""
        assert self.job.batch is not None
        spout = self.call(
            "making a copy of the spout", self.worker.fresh, self.component.id, self.bindings
        )
        emitter = self.call("get_emitter", spout.get_emitter, self.conf, self.context)
        is_held = False
        try:
            self.metadata = _emit_batch(self, spout, emitter, self.job.batch)
            if self.component.committer:
                self.call(
                    "holding the emitter between the phases",
                    hold.dump_held,
                    emitter,
                    self.worker.run.token,
                    pieces,
                )
                is_held = True
        finally:
            if not is_held:
                self.guard_close(emitter)

    def commit(self, held: IO[bytes]) -> None:
        """Commit the held emitter's batch, and close the emitter."""
        emitter = self.call("restoring the held emitter", hold.load, held, self.bindings)
        try:
            self.call("commit", emitter.commit, self.job.attempt)
            self.call("commit", _refuse_late_emits, self.collector.emitted)
        finally:
            self.guard_close(emitter)

    def guard_close(self, emitter: Any) -> None:
        """Close the emitter. A failure in ``close`` must not hide the emit's failure."""
        try:
            emitter.close()
        except BaseException as error:
            self.guard.record(self.component.id, self.index, "close", error)
        if self.guard.has_failed:
            self.guard.abort("close")

    def replay(self, runs: Iterable[tuple[str, Iterable[Row]]]) -> None:
        """Send the tuples that the emission job recorded."""
        for stream, rows in runs:
            if column_runs.is_run(stream):
                for batch in column_runs.unpacked(rows):
                    self.collector.send_recorded_batch(column_runs.stream_of(stream), batch)
                continue
            for row in rows:
                self.collector.send_recorded(stream, row)


def _emit_batch(task: SpoutTask, spout: Any, emitter: Any, batch: Batch) -> dict[int, Any]:
    """Let ``emitter`` emit. Returns metadata by partition if the batch is new."""
    attempt, collector = task.job.attempt, task.collector
    if batch.mode == "whole":
        task.call(
            "emit_batch",
            emitter.emit_batch,
            attempt,
            _user_metadata(task, spout, batch.metadata),
            collector,
        )
        if task.job.committed > 0:
            task.call("cleanup_before", emitter.cleanup_before, task.job.committed)
        return {}
    if batch.mode in ("new", "opaque"):
        partitions = (
            batch.num_partitions
            if batch.mode == "new"
            else task.call("num_partitions", _num_partitions, emitter)
        )
        task.num_partitions = partitions
        hook = "emit_partition_batch_new" if batch.mode == "new" else "emit_partition_batch"
        own = range(task.index, partitions, task.context.num_tasks)
        return {
            partition: _emit_new(
                task,
                spout,
                getattr(emitter, hook),
                hook,
                partition,
                batch.partitions.get(partition),
            )
            for partition in own
        }
    hook = "emit_planned_partition_batch" if batch.mode == "planned" else "emit_partition_batch"
    for partition in sorted(batch.partitions):
        if (
            partition % task.context.num_tasks == task.index
            and batch.partitions[partition] is not None
        ):
            data = _user_metadata(task, spout, batch.partitions[partition])
            task.call(
                f"{hook}, partition {partition}",
                getattr(emitter, hook),
                attempt,
                collector,
                partition,
                data,
            )
    return {}


def _user_metadata(task: SpoutTask, spout: Any, stored: Any) -> Any:
    """Convert stored metadata to the spout's type. The type may refuse metadata that an older
    version has stored."""
    return task.call("reading the metadata", metadata_of.from_json, stored, spout.metadata_type)


def _num_partitions(emitter: Any) -> int:
    partitions = emitter.num_partitions()
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 0:
        raise EmissionMistakeError(
            f"num_partitions returned {partitions!r}, but must return the number of partitions"
        )
    return partitions


def _emit_new(
    task: SpoutTask, spout: Any, emit: Callable[..., Any], hook: str, partition: int, last: Any
) -> Any:
    hook = f"{hook}, partition {partition}"
    before = task.collector.emitted
    last_metadata = _user_metadata(task, spout, last)
    metadata = task.call(hook, emit, task.job.attempt, task.collector, partition, last_metadata)
    if metadata is None and task.collector.emitted > before:
        task.call(hook, _raise_tuples_without_metadata, partition, task.collector.emitted - before)
    return task.call(hook, metadata_of.to_json, metadata, spout.metadata_type)


def _refuse_late_emits(tuples: int) -> None:
    """Raise if a committer spout's emitter emitted in ``commit``: a spout's tuples are executed in
    the processing phase, which is over."""
    if tuples:
        raise EmissionMistakeError(
            f"emitted {tuples} tuple{'s'[: tuples > 1]} in commit, after the processing phase\n  Emit in emit_batch."
        )


def _raise_tuples_without_metadata(partition: int, tuples: int) -> None:
    raise EmissionMistakeError(
        f"partition {partition} emitted {tuples} tuples but returned None as metadata, so the tuples could not be emitted again\n"
        "  Return metadata for every batch with tuples. None means an empty batch."
    )
