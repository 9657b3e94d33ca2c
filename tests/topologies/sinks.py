"""Sinks for tests: a table ``sales`` in a SQLite file or on a PostgreSQL or MariaDB server, and
sinks of every kind that write to it."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.servers import mariadb, postgres
from txtopo.connectors.sql import SqlSink
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.context import TopologyContext
from txtopo.topology.transaction import TransactionAttempt

BACKENDS = ("mariadb", "postgresql", "sqlite")

UPSERT = "INSERT INTO sales(id, cents) VALUES (:id, :cents) ON CONFLICT (id) DO UPDATE SET cents = sales.cents + excluded.cents"
UPSERT_MARIADB = "INSERT INTO sales(id, cents) VALUES (:id, :cents) ON DUPLICATE KEY UPDATE cents = sales.cents + VALUES(cents)"
KINDS: dict[str, dict[str, Any]] = {
    "inserts": {},
    "upserts": {"key": ["id"]},
    "a statement": {"table": None, "columns": None, "statement": UPSERT},
    "marks": {"mark": "written_by", "opaque": True},
    "undo log": {"key": ["id"], "opaque": True},
}
"""Arguments of the sink, by its kind."""
OPAQUE = ("marks", "undo log")
TRANSACTIONAL = tuple(kind for kind in KINDS if kind not in OPAQUE)
UNDOING = ("postgresql", "sqlite")
"""Databases that make a table inside a transaction, so that there can be an undo log."""

SALES = "CREATE TABLE sales (id INTEGER NOT NULL PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0), written_by TEXT)"
LOOSE = "CREATE TABLE sales (id INTEGER, cents INTEGER, written_by TEXT)"
"""A table without a key, to show double writes."""


class Shop:
    """A database with a table ``sales``, made with ``layout``."""

    def __init__(self, address: str, layout: str | None = SALES) -> None:
        self.address = address
        if layout is not None:
            self.execute(layout)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement of SQLite's dialect, in a transaction of its own."""
        if "://" not in self.address:
            with contextlib.closing(sqlite3.connect(self.address)) as file, file:
                return file.execute(statement, values).fetchall()
        if self.address.startswith("mysql"):
            return self._execute_in_mariadb(statement, values)
        import psycopg

        with psycopg.connect(self.address.replace("+psycopg", ""), autocommit=True) as connection:
            cursor = connection.execute(statement.replace("?", "%s").encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def _execute_in_mariadb(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        import pymysql
        import sqlalchemy as sa

        url = sa.make_url(self.address)
        settings = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES'), default_storage_engine = InnoDB"
        place = {
            "host": url.host,
            "port": url.port,
            "user": url.username,
            "database": url.database,
            "ssl_disabled": True,
        }
        raw = pymysql.connect(**place, autocommit=True, init_command=settings)
        with contextlib.closing(raw), raw.cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), values or None)
            return list(cursor.fetchall())

    def empty(self) -> None:
        """Remove every table, of any maker."""
        select = (
            "SELECT table_name FROM information_schema.tables WHERE table_schema = CURRENT_SCHEMA()"
        )
        if "://" not in self.address:
            select = (
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            )
        elif self.address.startswith("mysql"):
            select = select.replace("CURRENT_SCHEMA", "DATABASE")
        for (table,) in self.execute(select):
            self.execute(f'DROP TABLE "{table}"')

    @property
    def sales(self) -> list[tuple[int, int]]:
        """``(id, cents)`` of every row, sorted."""
        return sorted(self.execute("SELECT id, cents FROM sales"))

    def sink(self, kind: str = "inserts", **changed: Any) -> SqlSink:
        """A sink of this kind."""
        form = {"table": "sales", "columns": ["id", "cents"], **KINDS[kind], **changed}
        if self.address.startswith("mysql") and form.get("statement") == UPSERT:
            form["statement"] = UPSERT_MARIADB
        return SqlSink(self.address, **form)


def cases(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Every database with each of ``kinds`` that there is in it."""
    return [
        (backend, kind)
        for backend in BACKENDS
        for kind in kinds
        if kind != "undo log" or backend in UNDOING
    ]


def shop(backend: str, directory: Path, layout: str | None = SALES) -> Shop:
    """An empty shop; each directory has a shop of its own."""
    if backend == "sqlite":
        return Shop(str(directory / "shop.db"), layout)
    schema = f"sink_{hashlib.blake2b(str(directory).encode(), digest_size=8).hexdigest()}"
    if backend == "mariadb":
        # Many connections are made to this server, and the driver takes long to make each ready for
        # TLS, which the server does not have.
        return Shop(mariadb.running_server().url(schema, options="ssl_disabled=1"), layout)
    return Shop(postgres.running_server().schema_url(schema), layout)


def write(
    sink: SqlSink,
    context: TopologyContext,
    txid: int,
    attempt: int,
    rows: Iterable[tuple[Any, Any]] = (),
) -> bool:
    """A task of an attempt writes ``rows``; False if they were stored before."""
    return sink.ledger.apply(
        context, TransactionAttempt(txid, attempt), ("id", "cents"), list(rows)
    )


__all__ = [
    "BACKENDS",
    "KINDS",
    "LOOSE",
    "OPAQUE",
    "SALES",
    "TRANSACTIONAL",
    "UNDOING",
    "UPSERT",
    "Shop",
    "WorkerProcess",
    "cases",
    "shop",
    "write",
]
