"""A schedule's store: every store's rules, in memory, on a database that fails when the schedule
says so. Sinks' ledgers lie on such stores, too."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

from txtopo import errors
from txtopo.stores import base, sessions, stamps
from txtopo.testing import stores
from txtopo.testing.simulator import current


class SimulatedStore(stores.MemoryStore):
    """Stands for a user's store. The schedule may make a transaction fail before it began, or after
    it committed."""

    local_only_reason: str | None = None

    def __init__(self, original: base.Store, database: str) -> None:
        super().__init__(
            original.name,
            database,
            opaque=original.opaque,
            plain=original.plain,
            codec=original.codec,
        )
        self.address = original.address
        for name, value in vars(original).items():
            self.__dict__.setdefault(name, value)

    def _note_read(self) -> None:
        if (world := current.world_or_none()) is not None:
            world.store_reads += 1

    def read_row(self, text: str) -> stamps.Row | None:
        self._note_read()
        return super().read_row(text)

    def read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        self._note_read()
        return super().read_from(text)

    @contextlib.contextmanager
    def open_session(self, resources: base.Resources) -> Iterator[sessions.Session]:
        world = current.world_or_none()
        how = None if world is None else world.store_transaction(self.address)
        if how == "before it began":
            raise errors.FailedException(
                f"the store {self.address} is busy, as the simulator asked"
            )
        with super().open_session(resources) as session:
            yield session
        if how == "after it committed":
            raise errors.FailedException(
                f"the answer of the store {self.address} is lost, as the simulator asked"
            )
