"""Promises of the engine besides speed: overlap, commits that do not wait, costs that do not grow."""

from __future__ import annotations

import statistics
from functools import partial

from bench.line import Figure, Line, Measured, Stage
from bench.race import Ratio, interleaved, median, ratio, values

WAIT_S = 0.5
TASK_S = 0.4
ROUND_TRIPS = {1: 3.0, 4: 2.0}
"""R25: at most so many per transaction, by max_spout_pending."""
GROWTH = (500, 1000, 4500, 5000)
GROWTH_SHUFFLED = (200, 400, 1000, 1200)
"""In these two: time is taken from the first txid to the second, and from the third to the fourth.
"""
GROWTH_PENDING = 4


def _pipelining(stage: Stage) -> Measured:
    """Pending 8 against pending 1 on eight cores' worth of slots."""
    runs = stage.start("txtopo_runs:Rate", master="local[8]")
    counts = {1: stage.pick(6, 3), 8: stage.pick(32, 16)}
    blocks = {
        str(n): partial(runs.block, transactions=count, rows_per_batch=10, pending=n, wait_s=WAIT_S)
        for n, count in counts.items()
    }
    by_window = interleaved(blocks, stage.pick(3, 1), 0)
    rates = {
        name: [counts[int(name)] / seconds for seconds in values(samples, "seconds")]
        for name, samples in by_window.items()
    }
    return Measured(
        (ratio("transactions/s, pending 8 : pending 1", rates["8"], rates["1"], "higher", 6.0),),
        tuple(
            Figure(f"max_spout_pending {name}", statistics.median(rate), "transactions/s")
            for name, rate in rates.items()
        ),
        {
            "txtopo": f"local[8], parallelism 1, processing waits {1000 * WAIT_S:.0f} ms without using a core"
        },
    )


def _commit_under_load(stage: Stage) -> Measured:
    """From a transaction's turn to its commit: alone, and while every core and the queue behind it
    is full of processing tasks."""
    runs = stage.start("commit_latency:CommitLatency")
    transactions = stage.pick(12, 5)
    blocks = {
        "alone": partial(runs.block, transactions=transactions, pending=1, wait_s=0.01),
        "under load": partial(runs.block, transactions=2 * transactions, pending=8, wait_s=TASK_S),
    }
    samples = interleaved(blocks, stage.pick(3, 1))
    own = values(samples["alone"], "median")
    allowed = [TASK_S + alone for alone in own]
    return Measured(
        (
            ratio(
                "under load, median : one processing task + its own time",
                values(samples["under load"], "median"),
                allowed,
                "lower",
                1.0,
            ),
            ratio(
                "under load, worst : one processing task + its own time",
                values(samples["under load"], "worst"),
                allowed,
                "lower",
            ),
        ),
        (
            Figure(
                "its own time: a commit with nothing else to do, median",
                1000 * statistics.median(own),
                "ms",
            ),
            Figure("one processing task", 1000 * TASK_S, "ms"),
            Figure(
                "a commit under load, median", 1000 * median(samples["under load"], "median"), "ms"
            ),
            Figure(
                "a commit under load, worst",
                1000 * max(values(samples["under load"], "worst")),
                "ms",
            ),
        ),
        {
            "txtopo": f"local[2], parallelism 1, max_spout_pending 8, a processing task takes {1000 * TASK_S:.0f} ms"
        },
    )


def _growth(stage: Stage) -> Measured:
    """Five thousand transactions in one run; the same look at the machine after a thousand and
    after five."""
    return _grown(stage, GROWTH, {})


def _growth_shuffled(stage: Stage) -> Measured:
    """The same, for fewer transactions, where each has two jobs and a shuffle."""
    return _grown(stage, GROWTH_SHUFFLED, {"small_transaction_s": 0})


def _grown(stage: Stage, txids: tuple[int, int, int, int], more: dict[str, float]) -> Measured:
    early, first, late, last = txids
    run = stage.start(
        "growth:Growth",
        block_s_max=900.0,
        last=last,
        rows_per_batch=10,
        pending=GROWTH_PENDING,
        more=more,
    )
    before = run.block(timed_from=early, to=first)
    after = run.block(timed_from=late, to=last)
    ratios = [
        ratio(
            f"time of transactions {late}–{last} : {early}–{first}",
            [after["seconds"]],
            [before["seconds"]],
            "lower",
            1.1,
        )
    ]
    figures = [
        Figure(f"transactions {early}–{first}", before["seconds"], "s"),
        Figure(f"transactions {late}–{last}", after["seconds"], "s"),
    ]
    for name, count in before["left"].items():
        figures += [
            Figure(f"{name}, after {first}", count, ""),
            Figure(f"{name}, after {last}", after["left"][name], ""),
        ]
        # Both counts get one more: the ratio of 0 to 0 is 1. Threads come and go with Spark's
        # pools.
        target = 1.1 if "memory" in name or "threads" in name else 1.0
        ratios.append(
            ratio(
                f"{name}, after {last} : after {first}",
                [after["left"][name] + 1],
                [count + 1],
                "lower",
                target,
            )
        )
    offset = before["marks"][-1][1]
    marks = before["marks"] + [[txid, offset + seconds] for txid, seconds in after["marks"]]
    return Measured(
        tuple(ratios),
        tuple(figures),
        {
            "txtopo": f"GlobalCount, 10 tuples, parallelism 2, max_spout_pending {GROWTH_PENDING}",
            **more,
        },
        {"elapsed seconds by txid": marks},
    )


def _round_trips(stage: Stage) -> Measured:
    """R25, counted in a running topology."""
    runs = stage.start("round_trips:RoundTrips")
    transactions = stage.pick(60, 10)
    ratios, figures = [], []
    for pending, allowed in ROUND_TRIPS.items():
        for partitions in (1, 1000):
            sample = runs.block(transactions=transactions, partitions=partitions, pending=pending)
            count = sample["per_transaction"]
            described = f"max_spout_pending {pending}, {partitions:,} partition{'s' if partitions > 1 else ''}"
            ratios.append(
                Ratio(
                    f"round trips per transaction, {described}",
                    count,
                    count,
                    count,
                    "lower",
                    allowed,
                )
            )
            figures.append(Figure(f"round trips per transaction, {described}", count, ""))
    return Measured(
        tuple(ratios),
        tuple(figures),
        {"txtopo": "GlobalCount, every partition moves in every transaction"},
    )


LINES = (
    Line("pipelining", "Does processing that waits overlap?", _pipelining, in_quick=False),
    Line(
        "commit.latency-under-load",
        "Does a commit wait behind the processing of later transactions?",
        _commit_under_load,
        in_quick=False,
    ),
    Line(
        "zookeeper.round-trips",
        "How often does a transaction ask ZooKeeper something?",
        _round_trips,
    ),
    Line(
        "growth",
        "Does the five-thousandth transaction cost what the thousandth did?",
        _growth,
        in_quick=False,
    ),
    Line(
        "growth.shuffled",
        "And where every transaction makes a shuffle?",
        _growth_shuffled,
        in_quick=False,
    ),
)
