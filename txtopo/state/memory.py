"""Keeps znodes in this process, for tests and the simulator: one :class:`MemoryServer`, any number
of client sessions.

Has faults that a real server does not offer on request: a session that expires now, a server that
is away for exactly three requests, an acknowledgement that is lost after the write was applied.

Invariants:
- A multi is applied to a copy, which is then swapped in: no reader sees half a multi.
- An ephemeral znode belongs to exactly one live session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from txtopo import errors
from txtopo.state import base

Fault = Literal["before", "after"]
"""``"before"``: the request never arrives. ``"after"``: the request is applied, but its
acknowledgement is lost."""


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    version: int = 0
    owner: int = 0


class MemoryServer:
    """Znodes that several :class:`MemoryStateStore` share."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._nodes: dict[str, _Stored] = {"/": _Stored(b"")}
        self.running = True
        """Whether requests are answered."""
        self._sessions = 0

    def stop(self) -> None:
        """Be unreachable, like a stopped server. Sessions and znodes survive."""
        with self._changed:
            self.running = False

    def start(self) -> None:
        with self._changed:
            self.running = True
            self._changed.notify_all()

    def wait_until_running(self, timeout_s: float) -> bool:
        """Wait for :meth:`start`, at most ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.running, timeout_s)

    def new_session(self) -> int:
        """A session id that was never used."""
        with self._changed:
            self._sessions += 1
            return self._sessions

    def end_session(self, session: int) -> None:
        with self._changed:
            self._nodes = {
                path: node for path, node in self._nodes.items() if node.owner != session
            }

    def get(self, path: str) -> base.Node | None:
        node = self._nodes.get(path)
        return None if node is None else base.Node(node.data, node.version)

    def children(self, path: str) -> list[str]:
        """Children's names under ``path``, sorted."""
        return _children(self._nodes, path)

    def apply(self, operations: Sequence[base.Operation], session: int) -> None:
        """Apply all of ``operations`` or, if one is refused, none."""
        with self._changed:
            nodes = dict(self._nodes)
            for operation in operations:
                _apply(nodes, operation, session)
            self._nodes = nodes


def _children(nodes: dict[str, _Stored], path: str) -> list[str]:
    prefix = path.rstrip("/") + "/"
    return sorted(
        other[len(prefix) :]
        for other in nodes
        if other != "/" and other.startswith(prefix) and "/" not in other[len(prefix) :]
    )


def _apply(nodes: dict[str, _Stored], operation: base.Operation, session: int) -> None:
    node = nodes.get(operation.path)
    if isinstance(operation, base.Create):
        parent = nodes.get(base.parent_of(operation.path))
        if parent is None:
            raise base.StateConflictError(operation, "missing")
        if node is not None:
            raise base.StateConflictError(operation, "exists")
        if parent.owner:
            raise base.StateConflictError(operation, "ephemeral parent")
        nodes[operation.path] = _Stored(operation.data, owner=session if operation.ephemeral else 0)
        return
    if node is None:
        raise base.StateConflictError(operation, "missing")
    if operation.version not in (None, node.version):
        raise base.StateConflictError(operation, "version")
    if isinstance(operation, base.Set):
        nodes[operation.path] = _Stored(operation.data, node.version + 1, node.owner)
    elif isinstance(operation, base.Delete):
        if _children(nodes, operation.path):
            raise base.StateConflictError(operation, "not empty")
        del nodes[operation.path]


class MemoryStateStore(base.StateStore):
    """One client session with ``server``, by default a new :class:`MemoryServer`.

    ``fault``, when set, is called with every multi and may lose the request or its acknowledgement.
    """

    address = "memory"

    def __init__(self, server: MemoryServer | None = None) -> None:
        self.server = server or MemoryServer()
        self.fault: Callable[[Sequence[base.Operation]], Fault | None] | None = None
        self._session = self.server.new_session()
        self._closed = False

    @property
    def session(self) -> int:
        return self._session if self.server.running and not self._closed else 0

    def expire_session(self) -> None:
        """End the session, as a server does after a long silence. The client gets a new session."""
        self.server.end_session(self._session)
        self._session = self.server.new_session()

    def get(self, path: str) -> base.Node | None:
        self._request()
        return self.server.get(base.check_path(path))

    def children(self, path: str) -> list[str]:
        self._request()
        return self.server.children(base.check_path(path))

    def multi(self, operations: Sequence[base.Operation]) -> None:
        for operation in operations:
            base.check_path(operation.path)
        self._request()
        fault = self.fault(operations) if self.fault is not None else None
        if fault == "before":
            raise base.StateUnavailableError("memory: the request was lost, as a test asked")
        self.server.apply(operations, self._session)
        if fault == "after":
            raise base.StateUnavailableError(
                "memory: the acknowledgement was lost, as a test asked"
            )

    def wait_until_connected(self, timeout_s: float) -> bool:
        return self.server.wait_until_running(timeout_s)

    def close(self) -> None:
        self._closed = True
        self.server.end_session(self._session)

    def _request(self) -> None:
        if self._closed:
            raise errors.ZooKeeperUnavailableError(
                "this session with the memory store is closed\n  Open another."
            )
        if not self.server.running:
            raise base.StateUnavailableError("memory: the server is stopped")
