"""Export queues, in one process without Spark: entries are added beside a store's updates, and
exported to a table in PostgreSQL; and the same updates and upserts by hand."""

from __future__ import annotations

import collections
import contextlib
import sqlite3
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from bench import backends, spouts, topologies
from bench.contenders import bare_loop
from bench.contenders.txtopo_runs import Runs
from bench.line import WrongResultError, check
from bench.process import Sample
from txtopo import Config, TransactionAttempt
from txtopo.engine.observer import EndedAttempt, Observer
from txtopo.exports import Exporter, ExportQueue, PostgresExporter, SequencedExport
from txtopo.exports.exporting import Exporting
from txtopo.stores import SqliteStore, VisibleTxid

KEYS = 1_000
AMOUNTS = 100
"""Keys grow by different amounts, so that stores have different values to write."""
OWN = "txtopo_sequence bigint NOT NULL, txtopo_generation text NOT NULL, txtopo_deleted boolean NOT NULL"
UPSERT = (
    "INSERT INTO {table} VALUES (%s, %s, %s, 'g', false) ON CONFLICT (key) DO UPDATE SET value = excluded.value,"
    " txtopo_sequence = excluded.txtopo_sequence WHERE {table}.txtopo_sequence < excluded.txtopo_sequence"
)


class Adds:
    """A store's updates, with an entry for each or without."""

    def __init__(self, directory: str, backend: str, address: str = "") -> None:
        self._directory, self._address, self._blocks = Path(directory), address, 0
        self._backend = backends.BACKENDS[backend]

    def block(self, with_entries: bool, batches: int) -> Sample:
        """Seconds per transaction of :data:`KEYS` updates. The first two are not timed."""
        self._blocks += 1
        address = self._address or str(self._directory / f"{self._blocks}.db")
        store = self._backend.store(address, f"adds_{self._blocks}", False)
        queue = ExportQueue("bench", store, max_entries=10**9)
        resources: dict[str, Any] = {}
        began = 0.0
        try:
            for number in range(batches + 2):
                if number == 2:
                    began = time.perf_counter()
                _commit(store, queue if with_entries else None, number + 1, resources)
            seconds = time.perf_counter() - began
        finally:
            for resource in resources.values():
                resource.close()
        right = {(batches + 2) * amount for amount in range(1, AMOUNTS + 1)}
        if set(dict(store.items()).values()) != right:
            raise WrongResultError(f"{self._backend.name}: not what a plain loop counts")
        return {"seconds": seconds, "seconds_per_transaction": seconds / batches}

    def close(self) -> None:
        """Nothing is left open."""


class Counted(Exporter):
    """Counts entries, without a target."""

    def __init__(self) -> None:
        self.entries = 0

    def export(self, entries: Iterator[SequencedExport]) -> None:
        self.entries += sum(1 for _ in entries)


class Exports:
    """A queue in a SQLite file, exported to PostgreSQL; and upserts by hand."""

    def __init__(self, directory: str, address: str) -> None:
        self._directory, self._address, self._blocks = Path(directory), address, 0

    def block(self, how: str, transactions: int, keys: int) -> Sample:
        """Entries per second, and seconds per transaction: ``how`` is export (all at the end), hand
        (an executemany and a commit each), or waiting (a part of all that wait, to no target)."""
        self._blocks += 1
        table = f"target_{self._blocks}"
        if how == "waiting":
            seconds, entries = self._part(table, transactions, keys)
            return {"seconds": seconds, "seconds_per_entry": seconds / entries}
        with psycopg.connect(_libpq(self._address), autocommit=True) as link:
            link.execute(f"CREATE TABLE {table} (key text PRIMARY KEY, value bigint, {OWN})")
            run = self._by_hand if how == "hand" else self._by_queue
            seconds = run(table, transactions, keys)
            rows = link.execute(f"SELECT count(*), min(value) FROM {table}").fetchall()
            if rows != [(keys, transactions)]:
                raise WrongResultError(f"{how}: the target has {rows}")
            link.execute(f"DROP TABLE {table}")
        return {
            "seconds": seconds,
            "entries_per_second": keys * transactions / seconds,
            "seconds_per_transaction": seconds / transactions,
        }

    def _by_hand(self, table: str, transactions: int, keys: int) -> float:
        with psycopg.connect(_libpq(self._address)) as writer:
            began = time.perf_counter()
            for txid in range(1, transactions + 1):
                with writer.cursor() as cursor:
                    cursor.executemany(
                        UPSERT.format(table=table), [(key, txid, txid) for key in _keys(keys)]
                    )
                writer.commit()
            return time.perf_counter() - began

    def _by_queue(self, table: str, transactions: int, keys: int) -> float:
        exporter = PostgresExporter(self._address, table, "key", ["value"])
        with self._queue(table, exporter) as (commit, exporting):
            exporting.step()  # connects, and takes the buckets once there are entries
            for txid in range(1, transactions + 1):
                commit(txid, keys)
            began = time.perf_counter()
            while exporting.step():
                pass
            return time.perf_counter() - began

    def _part(self, table: str, transactions: int, keys: int) -> tuple[float, int]:
        exporter = Counted()
        with self._queue(table, exporter) as (commit, exporting):
            for txid in range(1, transactions + 1):
                commit(txid, keys)
            with contextlib.closing(sqlite3.connect(self._directory / f"{table}.db")) as file:
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # of the commits before
            began = time.perf_counter()
            while exporter.entries < min(25_000, keys * transactions):
                exporting.step()
            return time.perf_counter() - began, exporter.entries

    @contextlib.contextmanager
    def _queue(self, name: str, exporter: Exporter) -> Iterator[tuple[Any, Exporting]]:
        store = SqliteStore(self._directory / f"{name}.db", "counts")
        queue = ExportQueue("bench", store, max_entries=10**9)
        resources: dict[str, Any] = {}
        committed = 0

        def commit(txid: int, keys: int) -> None:
            nonlocal committed
            _commit(store, queue, txid, resources, keys)
            committed = txid

        exporting = Exporting(queue, exporter, lambda: _visible(committed))
        try:
            yield commit, exporting
        finally:
            exporting.close()
            for resource in resources.values():
                resource.close()

    def close(self) -> None:
        """Nothing is left open."""


