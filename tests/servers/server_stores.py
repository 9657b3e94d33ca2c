"""Stores in a server of any kind: fixtures (``workers``, ``server_store``, ``place``) and the
commands that a store sends to a database server."""

from __future__ import annotations

import abc
import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from tests.patience import PATIENCE_S
from tests.processes.workers import Worker
from tests.servers import mariadb, postgres, redis_server
from tests.servers.databases import Database
from tests.servers.owned import Server
from txtopo.errors import SetupError
from txtopo.stores import RedisStore, SqlStore, StoreTransaction
from txtopo.testing.contracts.worker_process import WorkerProcess
from txtopo.topology.transaction import TransactionAttempt

DATABASES = {"mariadb": mariadb.running_server, "postgresql": postgres.running_server}


class StorePlace(abc.ABC):
    """A server and an empty place for a store in it."""

    server: Server

    @abc.abstractmethod
    def store(self, opaque: bool = False) -> RedisStore | SqlStore:
        """The store in this place."""

    @abc.abstractmethod
    def connections(self) -> Sequence[object]:
        """The connections of the store's clients, each as a value that no other connection has."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """End these connections from the server's side."""


class DatabasePlace(StorePlace):
    """A database of its own."""

    def __init__(self, database: Database) -> None:
        self.server, self._database = database.server, database

    def store(self, opaque: bool = False) -> SqlStore:
        return SqlStore(self._database.url, "counts", opaque=opaque, lock_timeout_s=PATIENCE_S)

    def connections(self) -> Sequence[object]:
        return self._database.backends()

    def disconnect(self) -> None:
        self._database.server.disconnect(self._database.name)


class RedisPlace(StorePlace):
    """A name of its own in Redis."""

    def __init__(self, server: redis_server.RedisServer) -> None:
        self.server, self._redis, self._name = server, server, server.new_name()
        self._others = set(server.connections())

    def store(self, opaque: bool = False) -> RedisStore:
        return RedisStore(self._redis.url(), self._name, opaque=opaque)

    def connections(self) -> Sequence[object]:
        return [
            connection for connection in self._redis.connections() if connection not in self._others
        ]

    def disconnect(self) -> None:
        self._redis.disconnect()


@contextlib.contextmanager
def new_database(kind: str) -> Iterator[Database]:
    """A new, empty database of the shared server of ``kind``, a key of :data:`DATABASES`; the
    server may be down when the block ends."""
    server = DATABASES[kind]()
    name = server.new_database()
    yield Database(server, name)
    server.resume()
    server.start()
    server.drop(name)


@pytest.fixture(params=[*sorted(DATABASES), "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[StorePlace]:
    """An empty place in a server of each kind in turn; the server may be down when the test ends."""
    if request.param == "redis":
        yield RedisPlace(redis_server.running_server())
        redis_server.running_server()
    else:
        with new_database(request.param) as database:
            yield DatabasePlace(database)


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
    return SqlStore(database.url, "counts", lock_timeout_s=PATIENCE_S)


def refusal(store: SqlStore, may_read: bool = False) -> str:
    """The message with which ``store`` refuses its writer, and its reader unless the reader
    ``may_read``; no password is in the message."""
    process = WorkerProcess()
    with pytest.raises(SetupError) as caught, contextlib.closing(process):
        with store.transaction(process.task(), TransactionAttempt(1, 0)):
            pass
    with contextlib.nullcontext() if may_read else pytest.raises(SetupError):
        store.get("x")
    for password in (mariadb.PASSWORD, postgres.PASSWORD):
        assert (
            password
            not in str(caught.value) + repr(caught.value.__cause__) + repr(store) + store.address
        )
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error).__module__ == "txtopo.errors", "unpickling needs no driver"
    return str(error)


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
