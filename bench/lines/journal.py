"""The journal: its cost beside a run, and the time that questions to it take."""

from __future__ import annotations

import statistics
from functools import partial

from bench import rows
from bench.line import Figure, Line, Measured, Stage
from bench.race import Ratio, interleaved, ratio, values

RECORDS = 100_000
ROWS = 100
PENDING = 4
ON, OFF = "full", "off"


def _rate(stage: Stage) -> Measured:
    transactions, rounds = stage.pick(600, 60), stage.pick(25, 1)
    runs = stage.start("txtopo_runs:Rate")
    blocks = {
        journal: partial(
            runs.block,
            transactions=transactions,
            rows_per_batch=ROWS,
            pending=PENDING,
            more={"journal": journal},
        )
        for journal in (ON, OFF)
    }
    rates = {
        name: [transactions / seconds for seconds in values(samples, "seconds")]
        for name, samples in interleaved(blocks, rounds, stage.pick(2, 1)).items()
    }
    return Measured(
        (ratio("transactions/s, with : without a journal", rates[ON], rates[OFF], "higher", 0.98),),
        tuple(
            Figure(f"journal={name}", statistics.median(rate), "transactions/s")
            for name, rate in rates.items()
        ),
        {"txtopo": f"GlobalCount, {ROWS} tuples, max_spout_pending {PENDING}, parallelism 1"},
    )


def _watched(stage: Stage) -> Measured:
    transactions, rounds = stage.pick(600, 60), stage.pick(15, 1)
    runs = stage.start("watched:Watched")
    settings = {"watched": {"journal": ON, "log_format": "json"}, "off": {"journal": OFF}}
    blocks = {
        name: partial(
            runs.block, transactions=transactions, rows_per_batch=ROWS, pending=PENDING, more=more
        )
        for name, more in settings.items()
    }
    rates = {
        name: [transactions / seconds for seconds in values(samples, "seconds")]
        for name, samples in interleaved(blocks, rounds, stage.pick(2, 1)).items()
    }
    return Measured(
        (
            ratio(
                "transactions/s, watched : without a journal",
                rates["watched"],
                rates["off"],
                "higher",
                0.97,
            ),
        ),
        settings={
            "watched": "journal, logs in JSON, the page in Chromium on the same cores, metrics scraped every second",
            "txtopo": f"GlobalCount, {ROWS} tuples, max_spout_pending {PENDING}, parallelism 1",
        },
    )


def _tuples(stage: Stage) -> Measured:
    batches, rounds, warm = stage.pick(16, 3), stage.pick(21, 1), stage.pick(2, 1)
    lines = stage.pick(200_000, 20_000)
    written = rows.write_batches(stage.directory / "rows", batches, lines, 2)
    runs = stage.start("txtopo_runs:Files")
    blocks = {
        journal: partial(
            runs.block,
            batches=written,
            shape="words",
            pending=2,
            warm=warm,
            more={"journal": journal},
        )
        for journal in (ON, OFF)
    }
    rates = {
        name: [(batches - warm) * lines / seconds for seconds in values(samples, "seconds")]
        for name, samples in interleaved(blocks, rounds).items()
    }
    return Measured(
        (ratio("tuples/s, with : without a journal", rates[ON], rates[OFF], "higher", 0.99),),
        settings={"txtopo": f"Words, fields grouping, {lines:,} tuples per batch, parallelism 2"},
    )


def _reads(stage: Stage) -> Measured:
    transactions = stage.pick(RECORDS, 10_000)
    rounds = stage.pick(3, 1)
    journals = stage.start("journals:Journals", transactions=transactions)
    samples = interleaved({"questions": journals.block}, rounds)["questions"]
    ratios = []
    for name in samples[0]:
        seconds = values(samples, name)
        ratios.append(
            Ratio(
                f"{name}: seconds, to 1 s",
                statistics.median(seconds),
                min(seconds),
                max(seconds),
                "lower",
                1.0,
            )
        )
    return Measured(
        tuple(ratios), settings={"txtopo": f"{transactions:,} records, one segment in 8"}
    )


def _drawn(stage: Stage) -> Measured:
    transactions, rounds = stage.pick(500, 50), stage.pick(15, 3)
    page = stage.start("drawn:Drawn", transactions=transactions)
    seconds = values(interleaved({"page": page.block}, rounds)["page"], "seconds")
    name, median_s = f"{transactions} transactions: seconds, to 0.1 s", statistics.median(seconds)
    return Measured(
        (Ratio(name, median_s, min(seconds), max(seconds), "lower", 0.1),),
        settings={"txtopo": "the whole page in Chromium, 1600 pixels wide, time of its script"},
    )


LINES = (
    Line("journal.rate", "What does the journal cost small transactions?", _rate),
    Line("journal.tuples", "And large batches?", _tuples, in_quick=False),
    Line("journal.watched", "And with metrics, logs and a browser?", _watched, in_quick=False),
    Line("journal.drawn", "How long does the page take to draw?", _drawn, in_quick=False),
    Line("journal.reads", "How long do questions to a journal take?", _reads),
)
