"""What a store costs: keyed updates by a store, against the same database and updates by hand; and a sink, against COPY by hand."""

from __future__ import annotations

import statistics
from functools import partial

from bench import backends
from bench.line import Figure, Line, Measured, Stage
from bench.race import interleaved, ratio, values

KEYS = 1_000
"""Of a task's batch."""
OF = 10_000
"""As many keys there are."""
TARGET = 0.8
WAYS = {"transactional store": "transactional", "opaque store": "opaque", "bulk upsert by hand": "add", "read, add, write by hand": "update"}


def _updates(stage: Stage, name: str) -> Measured:
    """One task, one batch of ``KEYS`` keys after the other; all keys are there before the clock starts."""
    backend = backends.BACKENDS[name]
    address = "" if backend.server is None else stage.start("keyed_updates:Server", name=backend.server).block()["address"]
    contender = stage.start("keyed_updates:Updates", backend=name, address=address)
    batches = OF // KEYS + stage.pick(60, 10)
    blocks = {what: partial(contender.block, how=how, batches=batches, keys=KEYS, of=OF) for what, how in WAYS.items()}
    found = {what: values(samples, "updates_per_second") for what, samples in interleaved(blocks, stage.pick(5, 1)).items()}
    ratios = [
        ratio(f"updates/s, {kind} store : {by_hand}", found[f"{kind} store"], found[by_hand], "higher", target)
        for by_hand, target in (("bulk upsert by hand", TARGET), ("read, add, write by hand", None))
        for kind in ("transactional", "opaque")
    ]
    figures = tuple(Figure(what, statistics.median(rates), "updates/s") for what, rates in found.items())
    return Measured(tuple(ratios), figures, {"batch": f"{KEYS:,} keys of {OF:,}, one process", "database": name})


def _rows(stage: Stage) -> Measured:
    """One task, one batch after the other."""
    address = stage.start("sink_rows:Server", name="postgresql").block()["address"]
    contender = stage.start("sink_rows:Rows", address=address)
    rows, batches = stage.pick(100_000, 10_000), stage.pick(5, 2)
    blocks = {
        f"{how}, {who}": partial(contender.block, by=by, how=how, batches=batches, rows=rows)
        for how in ("insert", "upsert")
        for who, by in (("SqlSink", "sink"), ("COPY by hand", "hand"))
    }
    found = {what: values(samples, "rows_per_second") for what, samples in interleaved(blocks, stage.pick(5, 1)).items()}
    ratios = [
        ratio(f"rows/s, {how}: SqlSink : COPY by hand", found[f"{how}, SqlSink"], found[f"{how}, COPY by hand"], "higher", None)
        for how in ("insert", "upsert")
    ]
    figures = tuple(Figure(what, statistics.median(rates), "rows/s") for what, rates in found.items())
    return Measured(tuple(ratios), figures, {"batch": f"{rows:,} rows of three columns, one process", "table": "has a primary key"})


LINES = (
    *(
        Line(f"stores.{name}", f"What does exactly once cost in {shown}?", partial(_updates, name=name))
        for name, shown in (("sqlite", "SQLite"), ("postgresql", "PostgreSQL"), ("mariadb", "MariaDB"), ("redis", "Redis"))
    ),
    Line("sinks.postgresql", "And for rows of a table of the user's own, in PostgreSQL?", _rows),
)
