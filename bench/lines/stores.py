"""Costs of a store: keyed updates by a store, against the same database and updates by hand; and
a sink, against COPY by hand."""

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
WAYS = {
    "transactional store": "merge transactional",
    "opaque store": "merge opaque",
    "transactional store, any function": "update transactional",
    "opaque store, any function": "update opaque",
    "bulk upsert by hand": "add",
    "read, add, write by hand": "update",
}
SERVERS = ("postgresql", "mariadb", "redis")


def _updates(stage: Stage, name: str) -> Measured:
    """One task, batches of ``KEYS`` keys in turn; all keys are stored before the clock starts, and
    have been changed before."""
    backend = backends.BACKENDS[name]
    address = "" if backend.server is None else _server(stage, backend.server)
    contender = stage.start("keyed_updates:Updates", backend=name, address=address)
    batches = 2 * OF // KEYS + stage.pick(60, 10)
    blocks = {
        contestant: partial(contender.block, how=how, batches=batches, keys=KEYS, of=OF)
        for contestant, how in WAYS.items()
    }
    rates_of = {
        contestant: values(samples, "updates_per_second")
        for contestant, samples in interleaved(blocks, stage.pick(5, 1)).items()
    }
    pairs = [
        ("transactional store", "bulk upsert by hand", TARGET),
        ("opaque store", "bulk upsert by hand", TARGET),
        ("transactional store, any function", "bulk upsert by hand", None),
        ("transactional store, any function", "read, add, write by hand", None),
        ("opaque store, any function", "read, add, write by hand", None),
    ]
    ratios = [
        ratio(f"updates/s, {ours} : {theirs}", rates_of[ours], rates_of[theirs], "higher", target)
        for ours, theirs, target in pairs
    ]
    figures = tuple(
        Figure(contestant, statistics.median(rates), "updates/s")
        for contestant, rates in rates_of.items()
    )
    return Measured(
        tuple(ratios), figures, {"batch": f"{KEYS:,} keys of {OF:,}, one process", "database": name}
    )


def _round_trips(stage: Stage) -> Measured:
    """Figures that must not grow with the number of keys, nor with the number of transactions."""
    ratios, figures = [], []
    for name in SERVERS:
        contender = stage.start(
            "keyed_updates:RoundTrips", backend=name, address=_server(stage, name)
        )
        for call, shown in (("merge", "sums"), ("update", "any function")):
            for kind in ("transactional", "opaque"):
                one, many = (
                    [contender.block(call=call, kind=kind, keys=keys, transactions=10)]
                    for keys in (1, KEYS)
                )
                described = f"{name}, {kind}, {shown}"
                trips = values(many, "round_trips"), values(one, "round_trips")
                ratios.append(
                    ratio(
                        f"round trips per transaction, {KEYS:,} keys : 1 key; {described}",
                        *trips,
                        "lower",
                        1.0,
                    )
                )
                figures.append(Figure(f"round trips per transaction, {described}", trips[0][0], ""))
        few, more = (
            [contender.block(call="merge", kind="opaque", keys=KEYS, transactions=count)]
            for count in (2, 50)
        )
        connections = values(more, "connections"), values(few, "connections")
        ratios.append(
            ratio(
                f"connections, after 50 transactions : after 2; {name}", *connections, "lower", 1.0
            )
        )
        figures.append(Figure(f"connections of a worker, {name}", connections[0][0], ""))
    settings = {
        "counted": "between the store and its server, on the wire",
        "task": "the only one of its component",
    }
    return Measured(tuple(ratios), tuple(figures), settings)


def _server(stage: Stage, name: str) -> str:
    return str(stage.start("keyed_updates:Server", name=name).block()["address"])


def _rows(stage: Stage) -> Measured:
    """One task writes batch after batch."""
    address = _server(stage, "postgresql")
    contender = stage.start("sink_rows:Rows", address=address)
    rows, batches = stage.pick(100_000, 10_000), stage.pick(5, 2)
    blocks = {
        f"{how}, {who}": partial(contender.block, by=by, how=how, batches=batches, rows=rows)
        for how in ("insert", "upsert")
        for who, by in (("SqlSink", "sink"), ("COPY by hand", "hand"))
    }
    rates_of = {
        contestant: values(samples, "rows_per_second")
        for contestant, samples in interleaved(blocks, stage.pick(5, 1)).items()
    }
    ratios = [
        ratio(
            f"rows/s, {how}: SqlSink : COPY by hand",
            rates_of[f"{how}, SqlSink"],
            rates_of[f"{how}, COPY by hand"],
            "higher",
            None,
        )
        for how in ("insert", "upsert")
    ]
    figures = tuple(
        Figure(contestant, statistics.median(rates), "rows/s")
        for contestant, rates in rates_of.items()
    )
    return Measured(
        tuple(ratios),
        figures,
        {"batch": f"{rows:,} rows of three columns, one process", "table": "has a primary key"},
    )


LINES = (
    *(
        Line(
            f"stores.{name}",
            f"What does exactly once cost in {shown}?",
            partial(_updates, name=name),
        )
        for name, shown in (
            ("sqlite", "SQLite"),
            ("postgresql", "PostgreSQL"),
            ("mariadb", "MariaDB"),
            ("redis", "Redis"),
        )
    ),
    Line(
        "stores.round-trips", "Does a store ask its server more often for more keys?", _round_trips
    ),
    Line("sinks.postgresql", "And for rows of a table of the user's own, in PostgreSQL?", _rows),
)
