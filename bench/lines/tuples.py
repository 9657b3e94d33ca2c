"""Large batches: how many tuples per second, against plain Python and against PySpark by hand."""

from __future__ import annotations

import statistics
from functools import partial

from bench import rows
from bench.line import Figure, Line, Measured, Stage
from bench.race import interleaved, ratio, values

PENDING = 2
OF_A_BLOCK = 12_000_000
"""Lines of files, all transactions together: a run has a beginning, otherwise a third of the
measured time."""


def _tuples(
    stage: Stage,
    shape: str,
    of_bare: float,
    of_hand: float | None,
    others: tuple[str, ...] = (),
    lines: int = 1_000_000,
) -> Measured:
    count, rounds = stage.pick(lines, 200_000), stage.pick(3, 1)
    transactions = stage.pick(OF_A_BLOCK // lines, 3)
    batches = rows.write_batches(stage.directory / "rows", transactions, count, 2)
    ours, bare, hand = (
        stage.start("txtopo_runs:Files"),
        stage.start("bare_loop:BareLoop"),
        stage.start("handwritten:HandWritten"),
    )
    blocks = {
        "txtopo": partial(ours.block, batches=batches, shape=shape, pending=PENDING),
        "bare loop": partial(bare.block, batches=batches, shape=shape),
        **{
            f"PySpark, {name}": partial(hand.block, batches=batches, shape=name)
            for name in (shape, *others)
        },
    }
    by_contender = interleaved(blocks, rounds)
    rates = {
        name: [transactions * count / seconds for seconds in values(samples, "seconds")]
        for name, samples in by_contender.items()
    }
    ratios = [
        ratio(
            "tuples/s, txtopo : bare loop", rates["txtopo"], rates["bare loop"], "higher", of_bare
        )
    ]
    ratios += [
        ratio(
            f"tuples/s, txtopo : {name}",
            rates["txtopo"],
            rates[name],
            "higher",
            of_hand if name == f"PySpark, {shape}" else None,
        )
        for name in rates
        if name.startswith("PySpark")
    ]
    block = f"{transactions} batches of {count:,} lines in 2 files each, from the first opening to the last commit"
    return Measured(
        tuple(ratios),
        tuple(Figure(name, statistics.median(rate), "tuples/s") for name, rate in rates.items()),
        {"txtopo": f"parallelism 2, max_spout_pending {PENDING}", "block": block},
    )


def _none(stage: Stage) -> Measured:
    return _tuples(stage, "none", 0.6, None)


def _none_larger(stage: Stage) -> Measured:
    return _tuples(stage, "none", 0.6, None, lines=4_000_000)


def _shuffle(stage: Stage) -> Measured:
    return _tuples(stage, "shuffle", 0.3, 1.0)


def _words(stage: Stage) -> Measured:
    return _tuples(
        stage, "words", 0.3, 1.0, () if stage.is_quick else ("reduce-by-key", "data-frame")
    )


LINES = (
    Line(
        "tuples.none",
        "How many tuples per second from text files, counted where they are read?",
        _none,
        in_quick=False,
    ),
    Line(
        "tuples.none-larger",
        "And with four million to a batch, where a transaction's own price matters less?",
        _none_larger,
        in_quick=False,
    ),
    Line("tuples.shuffle", "The same through a real shuffle?", _shuffle, in_quick=False),
    Line("tuples.words", "And counting words, with a fields grouping?", _words),
)
