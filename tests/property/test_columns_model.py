"""A topology does the same for any choice of bolts that take columns, and of components that emit
columns.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.topologies.columns import ColumnsSpout, batch, rows_of
from tests.topologies.recording import InProcessTopology, Ran, builder, journals, note, planned
from txtopo import (
    BaseArrowBatchBolt,
    BaseBatchBolt,
    BatchOutputCollector,
    Fields,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    Tuple,
)
from txtopo.dataplane import inbox, outbox
from txtopo.dataplane.columns import task
from txtopo.dataplane.job import Batch, Limits

QUICK = examples(75)

NAMES = ("key", "number")
SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64())])
Row = tuple[str | None, int]


class _Worker:
    """Answers rows with rows: emits them in turn, as columns, or one of each."""

    context: TopologyContext
    collector: BatchOutputCollector
    attempt: TransactionAttempt

    def __init__(self, id: str, emits: str) -> None:
        self.id, self.emits = id, emits
        self.executed = 0
        self.emissions = 0

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt

    def answer(self, rows: list[Row]) -> None:
        self.executed += len(rows)
        self.send(
            [
                (None if number % 5 == 4 else f"{key}{number % 3}", number + len(self.id))
                for key, number in rows
                if number % 4 != 3
            ]
        )

    def finish_batch(self) -> None:
        note(self.context, "finish_batch", self.executed)
        self.send([(self.id, self.executed), ("many", self.executed % 7)])

    def send(self, rows: list[Row]) -> None:
        while rows:
            self.emissions += 1
            as_columns = self.emits == "columns" or (
                self.emits == "both" and self.emissions % 2 == 0
            )
            now, rows = (rows[:3], rows[3:]) if self.emits == "both" else (rows, [])
            if as_columns:
                self.collector.emit_batch(batch(NAMES, now, SCHEMA))
            else:
                for row in now:
                    self.collector.emit([self.attempt, *row])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", *NAMES), schema=SCHEMA)


class RowWorker(_Worker, BaseBatchBolt):
    """Takes tuples."""

    def execute(self, tup: Tuple) -> None:
        note(self.context, "execute", tup.source_component, tup.source_task, *tup.values[1:])
        self.answer([tup.values[1:]])


class ColumnWorker(_Worker, BaseArrowBatchBolt):
    """Takes columns."""

    def __init__(self, id: str, emits: str) -> None:
        super().__init__(id, emits)
        self.kept: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        source = self.context.source
        assert source is not None
        assert batch.schema == SCHEMA
        assert batch.num_rows > 0
        for row in rows_of(batch):
            note(self.context, "execute", source.component, source.task, *row)
        self.kept.append(batch)
        self.answer(rows_of(batch))

    def finish_batch(self) -> None:
        assert sum(kept.num_rows for kept in self.kept) == self.executed, (
            "what was kept has survived being held"
        )
        super().finish_batch()


@dataclass(frozen=True)
class Spec:
    """One bolt. ``inputs``: source to grouping."""

    id: str
    takes: str
    emits: str
    committer: bool
    parallelism: int
    inputs: tuple[tuple[str, str], ...]


@st.composite
def topologies(draw: st.DrawFn) -> tuple[int, list[Spec], dict[int, list[Any]]]:
    sources, specs = ["spout"], []
    for i in range(draw(st.integers(1, 5))):
        kinds = ["fields", "global", "all", "none", "local_or_shuffle", "partial_key"]
        inputs = {
            source: draw(st.sampled_from(kinds))
            for source in draw(st.lists(st.sampled_from(sources), min_size=1, max_size=2))
        }
        takes, emits = (
            draw(st.sampled_from(["rows", "columns"])),
            draw(st.sampled_from(["rows", "columns", "both"])),
        )
        specs.append(
            Spec(
                f"b{i}",
                takes,
                emits,
                draw(st.booleans()),
                draw(st.integers(1, 4)),
                tuple(inputs.items()),
            )
        )
        sources.append(f"b{i}")
    row = st.tuples(st.sampled_from("abcd"), st.integers(0, 30)).map(list)
    emission = st.lists(row, max_size=5) | row.map(lambda pair: dict(zip(NAMES, pair, strict=True)))
    partitions = draw(
        st.dictionaries(
            st.integers(0, 3),
            st.lists(st.tuples(st.just("default"), emission).map(list), max_size=4),
            max_size=3,
        )
    )
    return draw(st.integers(1, 4)), specs, partitions


def run(
    tasks: int,
    specs: list[Spec],
    partitions: dict[int, list[Any]],
    cores: int,
    limits: Limits,
    learns: bool = False,
) -> Ran:
    declared = builder(
        ColumnsSpout({"default": ("tx", *NAMES)}, {"default": SCHEMA}, partitions), tasks
    )
    for spec in specs:
        bolt: Any = (ColumnWorker if spec.takes == "columns" else RowWorker)(spec.id, spec.emits)
        declarer = (declared.set_committer_bolt if spec.committer else declared.set_bolt)(
            spec.id, bolt, spec.parallelism
        )
        for source, grouping in spec.inputs:
            if grouping in ("fields", "partial_key"):
                getattr(declarer, f"{grouping}_grouping")(source, Fields("key"))
            else:
                getattr(declarer, f"{grouping}_grouping")(source)
    graph = declared.build_topology()
    batch = (
        Batch("new", num_partitions=max(partitions, default=-1) + 1)
        if learns
        else planned(partitions)
    )
    with InProcessTopology(graph, cores, limits, random.Random(cores)) as topology:
        ran = topology.run(batch, TransactionAttempt(4, 0))
    del journals[graph.id]
    assert ran.failure is None, ran.failure
    return ran


def happened(ran: Ran) -> dict[tuple[str, int], list[Any]]:
    by_task: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for one in ran.events:
        by_task[one.component, one.task].append((one.phase, one.hook, *one.details))
    return by_task


def counted(ran: Ran) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for reports in ran.reports.values():
        for report in reports:
            for tally in (report.own, report.before):
                for component in {*tally.executed, *tally.emitted}:
                    executed, emitted = counts.get(component, (0, 0))
                    counts[component] = (
                        executed + tally.executed.get(component, 0),
                        emitted + tally.emitted.get(component, 0),
                    )
    return counts


LIMITS = [
    Limits(inline_bytes_max=1 << 40),
    Limits(blob_bytes_max=2000, spill_bytes=0, inline_bytes_max=1 << 40),
]


@pytest.mark.rule(10, 11, 12, 14, 16, 17)
@QUICK
@given(
    drawn=topologies(),
    cores=st.integers(1, 5),
    other_cores=st.integers(1, 5),
    limits=st.sampled_from(LIMITS),
    learns=st.booleans(),
)
def test_a_topology_with_columns_anywhere_equals_the_topology_with_tuples(
    drawn: tuple[int, list[Spec], dict[int, list[Any]]],
    cores: int,
    other_cores: int,
    limits: Limits,
    learns: bool,
) -> None:
    tasks, specs, partitions = drawn
    of_rows = run(
        tasks,
        [replace(spec, takes="rows", emits="rows") for spec in specs],
        partitions,
        other_cores,
        LIMITS[0],
    )
    of_both = run(tasks, specs, partitions, cores, limits, learns)
    event(f"late: {'late' in of_both.reports}, commit: {'commit' in of_both.reports}")
    assert happened(of_both) == happened(of_rows)
    if cores == other_cores and not learns:
        assert counted(of_both) == counted(of_rows), "rows are counted, not batches"


@pytest.mark.rule(17)
@examples(20)
@given(drawn=topologies(), rows_max=st.integers(1, 4))
def test_the_size_of_collected_portions_changes_no_result(drawn: Any, rows_max: int) -> None:
    tasks, specs, partitions = drawn
    before = happened(run(tasks, specs, partitions, 2, LIMITS[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "ROWS_MAX", rows_max)
        patch.setattr(inbox, "_WAITING_ROWS_MAX", rows_max)
        patch.setattr(outbox.Outbox, "PACK_BYTES", 100 * rows_max)
        assert happened(run(tasks, specs, partitions, 2, LIMITS[0])) == before
