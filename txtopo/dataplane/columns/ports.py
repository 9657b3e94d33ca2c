"""A task's ports for columns: they connect emitted RecordBatches to receivers.

Few tasks need column ports. A task makes them at its first ``emit_batch``, and only then is pyarrow
imported. Columns go into the same lanes as rows, by the same groupings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from txtopo.dataplane import collector, outbox, route
from txtopo.dataplane.columns import batches, routing
from txtopo.dataplane.columns.routing import SendBatch
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask
from txtopo.dataplane.wiring import Wiring, ignore, unreachable
from txtopo.topology.stream import StreamSpec


class ColumnPorts:
    """Checks a RecordBatch and knows its receivers."""

    def __init__(self, component: str, outputs: Mapping[str, StreamSpec]) -> None:
        self._component, self._outputs = component, outputs
        self._names = {stream: list(spec.fields)[1:] for stream, spec in outputs.items()}
        self._schemas = {
            stream: batches.read_schema(spec.schema)
            for stream, spec in outputs.items()
            if spec.schema is not None
        }
        self._ports: dict[str, list[SendBatch]] = {stream: [] for stream in outputs}
        self._direct_ports: dict[str, list[tuple[str, Sequence[SendBatch]]]] = {
            stream: [] for stream in outputs
        }

    def connect(self, stream: str, send: SendBatch) -> None:
        self._ports[stream].append(send)

    def connect_direct(self, stream: str, receiver: str, lanes: Sequence[SendBatch]) -> None:
        """Add a receiver of the direct ``stream``, with one function per task."""
        self._direct_ports[stream].append((receiver, lanes))

    def sends(self, batch: Any, stream: str, task: int | None) -> Sequence[SendBatch]:
        """Check ``batch``, and return its receivers' functions.
        :class:`txtopo.dataplane.collector.EmitMistakeError` if ``batch`` may not be emitted on
        ``stream``."""
        if (
            not isinstance(batch, pa.RecordBatch)
            or self._names.get(stream) != batch.schema.names
            or (stream in self._schemas and not batch.schema.equals(self._schemas[stream]))
            or self._outputs[stream].direct != (task is not None)
        ):
            raise collector.EmitMistakeError(self._mistake(batch, stream, task))
        if task is None:
            return self._ports[stream]
        for receiver, lanes in self._direct_ports[stream]:
            if not isinstance(task, int) or not 0 <= task < len(lanes):
                raise collector.EmitMistakeError(
                    f"component {self._component!r} emits directly on stream {stream!r} to task {task!r},"
                    f" but its receiver {receiver!r} has tasks 0 … {len(lanes) - 1}"
                )
        return [lanes[task] for _, lanes in self._direct_ports[stream]]

    def _mistake(self, batch: Any, stream: str, task: int | None) -> str:
        emitted = (
            "columns"
            if isinstance(batch, pa.RecordBatch)
            else repr(batch)
            if isinstance(batch, str | None)
            else f"a {type(batch).__name__}"
        )
        where = f"component {self._component!r} emits {emitted} {'' if task is None else 'directly '}on stream {stream!r}"
        if stream not in self._outputs:
            return f"{where}, which it does not declare\n  It declares {', '.join(map(repr, self._outputs)) or 'none: define declare_output_fields'}."
        if not isinstance(batch, pa.RecordBatch):
            cure = (
                "Call emit_batch for each: for batch in table.to_batches(): collector.emit_batch(batch)."
                if isinstance(batch, pa.Table)
                else "For tuples, call emit(values)."
            )
            return f"{where} instead of a pyarrow.RecordBatch\n  {cure}"
        if self._outputs[stream].direct != (task is not None):
            cure = (
                "Use emit_batch_direct(task_index, batch)."
                if task is None
                else "Declare it with direct=True, or use emit_batch(batch)."
            )
            return f"{where}, which is {'' if task is None else 'not '}a direct stream\n  {cure}"
        names = self._names[stream]
        if names != batch.schema.names:
            columns = ", ".join(batch.schema.names) or "none"
            first = self._outputs[stream].fields[0]
            return (
                f"{where} with the columns {columns} instead of {', '.join(names) or 'none'}\n"
                f"  Emit the declared fields, in their order, without the first ({first}): the attempt is no column."
            )
        expected = self._schemas[stream]
        unlike = next(
            i for i in range(len(names)) if not batch.schema.field(i).equals(expected.field(i))
        )
        return (
            f"{where} whose column {names[unlike]!r} is {batch.schema.field(unlike).type}, but the declared schema has {expected.field(unlike).type}"
            f"{_nullability(batch.schema.field(unlike), expected.field(unlike))}\n  Call emit_batch(batch.cast(schema))."
        )


def _nullability(actual: pa.Field, expected: pa.Field) -> str:
    return (
        ""
        if actual.nullable == expected.nullable
        else " not null"
        if actual.nullable
        else " with nulls"
    )


def ports(
    wiring: Wiring,
    task: BoltTask | SpoutTask,
    out_lanes: dict[tuple[str, int], outbox.OutLane],
    memories: Mapping[tuple[str, str], route.SenderMemory],
) -> ColumnPorts:
    """Make the ports of ``task``. Rows and columns share ``out_lanes`` and ``memories``."""
    component, index = task.component, task.index
    column_ports = ColumnPorts(component.id, component.outputs)
    for stream, spec in component.outputs.items():
        for receiver, grouping in wiring.plan.graph.receivers(component.id, stream):
            lanes: list[SendBatch]
            if (component.id, stream, receiver.id) in wiring.levels.fused:
                only = route.fixed_task(grouping, index, receiver.parallelism)
                lanes = [
                    wiring.inboxes[receiver.id, t].batch_sender((component.id, index), stream)
                    if only in (None, t)
                    else unreachable
                    for t in range(receiver.parallelism)
                ]
            else:
                lanes = [
                    out_lanes[receiver.id, t].batch_sender(stream)
                    for t in range(receiver.parallelism)
                ]
            if spec.direct:
                column_ports.connect_direct(stream, receiver.id, lanes)
            else:
                memory = memories[stream, receiver.id]
                column_ports.connect(
                    stream,
                    routing.make_send(
                        grouping, spec.fields, index, wiring.job.attempt, lanes, memory
                    ),
                )
    return column_ports


def recording_ports(
    wiring: Wiring, task: BoltTask | SpoutTask, lane: outbox.OutLane
) -> ColumnPorts:
    """Make ports that only record a spout task's emission, in ``lane``."""
    component = task.component
    column_ports = ColumnPorts(component.id, component.outputs)
    for stream, spec in component.outputs.items():
        if not spec.direct:
            column_ports.connect(stream, lane.batch_sender(stream))
            continue
        for number, (receiver, _) in enumerate(wiring.plan.graph.receivers(component.id, stream)):
            # One receiver is enough to record the emit. The other receivers only check the task
            # index.
            lanes = [
                lane.batch_sender(collector.direct_stream(stream, t)) if number == 0 else ignore
                for t in range(receiver.parallelism)
            ]
            column_ports.connect_direct(stream, receiver.id, lanes)
    return column_ports
