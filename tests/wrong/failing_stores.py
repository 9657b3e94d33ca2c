"""Stores that fail as a database does, where a test says so, and a committer that takes no notice."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from txtopo import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    FailedException,
    ICommitter,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    Tuple,
)
from txtopo.stores import SqliteStore, StoreConflict, base, sessions
from txtopo.testing import MemoryStore

Place = Literal["opening", "reading", "writing", "committing"]
PLACES: tuple[Place, ...] = ("opening", "reading", "writing", "committing")


_METHODS: dict[Place, tuple[str, ...]] = {
    "reading": ("read_rows", "read_rows_to_write", "read_rows_to_change"),
    "writing": ("write_rows",),
}
"""Of a session."""


class Failing(base.Store):
    """Fails in ``place`` once for each of ``markers``, which are files: also when another process
    gets there."""

    place: Place
    markers: list[Path]
    error: type[Exception] = FailedException

    def told_to(
        self, place: Place, *markers: Path, error: type[Exception] = FailedException
    ) -> Any:
        """This store, failing there."""
        self.place, self.markers, self.error = place, list(markers), error
        return self

    def fail(self, place: Place) -> None:
        """Fail if this is the place, and the time."""
        if place != self.place:
            return
        for marker in self.markers:
            with contextlib.suppress(FileExistsError):
                marker.touch(exist_ok=False)
                raise (
                    StoreConflict(self.address, "key", "a/0", "b/0", 1)
                    if self.error is StoreConflict
                    else self.error(f"no luck in {place}")
                )

    @contextlib.contextmanager
    def failing(
        self, opening: contextlib.AbstractContextManager[sessions.Session]
    ) -> Iterator[sessions.Session]:
        """The session that ``opening`` opens, failing where this store was told to."""
        self.fail("opening")
        with opening as session:
            for place, names in _METHODS.items():
                for name in names:
                    setattr(
                        session,
                        name,
                        functools.partial(self._failing, place, getattr(session, name)),
                    )
            yield session
            self.fail("committing")

    def _failing(self, place: Place, method: Callable[..., Any], *arguments: Any) -> Any:
        self.fail(place)
        return method(*arguments)


class FailingSqliteStore(Failing, SqliteStore):
    """In a file."""

    @contextlib.contextmanager
    def open_session(self, resources: base.Resources) -> Iterator[sessions.Session]:
        with self.failing(SqliteStore.open_session(self, resources)) as session:
            yield session


class FailingMemoryStore(Failing, MemoryStore):
    """In memory."""

    @contextlib.contextmanager
    def open_session(self, resources: base.Resources) -> Iterator[sessions.Session]:
        with self.failing(MemoryStore.open_session(self, resources)) as session:
            yield session


class Swallowing(BaseTransactionalBolt, ICommitter):
    """Adds up numbers in ``store``; a failure of the store is replaced by an error of its own, or
    dropped, or both."""

    def __init__(self, store: base.Store, replaces: bool = False, swallows: bool = True) -> None:
        self.store, self.replaces, self.swallows = store, replaces, swallows

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt, self.sum = context, attempt, 0

    def execute(self, tup: Tuple) -> None:
        self.sum += tup[1]

    def finish_batch(self) -> None:
        with (
            contextlib.suppress(*[Exception] * self.swallows),
            self.store.transaction(self.context, self.attempt) as transaction,
        ):
            try:
                transaction.update("sum", lambda old: (old or 0) + self.sum)
            except Exception as error:
                if self.replaces:
                    raise ValueError("of my own") from error
                raise
