"""A task for a bolt that takes columns: arriving tuples are first collected into RecordBatches.

Invariants: collected rows are executed before any later row, and before the task finishes or is
held (R11, R12). A RecordBatch has rows from one source task and one stream. A RecordBatch made from
tuples has at most ``ROWS_MAX`` rows, and is executed once it has ``WEIGHT_MAX`` of text and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txtopo.dataplane import collector, column_runs, wire
from txtopo.dataplane.inbox import Lane
from txtopo.dataplane.outcome import AbortedError
from txtopo.dataplane.route import Send
from txtopo.dataplane.row_encoding import Row
from txtopo.dataplane.task import BoltTask
from txtopo.topology.stream import TupleSource

ROWS_MAX = 16_384
"""So many tuples at most are collected into one RecordBatch."""
WEIGHT_MAX = 4 * 1024 * 1024
"""Collected tuples with so much text and bytes, in characters or bytes, are executed, however few
they are."""


class ArrowBoltTask(BoltTask):
    """A bolt instance that takes RecordBatches."""

    def begin(self, held: Any) -> None:
        self._rows: list[Row] = []
        self._weight = 0
        self._rows_source: TupleSource | None = None
        self._schemas: dict[tuple[str, str], Any] = {}
        super().begin(held)

    def entry(self) -> Any:
        return self.instance.execute_batch

    def execute_all(self, rows: Iterable[Row], source: TupleSource) -> None:
        for row in rows:
            self._collect(row, source)

    def sender(self, source: TupleSource, lane: Lane, wait: Send) -> Send:
        """A function that collects a neighbour's row, while ``lane`` is the first."""

        def send(row: Row) -> None:
            if lane.is_first:
                self._collect(row, source)
            else:
                wait(row)

        return send

    def _collect(self, row: Row, source: TupleSource) -> None:
        if source is not self._rows_source:
            self.flush()
            self._rows_source = source
        self._rows.append(row)
        self._weight += collector.weight(row)
        if len(self._rows) >= ROWS_MAX or self._weight >= WEIGHT_MAX:
            self.flush()

    def execute_columns(self, batch: Any, source: TupleSource) -> None:
        """Give a RecordBatch to the bolt, after the collected rows."""
        self.flush()
        self._give(batch, source)

    def flush(self) -> None:
        """Give the collected tuples to the bolt."""
        if self._rows:
            rows, source = self._rows, self._rows_source
            assert source is not None
            self._rows, self._weight = [], 0
            self._give(
                self.call("turning tuples into columns", self._columns, rows, source), source
            )

    def _columns(self, rows: list[Row], source: TupleSource) -> Any:
        """Turn rows into a RecordBatch, by the declared schema or by the schema that Arrow inferred
        for the stream's first rows."""
        key = (source.component, source.stream)
        arrow = column_runs.load_batches()
        declared = self.worker.run.graph.components[source.component].outputs[source.stream].schema
        if key not in self._schemas:
            self._schemas[key] = None if declared is None else arrow.read_schema(declared)
        where = f"component {source.component!r}, stream {source.stream!r}"
        batch = arrow.from_rows(
            rows, list(source.fields)[1:], self._schemas[key], where, declared is not None
        )
        self._schemas[key] = batch.schema
        return batch

    def _give(self, batch: Any, source: TupleSource) -> None:
        self.executed += batch.num_rows
        guard = self.guard
        self.context.source = source
        try:
            self._execute(batch)
        except AbortedError:
            guard.abort("execute_batch")
        except BaseException as error:
            guard.record(self.component.id, self.index, "execute_batch", error)
            raise AbortedError from None
        finally:
            self.context.source = None
        if guard.has_failed:
            guard.abort("execute_batch")

    def finish(self) -> None:
        self.flush()
        super().finish()

    def hold(self, pieces: wire.PieceWriter) -> None:
        self.flush()
        super().hold(pieces)
