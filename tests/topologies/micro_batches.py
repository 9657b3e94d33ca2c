"""Micro-batches of Structured Streaming, as far as a sink looks at them, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from txtopo.sinks import streaming
from txtopo.sinks.streaming import ForeachWriter


class Frame:
    """A micro-batch, as far as a sink looks at it. ``checkpoint`` is the id Spark gives to a
    query's checkpoint."""

    def __init__(
        self,
        rows: Iterable[tuple[Any, ...]],
        checkpoint: str | None = "first",
        columns: Iterable[str] = ("id", "cents"),
    ) -> None:
        self.columns, self._rows = list(columns), list(rows)
        properties = {streaming.QUERY_PROPERTY: checkpoint}
        self.sparkSession = SimpleNamespace(
            sparkContext=SimpleNamespace(getLocalProperty=properties.get)
        )

    def toLocalIterator(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


class Row(tuple[Any, ...]):
    """As Spark gives it to a writer."""

    __fields__ = ("id", "cents")


def part(
    writer: ForeachWriter,
    partition: int,
    epoch: int,
    rows: Iterable[tuple[Any, ...]],
    error: Exception | None = None,
) -> None:
    """One partition of an epoch, as Spark runs it."""
    assert writer.open(partition, epoch)
    for row in rows:
        writer.process(Row(row))
    writer.close(error)


def forget_resources() -> None:
    """Close what the sinks of queries keep in this process, as its end does."""
    for resource in streaming._resources.values():
        close = getattr(resource, "close", None)
        if callable(close):
            close()
    streaming._resources.clear()
