"""Needs of the suites over every state store: a server, client sessions, and ways to harm them."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tests.patience import wait_until
from tests.servers.zookeepers import SESSION_S, end_session
from txtopo.state import base, memory, zookeeper
from txtopo.state.embedded import EmbeddedZooKeeper


class Backend(abc.ABC):
    """An empty store of znodes and the sessions with it."""

    def __init__(self) -> None:
        self.sessions: list[base.StateStore] = []

    def connect(self) -> base.StateStore:
        """A new session, closed with the test."""
        session = self._connect()
        self.sessions.append(session)
        return session

    @abc.abstractmethod
    def _connect(self) -> base.StateStore: ...

    @abc.abstractmethod
    def expire(self, store: base.StateStore) -> None:
        """End the session of ``store`` as the server does after a long silence; return when
        ``store`` has a new session."""

    def close(self) -> None:
        for session in self.sessions:
            session.close()


class MemoryBackend(Backend):
    def __init__(self) -> None:
        super().__init__()
        self.server = memory.MemoryServer()

    def _connect(self) -> base.StateStore:
        return memory.MemoryStateStore(self.server)

    def expire(self, store: base.StateStore) -> None:
        assert isinstance(store, memory.MemoryStateStore)
        store.expire_session()


class ZooKeeperBackend(Backend):
    """A chroot of its own in a running server."""

    _numbers = itertools.count(1)

    def __init__(self, server: EmbeddedZooKeeper) -> None:
        super().__init__()
        self.server = server
        self.hosts = f"{server.hosts}/test{next(self._numbers)}"

    def _connect(self) -> base.StateStore:
        return zookeeper.ZooKeeperStateStore(self.hosts, session_timeout_s=SESSION_S)

    def expire(self, store: base.StateStore) -> None:
        wait_until(lambda: store.session != 0, "a session")
        expired = store.session

        def has_another() -> bool:
            # A client that is fast comes between the session and its end, and keeps the session.
            if store.session == expired:
                end_session(self.server.hosts, expired)
            return store.session not in (0, expired)

        wait_until(has_another, "another session")


class RoundTrips:
    """Counts the requests that ``session`` sends from now on, answered or not."""

    def __init__(self, session: base.StateStore) -> None:
        self.count = 0
        whole: Any = session
        request = whole._request

        def counted() -> None:
            self.count += 1
            request()

        whole._request = counted


class Unreliable(base.StateStore):
    """``inner``, whose multis a test may lose: ``fault`` is asked about each, as in
    :class:`txtopo.state.memory.MemoryStateStore`.

    ``log`` keeps every multi that reached the store.
    """

    def __init__(self, inner: base.StateStore) -> None:
        self.inner, self.address = inner, inner.address
        self._trips = RoundTrips(inner)
        self.fault: Callable[[Sequence[base.Operation]], memory.Fault | None] | None = None
        self.log: list[list[base.Operation]] = []

    def lose_next(self, fault: memory.Fault, times: int = 1) -> None:
        """Lose the next ``times`` multis."""
        left = itertools.count(times, -1)
        self.fault = lambda _: fault if next(left) > 0 else None

    @property
    def round_trips(self) -> int:
        return self._trips.count

    @property
    def session(self) -> int:
        return self.inner.session

    def get(self, path: str) -> base.Node | None:
        return self.inner.get(path)

    def children(self, path: str) -> list[str]:
        return self.inner.children(path)

    def multi(self, operations: Sequence[base.Operation]) -> None:
        fault = self.fault(operations) if self.fault is not None else None
        if fault == "before":
            raise base.StateUnavailableError("the request was lost")
        self.log.append(list(operations))
        self.inner.multi(operations)
        if fault == "after":
            raise base.StateUnavailableError("the acknowledgement was lost")

    def wait_until_connected(self, timeout_s: float) -> bool:
        return self.inner.wait_until_connected(timeout_s)

    def close(self) -> None:
        self.inner.close()
