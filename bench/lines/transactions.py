"""Small transactions: how many per second, and how long each takes."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

from bench import rows
from bench.line import Figure, Line, Measured, Stage
from bench.race import interleaved, ratio, values

ROWS = 100
"""Tuples in a small batch."""
PENDING = (1, 2, 4, 8)


def _rate(stage: Stage) -> Measured:
    """txtopo with several widths of its window, against Structured Streaming on rows that are made up, and on files."""
    transactions, rounds = stage.pick(60, 20), stage.pick(3, 2)
    widths = (4,) if stage.is_quick else PENDING
    ours = stage.start("txtopo_runs:Rate")
    theirs = stage.start("streaming:Streaming", checkpoints=_checkpoints(stage))
    blocks = {f"txtopo-{n}": lambda n=n: ours.block(transactions=transactions, rows_per_batch=ROWS, pending=n) for n in widths}
    for kind in ("count-jvm", "count-python"):
        blocks[kind] = lambda kind=kind: theirs.block(kind=kind, transactions=transactions, rows_per_batch=ROWS)
    found = interleaved(blocks, rounds, stage.pick(2, 1))
    rates = {name: [transactions / seconds for seconds in values(samples, "seconds")] for name, samples in found.items()}
    best = max((name for name in rates if name.startswith("txtopo")), key=lambda name: statistics.median(rates[name]))
    return Measured(
        (
            ratio("transactions/s, txtopo : Structured Streaming, per-row Python", rates[best], rates["count-python"], "higher", 4.0),
            ratio("transactions/s, txtopo : Structured Streaming, JVM only", rates[best], rates["count-jvm"], "higher", 3.5),
        ),
        tuple(Figure(name, statistics.median(rate), "transactions/s") for name, rate in rates.items()),
        {"txtopo": f"GlobalCount, parallelism 1, best max_spout_pending: {best.removeprefix('txtopo-')}", "rows per batch": ROWS},
        {"txtopo": [[float(n), statistics.median(rates[f"txtopo-{n}"])] for n in widths]},
    )


def _rate_on_files(stage: Stage) -> Measured:
    """The same on text files, a file to a batch."""
    transactions, rounds = stage.pick(40, 20), stage.pick(3, 2)
    widths = (4,) if stage.is_quick else PENDING
    directory = stage.directory / "rows"
    batches = rows.write_batches(directory, 16 + transactions, ROWS, 1)
    ours = stage.start("txtopo_runs:Files")
    theirs = stage.start("streaming:Streaming", checkpoints=_checkpoints(stage))
    blocks = {
        f"txtopo-{n}": lambda n=n: ours.block(batches=batches[: 8 + transactions + n], pending=n, warm=8, tail=n, parallelism=1) for n in widths
    }
    for kind in ("count-jvm", "count-python"):
        blocks[kind] = lambda kind=kind: theirs.block(kind=kind, transactions=transactions, files=str(directory))
    found = interleaved(blocks, rounds, 1)
    rates = {name: [transactions / seconds for seconds in values(samples, "seconds")] for name, samples in found.items()}
    best = max((name for name in rates if name.startswith("txtopo")), key=lambda name: statistics.median(rates[name]))
    return Measured(
        (
            ratio("transactions/s, txtopo : Structured Streaming, per-row Python, files", rates[best], rates["count-python"], "higher", 6.0),
            ratio("transactions/s, txtopo : Structured Streaming, JVM only, files", rates[best], rates["count-jvm"], "higher", 6.0),
        ),
        tuple(Figure(name, statistics.median(rate), "transactions/s") for name, rate in rates.items()),
        {"txtopo": f"GlobalCount, parallelism 1, best max_spout_pending: {best.removeprefix('txtopo-')}", "rows per batch": ROWS},
        {"txtopo": [[float(n), statistics.median(rates[f"txtopo-{n}"])] for n in widths]},
    )


def _checkpoints(stage: Stage) -> str:
    """Where a query keeps its checkpoint: in memory, where the machine has such a place, so that the peer does not wait for a disk."""
    shared = Path("/dev/shm")
    return str((shared if shared.is_dir() else stage.directory) / f"bench-{stage.directory.name}-checkpoints")


def _latency(stage: Stage, shape: str, parallelism: int, target: float) -> Measured:
    transactions, rounds = stage.pick(40, 15), stage.pick(5, 2)
    both = stage.start("txtopo_runs:Latency")
    blocks = {
        name: lambda name=name: both.block(transactions=transactions, rows_per_batch=ROWS, shape=name, parallelism=parallelism)
        for name in (shape, "empty-job")
    }
    found = interleaved(blocks, rounds, stage.pick(2, 1))
    medians = {name: [statistics.median(sample["latencies"]) for sample in samples] for name, samples in found.items()}
    periods = values(found[shape], "period")
    every = {name: list(itertools.chain.from_iterable(sample["latencies"] for sample in samples)) for name, samples in found.items()}
    return Measured(
        (
            ratio("open → committed : empty Python job", medians[shape], medians["empty-job"], "lower", target),
            ratio("elapsed per transaction : empty Python job", periods, medians["empty-job"], "lower"),
        ),
        (
            Figure("open → committed, median", 1000 * statistics.median(every[shape]), "ms"),
            Figure("open → committed, 95th percentile", 1000 * statistics.quantiles(every[shape], n=20)[-1], "ms"),
            Figure("elapsed per transaction", 1000 * statistics.median(periods), "ms"),
            Figure("empty Python job, median", 1000 * statistics.median(every["empty-job"]), "ms"),
        ),
        {"txtopo": f"max_spout_pending 1, parallelism {parallelism}, {ROWS} tuples"},
    )


def _latency_global_count(stage: Stage) -> Measured:
    return _latency(stage, "global-count", 1, 2.5)


def _latency_words(stage: Stage) -> Measured:
    return _latency(stage, "words", 2, 4.0)


LINES = (
    Line("txn.rate", "How many small transactions per second, against Structured Streaming on its fastest replayable source?", _rate),
    Line("txn.rate-files", "The same on text files?", _rate_on_files),
    Line("txn.latency", "How long does one small transaction take, next to an empty Python job?", _latency_global_count),
    Line("txn.latency-shuffle", "The same with a fields grouping and a committer with parallelism 2?", _latency_words),
)