class AtRest(Runs):
    """A run that has one transaction at a time, and exports its entries beside it."""

    def __init__(self, directory: str, address: str) -> None:
        super().__init__(directory)
        self._address = address

    def block(self, transactions: int, keys: int) -> Sample:
        """Seconds from a transaction's record to the target's commit. The first three do not
        count."""
        id, store = self.fresh()
        gate, table, timed = self.directory / f"{id}.gate", id.replace("-", "_"), _Timed()
        spouts.allow(gate, 0)
        queue = ExportQueue("bench", store)
        exporter = _TimedExporter(self._address, table, keys)
        with psycopg.connect(_libpq(self._address), autocommit=True) as link:
            link.execute(f"CREATE TABLE {table} (key bigint PRIMARY KEY, value bigint, {OWN})")
            spout = spouts.RateSpout(keys, 3 + transactions, different=keys, gate=str(gate))
            conf = Config(max_transactions=3 + transactions, poll_interval_s=0.01)
            run = self.cluster.submit_topology(id, conf, topologies.queued(id, spout, store, queue))
            run._observers.append(timed)
            export = run.export(queue, exporter)
            for txid in range(1, 4 + transactions):
                spouts.allow(gate, txid)
                exporter.wait(txid)
            run.join()
            export.wait_until_empty()
            rows = link.execute(f"SELECT count(*), min(value) FROM {table}").fetchall()
            check(rows, [(keys, 3 + transactions)])
            link.execute(f"DROP TABLE {table}")
        times = [told - timed.recorded[txid] for txid, told in exporter.told.items() if txid > 3]
        check(len(times), transactions)
        return {"seconds": sum(times), "seconds_per_transaction": statistics.mean(times)}


class _Timed(Observer):
    """When each transaction was recorded."""

    def __init__(self) -> None:
        self.recorded: dict[int, float] = {}

    def committed(self, ended: EndedAttempt) -> None:
        self.recorded[ended.attempt.txid] = time.perf_counter()


class _TimedExporter(PostgresExporter):
    """Notes when the last of a transaction's ``keys`` entries is committed."""

    def __init__(self, address: str, table: str, keys: int) -> None:
        super().__init__(address, table, "key", ["value"])
        self.told: dict[int, float] = {}
        self._counted = collections.Counter[int]()
        self._keys, self._changed = keys, threading.Condition()

    def export(self, entries: Iterator[SequencedExport]) -> None:
        batch = list(entries)
        super().export(iter(batch))
        now = time.perf_counter()
        with self._changed:
            for entry in batch:
                self._counted[entry.txid] += 1
                if self._counted[entry.txid] == self._keys:
                    self.told[entry.txid] = now
            self._changed.notify_all()

    def wait(self, txid: int) -> None:
        """Wait until transaction ``txid`` is told. Reads neither store nor ZooKeeper, so that the
        waiting program does not slow the exporter down."""
        with self._changed:
            if not self._changed.wait_for(lambda: txid in self.told, 60.0):
                raise TimeoutError(f"transaction {txid} was not told")


def _keys(keys: int) -> list[str]:
    return [f"key {number}" for number in range(keys)]


def _commit(
    store: Any, queue: ExportQueue | None, txid: int, resources: dict[str, Any], keys: int = KEYS
) -> None:
    context = bare_loop.context("committer", "commit", resources)
    with store.transaction(context, TransactionAttempt(txid, 0)) as transaction:
        changes = {key: 1 + number % AMOUNTS for number, key in enumerate(_keys(keys))}
        updates = transaction.update_many(changes, _added)
        if queue is not None:
            for key, update in updates.items():
                queue.add(transaction, key, update.curr)


def _added(old: int | None, more: int) -> int:
    return (old or 0) + more


def _visible(txid: int) -> VisibleTxid:
    context = bare_loop.context("committer", "commit", {})
    attempts = {"committer/counts": TransactionAttempt(txid, 0)} if txid else {}
    return VisibleTxid(txid, context.topology_id, context.generation, attempts)


def _libpq(address: str) -> str:
    return address.replace("postgresql+psycopg://", "postgresql://")
