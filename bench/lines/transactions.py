"""Small transactions: how many per second, and how long each takes."""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from pathlib import Path

from bench import rows
from bench.line import Figure, Line, Measured, Stage
from bench.process import Sample
from bench.race import interleaved, ratio, values

ROWS = 100
"""Tuples in a small batch."""
PENDING = (1, 2, 4, 8)
PEERS = {
    "count-jvm": "Structured Streaming, JVM only",
    "count-python": "Structured Streaming, per-row Python",
}
"""Names of the peers, by kind."""


def _rate(stage: Stage) -> Measured:
    """txtopo with several widths of its window, against Structured Streaming on rows that are made
    up, and on files."""
    transactions, rounds = stage.pick(60, 20), stage.pick(3, 1)
    widths = (4,) if stage.is_quick else PENDING
    ours = stage.start("txtopo_runs:Rate")
    theirs = stage.start("streaming:Streaming", checkpoints=checkpoints(stage))
    blocks = {
        **{
            _named(n): partial(
                ours.block, transactions=transactions, rows_per_batch=ROWS, pending=n
            )
            for n in widths
        },
        **{
            name: partial(theirs.block, kind=kind, transactions=transactions, rows_per_batch=ROWS)
            for kind, name in PEERS.items()
        },
    }
    return _compared(interleaved(blocks, rounds, stage.pick(2, 1)), transactions, 4.0, 3.5)


def _compared(
    by_contender: dict[str, list[Sample]],
    transactions: int,
    of_python: float | None,
    of_jvm: float | None,
    subject: str = "GlobalCount",
) -> Measured:
    """Our best width against both peers."""
    rates = {
        name: [transactions / seconds for seconds in values(samples, "seconds")]
        for name, samples in by_contender.items()
    }
    best = max(
        (name for name in rates if name not in PEERS.values()),
        key=lambda name: statistics.median(rates[name]),
    )
    python, jvm = PEERS["count-python"], PEERS["count-jvm"]
    return Measured(
        (
            ratio(
                "transactions/s, txtopo : Structured Streaming, per-row Python",
                rates[best],
                rates[python],
                "higher",
                of_python,
            ),
            ratio(
                "transactions/s, txtopo : Structured Streaming, JVM only",
                rates[best],
                rates[jvm],
                "higher",
                of_jvm,
            ),
        ),
        tuple(
            Figure(name, statistics.median(rate), "transactions/s") for name, rate in rates.items()
        ),
        {"txtopo": f"{subject}, {ROWS} tuples per batch, parallelism 1; the ratios are for {best}"},
    )


def _count_on_files(stage: Stage) -> Measured:
    return _rate_on_files(stage, "none", "count", 6.0)


def _words_on_files(stage: Stage) -> Measured:
    return _rate_on_files(stage, "words", "words", None)


def _rate_on_files(stage: Stage, shape: str, kinds: str, target: float | None) -> Measured:
    """The same on text files, a file to a batch. ``kinds``: count or words, as the peer calls it."""
    transactions, rounds = stage.pick(40, 20), stage.pick(3, 1)
    widths = (4,) if stage.is_quick else PENDING
    directory = stage.directory / "rows"
    batches = rows.write_batches(directory, 16 + transactions, ROWS, 1)
    ours = stage.start("txtopo_runs:Files")
    theirs = stage.start("streaming:Streaming", checkpoints=checkpoints(stage))
    block = partial(ours.block, shape=shape, warm=8, parallelism=1)
    peers = [(kind.replace("count", kinds), name) for kind, name in PEERS.items()]
    blocks = {
        **{
            _named(n): partial(block, batches=batches[: 8 + transactions + n], pending=n, tail=n)
            for n in widths
        },
        **{
            name: partial(theirs.block, kind=kind, transactions=transactions, files=str(directory))
            for kind, name in peers
        },
    }
    return _compared(
        interleaved(blocks, rounds),
        transactions,
        target,
        target,
        "Words, fields grouping" if kinds == "words" else "GlobalCount",
    )


def _named(width: int) -> str:
    return f"txtopo, max_spout_pending {width}"


def checkpoints(stage: Stage) -> str:
    """Where a query keeps its checkpoint: in memory, where the machine has such a place, so that
    the peer does not wait for a disk."""
    shared = Path("/dev/shm")
    return str(
        (shared if shared.is_dir() else stage.directory)
        / f"bench-{stage.directory.name}-checkpoints"
    )


def _latency(stage: Stage, shape: str, parallelism: int, target: float) -> Measured:
    transactions, rounds = stage.pick(40, 15), stage.pick(5, 1)
    both = stage.start("txtopo_runs:Latency")
    block = partial(
        both.block, transactions=transactions, rows_per_batch=ROWS, parallelism=parallelism
    )
    blocks = {name: partial(block, shape=name) for name in (shape, "empty-job")}
    blocks["staged"] = partial(block, shape=shape, more={"small_transaction_s": 0})
    by_contender = interleaved(blocks, rounds, stage.pick(2, 1))
    medians = {
        name: [statistics.median(sample["latencies"]) for sample in samples]
        for name, samples in by_contender.items()
    }
    periods = values(by_contender[shape], "period")
    every = {
        name: list(itertools.chain.from_iterable(sample["latencies"] for sample in samples))
        for name, samples in by_contender.items()
    }
    return Measured(
        (
            ratio(
                "open → committed : empty Python job",
                medians[shape],
                medians["empty-job"],
                "lower",
                target,
            ),
            ratio(
                "elapsed per transaction : empty Python job", periods, medians["empty-job"], "lower"
            ),
            ratio(
                "open → committed, not in one task : empty Python job",
                medians["staged"],
                medians["empty-job"],
                "lower",
            ),
        ),
        (
            Figure("open → committed, median", 1000 * statistics.median(every[shape]), "ms"),
            Figure(
                "open → committed, 95th percentile",
                1000 * statistics.quantiles(every[shape], n=20)[-1],
                "ms",
            ),
            Figure(
                "open → committed, not in one task, median",
                1000 * statistics.median(every["staged"]),
                "ms",
            ),
            Figure("elapsed per transaction", 1000 * statistics.median(periods), "ms"),
            Figure("empty Python job, median", 1000 * statistics.median(every["empty-job"]), "ms"),
        ),
        {
            "txtopo": f"max_spout_pending 1, parallelism {parallelism}, {ROWS} tuples; *not in one task* is small_transaction_s = 0"
        },
    )


def _latency_global_count(stage: Stage) -> Measured:
    return _latency(stage, "global-count", 1, 2.5)


def _latency_words(stage: Stage) -> Measured:
    return _latency(stage, "words", 2, 4.0)


LINES = (
    Line(
        "txn.rate",
        "How many small transactions per second, against Structured Streaming on its fastest replayable source?",
        _rate,
    ),
    Line("txn.rate-files", "The same on text files?", _count_on_files, in_quick=False),
    Line(
        "txn.rate-words",
        "And counting words, with a fields grouping?",
        _words_on_files,
        in_quick=False,
    ),
    Line(
        "txn.latency",
        "How long does one small transaction take, next to an empty Python job?",
        _latency_global_count,
    ),
    Line(
        "txn.latency-shuffle",
        "The same with a fields grouping and a committer with parallelism 2?",
        _latency_words,
        in_quick=False,
    ),
)
