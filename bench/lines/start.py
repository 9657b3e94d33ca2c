"""The line about a start: from a command to the first commit."""

from __future__ import annotations

from functools import partial

from bench.line import Figure, Line, Measured, Stage
from bench.race import interleaved, median, ratio, values

STARTS_MAX = 1.5
"""The target: how many times the start of an empty PySpark job a start may take."""


def _start(stage: Stage) -> Measured:
    """Programs in processes of their own, taking turns."""
    starts = stage.start("starts:Starts")
    blocks = {
        "txtopo": partial(starts.block, program="run_topology"),
        "PySpark": partial(starts.block, program="run_empty_job"),
    }
    samples = interleaved(blocks, stage.pick(7, 2), stage.pick(1, 0))
    return Measured(
        (
            ratio(
                "process start → first commit, txtopo : process start → end of an empty PySpark job",
                values(samples["txtopo"], "seconds"),
                values(samples["PySpark"], "seconds"),
                "lower",
                STARTS_MAX,
            ),
        ),
        (
            Figure(
                "txtopo, process start → first commit", median(samples["txtopo"], "seconds"), "s"
            ),
            Figure(
                "PySpark, process start → end of an empty job",
                median(samples["PySpark"], "seconds"),
                "s",
            ),
        ),
        {
            "txtopo": "GlobalCount, 10 tuples, parallelism 1, LocalCluster with a ZooKeeper of its own in an empty data directory",
            "PySpark": "a SparkContext with the settings of the other peers, one job with one empty Python task",
        },
    )


LINES = (
    Line("start", "How long does a start take, from the command to the first commit?", _start),
)
