"""Costs of export queues: adding beside a store's updates, exporting against upserts by hand."""

from __future__ import annotations

import statistics
from functools import partial

from bench.line import Figure, Line, Measured, Stage
from bench.race import interleaved, ratio, values

KEYS = 1_000
"""Updates, and entries, in a transaction."""
FEW = 10
"""Entries in a small one."""


def _add(stage: Stage) -> Measured:
    """One task, the same updates with an entry for each and without."""
    ratios, figures = [], []
    for name in ("sqlite", "postgresql"):
        address = "" if name == "sqlite" else _server(stage)
        contender = stage.start("export_queues:Adds", backend=name, address=address)
        blocks = {
            shown: partial(contender.block, with_entries=adds, batches=stage.pick(60, 10))
            for shown, adds in (("with entries", True), ("without", False))
        }
        times = {
            shown: values(samples, "seconds_per_transaction")
            for shown, samples in interleaved(blocks, stage.pick(5, 1)).items()
        }
        ratios.append(
            ratio(
                f"time, with an entry per update : without, {name}",
                times["with entries"],
                times["without"],
                "lower",
                1.15,
            )
        )
        figures += [
            Figure(f"a transaction {shown}, {name}", 1000 * statistics.median(each), "ms")
            for shown, each in times.items()
        ]
    settings = {
        "transaction": f"{KEYS:,} keys, updated by a function of any kind and to different values, one task"
    }
    return Measured(tuple(ratios), tuple(figures), settings)


def _export(stage: Stage) -> Measured:
    """From a store in SQLite to a table in PostgreSQL."""
    contender = stage.start("export_queues:Exports", address=_server(stage))
    many, rounds = stage.pick(20, 3), stage.pick(5, 1)
    large = {
        how: partial(contender.block, how=how, transactions=many, keys=KEYS)
        for how in ("export", "hand")
    }
    at_rest = stage.start("export_queues:AtRest", address=_server(stage))
    small = {
        "at rest": partial(at_rest.block, transactions=5 * many, keys=FEW),
        "that commit": partial(contender.block, how="hand", transactions=5 * many, keys=FEW),
    }
    rates = {
        how: values(each, "entries_per_second") for how, each in interleaved(large, rounds).items()
    }
    times = {
        how: values(each, "seconds_per_transaction")
        for how, each in interleaved(small, rounds).items()
    }
    ratios = (
        ratio(
            "entries/s, exporting : executemany by hand",
            rates["export"],
            rates["hand"],
            "higher",
            0.5,
        ),
        ratio(
            f"time from record to the target's commit : that commit, {FEW} entries",
            times["at rest"],
            times["that commit"],
            "lower",
            3.0,
        ),
    )
    figures = (
        *(Figure(how, statistics.median(each), "entries/s") for how, each in rates.items()),
        *(Figure(how, 1000 * statistics.median(each), "ms") for how, each in times.items()),
    )
    return Measured(ratios, figures, {"by hand": "one statement for each entry, in a pipeline"})


def _waiting(stage: Stage) -> Measured:
    """An exporter without a target, in front of few and of very many entries."""
    contender = stage.start("export_queues:Exports", address="")
    counts = {
        f"{transactions * KEYS:,} waiting": transactions
        for transactions in (30, stage.pick(1_000, 100))
    }
    blocks = {
        shown: partial(contender.block, how="waiting", transactions=transactions, keys=KEYS)
        for shown, transactions in counts.items()
    }
    times = {
        shown: values(samples, "seconds_per_entry")
        for shown, samples in interleaved(blocks, stage.pick(5, 1), warm_up=0).items()
    }
    few, many = times
    return Measured(
        (ratio(f"time per entry, {many} : {few}", times[many], times[few], "lower", 1.1),),
        tuple(Figure(shown, 1e6 * statistics.median(each), "µs") for shown, each in times.items()),
        {"entries": "25,000 are exported, in calls of up to 1,000"},
    )


def _server(stage: Stage) -> str:
    return str(stage.start("keyed_updates:Server", name="postgresql").block()["address"])


LINES = (
    Line("exports.add", "What does an entry cost beside each update?", _add),
    Line("exports.export", "How fast does a queue reach its target?", _export),
    Line("exports.waiting", "Does it matter how many entries wait?", _waiting, in_quick=False),
)
