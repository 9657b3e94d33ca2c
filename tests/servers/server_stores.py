"""Stores in a database server of any kind: fixtures (``workers``, ``server_store``) and the
commands that a store sends to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.processes.workers import Worker
from tests.servers.databases import Database
from txtopo.stores import SqlStore, StoreTransaction

BOUND_S = 60


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Three worker processes."""
    workers = [Worker() for _ in range(3)]
    yield workers
    for worker in workers:
        worker.process.close()


@pytest.fixture
def server_store(database: Database) -> SqlStore:
    """The store ``counts`` in a new database of each kind of server in turn."""
    return SqlStore(database.url, "counts", lock_timeout_s=BOUND_S)


def connection_of(opened: StoreTransaction) -> Any:
    """The connection that ``opened`` works on, to ask the server about it."""
    session: Any = opened._session
    return session._raw


def commands(store: SqlStore, worker: Worker, action: Callable[[], Any]) -> list[str]:
    """The first word of each statement that ``action`` runs over the connection of ``worker``."""
    raw = store._connection(worker.process.resource)._raw
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement.split()[0])

    sa.event.listen(raw, "before_cursor_execute", note)
    try:
        action()
    finally:
        sa.event.remove(raw, "before_cursor_execute", note)
    return seen
