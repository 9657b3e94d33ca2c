"""Database servers for tests of the promises of stores, over any kind of server.

In a test ask for the fixture ``database`` (a new, empty database of each kind in turn, gone when
the test ends)::

    def test_something(database: Database) -> None:
        store = SqlStore(database.url, "counts")
        database.server.kill()

Apart from the kinds: each kind has a module of its own with its particulars.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from tests.patience import wait_until
from tests.servers import owned


class DatabaseServer(owned.Server):
    """A server of databases, in which a test can have one of its own."""

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__()
        self._settings = settings
        self._databases: set[str] = set()
        self._numbers = itertools.count(1)

    @abc.abstractmethod
    def url(self, database: str, user: str = "", options: str = "") -> str:
        """The address of ``database``, which is made if this server does not have it yet;
        ``options`` is what follows the ``?``."""

    @abc.abstractmethod
    def drop(self, database: str) -> None:
        """Remove ``database`` and end its sessions."""

    @abc.abstractmethod
    def execute(
        self, statement: str, parameters: Sequence[Any] | None = None, *, database: str = ""
    ) -> list[tuple[Any, ...]]:
        """Run one statement outside of a transaction; returns its rows, if any."""

    @abc.abstractmethod
    def backends(self, database: str) -> list[int]:
        """The server's numbers of the connections of clients of ``database``, but for the one that
        tells."""

    def disconnect(self, database: str) -> int:
        """End every session of ``database`` from the server's side, and see them gone; returns how
        many."""
        ended = self.backends(database)
        for number in ended:
            self._end_session(number)
        self.wait_until(lambda: not set(ended) & set(self.backends(database)))
        return len(ended)

    @abc.abstractmethod
    def _end_session(self, number: int) -> None:
        """Have the server end the session ``number``, which may have ended by itself."""

    @abc.abstractmethod
    def waiting_for_locks(self, database: str) -> int:
        """The number of sessions of ``database`` that wait for a lock of another session."""

    def new_database(self) -> str:
        """The name of a new, empty database."""
        name = f"fresh{next(self._numbers)}"
        self.url(name)
        return name

    def new_url(self) -> str:
        """The address of a new, empty database."""
        return self.url(self.new_database())


@dataclasses.dataclass(frozen=True)
class Database:
    """One database of one server."""

    server: DatabaseServer
    name: str

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url(self.name)

    def execute(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement in it."""
        return self.server.execute(statement, parameters, database=self.name)

    def backends(self) -> list[int]:
        """The server's numbers of the connections of its clients."""
        return self.server.backends(self.name)

    def wait_for_waiting(self, count: int = 1) -> None:
        """Wait until so many of its sessions wait for a lock."""
        wait_until(
            lambda: self.server.waiting_for_locks(self.name) >= count,
            f"{count} sessions that wait for a lock",
        )
