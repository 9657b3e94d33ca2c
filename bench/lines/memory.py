"""Needs of a batch of ten million tuples, next to the same batch by hand in PySpark."""

from __future__ import annotations

from bench import rows
from bench.line import Figure, Line, Measured, Stage
from bench.process import ContenderProcess
from bench.processes import PeakMemory
from bench.race import ratio

_MIB = 2.0**20


def _memory(stage: Stage) -> Measured:
    """The peak of all processes below the driver, ZooKeeper's included: first a batch of a million,
    then one of ten."""
    pieces = rows.write_batches(
        stage.directory / "rows", stage.pick(10, 4), stage.pick(1_000_000, 50_000), 2
    )
    small, large = [pieces[0]], [[path for piece in pieces for path in piece]]
    ours, hand = stage.start("txtopo_runs:Files"), stage.start("handwritten:HandWritten")
    figures, peaks = [], {}
    for name, batches in (("a tenth of it", small), ("the batch", large)):
        for who, contender in (("txtopo", ours), ("PySpark", hand)):
            peak = _peak(contender, batches)
            figures.append(Figure(f"{who}, {name}: all processes", peak.bytes / _MIB, "MiB"))
            figures.append(
                Figure(f"{who}, {name}: Python workers", peak.workers_bytes / _MIB, "MiB")
            )
            peaks[who, name] = float(peak.bytes)
    return Measured(
        (
            ratio(
                "peak memory, txtopo : PySpark by hand",
                [peaks["txtopo", "the batch"]],
                [peaks["PySpark", "the batch"]],
                "lower",
                2.0,
            ),
            ratio(
                "peak memory of txtopo, the batch : a tenth of it",
                [peaks["txtopo", "the batch"]],
                [peaks["txtopo", "a tenth of it"]],
                "lower",
            ),
        ),
        tuple(figures),
        {
            "txtopo": "words, fields grouping, parallelism 2; the JVM may use 2 GiB, as may PySpark's"
        },
    )


def _peak(contender: ContenderProcess, batches: list[list[str]]) -> PeakMemory:
    with PeakMemory(contender.pid) as peak:
        contender.block(batches=batches, shape="words")
    return peak


LINES = (Line("memory", "What does a batch of ten million tuples need?", _memory, in_quick=False),)
