"""Rows into a table of PostgreSQL, batch by batch, in one process without Spark: by a sink, as its
task writes them, and by hand with COPY.

By hand there is no mark of a written batch: a second run writes the batch twice. Where rows replace
others, a COPY into a temporary table comes first, as in the sink. Every block begins with an empty
table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bench.contenders import bare_loop
from bench.contenders.keyed_updates import Server
from bench.line import WrongResultError
from bench.process import Sample
from txtopo import Fields, TopologyConf, TransactionAttempt, Tuple
from txtopo.connectors.sql import SqlSink
from txtopo.topology.stream import TupleSource

__all__ = ["Rows", "Server"]

COLUMNS = ("id", "name", "cents")
_COPY = "COPY {} (id, name, cents) FROM STDIN"
_UPSERT = "INSERT INTO sales SELECT * FROM given ON CONFLICT (id) DO UPDATE SET name = excluded.name, cents = excluded.cents"


class Rows:
    """Either way, into one table."""

    def __init__(self, directory: str, address: str) -> None:
        self._address, self._made = address, 0

    def block(self, by: str, how: str, batches: int, rows: int) -> Sample:
        """Rows per second; ``by`` sink or hand, ``how`` insert or upsert. A first batch, which
        makes tables and connections on first use, is not timed."""
        import psycopg

        self._made += 1
        prepared = [
            [(number * rows + i, f"name-{i:07d}", i % 1000) for i in range(rows)]
            for number in range(batches + 1)
        ]
        with psycopg.connect(
            self._address.replace("postgresql+psycopg://", "postgresql://")
        ) as connection:
            connection.execute("DROP TABLE IF EXISTS sales")
            connection.execute(
                "CREATE TABLE sales (id bigint PRIMARY KEY, name text, cents integer)"
            )
            connection.commit()
            writing = (
                self._by_sink(prepared, how)
                if by == "sink"
                else _by_hand(connection, prepared, how)
            )
            next(writing)
            began = time.perf_counter()
            for _ in writing:
                pass
            seconds = time.perf_counter() - began
            totals: Any = connection.execute("SELECT count(*), sum(cents) FROM sales").fetchone()
        truth = (rows * (batches + 1), sum(cents for batch in prepared for _, _, cents in batch))
        if tuple(map(int, totals)) != truth:
            raise WrongResultError(f"{by}, {how}: {totals} instead of {truth}")
        return {"seconds": seconds, "rows_per_second": rows * batches / seconds}

    def _by_sink(self, prepared: list[list[tuple[Any, ...]]], how: str) -> Iterator[None]:
        sink = SqlSink(self._address, "sales", COLUMNS, key=("id",) if how == "upsert" else ())
        source, conf = TupleSource("sales", 0, "default", Fields("tx", *COLUMNS)), TopologyConf({})
        resources: dict[str, Any] = {}
        try:
            for txid, batch in enumerate(prepared, 1):
                attempt = TransactionAttempt(txid, 0)
                # A component of its own, so that the marks of an earlier block do not count for
                # this block.
                context = bare_loop.context(f"write-{self._made}", "commit", resources)
                sink.prepare(conf, context, bare_loop.Collected(), attempt)
                for row in batch:
                    sink.execute(Tuple((attempt, *row), source))
                sink.finish_batch()
                yield
        finally:
            for resource in resources.values():
                resource.close()


def _by_hand(connection: Any, prepared: list[list[tuple[Any, ...]]], how: str) -> Iterator[None]:
    if how == "upsert":
        connection.execute("CREATE TEMPORARY TABLE given (LIKE sales) ON COMMIT DELETE ROWS")
        connection.commit()
    for batch in prepared:
        with connection.cursor() as cursor:
            with cursor.copy(_COPY.format("given" if how == "upsert" else "sales")) as copy:
                for row in batch:
                    copy.write_row(row)
            if how == "upsert":
                cursor.execute(_UPSERT)
        connection.commit()
        yield
