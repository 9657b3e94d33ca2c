"""Foundations of every run, in milliseconds: background for all other lines."""

from __future__ import annotations

import itertools
import statistics
from functools import partial

from bench import rows
from bench.line import Figure, Line, Measured, Stage
from bench.race import interleaved, median


def _floors(stage: Stage) -> Measured:
    """An empty Python job, an empty JVM job and one multi, taking turns in one process."""
    floor = stage.start("floor:Floor")
    times = stage.pick(60, 20)
    kinds = ("python-job", "jvm-job", "zk-multi")
    by_kind = interleaved(
        {kind: partial(floor.block, kind=kind, times=times) for kind in kinds},
        rounds=stage.pick(5, 1),
        warm_up=2,
    )
    figures = []
    for kind, samples in by_kind.items():
        latencies = list(itertools.chain.from_iterable(sample["latencies"] for sample in samples))
        figures.append(Figure(kind, 1000 * statistics.median(latencies), "ms"))
    settings = {
        "Spark": "local[2], as txtopo sets it up",
        "ZooKeeper": "embedded, one server, on a local disk",
    }
    return Measured(figures=tuple(figures), settings=settings)


def _bare_loop(stage: Stage) -> Measured:
    """The bare loop in two processes, counting lines and counting words."""
    count = stage.pick(1_000_000, 200_000)
    batches = rows.write_batches(stage.directory / "rows", 2, count, 2)
    bare = stage.start("bare_loop:BareLoop")
    by_shape = interleaved(
        {shape: partial(bare.block, batches=batches, shape=shape) for shape in ("none", "words")},
        stage.pick(3, 2),
    )
    figures = (
        Figure(f"bare loop, {shape}", 2 * count / median(samples, "seconds"), "tuples/s")
        for shape, samples in by_shape.items()
    )
    return Measured(
        figures=tuple(figures), settings={"bare loop": f"2 processes, batches of {count:,} lines"}
    )


LINES = (
    Line(
        "floor.spark-and-zookeeper",
        "What do an empty Spark job and one ZooKeeper multi cost?",
        _floors,
    ),
    Line(
        "floor.bare-loop",
        "How many tuples does plain Python take through the same bolts?",
        _bare_loop,
        in_quick=False,
    ),
)
