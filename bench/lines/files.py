"""Costs of writing files and a Delta table: sinks against the same files by hand, and topologies
against Structured Streaming."""

from __future__ import annotations

import statistics
from functools import partial

from bench.line import Figure, Line, Measured, Stage, check
from bench.lines.transactions import checkpoints
from bench.process import ContenderProcess
from bench.race import Ratio, interleaved, ratio, values

ROWS = 100_000
"""Rows in a large transaction."""
OF_BATCH = 100
"""Rows in a small one."""
CALLS_MAX = 3.0
_WIDTHS = (1, 4)
_FORMATS = {
    "json": ("JSON lines from tuples", 0.83),
    "parquet": ("Parquet from RecordBatches", 0.91),
}
_BY_HAND = "files with the same bytes, written by one process"


def _against_hand(
    stage: Stage, contender: ContenderProcess, format: str, batches: int, rounds: int
) -> dict[str, list[float]]:
    """Rows per second of the sink and by hand, which write the same bytes."""
    block = partial(
        contender.block, format=format, rows=stage.pick(ROWS, ROWS // 10), batches=batches
    )
    samples = interleaved({by: partial(block, by=by) for by in ("sink", "hand")}, rounds)
    for each in zip(samples["sink"], samples["hand"], strict=True):
        check(each[0]["contents"], each[1]["contents"])
    return {by: values(samples[by], "rows_per_second") for by in samples}


def _sink(stage: Stage) -> Measured:
    """Large transactions, into a directory."""
    contender = stage.start("file_writes:Writes")
    ratios, figures = [], []
    for format, batches, rounds in (("json", 2, 7), ("parquet", 10, 25)):
        rates = _against_hand(
            stage, contender, format, stage.pick(batches, 2), stage.pick(rounds, 1)
        )
        shown, target = _FORMATS[format]
        ratios.append(
            ratio(
                f"rows/s, {shown}: FileSink : by hand",
                rates["sink"],
                rates["hand"],
                "higher",
                target,
            )
        )
        figures += [
            Figure(f"{shown}, {name}", statistics.median(rates[by]), "rows/s")
            for name, by in (("FileSink", "sink"), ("by hand", "hand"))
        ]
    settings = {
        "transaction": f"{stage.pick(ROWS, ROWS // 10):,} rows of three columns, one task, one file",
        "RecordBatches": "as the spout of Parquet files emits them",
        "by hand": f"{_BY_HAND}; each file is synced, and its directory too",
    }
    return Measured(tuple(ratios), tuple(figures), settings)


def _objects(stage: Stage) -> Measured:
    """The same into an object store."""
    contender = stage.start("file_writes:Writes", on_s3=True)
    rates = _against_hand(stage, contender, "parquet", stage.pick(10, 2), stage.pick(15, 1))
    times = {by: [1 / rate for rate in each] for by, each in rates.items()}
    rows = stage.pick(ROWS, ROWS // 10)
    return Measured(
        (
            ratio(
                "time, FileSink : upload, put and list by hand",
                times["sink"],
                times["hand"],
                "lower",
                1.1,
            ),
        ),
        tuple(
            Figure(name, 1000 * rows * statistics.median(times[by]), "ms per transaction")
            for name, by in (("FileSink", "sink"), ("by hand", "hand"))
        ),
        {
            "transaction": f"{rows:,} rows of three columns, one task, one Parquet file from RecordBatches",
            "by hand": f"{_BY_HAND} with obstore; beside each file one small conditional put and one listing",
            "server": "s3proxy, over a directory of this machine",
        },
    )


def _calls(stage: Stage) -> Measured:
    """A count in one process."""
    transactions = stage.pick(100, 20)
    calls = stage.start("file_writes:Calls").block(transactions=transactions)["calls"]
    count = sum(calls.values()) - calls["create"] - calls["rename"]
    return Measured(
        (
            Ratio(
                "calls of the storage per transaction, beside making and naming the file",
                count,
                count,
                count,
                "lower",
                CALLS_MAX,
            ),
        ),
        tuple(Figure(f"{name}, per transaction", calls[name], "") for name in sorted(calls)),
        {
            "counted": "calls of the sink's storage interface, one task in a directory, from the first tuple to the end of the commit",
            "not counted": "the first transaction, and putting decisions together after each thousand",
        },
    )


def _rate(stage: Stage) -> Measured:
    """Small transactions, into files and into a Delta table."""
    transactions = stage.pick(20, 10)
    widths = (4,) if stage.is_quick else _WIDTHS
    ours = stage.start("file_topologies:Topologies")
    theirs = stage.start("file_topologies:Queries", checkpoints=checkpoints(stage))
    sizes = {"rows": OF_BATCH, "transactions": transactions}
    peers = {
        "files": "Structured Streaming, its file sink",
        "delta": "Structured Streaming, write_deltalake in foreachBatch",
    }
    sinks = {"files": "FileSink", "delta": "DeltaSink"}
    own = {(to, n): f"{sink}, max_spout_pending {n}" for to, sink in sinks.items() for n in widths}
    samples = interleaved(
        {
            **{
                name: partial(ours.block, to=to, pending=n, **sizes)
                for (to, n), name in own.items()
            },
            **{name: partial(theirs.block, to=to, **sizes) for to, name in peers.items()},
        },
        stage.pick(3, 1),
    )
    rates = {
        name: [transactions / seconds for seconds in values(each, "seconds")]
        for name, each in samples.items()
    }
    best = {
        to: max((own[to, n] for n in widths), key=lambda name: statistics.median(rates[name]))
        for to in sinks
    }
    return Measured(
        tuple(
            ratio(
                f"transactions/s, {sinks[to]} : {peers[to]}",
                rates[best[to]],
                rates[peers[to]],
                "higher",
                target,
            )
            for to, target in (("files", 3.0), ("delta", 2.0))
        ),
        tuple(
            Figure(name, statistics.median(rate), "transactions/s") for name, rate in rates.items()
        ),
        {
            "txtopo": f"a spout and a sink with parallelism 1, {OF_BATCH} tuples per batch; the ratios are for {' and '.join(best.values())}",
            "Structured Streaming": "rate-micro-batch, one partition; its file sink syncs no file",
            "Delta by hand": "one open table, and the batch id in its log; neither way syncs the log",
        },
    )


LINES = (
    Line("files.sink", "What does writing files cost beside the same files by hand?", _sink),
    Line("files.objects", "And in an object store?", _objects),
    Line("files.calls", "How often does a transaction ask the storage of files?", _calls),
    Line(
        "files.rate",
        "How many small transactions per second into files and Delta tables, against Structured Streaming?",
        _rate,
        in_quick=False,
    ),
)
