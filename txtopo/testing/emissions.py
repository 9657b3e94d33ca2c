"""Emissions: what tasks emit, written down beside the receivers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from txtopo.dataplane import column_runs
from txtopo.dataplane.spout_task import SpoutTask
from txtopo.dataplane.task import BoltTask

Emission = tuple[str, int, str, Any]
"""(component, task, stream, values after the attempt). Instead of values there may be a
RecordBatch, as it was emitted, because its rows are seldom needed. A direct emit's stream has
:data:`DIRECT` and the task behind it."""

DIRECT = " for task "
"""Separates a direct stream's name and the tuple's task."""

Hear = Callable[[Emission], None]


def in_rows(emissions: Iterable[Emission]) -> Iterator[tuple[str, int, str, tuple[Any, ...]]]:
    """Yield ``emissions`` row by row, also from each RecordBatch."""
    for component, task, stream, values in emissions:
        if isinstance(values, tuple):
            yield component, task, stream, values
        else:
            yield from (
                (component, task, stream, row[1:])
                for row in column_runs.load_batches().rows(values, None)
            )


def listen(task: BoltTask | SpoutTask, hear: Hear) -> None:
    """Have ``hear`` get every emission of ``task``, once its receivers in this process have it. Call
    ``listen`` when ``task`` is connected."""
    collector = task.collector
    _connect(task, collector, hear)
    collector.connect_columns = functools.partial(
        _connect_columns, collector.connect_columns, task, hear
    )


def _connect_columns(make_ports: Callable[[], Any], task: BoltTask | SpoutTask, hear: Hear) -> Any:
    ports = make_ports()
    _connect(task, ports, hear)
    return ports


def _connect(task: BoltTask | SpoutTask, ports: Any, hear: Hear) -> None:
    id, index = task.component.id, task.index
    for stream, spec in task.component.outputs.items():
        if spec.direct:
            ports.connect_direct(stream, "every receiver", _Lanes(hear, id, index, stream))
        else:
            ports.connect(stream, functools.partial(_tell, hear, id, index, stream))


class _Lanes:
    """A direct stream's lane to every task, however many tasks a receiver has."""

    def __init__(self, hear: Hear, component: str, task: int, stream: str) -> None:
        self._hear, self._component, self._task, self._stream = hear, component, task, stream

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, receiver: int) -> Callable[[Any], None]:
        stream = f"{self._stream}{DIRECT}{receiver}"
        return functools.partial(_tell, self._hear, self._component, self._task, stream)


def _tell(hear: Hear, component: str, task: int, stream: str, emitted: Any) -> None:
    hear((component, task, stream, emitted[1:] if isinstance(emitted, tuple) else emitted))
