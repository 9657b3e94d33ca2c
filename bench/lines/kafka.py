"""Costs of reading a topic of Kafka: spouts against a consumer by hand."""

from __future__ import annotations

import statistics
from functools import partial

from bench.line import Figure, Line, Measured, Stage
from bench.race import interleaved, ratio, values

ROWS = 1_000_000
OF_BATCH = 100
_RECORD = "JSON objects of some 80 bytes, one partition"


def _rows(stage: Stage) -> Measured:
    """One batch of many records."""
    rows = stage.pick(ROWS, ROWS // 5)
    contender = stage.start("kafka_reads:Reads", servers=_server(stage), rows=rows)
    ways = (
        "tuples",
        "by hand",
        "columns",
        "by hand, columns",
        "json columns",
        "by hand, json columns",
    )
    samples = interleaved(
        {way: partial(contender.block, way=way, rows=rows) for way in ways}, stage.pick(5, 3)
    )
    rates = {way: values(samples[way], "rows_per_second") for way in ways}
    ratios = (
        ratio(
            "records/s, spout of tuples : consume(1000) by hand",
            rates["tuples"],
            rates["by hand"],
            "higher",
            0.8,
        ),
        ratio(
            "records/s, spout of columns : consume(1000) into Arrow by hand",
            rates["columns"],
            rates["by hand, columns"],
            "higher",
            0.8,
        ),
        ratio(
            "records/s, JSON in columns : read_json by hand",
            rates["json columns"],
            rates["by hand, json columns"],
            "higher",
        ),
    )
    figures = tuple(
        Figure(way, statistics.median(rate), "records/s") for way, rate in rates.items()
    )
    return Measured(
        ratios,
        figures,
        {"records": f"{rows:,} {_RECORD}", "by hand": "with the spout's settings of the consumer"},
    )


def _small(stage: Stage) -> Measured:
    """Batches of few records, each at a position of its own; and one after another."""
    batches = stage.pick(300, 50)
    contender = stage.start("kafka_reads:Reads", servers=_server(stage), rows=OF_BATCH * batches)
    block = partial(contender.block, rows=OF_BATCH, batches=batches)
    blocks = {
        "going on": partial(block, way="tuples"),
        "elsewhere": partial(block, way="tuples", jumps=True),
        "by hand": partial(block, way="by hand", jumps=True),
    }
    samples = interleaved(blocks, stage.pick(5, 3))
    times = {name: values(sample, "ms_per_batch") for name, sample in samples.items()}
    ratios = (
        ratio(
            "time per batch, spout where the last batch ended : assign and consume by hand",
            times["going on"],
            times["by hand"],
            "lower",
            2.0,
        ),
        ratio(
            "time per batch, spout elsewhere each time : assign and consume by hand",
            times["elsewhere"],
            times["by hand"],
            "lower",
            2.0,
        ),
    )
    figures = tuple(
        Figure(name, statistics.median(time), "ms per batch") for name, time in times.items()
    )
    return Measured(
        ratios,
        figures,
        {"batch": f"{OF_BATCH} {_RECORD}", "by hand": "with the spout's settings of the consumer"},
    )


def _server(stage: Stage) -> str:
    return str(stage.start("kafka_reads:Server", name="kafka").block()["address"])


LINES = (
    Line("kafka.rows", "What does reading a topic cost beside a consumer by hand?", _rows),
    Line("kafka.small-batches", "And batches of a hundred records?", _small),
)
